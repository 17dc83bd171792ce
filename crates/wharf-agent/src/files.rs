//! The files through which the agents of a node speak with each other.
//!
//! [`Files`] publishes and reads them, and follows whole folders ([`Subscription`]). The kernel
//! tells of changes ([`notices`]); a slow look at everything finds what it did not tell.
//!
//! **Invariant:** a file that cannot be read changes nothing. It is a fault of the task `files`,
//! and what was known of it before still holds.
//!
//! **Invariant:** what was published last is in its file as soon as it can be ([`owed`]).
//!
//! **Invariant:** a disk that hangs holds up who waits for it, and nobody else ([`aside`]). The run
//! directory and what outlives a reboot are followed and paid apart.

use std::{
    any::Any,
    collections::BTreeMap,
    fs,
    io::{self, Read},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::fs::OFlags;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use wharf_api::node_files::{self, Junk, MAX_BYTES, NodeFile};
use wharf_core::words::chain;

use crate::{
    aside::aside,
    health::{Health, Reporter},
    host,
};

mod folder;
mod notices;
mod owed;
mod subscription;

pub use subscription::{Known, Subscription};

use folder::{Folder, Followed};
use owed::{Owed, Word};

/// Folders and files are for everybody to read, but for those with a secret in them.
const MODE: u32 = 0o644;
const SECRET_MODE: u32 = 0o600;
/// These hold a token or a password (`VncPasswd`) in clear text.
const SECRET: &[&str] = &["EdgeNodeClusterStatus", "AppInstanceConfig"];
/// A UUID has 36 characters; a file name may have 255 bytes.
const LONGEST_KEY: usize = 200;

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("{key:?} cannot be the name of a file")]
    BadKey { key: String },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot remove {}", path.display())]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: ReadError,
    },
    #[error("what should be written to {} cannot be", path.display())]
    Value {
        path: PathBuf,
        #[source]
        source: Junk,
    },
}

