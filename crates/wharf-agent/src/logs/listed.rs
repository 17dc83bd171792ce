//! Whether a folder has to be listed again. Most never change, and to ask when one did costs a fraction
//! of a list.

use std::{os::unix::fs::MetadataExt, path::Path};

/// A folder as it was when it was last listed.
#[derive(Debug, Default)]
pub struct Listed {
    seen: Option<Stamp>,
    /// It was listed twice like that. The kernel counts its time in milliseconds: what changed in the
    /// same one as the folder before it may be missing from the first list.
    sure: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Listed {
    /// Whether the folder is to be listed now; one that is not there always is.
    pub fn is_old(&mut self, folder: &Path) -> bool {
        let seen = std::fs::metadata(folder).ok().map(|found| Stamp {
            device: found.dev(),
            inode: found.ino(),
            changed: (found.mtime(), found.mtime_nsec()),
        });
        let same = seen.is_some() && seen == self.seen;
        let old = !(same && self.sure);
        (self.seen, self.sure) = (seen, same);
        old
    }

    /// The list could not be made.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_is_listed_twice_after_each_change_and_always_while_it_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("pods");
        let mut listed = Listed::default();
        assert!([(); 3].iter().all(|()| listed.is_old(&folder)));
        fs::create_dir(&folder).unwrap();
        let thrice = |listed: &mut Listed| [(); 3].map(|()| listed.is_old(&folder));
        assert_eq!(thrice(&mut listed), [true, true, false]);
        fs::write(folder.join("0.log"), "").unwrap();
        assert_eq!(thrice(&mut listed), [true, true, false]);
        fs::write(folder.join("0.log"), "a line").unwrap();
        assert!(!listed.is_old(&folder), "what stands in a file is not the folder's");
        fs::rename(folder.join("0.log"), folder.join("0.log.1")).unwrap();
        assert_eq!(thrice(&mut listed), [true, true, false]);
        // Another folder in its place, of the same time.
        let time = fs::metadata(&folder).unwrap().modified().unwrap();
        fs::rename(&folder, dir.path().join("old")).unwrap();
        fs::create_dir(&folder).unwrap();
        fs::File::open(&folder).unwrap().set_modified(time).unwrap();
        assert_eq!(thrice(&mut listed), [true, true, false]);
        listed.forget();
        assert_eq!(thrice(&mut listed), [true, true, false]);
    }
}
