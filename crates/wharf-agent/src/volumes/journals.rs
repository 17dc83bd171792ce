//! The journals of this node's volumes: one file for each.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use wharf_core::volume::journal::Journal;

use super::Places;
use crate::host::files;

/// Below the state directory.
pub const DIRECTORY: &str = "journals";
const MODE: u32 = 0o600;
/// Far more than a journal with all pods of a node.
const MOST_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Clone)]
pub struct Journals {
    dir: PathBuf,
}

impl Journals {
    pub fn open(places: &Places) -> io::Result<Self> {
        let journals = Self::below(&places.state_dir);
        fs::create_dir_all(&journals.dir)?;
        Ok(journals)
    }

    /// Those in a state directory, to be looked at: there may be none.
    pub fn below(state_dir: &Path) -> Self {
        Self { dir: state_dir.join(DIRECTORY) }
    }

    /// The volumes that have one.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            // What was being written when the machine stopped does not end like this.
            let name = name.to_str().and_then(|name| name.strip_suffix(".json"));
            names.extend(name.map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// `None` when the node has nothing of the volume.
    pub fn load(&self, volume: &str) -> io::Result<Option<Journal>> {
        let path = self.path(volume)?;
        let found = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        if found.len() > MOST_BYTES {
            return Err(io::Error::other(format!("{} is too long", path.display())));
        }
        let journal = serde_json::from_slice(&fs::read(&path)?)?;
        Ok(Some(journal))
    }

    /// A killed agent's successor finds it when this returns; one without pods is removed. That there is
    /// a journal outlives the machine's end, and so does what some step has said: which of them was
    /// the last counts for nothing after a boot, and to have that on the disk takes as long again.
    pub fn store(&self, journal: &Journal) -> io::Result<()> {
        let path = self.path(&journal.volume)?;
        if journal.pods.is_empty() {
            files::remove_file(&path)?;
            return fs::File::open(&self.dir)?.sync_all();
        }
        let text = serde_json::to_vec(journal)?;
        if path.exists() {
            files::write(&path, MODE, &text)
        } else {
            files::write_durably(&path, MODE, &text)
        }
    }

    /// Names of volumes come from kubelet and from the API: none may lead elsewhere.
    fn path(&self, volume: &str) -> io::Result<PathBuf> {
        if !is_name(volume) {
            return Err(io::Error::other(format!("{volume:?} is no name of a volume")));
        }
        Ok(self.dir.join(format!("{volume}.json")))
    }
}

/// Whether a text is a plain name in a directory.
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let short = !text.is_empty() && text.len() <= 200;
    short && text.chars().all(plain) && !text.starts_with('.') && Path::new(text).is_relative()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_none() {
        for good in ["pvc-1", "a", "data.1_x"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "/a", ".hidden", "a\0b", "ä", &"x".repeat(201)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
