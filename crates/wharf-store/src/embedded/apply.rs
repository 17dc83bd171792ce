//! Transactions against the tables. Everything here runs inside the writer's SQLite transaction.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::layout::{last_id_of, log_id, revision_of, set_compacted};
use crate::types::{Change, Compare, Entry, LeaseId, Op, Revision, Txn};

/// What a key points to.
#[derive(Clone, Copy)]
struct Row {
    created: u64,
    log: i64,
}

/// What became of a transaction inside the batch.
pub(super) enum Verdict {
    Committed(Revision),
    Refused,
    LeaseGone,
}

/// The writes of a batch so far: what to publish once it is on disk.
pub(super) struct Draft {
    /// The store's revision with the draft; before the first write, the one on disk.
    pub(super) revision: u64,
    pub(super) compacted: u64,
    pub(super) changes: Vec<Change>,
    pub(super) bytes: usize,
}

impl Draft {
    pub(super) fn new(revision: u64, compacted: u64) -> Draft {
        Draft { revision, compacted, changes: Vec::new(), bytes: 0 }
    }

    /// Applies one transaction, if its conditions hold and its leases live.
    pub(super) fn apply(
        &mut self,
        conn: &Connection,
        txn: Txn,
        is_live: impl Fn(LeaseId) -> bool,
    ) -> rusqlite::Result<Verdict> {
        let mut rows = HashMap::new();
        for compare in &txn.compares {
            if !holds(conn, &mut rows, compare)? {
                return Ok(Verdict::Refused);
            }
        }
        let is_gone =
            |op: &Op| matches!(op, Op::Put { lease: Some(lease), .. } if !is_live(*lease));
        if txn.ops.iter().any(is_gone) {
            return Ok(Verdict::LeaseGone);
        }
        let before = self.changes.len();
        let revision = self.revision + 1;
        for op in txn.ops {
            let seq = self.changes.len() - before;
            match op {
                Op::Put { key, value, lease } => {
                    let row = take(conn, &mut rows, &key)?;
                    self.put(conn, log_id(revision, seq), row, Put { key, value, lease })?;
                }
                Op::Delete { key } => {
                    if let Some(row) = take(conn, &mut rows, &key)? {
                        self.delete(conn, log_id(revision, seq), row, key)?;
                    }
                }
            }
        }
        if self.changes.len() > before {
            self.revision = revision;
        }
        Ok(Verdict::Committed(Revision(self.revision)))
    }

