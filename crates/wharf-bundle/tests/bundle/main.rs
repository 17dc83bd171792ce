//! Bundles of small stand-in files: the real ones differ only in size.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod archives;
mod caches;
mod directories;
mod images;
mod mirrors;
mod web;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;
use wharf_bundle::cache::{Cache, Cached};
use wharf_bundle::catalogue::{COMPONENTS, Component, this_arch};
use wharf_bundle::{Bundle, Placement};

pub const BY: &str = "test 1";

/// What the stand-in of a file holds; every program is different.
pub fn stand_in(component: &Component, version: &str, path: &str) -> String {
    match path {
        "share/busybox-commands.txt" => "[[\nbusybox\nls\nsh\n".to_owned(),
        _ => format!("{path} of {} {version}\n", component.name),
    }
}

pub fn add_component(cache: &Cache, component: &Component, version: &str) -> Cached {
    let staged = cache.stage(component.name, version, this_arch()).unwrap();
    for file in component.files {
        write(&staged.path().join(file.path), &stand_in(component, version, file.path));
    }
    staged.finish(component, version, "go1.0").unwrap()
}

/// A cache with every component of the catalogue.
pub fn full_cache(root: &Path) -> (Cache, Vec<Cached>) {
    let cache = Cache::at(root.to_owned());
    let components = COMPONENTS.iter().map(|c| add_component(&cache, c, c.version)).collect();
    (cache, components)
}

/// What a bundle holds of these components; their images are made in the cache below `root`.
pub fn parts(root: &Path, components: Vec<Cached>) -> Vec<Cached> {
    let cache = Cache::at(root.join("cache"));
    let images = components.iter().filter_map(|c| wharf_bundle::image::make(&cache, c).unwrap());
    let images = images.collect();
    wharf_bundle::image::in_place_of_programs(components, images)
}

/// A bundle of its own, below a directory that goes with the test.
pub fn new_bundle() -> (TempDir, Bundle) {
    let dir = tempfile::tempdir().unwrap();
    let (_, components) = full_cache(&dir.path().join("cache"));
    let destination = dir.path().join("bundle");
    let parts = parts(dir.path(), components);
    let bundle = wharf_bundle::build(&parts, BY, &destination, Placement::Copy).unwrap();
    (dir, bundle)
}

pub fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

pub fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Names in a directory, hidden ones too, sorted.
pub fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
