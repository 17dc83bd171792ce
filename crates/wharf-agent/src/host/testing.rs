//! A host of a test: a directory, and programs that only answer.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::root::{Commands, Ran, Root};

/// Every program succeeds and says nothing.
struct Silent;

impl Commands for Silent {
    fn run(&self, _program: &str, _arguments: &[&str], _deadline: Duration) -> io::Result<Ran> {
        Ok(Ran { success: true, ..Ran::default() })
    }
}

pub(crate) fn fake_root() -> (tempfile::TempDir, Root) {
    let directory = tempfile::tempdir().unwrap();
    let root = Root::new(directory.path(), Box::new(Silent));
    (directory, root)
}

pub(crate) fn put(base: &Path, path: &str, content: &str) {
    let path = base.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}
