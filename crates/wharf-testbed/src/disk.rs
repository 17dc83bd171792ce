//! A small file system of its own, to be filled up or made read-only.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

/// So few that a test can take them all.
const NAMES: usize = 4096;

/// A tmpfs of a few megabytes; gone with the value, also when the test fails.
#[derive(Debug)]
pub struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    pub fn new(megabytes: usize) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let size = std::ffi::CString::new(format!("size={megabytes}m,nr_inodes={NAMES}"))?;
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

    /// Takes all space that is left, with a file that can be removed to have it back. May be called
    /// again for what became free since.
    pub fn fill(&self) -> Result<PathBuf> {
        let path = self.path().join("filler");
        let mut file = File::options().create(true).append(true).open(&path)?;
        for size in [65536, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        Ok(path)
    }

    /// Takes all names that are left, with a directory that can be removed to have them back. May be
    /// called again as well.
    pub fn fill_names(&self) -> Result<PathBuf> {
        let path = self.path().join("names");
        fs::create_dir_all(&path)?;
        let there = fs::read_dir(&path)?.count();
        for number in there..NAMES {
            if File::create_new(path.join(number.to_string())).is_err() {
                break;
            }
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
