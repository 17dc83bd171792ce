//! `wharf store backup`, `restore` and `check`.
//!
//! A backup is one SQLite file with the embedded store's own tables, whichever back end it came
//! from, so that it can be restored into either. Secrets in it stay sealed: the key file is not
//! part of it and has to be kept apart.
//!
//! A restored store goes on at a much higher revision ([`REVISION_JUMP`]). The old store may have
//! handed out revisions after the backup was made; were they given again to other changes, a
//! client that resumes its events would silently miss some. So it is told that they are gone.

mod check;
mod restore;

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, backup::Backup, params};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Serialize;

pub use self::{
    check::{CheckReport, SealState, UnreadableRecord, check},
    restore::restore,
};
use crate::{
    embedded::{
        layout::{self, classify, log_id},
        lock::{io_error, sync_dir},
        on_blocking_thread,
    },
    error::StoreResult,
    etcd::{Etcd, OFFSET_KEY},
    store::StoreLocation,
    types::{Page, RawListing, Revision},
};

/// More revisions than a store hands out between a backup and the loss that makes it needed.
pub const REVISION_JUMP: u64 = 1_000_000;

/// What a backup or a restore has moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Moved {
    pub records: u64,
    /// The revision of the store at the moment of the backup; after a restore, the new one.
    pub revision: Revision,
}

/// Writes all records, as they are at one moment, into a new file. The server may be running.
pub async fn backup(location: &StoreLocation, out_file: &Path) -> StoreResult<Moved> {
    if out_file.exists() {
        return Err(io_error("create", out_file, io::ErrorKind::AlreadyExists.into()));
    }
    let out = out_file.to_owned();
    match location {
        StoreLocation::Embedded { data_dir } => {
            let db = layout::db_path(data_dir);
            on_blocking_thread(move || {
                write_file(&out, |file| {
                    let source = layout::open_reader(&db)?;
                    layout::ensure_layout(&source, &db)?;
                    copy(&source, file).map_err(|error| classify(&db, error))
                })
            })
            .await
        }
        StoreLocation::Etcd { endpoints, options } => {
            let etcd = Etcd::open(endpoints, options).await?;
            etcd.refuse_unfinished_restore().await?;
            let listing = etcd.list("", &Page::ALL).await?;
            etcd.close();
            on_blocking_thread(move || {
                write_file(&out, |file| fill(file, &listing).map_err(|error| classify(&out, error)))
            })
            .await
        }
    }
}

/// Fills a file under another name, makes it durable, and only then gives it its name.
fn write_file(
    out: &Path,
    write: impl FnOnce(&mut Connection) -> StoreResult<()>,
) -> StoreResult<Moved> {
    let partial = partial_name(out);
    let result = write_partial(out, &partial, write);
    if result.is_err() {
        // The error is what matters; a left-over is named so that nobody takes it for a backup.
        fs::remove_file(&partial).ok();
    }
    result
}

fn write_partial(
    out: &Path,
    partial: &Path,
    write: impl FnOnce(&mut Connection) -> StoreResult<()>,
) -> StoreResult<Moved> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(partial)
        .map_err(|source| io_error("create", partial, source))?;
    let failed = |error| classify(partial, error);
    let mut conn = Connection::open(partial).map_err(failed)?;
    write(&mut conn)?;
    // Back from the write-ahead log to a single file.
    conn.pragma_update(None, "journal_mode", "DELETE").map_err(failed)?;
    let moved = count(&conn).map_err(failed)?;
    conn.close().map_err(|(_, error)| failed(error))?;
    file.sync_all().map_err(|source| io_error("sync", partial, source))?;
    renameat_with(CWD, partial, CWD, out, RenameFlags::NOREPLACE)
        .map_err(|errno| io_error("create", out, errno.into()))?;
    sync_dir(out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    Ok(moved)
}

fn partial_name(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(format!(".partial-{}", std::process::id()));
    PathBuf::from(name)
}

/// Copies in one step: a reader in WAL mode holds no writer up, and nothing has to begin anew.
fn copy(source: &Connection, target: &mut Connection) -> rusqlite::Result<()> {
    let backup = Backup::new(source, target)?;
    const ALL_PAGES: std::ffi::c_int = -1;
    while backup.step(ALL_PAGES)? != rusqlite::backup::StepResult::Done {}
    Ok(())
}

/// Writes records into an empty file, with the revisions that they have in etcd.
fn fill(target: &mut Connection, listing: &RawListing) -> rusqlite::Result<()> {
    layout::create_tables(target)?;
    let mut entries: Vec<_> = listing
        .entries
        .iter()
        .filter(|raw| !raw.leased && raw.entry.key != OFFSET_KEY)
        .map(|raw| &raw.entry)
        .collect();
    entries.sort_by_key(|entry| entry.modified);
    let txn = target.transaction()?;
    let (mut revision, mut seq) = (Revision(0), 0);
    for entry in entries {
        seq = if entry.modified == revision { seq + 1 } else { 0 };
        revision = entry.modified;
        let id = log_id(revision.0, seq);
        let key = entry.key.as_bytes();
        txn.prepare_cached("INSERT INTO log (id, key, created, value) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![id, key, entry.created.0 as i64, entry.value])?;
        txn.prepare_cached("INSERT INTO kv (key, created, log) VALUES (?1, ?2, ?3)")?
            .execute(params![key, entry.created.0 as i64, id])?;
    }
    layout::set_compacted(&txn, listing.revision.0)?;
    txn.commit()
}

fn count(conn: &Connection) -> rusqlite::Result<Moved> {
    let records: i64 = conn.query_row("SELECT count(*) FROM kv", [], |row| row.get(0))?;
    Ok(Moved { records: records as u64, revision: Revision(layout::revision(conn)?) })
}

/// What SQLite itself and our own rules find wrong with a file.
fn integrity_problems(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut problems = conn
        .prepare("PRAGMA integrity_check")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<String>>>()?;
    problems.retain(|line| line != "ok");
    let lost: i64 = conn.query_row(
        "SELECT count(*) FROM kv LEFT JOIN log ON log.id = kv.log AND log.key = kv.key
         WHERE log.value IS NULL",
        [],
        |row| row.get(0),
    )?;
    if lost > 0 {
        problems.push(format!("{lost} keys have no value"));
    }
    Ok(problems)
}
