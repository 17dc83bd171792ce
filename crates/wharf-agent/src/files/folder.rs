//! One followed folder: which files are there, and what they say.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::watch;
use wharf_api::node_files::NodeFile;
use wharf_core::words::chain;

use super::{ReadError, read_file, subscription::Known};
use crate::health::Reporter;

/// A node has some hundred applications. What is beyond this is left out, and said so.
const MOST_FILES: usize = 4096;

/// A folder whose type is forgotten.
pub trait Followed: Send {
    fn path(&self) -> &Path;
    /// Looks at all files. Those in `touched` are read even if they look as before.
    fn look(&mut self, touched: &HashSet<OsString>);
}

pub struct Folder<T> {
    path: PathBuf,
    seen: BTreeMap<String, Seen>,
    values: BTreeMap<String, Arc<T>>,
    junk: BTreeSet<String>,
    sender: watch::Sender<Known<T>>,
    reporter: Reporter,
}

struct Seen {
    stamp: Stamp,
    fault: Option<String>,
}

/// What tells one version of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl<T: NodeFile> Folder<T> {
    pub fn new(path: PathBuf, sender: watch::Sender<Known<T>>, reporter: Reporter) -> Self {
        Self {
            path,
            seen: BTreeMap::new(),
            values: BTreeMap::new(),
            junk: BTreeSet::new(),
            sender,
            reporter,
        }
    }

    fn subject(&self, key: &str) -> String {
        self.path.join(format!("{key}.json")).display().to_string()
    }

    /// Every file that counts, by its key. `None` when the folder cannot be read: then nothing is
    /// known to be gone.
    fn list(&self) -> Option<BTreeMap<String, PathBuf>> {
        let subject = self.path.display().to_string();
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.reporter.clear(&subject);
                return Some(BTreeMap::new());
            }
            Err(error) => {
                self.reporter.fault(&subject, &format!("it cannot be read: {error}"));
                return None;
            }
        };
        let mut found = BTreeMap::new();
        let mut fault = None;
        for entry in entries {
            let Ok(name) = entry.map(|entry| entry.file_name()) else { continue };
            match key_of(&name) {
                Name::Other => {}
                Name::NoText => fault = Some("a name in it is no text".to_owned()),
                Name::Key(_) if found.len() >= MOST_FILES => {
                    fault = Some(format!("it has more than {MOST_FILES} files"));
                    break;
                }
                Name::Key(key) => drop(found.insert(key, self.path.join(name))),
            }
        }
        match fault {
            Some(fault) => self.reporter.fault(&subject, &fault),
            None => self.reporter.clear(&subject),
        }
        Some(found)
    }

    /// Reads one file if it is another than before. Returns whether that changes what is known.
    fn read(&mut self, key: &str, path: &Path, touched: bool) -> bool {
        let stamp = match fs::symlink_metadata(path) {
            Ok(metadata) => Stamp::of(&metadata),
            // It went while the folder was read.
            Err(_) => return false,
        };
        if let Some(seen) = self.seen.get(key)
            && seen.stamp == stamp
            && !touched
        {
            // The list of faults is bounded: one that found no place may find it now.
            if let Some(fault) = &seen.fault {
                self.reporter.fault(&self.subject(key), fault);
            }
            return false;
        }
        let (fault, changed) = match read_file::<T>(path) {
            Ok(value) => {
                self.reporter.clear(&self.subject(key));
                self.junk.remove(key);
                self.values.insert(key.to_owned(), Arc::new(value));
                (None, true)
            }
            // It went after the first look at it.
            Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => return false,
            Err(error) => {
                let kept = self.values.contains_key(key);
                let held = if kept { "; what it said before still holds" } else { "" };
                let fault = format!("{}{held}", chain(&error));
                self.reporter.fault(&self.subject(key), &fault);
                (Some(fault), !kept && self.junk.insert(key.to_owned()))
            }
        };
        self.seen.insert(key.to_owned(), Seen { stamp, fault });
        changed
    }

    fn forget(&mut self, there: &BTreeMap<String, PathBuf>) -> bool {
        let known = self.seen.keys().chain(self.values.keys()).chain(&self.junk);
        let gone: BTreeSet<String> =
            known.filter(|key| !there.contains_key(*key)).cloned().collect();
        for key in &gone {
            self.reporter.clear(&self.subject(key));
            self.seen.remove(key);
            self.values.remove(key);
            self.junk.remove(key);
        }
        !gone.is_empty()
    }
}

impl<T: NodeFile + Send + Sync> Followed for Folder<T> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn look(&mut self, touched: &HashSet<OsString>) {
        let Some(there) = self.list() else { return };
        let mut changed = self.forget(&there);
        for (key, path) in &there {
            let touched = path.file_name().is_some_and(|name| touched.contains(name));
            changed |= self.read(key, path, touched);
        }
        if changed || self.sender.borrow().values.is_none() {
            self.sender.send_replace(Known {
                values: Some(Arc::new(self.values.clone())),
                junk: Arc::new(self.junk.clone()),
            });
        }
    }
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The key of a file that counts.
pub fn key(name: &OsStr) -> Option<String> {
    match key_of(name) {
        Name::Key(key) => Some(key),
        Name::Other | Name::NoText => None,
    }
}

enum Name {
    Key(String),
    /// A file that is being written, or something else.
    Other,
    NoText,
}

fn key_of(name: &OsStr) -> Name {
    if Path::new(name).extension().is_none_or(|extension| extension != "json") {
        return Name::Other;
    }
    let Some(name) = name.to_str() else { return Name::NoText };
    match name.strip_suffix(".json") {
        Some(key) if !key.is_empty() && !key.starts_with('.') => Name::Key(key.to_owned()),
        _ => Name::Other,
    }
}
