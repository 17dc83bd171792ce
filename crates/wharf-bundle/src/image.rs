//! Images of programs that run in pods, made from the components that hold the programs.
//!
//! A bundle holds such an image in place of the program: nothing would start the program by itself.
//! Images are always made here, also when the programs are release files: their names are ours, and
//! a host never asks a registry.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::cache::{Cache, Cached, ComponentRecord, describe, write_record};
use crate::catalogue::{self, Component, Image, expand};
use crate::checksum::Sha256;
use crate::manifest::Mode;
use crate::oci::{self, Node};
use crate::place::Staging;
use crate::{Error, IoContext, Result};

/// Whoever looks up users finds root and the one that runs without rights.
const USERS: &str = "root:x:0:0:root:/root:/bin/sh\n\
    nobody:x:65534:65534:nobody:/:/bin/false\n\
    nonroot:x:65532:65532:nonroot:/:/bin/false\n";
const GROUPS: &str = "root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n";

/// Longer than any name of a command.
const MAX_NAME_BYTES: usize = 64;

/// The image of this component that the cache has, if it is of these programs and undamaged.
#[must_use]
pub fn lookup(cache: &Cache, programs: &Cached) -> Option<Cached> {
    let image = image_of(&programs.record)?;
    let mut cached = Cached::open(&dir_in(cache, &programs.record)).ok()?;
    let current =
        cached.record.recipe == image.recipe && cached.record.made_of == sums(&programs.record);
    (current && cached.check().is_ok()).then_some(cached)
}

/// Makes the image of a component anew in the cache. `None`: its programs run outside of pods.
///
/// # Errors
/// No image can be made of the programs, or the disk refuses.
pub fn make(cache: &Cache, programs: &Cached) -> Result<Option<Cached>> {
    let destination = dir_in(cache, &programs.record);
    let staging = Staging::beside(&destination)?;
    let Some(made) = make_in(staging.path(), programs)? else { return Ok(None) };
    staging.commit(&destination)?;
    Ok(Some(Cached { dir: destination, ..made }))
}

/// As [`make`], in a directory of the caller's.
///
/// # Errors
/// As [`make`].
pub fn make_in(dir: &Path, programs: &Cached) -> Result<Option<Cached>> {
    let of = &programs.record;
    let (Some(image), Ok(component)) = (image_of(of), catalogue::component(&of.component)) else {
        return Ok(None);
    };
    let name = expand(image.name, &of.version, &of.arch);
    let description = oci::Image {
        name: &name,
        arch: &of.arch,
        entrypoint: image.entrypoint,
        command: image.command,
        user: image.user,
        tree: tree(component, image, &programs.dir)?,
    };
    oci::write(&description, &dir.join(image.path))?;
    let record = ComponentRecord {
        recipe: image.recipe,
        files: describe(dir, &[(image.path, Mode::DATA, Some(name))])?,
        made_of: sums(of),
        ..of.clone()
    };
    write_record(dir, &record)?;
    Ok(Some(Cached { dir: dir.to_owned(), record }))
}

/// What a bundle holds: these components, but images in place of those that have one.
#[must_use]
pub fn in_place_of_programs(components: Vec<Cached>, images: Vec<Cached>) -> Vec<Cached> {
    let runs_on_the_host = |component: &Cached| image_of(&component.record).is_none();
    components.into_iter().filter(runs_on_the_host).chain(images).collect()
}

fn image_of(programs: &ComponentRecord) -> Option<&'static Image> {
    catalogue::component(&programs.component).ok()?.image.as_ref()
}

fn dir_in(cache: &Cache, of: &ComponentRecord) -> std::path::PathBuf {
    cache.images().join(format!("{}-{}-{}", of.component, of.version, of.arch))
}

fn sums(programs: &ComponentRecord) -> Vec<Sha256> {
    programs.files.iter().map(|file| file.sha256).collect()
}

/// The file system of the image: the program, its further names, and what every program expects.
fn tree(component: &Component, image: &Image, programs: &Path) -> Result<BTreeMap<String, Node>> {
    let directory = |mode| Node::Directory { mode };
    let mut tree = BTreeMap::from([
        ("etc".to_owned(), directory(0o755)),
        ("etc/passwd".to_owned(), Node::Text { content: USERS.to_owned() }),
        ("etc/group".to_owned(), Node::Text { content: GROUPS.to_owned() }),
        ("tmp".to_owned(), directory(0o1777)),
    ]);
    let (folder, program) = image.program.rsplit_once('/').unwrap_or(("", image.program));
    if !folder.is_empty() {
        tree.insert(folder.to_owned(), directory(0o755));
    }
    if let Some(file) = component.files.first() {
        tree.insert(image.program.to_owned(), Node::Program { from: programs.join(file.path) });
    }
    if let Some(names) = image.further_names {
        let path = programs.join(names);
        let list = fs::read_to_string(&path).at("read", &path)?;
        for name in list.lines().filter(|name| *name != program) {
            check_name(name, &path)?;
            tree.insert(format!("{folder}/{name}"), Node::Link { target: program.to_owned() });
        }
    }
    Ok(tree)
}

/// A list of names from elsewhere may not reach beyond its directory.
fn check_name(name: &str, list: &Path) -> Result<()> {
    let plain = |c: char| c.is_ascii_graphic() && c != '/';
    if name.is_empty()
        || name.len() > MAX_NAME_BYTES
        || !name.chars().all(plain)
        || name.starts_with('.')
    {
        return Err(Error::BadName { name: name.to_owned(), list: list.to_owned() });
    }
    Ok(())
}
