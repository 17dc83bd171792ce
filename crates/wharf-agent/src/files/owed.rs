//! What could not be written or removed, tried again until it is.
//!
//! Who publishes may have nothing more to say for days, and a disk that was full has room after a
//! minute: so the last word on each path is kept here. It is forgotten as soon as there is a newer one.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{health::Reporter, host};

/// Short beside the time in which somebody makes room.
const TRY_EVERY: Duration = Duration::from_secs(5);
/// A node has some hundred files. What is beyond waits for its publisher's next word.
const MOST: usize = 1024;

/// What a path is to be.
#[derive(Debug)]
pub(super) enum Word {
    Content { mode: u32, durable: bool, bytes: Vec<u8> },
    Nothing,
    Folder,
}

impl Word {
    /// Makes it true.
    pub fn put(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::Content { mode, durable, bytes } => {
                let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
                fs::create_dir_all(folder)?;
                let write = if *durable { host::files::write_durably } else { host::files::write };
                write(path, *mode, bytes)
            }
            Self::Nothing => host::files::remove_file(path).map(drop),
            Self::Folder => fs::create_dir_all(path),
        }
    }
}

pub(super) struct Owed {
    /// In the order in which they were said: some files name others that were published before.
    words: Mutex<Vec<(PathBuf, Word)>>,
    reporter: Reporter,
}

impl Owed {
    pub fn new(reporter: Reporter) -> Self {
        Self { words: Mutex::default(), reporter }
    }

    /// There is a newer word. When this returns, the old one is not being written either.
    pub fn forget(&self, path: &Path) {
        self.words().retain(|(owed, _)| owed != path);
    }

    /// After its fault was told, which goes when it is made true.
    pub fn keep(&self, path: PathBuf, word: Word) {
        let mut words = self.words();
        words.retain(|(owed, _)| *owed != path);
        if words.len() < MOST {
            words.push((path, word));
        }
    }

    /// Tries them all until `stop`.
    pub async fn pay(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(TRY_EVERY)).await.is_some() {
            if self.words().is_empty() {
                continue;
            }
            let owed = self.clone();
            // Writing may wait for a disk. What breaks by a defect is owed still.
            let _ = tokio::task::spawn_blocking(move || owed.pay_once()).await;
        }
    }

    fn pay_once(&self) {
        let paths: Vec<PathBuf> = self.words().iter().map(|(path, _)| path.clone()).collect();
        for path in paths {
            // Held while it is written, so that nobody's newer word is written over.
            let mut words = self.words();
            let Some(place) = words.iter().position(|(owed, _)| *owed == path) else { continue };
            if words.get(place).is_some_and(|(path, word)| word.put(path).is_ok()) {
                words.remove(place);
                drop(words);
                self.reporter.clear(&subject(&path));
            }
        }
    }

    fn words(&self) -> MutexGuard<'_, Vec<(PathBuf, Word)>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Under which it is told that a path is not as it should be.
pub(super) fn subject(path: &Path) -> String {
    format!("publishing {}", path.display())
}
