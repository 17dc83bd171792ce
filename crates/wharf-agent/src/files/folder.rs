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
        let (mut found, fault) = self.gather(entries.map(|entry| Ok(entry?.file_name())));
        match fault {
            Some(fault) => {
                self.add_unlisted(&mut found);
                self.reporter.fault(&subject, &fault);
            }
            None => self.reporter.clear(&subject),
        }
        Some(found)
    }

    /// The files of a list, and what keeps it from being whole.
    fn gather(
        &self,
        names: impl Iterator<Item = io::Result<OsString>>,
    ) -> (BTreeMap<String, PathBuf>, Option<String>) {
        let mut found = BTreeMap::new();
        let mut fault = None;
        for name in names {
            let name = match name {
                Ok(name) => name,
                Err(error) => {
                    fault = Some(format!("it cannot be read to its end: {error}"));
                    continue;
                }
            };
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
        (found, fault)
    }

    /// Whoever is known and not in a list that is not whole is looked for by name: only who is seen
    /// to be gone is forgotten. They come before those that are new, so that the bound holds.
    fn add_unlisted(&self, found: &mut BTreeMap<String, PathBuf>) {
        for key in self.known().filter(|key| !found.contains_key(*key)).collect::<Vec<_>>() {
            let path = self.path.join(format!("{key}.json"));
            let looked = fs::symlink_metadata(&path);
            if !looked.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                found.insert(key.clone(), path);
            }
        }
        let surplus = found.len().saturating_sub(MOST_FILES);
        let known: BTreeSet<&String> = self.known().collect();
        let new = found.keys().rev().filter(|key| !known.contains(key));
        for key in new.take(surplus).cloned().collect::<Vec<_>>() {
            found.remove(&key);
        }
    }

    fn known(&self) -> impl Iterator<Item = &String> {
        self.seen.keys().chain(self.values.keys()).chain(&self.junk)
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
        let gone: BTreeSet<String> =
            self.known().filter(|key| !there.contains_key(*key)).cloned().collect();
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

#[cfg(test)]
mod tests {
    use wharf_api::node_files::AppInstanceConfig;

    use super::*;
    use crate::health::Health;

    struct World {
        dir: tempfile::TempDir,
        health: Health,
        folder: Folder<AppInstanceConfig>,
        seen: watch::Receiver<Known<AppInstanceConfig>>,
    }

    impl World {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let health = Health::new("n1");
            let (sender, seen) = watch::channel(Known::default());
            let folder = Folder::new(dir.path().to_owned(), sender, health.task("files"));
            Self { dir, health, folder, seen }
        }

        fn put(&self, key: &str, content: &str) {
            fs::write(self.path(key), content).unwrap();
        }

        fn path(&self, key: &str) -> PathBuf {
            self.dir.path().join(format!("{key}.json"))
        }

        fn look(&mut self) -> usize {
            self.folder.look(&HashSet::new());
            self.seen.borrow().values.as_ref().unwrap().len()
        }

        fn fault(&self) -> Option<String> {
            let subject = self.dir.path().display().to_string();
            let tasks = self.health.snapshot().tasks;
            let mut faults = tasks.iter().flat_map(|task| task.faults.iter());
            faults.find(|fault| fault.subject == subject).map(|fault| fault.reason.clone())
        }
    }

    #[test]
    fn in_a_folder_with_too_many_files_those_that_are_known_stay_until_they_are_gone() {
        let mut world = World::new();
        for number in 0..1000 {
            world.put(&format!("k{number}"), "{}");
        }
        assert_eq!(world.look(), 1000);
        // So many that most of those before are not among the first.
        for number in 0..MOST_FILES * 2 {
            world.put(&format!("n{number}"), "{}");
        }
        assert_eq!(world.look(), MOST_FILES);
        assert_eq!(world.fault().as_deref(), Some("it has more than 4096 files"));
        let known = |world: &World| {
            let values = world.seen.borrow().values.clone().unwrap();
            values.keys().filter(|key| key.starts_with('k')).count()
        };
        assert_eq!(known(&world), 1000);
        fs::remove_file(world.path("k7")).unwrap();
        assert_eq!(world.look(), MOST_FILES);
        assert_eq!(known(&world), 999);
        // What it says is followed, wherever it stands in the list.
        world.put("k8", "{\"DisplayName\":\"changed\"}");
        world.look();
        let values = world.seen.borrow().values.clone().unwrap();
        assert_eq!(values["k8"].display_name, "changed");
    }

    #[test]
    fn a_list_that_breaks_off_takes_nobody_away() {
        let mut world = World::new();
        ["a", "b", "c"].iter().for_each(|key| world.put(key, "{}"));
        assert_eq!(world.look(), 3);
        fs::remove_file(world.path("c")).unwrap();
        let broken = [Ok("a.json".into()), Err(io::Error::other("the disk is bad"))];
        let (mut found, fault) = world.folder.gather(broken.into_iter());
        assert_eq!(fault.as_deref(), Some("it cannot be read to its end: the disk is bad"));
        world.folder.add_unlisted(&mut found);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "b"]);
    }
}
