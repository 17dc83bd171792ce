//! Reads. In WAL mode they never wait for the writer, and see all that it has acknowledged.

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::{
    apply::key_text,
    layout::{classify, compacted, last_id_of, open_reader, revision, revision_of},
};
use crate::{
    error::{StoreError, StoreResult},
    limits::prefix_end,
    types::{Change, Entry, Page, RawEntry, RawListing, Revision},
};

/// A few connections that are used in turn.
pub(super) struct Readers {
    path: PathBuf,
    slots: Vec<Mutex<Option<Connection>>>,
    next: AtomicUsize,
}

impl Readers {
    pub(super) fn open(path: &Path, count: usize) -> StoreResult<Readers> {
        let slots = (0..count)
            .map(|_| open_reader(path).map(|conn| Mutex::new(Some(conn))))
            .collect::<StoreResult<_>>()?;
        Ok(Readers { path: path.to_owned(), slots, next: AtomicUsize::new(0) })
    }

    /// Runs `read` on a free connection, or waits for one; reads are short.
    pub(super) fn with<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> StoreResult<T> {
        let guard = self.take().ok_or(StoreError::Closed)?;
        let conn = guard.as_ref().ok_or(StoreError::Closed)?;
        read(conn).map_err(|error| classify(&self.path, error))
    }

    fn take(&self) -> Option<MutexGuard<'_, Option<Connection>>> {
        if let Some(free) = self.slots.iter().find_map(|slot| slot.try_lock().ok()) {
            return Some(free);
        }
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.slots.len().max(1);
        let slot = self.slots.get(turn)?;
        Some(slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    pub(super) fn close(&self) {
        for slot in &self.slots {
            slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        }
    }
}

pub(crate) fn get(conn: &Connection, key: &str) -> rusqlite::Result<Option<Entry>> {
    conn.prepare_cached(
        "SELECT kv.created, kv.log, log.value FROM kv JOIN log ON log.id = kv.log WHERE kv.key = ?1",
    )?
    .query_row([key.as_bytes()], |row| {
        Ok(Entry {
            key: key.to_owned(),
            value: row.get(2)?,
            created: Revision(row.get::<_, i64>(0)? as u64),
            modified: Revision(revision_of(row.get(1)?)),
        })
    })
    .optional()
}

const LIST_ASCENDING: &str = "
    SELECT kv.key, kv.created, kv.log, log.value, kv.lease IS NOT NULL
    FROM kv JOIN log ON log.id = kv.log
    WHERE kv.key >= ?1 AND kv.key > ?2 AND (?3 IS NULL OR kv.key < ?3)
    ORDER BY kv.key LIMIT ?4";
const LIST_DESCENDING: &str = "
    SELECT kv.key, kv.created, kv.log, log.value, kv.lease IS NOT NULL
    FROM kv JOIN log ON log.id = kv.log
    WHERE kv.key >= ?1 AND (?2 IS NULL OR kv.key < ?2) AND (?3 IS NULL OR kv.key < ?3)
    ORDER BY kv.key DESC LIMIT ?4";

pub(crate) fn list(conn: &Connection, prefix: &str, page: &Page) -> rusqlite::Result<RawListing> {
    // One SQLite transaction, so that the entries and the revision are of one moment.
    list_in(&conn.unchecked_transaction()?, prefix, page)
}

/// The same inside a transaction, so that several pages are of one moment.
pub(crate) fn list_in(
    snapshot: &Transaction<'_>,
    prefix: &str,
    page: &Page,
) -> rusqlite::Result<RawListing> {
    let revision = Revision(revision(snapshot)?);
    let wanted = page.limit.saturating_add(1).min(i64::MAX as usize) as i64;
    let end = prefix_end(prefix);
    let after = page.after.as_deref().map(str::as_bytes);
    let mut statement = snapshot.prepare_cached(match page.descending {
        false => LIST_ASCENDING,
        true => LIST_DESCENDING,
    })?;
    // An empty key does not exist, so that every key is greater.
    let after = if page.descending { after } else { Some(after.unwrap_or_default()) };
    let mut entries = statement
        .query_map(params![prefix.as_bytes(), after, end, wanted], |row| {
            let entry = Entry {
                key: key_text(row.get(0)?)?,
                value: row.get(3)?,
                created: Revision(row.get::<_, i64>(1)? as u64),
                modified: Revision(revision_of(row.get(2)?)),
            };
            Ok(RawEntry { entry, leased: row.get(4)? })
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let more = entries.len() > page.limit;
    entries.truncate(page.limit);
    Ok(RawListing { entries, revision, more })
}

/// A part of the log: whole transactions, and the revision up to which nothing is left out.
pub(super) enum Replay {
    Changes { changes: Vec<Change>, position: u64 },
    Compacted { oldest: u64 },
}

/// About how many bytes of values one part of the log may hold.
const REPLAY_BYTES: usize = 4 << 20;

/// Reads changes below `prefix` after `position`, about `limit` of them.
pub(super) fn replay(
    conn: &Connection,
    prefix: &str,
    position: u64,
    limit: usize,
) -> rusqlite::Result<Replay> {
    let snapshot = conn.unchecked_transaction()?;
    let gone = compacted(&snapshot)?;
    if position < gone {
        return Ok(Replay::Compacted { oldest: gone + 1 });
    }
    let mut statement = snapshot.prepare_cached(
        "SELECT id, key, created, value FROM log
         WHERE id > ?1 AND key >= ?2 AND (?3 IS NULL OR key < ?3) ORDER BY id",
    )?;
    let mut rows =
        statement.query(params![last_id_of(position), prefix.as_bytes(), prefix_end(prefix)])?;
    let mut changes: Vec<Change> = Vec::new();
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let revision = Revision(revision_of(row.get(0)?));
        let full = changes.len() >= limit || bytes >= REPLAY_BYTES;
        let last = changes.last().map(Change::revision);
        if let Some(last) = last.filter(|last| full && revision > *last) {
            return Ok(Replay::Changes { changes, position: last.0 });
        }
        let key = key_text(row.get(1)?)?;
        let created = Revision(row.get::<_, i64>(2)? as u64);
        let value: Option<Vec<u8>> = row.get(3)?;
        bytes += value.as_ref().map_or(0, Vec::len);
        changes.push(match value {
            Some(value) => Change::Put(Entry { key, value, created, modified: revision }),
            None => Change::Deleted { key, revision },
        });
    }
    let position = revision(&snapshot)?.max(position);
    Ok(Replay::Changes { changes, position })
}
