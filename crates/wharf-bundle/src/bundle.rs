//! A bundle directory: opening one, and making one out of components.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::{Cached, Stamp};
use crate::catalogue::KUBERNETES;
use crate::manifest::{Created, FORMAT, FileEntry, MANIFEST_NAME, Manifest, Mode};
use crate::place::{self, Staging};
use crate::{Error, IoContext, Result};

/// An opened bundle directory. Opening reads the manifest only; [`crate::verify`] reads the files.
#[derive(Clone, Debug)]
pub struct Bundle {
    dir: PathBuf,
    manifest: Manifest,
}

impl Bundle {
    /// Opens a bundle directory and checks its manifest.
    ///
    /// # Errors
    /// It is no bundle, or its manifest is refused.
    pub fn open(dir: &Path) -> Result<Self> {
        Ok(Self { dir: dir.to_owned(), manifest: Manifest::read(dir)? })
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The files of one component, such as `containerd`.
    pub fn files_of<'a>(&'a self, component: &'a str) -> impl Iterator<Item = &'a FileEntry> {
        self.manifest.files.iter().filter(move |file| file.component == component)
    }

    /// The file of that name, such as `kubelet`, whatever directory it is in.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.manifest.files.iter().find(|file| file.name() == name)
    }

    /// The file at that path in the bundle, such as `bin/kubelet`.
    #[must_use]
    pub fn file_at(&self, path: &str) -> Option<&FileEntry> {
        self.manifest.files.iter().find(|file| file.path == path)
    }

    /// All images with the names under which containerd has them after their import.
    pub fn images(&self) -> impl Iterator<Item = (&str, &FileEntry)> {
        self.manifest.files.iter().filter_map(|file| Some((file.image.as_deref()?, file)))
    }

    /// The image of one component, such as `coredns`: its full name and its archive.
    #[must_use]
    pub fn image_of(&self, component: &str) -> Option<(&str, &FileEntry)> {
        self.images().find(|(_, file)| file.component == component)
    }

    /// Where a file of this bundle lies on this machine.
    #[must_use]
    pub fn path_of(&self, file: &FileEntry) -> PathBuf {
        self.dir.join(&file.path)
    }
}

/// How files get from the components into a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Hard links where the file system can: the bundle costs no space. Whatever changes one in
    /// place changes both, and both are checked.
    Link,
    /// A bundle of its own.
    Copy,
}

/// The manifest that a bundle of these components has.
///
/// # Errors
/// Kubernetes is not among them, or two of them have a file of the same path.
pub fn manifest_of(components: &[Cached], by: &str) -> Result<Manifest> {
    let kubernetes = components.iter().find(|c| c.record.component == KUBERNETES.name);
    let Some(kubernetes) = kubernetes else {
        return Err(Error::MissingComponent("there is no kubernetes among the components".into()));
    };
    let mut manifest = Manifest {
        format: FORMAT,
        arch: kubernetes.record.arch.clone(),
        kubernetes: kubernetes.record.version.clone(),
        created: Created { by: by.to_owned(), ..Created::default() },
        files: Vec::new(),
    };
    for Cached { record, .. } in components {
        manifest.created.origin.insert(record.component.clone(), record.origin.clone());
        manifest.files.extend(record.files.iter().map(|file| FileEntry {
            path: file.path.clone(),
            component: record.component.clone(),
            version: record.version.clone(),
            sha256: file.sha256,
            size: file.size,
            mode: file.mode,
            image: file.image.clone(),
        }));
    }
    manifest.files.sort_by(|a, b| a.path.cmp(&b.path));
    // Reading it back applies every rule that a reader will apply.
    Manifest::from_json(&manifest.to_json()).map_err(Error::Damaged)
}

/// Makes a bundle directory; what is at `destination` is replaced in one step.
///
/// # Errors
/// The components do not make a bundle, or the disk refuses.
pub fn build(
    components: &[Cached],
    by: &str,
    destination: &Path,
    placement: Placement,
) -> Result<Bundle> {
    let manifest = manifest_of(components, by)?;
    let staging = Staging::beside(destination)?;
    for component in components {
        for file in &component.record.files {
            let (from, to) = (component.dir.join(&file.path), staging.path().join(&file.path));
            place::make_parents(&to)?;
            match placement {
                Placement::Link => place::link_or_copy(&from, &to)?,
                Placement::Copy => place::copy_file(&from, &to)?,
            }
        }
    }
    let path = staging.path().join(MANIFEST_NAME);
    fs::write(&path, manifest.to_json()).at("written", &path)?;
    staging.commit(destination)?;
    Ok(Bundle { dir: destination.to_owned(), manifest })
}

/// True when `destination` already is the bundle of these components, judged by stamps alone.
#[must_use]
pub fn is_current(components: &[Cached], by: &str, destination: &Path) -> bool {
    let (Ok(wanted), Ok(there)) = (manifest_of(components, by), Manifest::read(destination)) else {
        return false;
    };
    wanted == there
        && components.iter().all(|component| {
            component.record.files.iter().all(|file| {
                let metadata = destination.join(&file.path).symlink_metadata();
                metadata.is_ok_and(|m| {
                    // A copy has another inode; time and size were kept.
                    let stamp = Stamp { inode: file.stamp.inode, ..Stamp::of(&m) };
                    m.is_file() && stamp == file.stamp && Mode::of(&m) == file.mode
                })
            })
        })
}
