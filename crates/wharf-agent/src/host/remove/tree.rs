//! Removing a directory with all below it, without leaving it by a link or a mount.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::super::root::Root;
use super::mounts;

/// What could not be removed, and why.
pub(super) type Errors = Vec<(PathBuf, String)>;

/// Deeper than this a path is longer than the kernel takes.
const DEPTH_LIMIT: usize = 2048;

/// Removes the directory, or with `keep` only what is in it. A link is removed and never followed;
/// what is still mounted below stays, with everything in it.
pub(super) fn remove(root: &Root, directory: &Path, keep: bool) -> Errors {
    let mut errors = Errors::new();
    match TreeRemoval::begin(root, directory) {
        Ok(None) => {}
        Ok(Some((removal, directory))) if keep => {
            removal.empty(&directory, 0, &mut errors);
        }
        Ok(Some((removal, directory))) => {
            removal.remove(&directory, 0, &mut errors);
        }
        Err(error) => errors.push((directory.to_owned(), error.to_string())),
    }
    errors
}

struct TreeRemoval {
    /// The kernel's list may be old by now, and a bind mount has no device of its own; so each
    /// path is also asked for its mount.
    mounted: BTreeSet<PathBuf>,
    mount: u64,
}

impl TreeRemoval {
    fn begin(root: &Root, directory: &Path) -> io::Result<Option<(Self, PathBuf)>> {
        let Some(directory) = mounts::resolved(directory)? else { return Ok(None) };
        let mounted = mounts::below(root, &directory, false)?.into_iter().collect();
        let mount = mounts::id(&directory)?;
        Ok(Some((TreeRemoval { mounted, mount }, directory)))
    }

    /// `true` when the path is gone.
    fn remove(&self, path: &Path, depth: usize, errors: &mut Errors) -> bool {
        let told = |error: io::Error| (path.to_owned(), error.to_string());
        let found = fs::symlink_metadata(path).and_then(|found| Ok((found, mounts::id(path)?)));
        let (metadata, mount) = match found {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
            Err(error) => {
                errors.push(told(error));
                return false;
            }
        };
        if self.mounted.contains(path) || mount != self.mount {
            errors.push((path.to_owned(), "something is mounted there".to_owned()));
            return false;
        }
        if metadata.is_dir() && !self.empty(path, depth, errors) {
            return false;
        }
        let removed = if metadata.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
        removed.map_err(|error| errors.push(told(error))).is_ok()
    }

    fn empty(&self, directory: &Path, depth: usize, errors: &mut Errors) -> bool {
        if depth > DEPTH_LIMIT {
            errors.push((directory.to_owned(), "directories lie too deep".to_owned()));
            return false;
        }
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) => {
                errors.push((directory.to_owned(), error.to_string()));
                return false;
            }
        };
        let mut all = true;
        for entry in entries {
            match entry {
                Ok(entry) => all &= self.remove(&entry.path(), depth + 1, errors),
                Err(error) => {
                    errors.push((directory.to_owned(), error.to_string()));
                    all = false;
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::super::testing::{fake_root, put};
    use super::*;

    #[test]
    fn links_are_removed_and_what_they_lead_to_is_not() {
        let (directory, root) = fake_root();
        put(directory.path(), "/srv/data/precious", "x");
        put(directory.path(), "/opt/ours/deep/file", "x");
        symlink(directory.path().join("srv/data"), directory.path().join("opt/ours/out")).unwrap();
        symlink("/nowhere", directory.path().join("opt/ours/deep/dangling")).unwrap();
        assert_eq!(remove(&root, &root.path("/opt/ours"), false), []);
        assert!(!root.path("/opt/ours").exists());
        assert!(root.path("/srv/data/precious").exists());
    }

    #[test]
    fn what_is_mounted_stays_with_all_above_it_and_is_named() {
        let (directory, root) = fake_root();
        put(directory.path(), "/opt/ours/volume/precious", "x");
        put(directory.path(), "/opt/ours/file", "x");
        let point = root.path("/opt/ours/volume");
        let line = format!("9 1 8:1 / {} rw - ext4 /dev/sda1 rw\n", point.display());
        put(directory.path(), "/proc/self/mountinfo", &line);
        let errors = remove(&root, &root.path("/opt/ours"), false);
        assert_eq!(errors, [(point.clone(), "something is mounted there".to_owned())]);
        assert!(point.join("precious").exists());
        assert!(!root.path("/opt/ours/file").exists());
    }

    #[test]
    fn a_directory_that_is_kept_is_emptied() {
        let (directory, root) = fake_root();
        put(directory.path(), "/var/lib/kubelet/pods/1/file", "x");
        assert_eq!(remove(&root, &root.path("/var/lib/kubelet"), true), []);
        assert_eq!(fs::read_dir(root.path("/var/lib/kubelet")).unwrap().count(), 0);
    }
}
