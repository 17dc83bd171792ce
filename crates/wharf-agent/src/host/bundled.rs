//! Files of the bundle: found where they were uploaded or came with the machine, and checked once.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::thread;

use serde::{Deserialize, Serialize};
use wharf_core::install::host::{Bundled, HostFailure, place, uploaded_path};

use super::failure::failure;
use super::files;
use super::root::Root;

const CHECKED: &str = "/var/lib/wharf/state/checked.json";

/// Files whose checksum was computed, so that 700 MB are read once and not at every document.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Checked {
    by_path: BTreeMap<String, Check>,
    #[serde(skip)]
    changed: bool,
}

/// A file that is the same in all of this has not been written since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Check {
    size: u64,
    /// Seconds and nanoseconds. The time of the last change of any kind would be too much: an
    /// upload that finds its file there sets its mode once more.
    modified: (i64, i64),
    inode: u64,
    sha256: String,
}

impl Checked {
    /// A record that cannot be read costs only the time to check again.
    pub fn load(root: &Root) -> Self {
        let text = fs::read(root.path(CHECKED)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Writes the record if something was checked since it was read. Called only after the
    /// directory stands in the record of what was made.
    pub fn store(&mut self, root: &Root) -> Result<(), HostFailure> {
        if !self.changed {
            return Ok(());
        }
        let told = |error: io::Error| failure(format!("write {CHECKED}"), error.to_string());
        let text = serde_json::to_vec(self).map_err(|error| told(error.into()))?;
        fs::create_dir_all(root.path(STATE)).map_err(told)?;
        files::write(&root.path(CHECKED), 0o600, &text).map_err(told)?;
        self.changed = false;
        Ok(())
    }

    /// Where each of these files lies on the host, by checksum. What is not there, or is not
    /// what it should be, is left out. Reads on all processors.
    pub fn find(&mut self, root: &Root, wanted: &[&Bundled]) -> BTreeMap<String, String> {
        let distinct: BTreeMap<&str, &Bundled> =
            wanted.iter().map(|file| (file.sha256.as_str(), *file)).collect();
        let jobs = Mutex::new(distinct.into_values());
        let results = Mutex::new(Vec::new());
        let known = &self.by_path;
        let work = || {
            // A poisoned lock means that another thread panicked: there is no more to do.
            while let Some(file) = jobs.lock().ok().and_then(|mut jobs| jobs.next()) {
                let result = find_one(root, known, file);
                if let Ok(mut results) = results.lock() {
                    results.push((file.sha256.clone(), result));
                }
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 0..threads.min(wanted.len()) {
                scope.spawn(work);
            }
        });
        let mut found = BTreeMap::new();
        for (sha256, (path, checks)) in results.into_inner().unwrap_or_default() {
            found.extend(path.map(|path| (sha256, path)));
            self.changed |= !checks.is_empty();
            self.by_path.extend(checks);
        }
        found
    }
}

/// The first candidate with the right content, and what had to be computed to know.
fn find_one(
    root: &Root,
    known: &BTreeMap<String, Check>,
    file: &Bundled,
) -> (Option<String>, Vec<(String, Check)>) {
    let mut computed = Vec::new();
    for path in candidates(file) {
        let real = root.path(&path);
        let Ok(metadata) = fs::metadata(&real) else { continue };
        if !metadata.is_file() || metadata.len() != file.size {
            continue;
        }
        let is_same = |known: &&Check| check(&metadata, known.sha256.clone()) == **known;
        let sha256 = match known.get(&path).filter(is_same) {
            Some(known) => known.sha256.clone(),
            None => {
                let Ok(sha256) = files::file_sha256(&real) else { continue };
                computed.push((path.clone(), check(&metadata, sha256.clone())));
                sha256
            }
        };
        if sha256 == file.sha256 {
            return (Some(path), computed);
        }
    }
    (None, computed)
}

/// What this program remembers on the host, besides the record of what was made.
pub(crate) const STATE: &str = "/var/lib/wharf/state";

fn candidates(file: &Bundled) -> [String; 2] {
    [uploaded_path(&file.sha256), format!("{}/{}", place::PRELOADED, file.path)]
}

fn check(metadata: &fs::Metadata, sha256: String) -> Check {
    Check {
        size: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        inode: metadata.ino(),
        sha256,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fake_root, put};
    use super::*;

    fn bundled(content: &str) -> Bundled {
        let sha256 = files::sha256(content.as_bytes());
        Bundled { path: "bin/etcd".to_owned(), sha256, size: content.len() as u64 }
    }

    #[test]
    fn an_uploaded_file_is_preferred_and_a_preloaded_one_will_do() {
        let (directory, root) = fake_root();
        let file = bundled("etcd");
        assert!(Checked::default().find(&root, &[&file]).is_empty());
        put(directory.path(), "/usr/share/wharf/bundle/bin/etcd", "etcd");
        let found = Checked::default().find(&root, &[&file]);
        assert_eq!(found[&file.sha256], "/usr/share/wharf/bundle/bin/etcd");
        put(directory.path(), &uploaded_path(&file.sha256), "etcd");
        let found = Checked::default().find(&root, &[&file]);
        assert_eq!(found[&file.sha256], uploaded_path(&file.sha256));
    }

    #[test]
    fn a_file_with_other_content_is_not_used_also_if_it_is_as_long() {
        let (directory, root) = fake_root();
        let file = bundled("etcd");
        put(directory.path(), &uploaded_path(&file.sha256), "dtce");
        assert!(Checked::default().find(&root, &[&file]).is_empty());
    }

    #[test]
    fn a_torn_upload_gives_way_to_the_preloaded_file() {
        let (directory, root) = fake_root();
        let file = bundled("etcd");
        put(directory.path(), &uploaded_path(&file.sha256), "dtce");
        put(directory.path(), "/usr/share/wharf/bundle/bin/etcd", "etcd");
        let found = Checked::default().find(&root, &[&file]);
        assert_eq!(found[&file.sha256], "/usr/share/wharf/bundle/bin/etcd");
    }

    #[test]
    fn a_checked_file_is_remembered_until_it_changes() {
        let (directory, root) = fake_root();
        let file = bundled("etcd");
        put(directory.path(), &uploaded_path(&file.sha256), "etcd");
        let mut checked = Checked::default();
        checked.find(&root, &[&file]);
        checked.store(&root).unwrap();
        let mut again = Checked::load(&root);
        assert_eq!(again.find(&root, &[&file]).len(), 1);
        assert!(!again.changed, "nothing had to be computed");
        put(directory.path(), &uploaded_path(&file.sha256), "dtce");
        // Clocks of file systems are coarse; a test is not.
        let written = fs::File::options().write(true).open(root.path(&uploaded_path(&file.sha256)));
        written.unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert!(again.find(&root, &[&file]).is_empty());
        assert!(again.changed);
    }
}
