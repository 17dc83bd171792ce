//! What could not be written or removed, tried again until it is.
//!
//! Who publishes may have nothing more to say for days, and a disk that was full has room after a
//! minute: so the last word on each path is kept here. It is forgotten as soon as there is a newer one.
//!
//! **Guarantee:** no older word is written over a newer one, and who has a word for another path than
//! the one that is being written waits for nobody: the disk may hang.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
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
    debts: Mutex<Debts>,
    /// A path is not being written any more.
    written: Condvar,
    reporter: Reporter,
}

#[derive(Default)]
struct Debts {
    /// In the order in which they were said: some files name others that were published before.
    words: Vec<(PathBuf, Arc<Word>)>,
    /// What is being written now.
    paying: Option<PathBuf>,
}

impl Owed {
    pub fn new(reporter: Reporter) -> Self {
        Self { debts: Mutex::default(), written: Condvar::new(), reporter }
    }

    /// There is a newer word. When this returns, the old one is not being written either.
    pub fn forget(&self, path: &Path) {
        let busy = |debts: &mut Debts| debts.paying.as_deref() == Some(path);
        let debts = self.written.wait_while(self.debts(), busy);
        debts.unwrap_or_else(PoisonError::into_inner).words.retain(|(owed, _)| owed != path);
    }

    /// After its fault was told, which goes when it is made true.
    pub fn keep(&self, path: PathBuf, word: Word) {
        let words = &mut self.debts().words;
        words.retain(|(owed, _)| *owed != path);
        if words.len() < MOST {
            words.push((path, Arc::new(word)));
        }
    }

    /// Tries them all until `stop`.
    pub async fn pay(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(TRY_EVERY)).await.is_some() {
            if self.debts().words.is_empty() {
                continue;
            }
            let owed = self.clone();
            // Writing may wait for a disk. What breaks by a defect is owed still.
            let _ = tokio::task::spawn_blocking(move || owed.pay_once()).await;
        }
    }

    fn pay_once(&self) {
        let paths: Vec<PathBuf> = self.debts().words.iter().map(|(path, _)| path.clone()).collect();
        for path in paths {
            let Some(payment) = self.begin(path) else { continue };
            if payment.word.put(&payment.path).is_ok() {
                self.debts().words.retain(|(_, owed)| !Arc::ptr_eq(owed, &payment.word));
                self.reporter.clear(&subject(&payment.path));
            }
        }
    }

    /// `None`: it is owed no more.
    fn begin(&self, path: PathBuf) -> Option<Payment<'_>> {
        let mut debts = self.debts();
        let (_, word) = debts.words.iter().find(|(owed, _)| *owed == path)?;
        let word = word.clone();
        debts.paying = Some(path.clone());
        Some(Payment { owed: self, path, word })
    }

    fn debts(&self) -> MutexGuard<'_, Debts> {
        self.debts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One word that is being written. Whoever has a newer one for its path waits for its end.
struct Payment<'a> {
    owed: &'a Owed,
    path: PathBuf,
    word: Arc<Word>,
}

impl Drop for Payment<'_> {
    fn drop(&mut self) {
        self.owed.debts().paying = None;
        self.owed.written.notify_all();
    }
}

/// Under which it is told that a path is not as it should be.
pub(super) fn subject(path: &Path) -> String {
    format!("publishing {}", path.display())
}