    fn put(
        &mut self,
        conn: &Connection,
        id: i64,
        old: Option<Row>,
        put: Put,
    ) -> rusqlite::Result<()> {
        let Put { key, value, lease } = put;
        let revision = revision_of(id);
        let created = old.map_or(revision, |row| row.created);
        let key_bytes = key.as_bytes();
        let lease = lease.map(|lease| lease.0);
        conn.prepare_cached("INSERT INTO log (id, key, created, value) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![id, key_bytes, created as i64, value])?;
        match old {
            None => conn
                .prepare_cached(
                    "INSERT INTO kv (key, created, log, lease) VALUES (?1, ?2, ?3, ?4)",
                )?
                .execute(params![key_bytes, created as i64, id, lease])?,
            Some(_) => conn
                .prepare_cached("UPDATE kv SET log = ?2, lease = ?3 WHERE key = ?1")?
                .execute(params![key_bytes, id, lease])?,
        };
        self.forget_superseded(conn, old)?;
        self.bytes += key.len() + value.len();
        let (created, modified) = (Revision(created), Revision(revision));
        self.changes.push(Change::Put(Entry { key, value, created, modified }));
        Ok(())
    }

    fn delete(
        &mut self,
        conn: &Connection,
        id: i64,
        old: Row,
        key: String,
    ) -> rusqlite::Result<()> {
        conn.prepare_cached("INSERT INTO log (id, key, created, value) VALUES (?1, ?2, ?3, NULL)")?
            .execute(params![id, key.as_bytes(), old.created as i64])?;
        conn.prepare_cached("DELETE FROM kv WHERE key = ?1")?.execute([key.as_bytes()])?;
        self.forget_superseded(conn, Some(old))?;
        self.bytes += key.len();
        self.changes.push(Change::Deleted { key, revision: Revision(revision_of(id)) });
        Ok(())
    }

    /// A row that compaction passed by because it was the present one goes when it no longer is.
    fn forget_superseded(&self, conn: &Connection, old: Option<Row>) -> rusqlite::Result<()> {
        match old {
            Some(row) if revision_of(row.log) <= self.compacted => {
                conn.prepare_cached("DELETE FROM log WHERE id = ?1")?.execute([row.log]).map(|_| ())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Deletes the keys of a lease, all under one revision.
    pub(super) fn end_lease(&mut self, conn: &Connection, lease: LeaseId) -> rusqlite::Result<()> {
        let keys = conn
            .prepare_cached("SELECT key FROM kv WHERE lease = ?1 ORDER BY key")?
            .query_map([lease.0], text_column)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        self.delete_all(conn, keys)
    }

    /// Deletes the keys of all leases of earlier processes: their holders are gone.
    pub(super) fn end_all_leases(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let keys = conn
            .prepare("SELECT key FROM kv WHERE lease IS NOT NULL ORDER BY key")?
            .query_map([], text_column)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        self.delete_all(conn, keys)
    }

    fn delete_all(&mut self, conn: &Connection, keys: Vec<String>) -> rusqlite::Result<()> {
        let ops = keys.into_iter().map(|key| Op::Delete { key }).collect();
        self.apply(conn, Txn { compares: Vec::new(), ops }, |_| true).map(|_| ())
    }

    /// Removes history up to and including `revision`; rows that are present values stay.
    pub(super) fn compact(&mut self, conn: &Connection, revision: u64) -> rusqlite::Result<()> {
        conn.prepare_cached(
            "DELETE FROM log WHERE id > ?1 AND id <= ?2
             AND NOT EXISTS (SELECT 1 FROM kv WHERE kv.key = log.key AND kv.log = log.id)",
        )?
        .execute([last_id_of(self.compacted), last_id_of(revision)])?;
        set_compacted(conn, revision)?;
        self.compacted = revision;
        Ok(())
    }
}

struct Put {
    key: String,
    value: Vec<u8>,
    lease: Option<LeaseId>,
}

/// The rows that the conditions have looked up, so that the writes need not look again.
type Rows = HashMap<String, Option<Row>>;

fn holds(conn: &Connection, rows: &mut Rows, compare: &Compare) -> rusqlite::Result<bool> {
    let (Compare::Absent(key) | Compare::ModifiedAt(key, _) | Compare::CreatedAt(key, _)) = compare;
    let row = match rows.get(key) {
        Some(row) => *row,
        None => {
            let row = look_up(conn, key)?;
            rows.insert(key.clone(), row);
            row
        }
    };
    Ok(match (compare, row) {
        (Compare::Absent(_), row) => row.is_none(),
        (Compare::ModifiedAt(_, at), Some(row)) => revision_of(row.log) == at.0,
        (Compare::CreatedAt(_, at), Some(row)) => row.created == at.0,
        (Compare::ModifiedAt(..) | Compare::CreatedAt(..), None) => false,
    })
}

fn take(conn: &Connection, rows: &mut Rows, key: &str) -> rusqlite::Result<Option<Row>> {
    match rows.remove(key) {
        Some(row) => Ok(row),
        None => look_up(conn, key),
    }
}

fn look_up(conn: &Connection, key: &str) -> rusqlite::Result<Option<Row>> {
    conn.prepare_cached("SELECT created, log FROM kv WHERE key = ?1")?
        .query_row([key.as_bytes()], |row| {
            Ok(Row { created: row.get::<_, i64>(0)? as u64, log: row.get(1)? })
        })
        .optional()
}

fn text_column(row: &rusqlite::Row<'_>) -> rusqlite::Result<String> {
    key_text(row.get(0)?)
}

/// Only UTF-8 is ever written as a key.
pub(super) fn key_text(key: Vec<u8>) -> rusqlite::Result<String> {
    String::from_utf8(key).map_err(|error| rusqlite::Error::Utf8Error(0, error.utf8_error()))
}
