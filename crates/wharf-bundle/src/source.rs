//! What `--from` may name when a bundle is made without building: a directory of components (such
//! as the cache), a mirror of release files, or an address of one.

use std::path::Path;

use crate::cache::{self, Cached, ORIGIN_RELEASE};
use crate::catalogue::{COMPONENTS, Component, KUBERNETES, compare_versions, this_arch};
use crate::manifest::{MANIFEST_NAME, Manifest};
use crate::mirror::{self, Base};
use crate::place::{self, Staging};
use crate::{Bundle, Error, Placement, Result, archive, image};

/// What the caller wants in the bundle.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The Kubernetes version; without one it is the catalogue's.
    pub kubernetes: Option<String>,
    /// Names of components to leave out.
    pub without: Vec<String>,
}

impl Selection {
    fn version_of(&self, component: &Component) -> String {
        match &self.kubernetes {
            Some(version) if component.name == KUBERNETES.name => version.clone(),
            _ => component.version.to_owned(),
        }
    }
}

/// What a bundle holds, and the directory with what had to be fetched or made for it.
#[derive(Debug)]
pub struct Gathered {
    pub components: Vec<Cached>,
    _made: Staging,
}

/// Collects what a bundle needs. Fetched files and images lie beside `output` until the result is
/// dropped; `note` hears, in words, what goes on.
///
/// # Errors
/// A component is missing or damaged, or a file of it cannot be had with a good checksum.
pub fn gather(
    from: &Base,
    selection: &Selection,
    output: &Path,
    note: &mut dyn FnMut(&str),
) -> Result<Gathered> {
    let known = |name: &String| crate::catalogue::component(name).map(|_| ());
    selection.without.iter().try_for_each(known)?;
    let wanted: Vec<&Component> =
        COMPONENTS.iter().filter(|c| !selection.without.iter().any(|w| w == c.name)).collect();
    let stored = match from {
        Base::Directory(dir) => cache::components_in(dir),
        Base::Url(_) => Vec::new(),
    };
    let staging = Staging::beside(output)?;
    let components = if stored.is_empty() {
        from_mirror(from, selection, &wanted, staging.path(), note)?
    } else {
        from_components(stored, selection, &wanted, note)?
    };
    let mut images = Vec::new();
    for component in &components {
        let dir = staging.path().join("images").join(&component.record.component);
        images.extend(image::make_in(&dir, component)?);
    }
    let components = image::in_place_of_programs(components, images);
    Ok(Gathered { components, _made: staging })
}

fn from_components(
    mut stored: Vec<Cached>,
    selection: &Selection,
    wanted: &[&Component],
    note: &mut dyn FnMut(&str),
) -> Result<Vec<Cached>> {
    stored.sort_by(|a, b| compare_versions(&b.record.version, &a.record.version));
    let mut components = Vec::new();
    for component in wanted {
        let version = selection.version_of(component);
        let named: Vec<&Cached> =
            stored.iter().filter(|c| c.record.component == component.name).collect();
        let exact = named.iter().find(|c| c.record.version == version);
        let asked = component.name == KUBERNETES.name && selection.kubernetes.is_some();
        let chosen = exact.or_else(|| named.first().filter(|_| !asked));
        match chosen {
            Some(cached) => {
                let mut cached = (*cached).clone();
                cached.check()?;
                components.push(cached);
            }
            None if !component.on_hosts => {
                note(&format!("{} {version} is not there and is left out", component.name));
            }
            None => {
                let message = format!("{} {version} is not there", component.name);
                return Err(Error::MissingComponent(message));
            }
        }
    }
    Ok(components)
}

fn from_mirror(
    base: &Base,
    selection: &Selection,
    wanted: &[&Component],
    into: &Path,
    note: &mut dyn FnMut(&str),
) -> Result<Vec<Cached>> {
    let mut components = Vec::new();
    for component in wanted {
        let version = selection.version_of(component);
        let dir = into.join(component.name);
        note(&format!("{} {version} …", component.name));
        match mirror::fetch(&base.join(component.name), component, &version, this_arch(), &dir) {
            Ok(()) => {
                let record = cache::seal(&dir, component, &version, ORIGIN_RELEASE)?;
                components.push(Cached { dir, record });
            }
            Err(Error::NotAtSource { .. }) if !component.on_hosts => {
                note(&format!("{} {version} is not there and is left out", component.name));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(components)
}

/// Makes a bundle at `output`: an archive when the name ends in `.tar`, `.tar.gz` or `.tgz`, else a
/// directory. A bundle directory as source is packed as it is.
///
/// # Errors
/// The output exists, or the bundle cannot be made; nothing is left behind then.
pub fn build_to(
    from: &Base,
    selection: &Selection,
    by: &str,
    output: &Path,
    note: &mut dyn FnMut(&str),
) -> Result<Manifest> {
    place::refuse_existing(output)?;
    if let Base::Directory(dir) = from
        && dir.join(MANIFEST_NAME).exists()
    {
        return pack_again(&Bundle::open(dir)?, selection, output);
    }
    let gathered = gather(from, selection, output, note)?;
    if !is_archive_name(output) {
        let bundle = crate::build(&gathered.components, by, output, Placement::Copy)?;
        return Ok(bundle.manifest().clone());
    }
    let staging = Staging::beside(output)?;
    let dir = staging.path().join("bundle");
    let bundle = crate::build(&gathered.components, by, &dir, Placement::Link)?;
    note("packing …");
    archive::pack(&bundle, output)?;
    Ok(bundle.manifest().clone())
}

fn pack_again(bundle: &Bundle, selection: &Selection, output: &Path) -> Result<Manifest> {
    let manifest = bundle.manifest();
    let missing = |message| Err(Error::MissingComponent(message));
    if let Some(wanted) = &selection.kubernetes
        && *wanted != manifest.kubernetes
    {
        let found = &manifest.kubernetes;
        return missing(format!("the bundle holds Kubernetes {found}, not {wanted}"));
    }
    if !selection.without.is_empty() || !is_archive_name(output) {
        return missing("a finished bundle can only be packed whole into a .tar or .tar.gz".into());
    }
    archive::pack(bundle, output)?;
    Ok(manifest.clone())
}

/// Whether a bundle of this name is one file.
#[must_use]
pub fn is_archive_name(path: &Path) -> bool {
    let name = path.to_string_lossy();
    [".tar", ".tar.gz", ".tgz"].iter().any(|end| name.ends_with(end))
}