/// Why one file says nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("it cannot be opened or read")]
    Io(#[from] io::Error),
    #[error("it is no regular file")]
    NotAFile,
    #[error(transparent)]
    Junk(#[from] Junk),
}

/// All clones are the same files.
#[derive(Clone)]
pub struct Files {
    root: PathBuf,
    durable: bool,
    shared: Arc<Shared>,
}

struct Shared {
    persistent_root: PathBuf,
    reporter: Reporter,
    here: Place,
    lasting: Place,
    /// What is followed already, by its folder: a `watch::Receiver<Known<T>>` each.
    followed: Mutex<BTreeMap<PathBuf, Box<dyn Any + Send>>>,
}

/// One disk.
struct Place {
    owed: Arc<Owed>,
    follow: mpsc::UnboundedSender<Box<dyn Followed>>,
}

impl Place {
    fn open(root: &Path, reporter: &Reporter, stop: CancellationToken) -> Self {
        // As many as there are kinds of files that a task asks for.
        let (follow, asked) = mpsc::unbounded_channel();
        tokio::spawn(notices::follow(root.to_owned(), asked, reporter.clone(), stop.clone()));
        let owed = Arc::new(Owed::new(reporter.clone()));
        tokio::spawn(owed.clone().pay(stop));
        Self { owed, follow }
    }
}

impl Files {
    /// The files below `run_dir`, followed until `stop`. Needs a running Tokio runtime.
    pub fn open(
        run_dir: &Path,
        persist_dir: &Path,
        health: &Health,
        stop: CancellationToken,
    ) -> Self {
        let reporter = health.task("files");
        let persistent_root = persist_dir.join("status");
        let shared = Shared {
            here: Place::open(run_dir, &reporter, stop.clone()),
            lasting: Place::open(&persistent_root, &reporter, stop),
            persistent_root,
            reporter,
            followed: Mutex::default(),
        };
        Self { root: run_dir.to_owned(), durable: false, shared: Arc::new(shared) }
    }

    /// The same for what outlives a reboot. Publishing there waits for the disk.
    #[must_use]
    pub fn persistent(&self) -> Self {
        let shared = self.shared.clone();
        Self { root: shared.persistent_root.clone(), durable: true, shared }
    }

    /// Writes `<agent>/<Type>/<key>.json` in one step, if it does not say the same already.
    /// Returns whether it was written. A failure is also a fault of the task `files`, and is tried
    /// again until it succeeds or another word is published there.
    pub fn publish<T: NodeFile>(
        &self,
        agent: &str,
        key: &str,
        value: &T,
    ) -> Result<bool, FilesError> {
        let wanted = self.path::<T>(agent, key).and_then(|path| {
            let word = self.content(&path, value)?;
            Ok((path, word))
        });
        let (path, word) = match wanted {
            Ok(wanted) => wanted,
            Err(error) => return self.told::<T, _>(agent, key, Err(error)),
        };
        let owed = &self.place().owed;
        let written = aside(|| {
            owed.forget(&path);
            write(&path, &word)
        });
        let written = written.map_err(|source| FilesError::Write { path: path.clone(), source });
        self.told::<T, _>(agent, key, written).inspect_err(|_| owed.keep(path, word))
    }

    /// Removes the file; one that is not there is no error. What fails is tried again, as above.
    pub fn unpublish<T: NodeFile>(&self, agent: &str, key: &str) -> Result<bool, FilesError> {
        let path = match self.path::<T>(agent, key) {
            Ok(path) => path,
            Err(error) => return self.told::<T, _>(agent, key, Err(error)),
        };
        let owed = &self.place().owed;
        let removed = aside(|| {
            owed.forget(&path);
            host::files::remove_file(&path)
        });
        let removed = removed.map_err(|source| FilesError::Remove { path: path.clone(), source });
        self.told::<T, _>(agent, key, removed).inspect_err(|_| owed.keep(path, Word::Nothing))
    }

    /// One file now; `None` if there is none.
    pub fn read<T: NodeFile>(&self, agent: &str, key: &str) -> Result<Option<T>, FilesError> {
        let path = self.path::<T>(agent, key)?;
        match aside(|| read_file(&path)) {
            Ok(value) => Ok(Some(value)),
            Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(FilesError::Read { path, source }),
        }
    }

    /// Makes the folder of a type: others see by it that somebody publishes the type here, even if
    /// there is nothing to say. If it cannot be made, that is a fault, and it is made later.
    pub fn announce<T: NodeFile>(&self, agent: &str) {
        let folder = self.folder::<T>(agent);
        if let Err(error) = aside(|| Word::Folder.put(&folder)) {
            self.shared.reporter.fault(&owed::subject(&folder), &chain(&error));
            self.place().owed.keep(folder, Word::Folder);
        }
    }

    /// The keys of all files of a type that an agent publishes now. `None` where there is no folder
    /// for them: then nobody publishes that here.
    pub fn keys<T: NodeFile>(&self, agent: &str) -> Option<Vec<String>> {
        let folder = self.folder::<T>(agent);
        aside(|| {
            if !folder.is_dir() {
                return None;
            }
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            Some(entries.filter_map(|entry| folder::key(&entry.file_name())).collect())
        })
    }

    /// Follows all files of a type that an agent publishes, also while their folder does not exist
    /// yet. Who asks for the same again shares what is known.
    pub fn watch<T: NodeFile + Send + Sync + 'static>(&self, agent: &str) -> Subscription<T> {
        let path = self.folder::<T>(agent);
        let mut followed = self.shared.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let known = followed.get(&path).and_then(|known| known.downcast_ref());
        if let Some(receiver) = known {
            return Subscription::new(watch::Receiver::clone(receiver));
        }
        let (sender, receiver) = watch::channel(Known::default());
        followed.insert(path.clone(), Box::new(receiver.clone()));
        let folder = Folder::<T>::new(path, sender, self.shared.reporter.clone());
        // It is refused only when the agent stops.
        let _ = self.place().follow.send(Box::new(folder));
        Subscription::new(receiver)
    }

    /// Like [`Files::publish`], silent and once.
    pub(crate) fn write<T: NodeFile>(
        &self,
        agent: &str,
        key: &str,
        value: &T,
    ) -> Result<bool, FilesError> {
        let path = self.path::<T>(agent, key)?;
        let word = self.content(&path, value)?;
        aside(|| write(&path, &word)).map_err(|source| FilesError::Write { path, source })
    }

    fn place(&self) -> &Place {
        if self.durable { &self.shared.lasting } else { &self.shared.here }
    }

    fn content<T: NodeFile>(&self, path: &Path, value: &T) -> Result<Word, FilesError> {
        let bytes = node_files::write(value)
            .map_err(|source| FilesError::Value { path: path.to_owned(), source })?;
        let mode = if SECRET.contains(&T::TYPE) { SECRET_MODE } else { MODE };
        Ok(Word::Content { mode, durable: self.durable, bytes })
    }

    fn told<T: NodeFile, R>(
        &self,
        agent: &str,
        key: &str,
        done: Result<R, FilesError>,
    ) -> Result<R, FilesError> {
        let subject = owed::subject(&self.folder::<T>(agent).join(format!("{key}.json")));
        match &done {
            Ok(_) => self.shared.reporter.clear(&subject),
            Err(error) => self.shared.reporter.fault(&subject, &chain(error)),
        }
        done
    }

    fn folder<T: NodeFile>(&self, agent: &str) -> PathBuf {
        self.root.join(agent).join(T::TYPE)
    }

    fn path<T: NodeFile>(&self, agent: &str, key: &str) -> Result<PathBuf, FilesError> {
        let plain = !key.is_empty()
            && key.len() <= LONGEST_KEY
            && !key.starts_with('.')
            && !key.contains(['/', '\0']);
        if !plain {
            return Err(FilesError::BadKey { key: key.chars().take(LONGEST_KEY).collect() });
        }
        Ok(self.folder::<T>(agent).join(format!("{key}.json")))
    }
}

/// Whether it was written: what is there may say the same. An earlier version may have written it for
/// more people than should read it.
fn write(path: &Path, word: &Word) -> io::Result<bool> {
    let modes = |found: fs::Metadata| found.permissions().mode() & 0o777;
    if let Word::Content { bytes, mode, .. } = word
        && fs::metadata(path).is_ok_and(|found| modes(found) & !mode == 0)
        && read_bytes(path).is_ok_and(|there| there == *bytes)
    {
        return Ok(false);
    }
    word.put(path).map(|()| true)
}

fn read_file<T: NodeFile>(path: &Path) -> Result<T, ReadError> {
    Ok(node_files::read(&read_bytes(path)?)?)
}

/// At most one byte more than is allowed. Never waits for a pipe's other end.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, ReadError> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let flags = i32::try_from(flags).unwrap_or_default();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(ReadError::NotAFile);
    }
    if metadata.len() > MAX_BYTES as u64 {
        let size = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        return Err(Junk::TooLarge(size).into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
