//! Putting finished directories into place: everything is made beside its destination and renamed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, IoContext, Result};

const PARTIAL_PREFIX: &str = ".partial-";

/// A directory under construction. It disappears unless it is committed.
#[derive(Debug)]
pub struct Staging {
    path: PathBuf,
}

impl Staging {
    /// Makes an empty directory beside `destination`, so that the last step is a rename.
    pub fn beside(destination: &Path) -> Result<Self> {
        // Several may be under way in one process, as in tests.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = destination.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{PARTIAL_PREFIX}{name}-{}-{number}", std::process::id());
        let parent = match destination.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(parent).at("created", parent)?;
        let path = parent.join(name);
        fs::create_dir(&path).at("created", &path)?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames into place; what was there before is replaced.
    pub fn commit(self, destination: &Path) -> Result<()> {
        if destination.symlink_metadata().is_ok() {
            let old = Self::beside(destination)?;
            let grave = old.path.join("old");
            fs::rename(destination, &grave).at("replaced", destination)?;
        }
        fs::rename(&self.path, destination).at("created", destination)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After a commit it is gone already; a leftover is swept by the next run.
        _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what interrupted runs left in `parent`. The caller holds the lock.
pub fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PARTIAL_PREFIX) {
            _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Refuses to touch what a user has at `path`; an empty directory is fine.
pub fn refuse_existing(path: &Path) -> Result<()> {
    let exists = match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Err(_) => true,
    };
    if exists { Err(Error::OutputExists(path.display().to_string())) } else { Ok(()) }
}

/// Copies a file with its mode and time of change, by which the fast path knows it again.
pub fn copy_file(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).at("copied", from)?;
    let modified = from.metadata().and_then(|m| m.modified()).at("read", from)?;
    let file = fs::File::options().write(true).open(to).at("written", to)?;
    file.set_modified(modified).at("written", to)
}

/// A hard link costs neither space nor time; on another file system it is a copy.
pub fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(()),
        Err(_) => copy_file(from, to),
    }
}

/// Makes the directories above a file.
pub fn make_parents(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), |parent| fs::create_dir_all(parent).at("created", parent))
}
