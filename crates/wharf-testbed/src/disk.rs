//! A small file system of its own, to be filled up or made read-only.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

/// A tmpfs of a few megabytes; gone with the value, also when the test fails.
#[derive(Debug)]
pub struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    pub fn new(megabytes: usize) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let size = std::ffi::CString::new(format!("size={megabytes}m"))?;
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), size.as_c_str())
            .context("a small disk needs root (it is a mount)")?;
        Ok(Self { dir })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn make_read_only(&self) -> Result<()> {
        Ok(mount_remount(self.path(), MountFlags::RDONLY, "")?)
    }

    pub fn make_writable(&self) -> Result<()> {
        Ok(mount_remount(self.path(), MountFlags::empty(), "")?)
    }

    /// Takes all space that is left, with a file that can be removed to have it back.
    pub fn fill(&self) -> Result<PathBuf> {
        let path = self.path().join("filler");
        let mut file = File::create(&path)?;
        for size in [65536, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        Ok(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.path(), UnmountFlags::DETACH) {
            eprintln!("could not unmount {}: {error}", self.path().display());
        }
    }
}
