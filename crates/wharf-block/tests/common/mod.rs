//! Images, devices and mounts for the tests, taken down again also when a test fails.
#![allow(dead_code, reason = "each test program uses its part")]

use std::{
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;
use wharf_block::loops::{self, Device, Options};

pub const MIB: u64 = 1 << 20;

pub fn ensure_tools() {
    let needs = [("mkfs.ext4", "e2fsprogs"), ("mkfs.xfs", "xfsprogs"), ("fio", "fio")];
    wharf_testbed::debian::ensure("the tests of block devices", &needs).unwrap();
}

/// A sparse file of this size.
pub fn image(dir: &Path, name: &str, size: u64) -> (PathBuf, File) {
    let path = dir.join(name);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(size).unwrap();
    (path, file)
}

/// A loop device that goes away with this value.
pub struct Attached(pub Device);

impl Attached {
    pub fn new(file: &File, tag: &str) -> Self {
        let options = Options { read_only: false, direct_io: true, tag };
        Self(loops::attach(file, options).unwrap())
    }

    /// What a search finds when it finds this device and no other.
    pub fn found(&self) -> &[Device] {
        std::slice::from_ref(&self.0)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let detached = loops::detach(&self.0);
        assert!(detached.is_ok() || thread::panicking(), "{detached:?}");
    }
}

/// A mount that goes away with this value.
pub struct Mounted(pub TempDir);

impl Mounted {
    pub fn new(source: &Path, kind: &str) -> Self {
        let dir = TempDir::new().unwrap();
        rustix::mount::mount(source, dir.path(), kind, MountFlags::empty(), None).unwrap();
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = rustix::mount::unmount(self.path(), UnmountFlags::empty())
            .or_else(|_| rustix::mount::unmount(self.path(), UnmountFlags::DETACH));
        assert!(unmounted.is_ok() || thread::panicking(), "{unmounted:?}");
    }
}

pub fn mkfs(kind: &str, device: &Path) {
    ensure_tools();
    let (program, quick) = match kind {
        "ext4" => ("mkfs.ext4", vec!["-q", "-F"]),
        "xfs" => ("mkfs.xfs", vec!["-q", "-f"]),
        other => panic!("{other} is not made here"),
    };
    let output = Command::new(program).args(quick).arg(device).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until the condition holds.
pub fn wait_for(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come within {within:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
