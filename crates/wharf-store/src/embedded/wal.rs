//! The write-ahead log's file: how long it is, when it is copied, and room ahead of it.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rusqlite::{Connection, hooks, wal::CheckpointMode};

/// The log is copied into the database when nobody has asked for anything for a moment and it
/// holds this many pages, and whatever is going on when it holds many more. The file keeps its
/// size: overwriting it syncs faster than growing it.
const CHECKPOINT_WHEN_IDLE_PAGES: usize = 1000;
const CHECKPOINT_AT_LATEST_PAGES: usize = 8000;

/// A page of SQLite's default size with its head, as it lies in the log.
const FRAME_BYTES: u64 = 4096 + 24;

/// As long as the log grows, each sync has to note its new length too, which takes as long as the
/// data. So it grows by this much at once, ahead of its use.
const ROOM_BYTES: u64 = 1 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

pub(super) struct Wal {
    path: PathBuf,
    /// Pages in the log, told by SQLite at each commit.
    pages: Arc<AtomicUsize>,
    file: Option<File>,
}

impl Wal {
    /// Lets SQLite tell how long the log is.
    pub(super) fn watch(conn: &mut Connection, database: &Path) -> rusqlite::Result<Wal> {
        let pages = Arc::new(AtomicUsize::new(0));
        let told = Arc::clone(&pages);
        conn.wal_hook(Some(move |_: &mut hooks::Wal, count: std::ffi::c_int| {
            told.store(usize::try_from(count).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        Ok(Wal { path: path.into(), pages, file: None })
    }

    fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Whether it should be copied as soon as nobody asks for anything.
    pub(super) fn is_long(&self) -> bool {
        self.pages() >= CHECKPOINT_WHEN_IDLE_PAGES
    }

    pub(super) fn checkpoint_if_due(&self, conn: &Connection, idle: bool) {
        let limit = if idle { CHECKPOINT_WHEN_IDLE_PAGES } else { CHECKPOINT_AT_LATEST_PAGES };
        if self.pages() < limit {
            return;
        }
        // A long reader (a backup) or a full disk can hold it up. The log keeps everything, and the
        // next commit tells its length again: then the rest is tried.
        self.pages.store(0, Ordering::Relaxed);
        if let Err(error) = conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) {
            tracing::debug!(%error, "the write-ahead log cannot be checkpointed yet");
        }
    }

    /// Lengthens the file by zeros when little room is left in it. SQLite takes what follows its
    /// last page for nothing, whatever it is. On failure the log grows by itself, only slower.
    pub(super) fn make_room(&mut self) {
        if let Err(error) = self.try_make_room() {
            tracing::debug!(%error, "the write-ahead log cannot be lengthened ahead");
        }
    }

    fn try_make_room(&mut self) -> std::io::Result<()> {
        let used = self.pages() as u64 * FRAME_BYTES;
        if used == 0 {
            return Ok(());
        }
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(OpenOptions::new().write(true).open(&self.path)?),
        };
        let length = file.metadata()?.len();
        if length >= used + ROOM_BYTES / 2 {
            return Ok(());
        }
        let end = length + ROOM_BYTES;
        let mut at = length;
        while at < end {
            file.write_all_at(&ZEROS, at)?;
            at += ZEROS.len() as u64;
        }
        Ok(())
    }
}
