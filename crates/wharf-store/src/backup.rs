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
#[cfg(test)]
mod tests;

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, Transaction, backup::Backup, params};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Serialize;
use tokio::runtime::Handle;

pub use self::{
    check::{CheckReport, SealState, UnreadableRecord, check},
    restore::restore,
};
use crate::{
    embedded::{
        layout::{self, classify, last_id_of, log_id},
        lock::{io_error, sync_dir},
        on_blocking_thread,
    },
    error::{StoreError, StoreResult},
    etcd::{Etcd, OFFSET_KEY},
    store::StoreLocation,
    types::{Entry, Page, Revision},
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

/// Records that are in memory at a time.
const PAGE: usize = 500;

/// Writes all records, as they are at one moment, into a new file. The server may be running.
pub async fn backup(location: &StoreLocation, out_file: &Path) -> StoreResult<Moved> {
    backup_in_pages(location, out_file, PAGE).await
}

async fn backup_in_pages(
    location: &StoreLocation,
    out_file: &Path,
    page: usize,
) -> StoreResult<Moved> {
    if out_file.exists() {
        return Err(io_error("create", out_file, io::ErrorKind::AlreadyExists.into()));
    }
    match location {
        StoreLocation::Embedded { data_dir } => {
            let (data_dir, out) = (data_dir.clone(), out_file.to_owned());
            on_blocking_thread(move || {
                let source = layout::open_existing(&data_dir)?;
                let db = layout::db_path(&data_dir);
                write_file(&out, |file| copy(&source, file).map_err(|error| classify(&db, error)))
            })
            .await
        }
        StoreLocation::Etcd { endpoints, options } => {
            let etcd = Etcd::open(endpoints, options).await?;
            etcd.refuse_unfinished_restore().await?;
            let moved = backup_etcd(&etcd, out_file, page).await;
            etcd.close();
            moved
        }
    }
}

async fn backup_etcd(etcd: &Etcd, out_file: &Path, page: usize) -> StoreResult<Moved> {
    loop {
        let (etcd, out) = (etcd.clone(), out_file.to_owned());
        let written = on_blocking_thread(move || {
            write_file(&out, |file| Handle::current().block_on(fill(file, &out, &etcd, page)))
        });
        match written.await {
            // The history was compacted between two pages: begin again at a newer revision.
            Err(StoreError::Compacted { .. }) => tracing::debug!("a long backup begins again"),
            done => return done,
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

/// Writes etcd's records, all as they stand at one revision, into an empty file.
async fn fill(target: &mut Connection, out: &Path, etcd: &Etcd, page: usize) -> StoreResult<()> {
    let failed = |error| classify(out, error);
    layout::create_tables(target).map_err(failed)?;
    let txn = target.transaction().map_err(failed)?;
    let mut revision = None;
    let mut next = Some(Page::first(page));
    while let Some(page) = next {
        let listing = etcd.list_at("", &page, revision).await?;
        revision = Some(listing.revision);
        next = page.next(&listing);
        for raw in listing.entries.iter().filter(|raw| !raw.leased && raw.entry.key != OFFSET_KEY) {
            insert(&txn, &raw.entry).map_err(failed)?;
        }
    }
    layout::set_compacted(&txn, revision.unwrap_or_default().0).map_err(failed)?;
    txn.commit().map_err(failed)
}

/// Writes one record with the revisions that it has in etcd.
fn insert(txn: &Transaction<'_>, entry: &Entry) -> rusqlite::Result<()> {
    let (key, created) = (entry.key.as_bytes(), entry.created.0 as i64);
    let (first, last) = (log_id(entry.modified.0, 0), last_id_of(entry.modified.0));
    // Records of one transaction share their revision, but do not come one after the other.
    let id: i64 = txn
        .prepare_cached("SELECT coalesce(max(id) + 1, ?1) FROM log WHERE id BETWEEN ?1 AND ?2")?
        .query_row([first, last], |row| row.get(0))?;
    txn.prepare_cached("INSERT INTO log (id, key, created, value) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![id, key, created, entry.value])?;
    txn.prepare_cached("INSERT INTO kv (key, created, log) VALUES (?1, ?2, ?3)")?
        .execute(params![key, created, id])
        .map(drop)
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
