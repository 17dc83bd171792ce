//! A record of the agent that is held in one of its phases.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use wharf_agent::host::files::beside;

/// On a busy machine several may have to wait for a processor between two looks; never all of these.
const WATCHERS: usize = 8;

/// The agent writes a new record beside the old one, under a lock, and renames it. While both names are
/// those of one file, renaming does nothing and every record is written under the same lock. Watchers
/// want that too: while one looks at the record the others wait, so that the agent does not get
/// the lock a second time before one of them has looked. The one that finds the phase keeps the
/// lock, and the agent cannot go on to the next.
pub struct Held {
    found: Receiver<()>,
    over: Arc<AtomicBool>,
    watchers: Vec<JoinHandle<()>>,
}

impl Held {
    /// Holds the record at this path in the first phase whose name is in it.
    pub fn at(record: &Path, phase: &'static str) -> Self {
        let beside = beside(record).unwrap();
        let _ = fs::remove_file(&beside);
        fs::hard_link(record, &beside).unwrap();
        let (tell, found) = mpsc::channel();
        let (over, removed) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let watcher = || Watcher {
            file: File::open(&beside).unwrap(),
            beside: beside.clone(),
            phase,
            tell: tell.clone(),
            over: over.clone(),
            removed: removed.clone(),
        };
        let watchers = (0..WATCHERS).map(|_| watcher());
        let watchers = watchers.map(|watcher| thread::spawn(move || watcher.watch())).collect();
        Self { found, over, watchers }
    }

    /// Returns when the record is held in the phase.
    pub fn wait(&self, limit: Duration) {
        self.found.recv_timeout(limit).expect("the record came to the phase");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        for watcher in self.watchers.drain(..) {
            let _ = watcher.join();
        }
    }
}

struct Watcher {
    file: File,
    beside: PathBuf,
    phase: &'static str,
    tell: Sender<()>,
    over: Arc<AtomicBool>,
    /// The second name is gone. The agent may have another file of that name then.
    removed: Arc<AtomicBool>,
}

impl Watcher {
    fn watch(self) {
        let is_over = || self.over.load(Ordering::SeqCst);
        loop {
            self.file.lock().unwrap();
            let record = fs::read_to_string(&self.beside).unwrap_or_default();
            if !is_over() && record.contains(&format!("\"{}\"", self.phase)) {
                let _ = self.tell.send(());
                while !is_over() {
                    thread::park_timeout(Duration::from_millis(10));
                }
            }
            // The lock goes with the file.
            if is_over() {
                if !self.removed.swap(true, Ordering::SeqCst) {
                    let _ = fs::remove_file(&self.beside);
                }
                return;
            }
            self.file.unlock().unwrap();
        }
    }
}
