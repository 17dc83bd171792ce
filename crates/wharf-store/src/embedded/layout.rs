//! The SQLite file: its tables, how it is opened, and what its errors mean.
//!
//! `log` is append-only and holds every value once; `kv` says which row of it is the present one.
//! So a write touches the end of one tree and one leaf of a small other, history for watchers
//! costs nothing extra, and the newest row tells the store's revision.

use std::{
    fs::OpenOptions,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, config::DbConfig};

use super::lock::{io_error, write_error};
use crate::error::{StoreError, StoreResult};

pub(crate) const DB_FILE: &str = "wharf.db";

/// "whrf": tells a Wharf store from any other SQLite file.
const APPLICATION_ID: i32 = 0x7768_7266;

/// The version of the tables below; the form of the records is `store::SCHEMA`.
pub(crate) const LAYOUT: u32 = 1;

/// A log row's id is its revision and its place in the transaction.
const SEQ_BITS: u32 = 20;

/// Another process only ever holds the file for moments (offline tools).
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Enough for the pages that a full batch of scattered keys changes, so that none of them is
/// written or read twice. Memory is taken as it is needed.
const WRITER_CACHE_KIBIBYTES: i32 = 32 << 10;

const TABLES: &str = "
    CREATE TABLE log (
        id INTEGER PRIMARY KEY,     -- revision << 20 | place in the transaction
        key BLOB NOT NULL,
        created INTEGER NOT NULL,   -- revision; of the deleted key in a row that says deleted
        value BLOB                  -- NULL: deleted
    );
    CREATE TABLE kv (
        key BLOB PRIMARY KEY,
        created INTEGER NOT NULL,
        log INTEGER NOT NULL,       -- the row of log that holds the value
        lease INTEGER
    ) WITHOUT ROWID;
    CREATE INDEX kv_lease ON kv(lease) WHERE lease IS NOT NULL;
    -- compacted: history up to this revision is gone. The revision is never below it.
    CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
    INSERT INTO meta VALUES ('compacted', 0);
";

pub(crate) fn log_id(revision: u64, seq: usize) -> i64 {
    // 43 bits of revision are enough for 270 years of a thousand commits a millisecond.
    ((revision << SEQ_BITS) | (seq as u64 & ((1 << SEQ_BITS) - 1))) as i64
}

/// The last row that a revision can have.
pub(crate) fn last_id_of(revision: u64) -> i64 {
    log_id(revision.min(i64::MAX as u64 >> SEQ_BITS), usize::MAX)
}

pub(crate) fn revision_of(log_id: i64) -> u64 {
    (log_id >> SEQ_BITS) as u64
}

pub(crate) fn db_path(data_dir: &Path) -> PathBuf {
    data_dir.join(DB_FILE)
}

/// Opens the file for the writer thread, and makes it if it is missing.
pub(crate) fn open_writer(path: &Path) -> StoreResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || -> rusqlite::Result<Connection> {
        let conn = Connection::open_with_flags(path, flags)?;
        conn.busy_timeout(BUSY_TIMEOUT)?;
        conn.pragma_update(None, "journal_mode", "WAL")?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        // The writer thread decides when to checkpoint; see writer.rs.
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        conn.pragma_update(None, "temp_store", "MEMORY")?;
        conn.pragma_update(None, "cache_size", -WRITER_CACHE_KIBIBYTES)?;
        keep_plans(&conn)?;
        Ok(conn)
    };
    create_private(path)?;
    let conn = open().map_err(|error| classify(path, error))?;
    if is_fresh(&conn).map_err(|error| classify(path, error))? {
        create_tables(&conn).map_err(|error| classify(path, error))?;
    }
    ensure_layout(&conn, path)?;
    Ok(conn)
}

/// Makes the file, for its owner alone, if it is missing. SQLite would let everybody read it; the
/// files that it makes beside it get the mode of this one.
fn create_private(path: &Path) -> StoreResult<()> {
    // Never opens one that exists: closing it would give up the locks that SQLite has on it.
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(write_error("create", path, error))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Opens the store of a data directory to read, if there is one.
pub(crate) fn open_existing(data_dir: &Path) -> StoreResult<Connection> {
    let path = db_path(data_dir);
    match ensure_readable(&path) {
        Err(StoreError::Io { source, .. }) if is_missing(&source) => {
            return Err(StoreError::NoStore { dir: data_dir.to_owned() });
        }
        readable => readable?,
    }
    let conn = open_reader(&path)?;
    ensure_layout(&conn, &path)?;
    Ok(conn)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Says why a file cannot be read; SQLite only says that it cannot open it.
pub(crate) fn ensure_readable(path: &Path) -> StoreResult<()> {
    rustix::fs::access(path, rustix::fs::Access::READ_OK)
        .map_err(|errno| io_error("read", path, errno.into()))
}

/// Opens the file to read; never takes the server's lock and never changes a row.
pub(crate) fn open_reader(path: &Path) -> StoreResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(|error| classify(path, error))?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(|error| classify(path, error))?;
    keep_plans(&conn).map_err(|error| classify(path, error))?;
    Ok(conn)
}

/// Otherwise a cached statement is compiled anew whenever its parameters change, because the plan
/// might depend on their values (a partial index is enough): most of the cost of a short read.
fn keep_plans(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

fn is_fresh(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))
}

pub(crate) fn create_tables(conn: &Connection) -> rusqlite::Result<()> {
    let writer = env!("CARGO_PKG_VERSION");
    conn.execute_batch(&format!(
        "BEGIN IMMEDIATE; {TABLES}
         INSERT INTO meta VALUES ('writer', '{writer}');
         PRAGMA application_id = {APPLICATION_ID};
         PRAGMA user_version = {LAYOUT};
         COMMIT;"
    ))
}

/// Refuses files that are not ours, and ours of a later version.
pub(crate) fn ensure_layout(conn: &Connection, path: &Path) -> StoreResult<()> {
    let pragma = |name: &str| -> StoreResult<i64> {
        conn.pragma_query_value(None, name, |row| row.get(0)).map_err(|e| classify(path, e))
    };
    if pragma("application_id")? != i64::from(APPLICATION_ID) {
        return Err(StoreError::Damaged {
            path: path.to_owned(),
            source: "it is an SQLite file, but not a Wharf store".into(),
        });
    }
    let found = u32::try_from(pragma("user_version")?).unwrap_or(u32::MAX);
    if found > LAYOUT {
        let writer: Option<String> = conn
            .query_row("SELECT value FROM meta WHERE name = 'writer'", [], |row| row.get(0))
            .optional()
            .unwrap_or_default();
        let writer = writer.unwrap_or_else(|| "of an unknown version".to_owned());
        return Err(StoreError::Newer { found, known: LAYOUT, writer });
    }
    Ok(())
}

pub(crate) fn compacted(conn: &Connection) -> rusqlite::Result<u64> {
    let mut statement = conn.prepare_cached("SELECT value FROM meta WHERE name = 'compacted'")?;
    statement.query_row([], |row| row.get::<_, i64>(0)).map(|value| value as u64)
}

pub(crate) fn set_compacted(conn: &Connection, revision: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'compacted'")?
        .execute([revision as i64])
        .map(|_| ())
}

/// The store's revision, as this connection sees it.
pub(crate) fn revision(conn: &Connection) -> rusqlite::Result<u64> {
    let mut statement = conn.prepare_cached("SELECT coalesce(max(id), 0) FROM log")?;
    let newest: i64 = statement.query_row([], |row| row.get(0))?;
    Ok(revision_of(newest).max(compacted(conn)?))
}

/// What an SQLite error means to the person who runs the server, by its code.
pub(crate) fn classify(path: &Path, error: rusqlite::Error) -> StoreError {
    classify_shared(path, &Arc::new(error))
}

/// The same for an error that several writers are told of.
pub(crate) fn classify_shared(path: &Path, error: &Arc<rusqlite::Error>) -> StoreError {
    let source = Box::new(Arc::clone(error));
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::DiskFull(source),
        Some(ErrorCode::ReadOnly) => StoreError::ReadOnly { what: path.display().to_string() },
        Some(ErrorCode::CannotOpen) if parent_is_read_only(path) => {
            StoreError::ReadOnly { what: path.display().to_string() }
        }
        // Growing the shared-memory file reports a full disk as an I/O error.
        Some(ErrorCode::SystemIoFailure) if disk_is_full(path) => StoreError::DiskFull(source),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Damaged { path: path.to_owned(), source }
        }
        _ => StoreError::Backend(source),
    }
}

fn disk_is_full(path: &Path) -> bool {
    let dir = path.parent().unwrap_or(path);
    rustix::fs::statvfs(dir).is_ok_and(|stat| stat.f_bavail == 0)
}

fn parent_is_read_only(path: &Path) -> bool {
    let dir = path.parent().unwrap_or(path);
    matches!(
        rustix::fs::access(dir, rustix::fs::Access::WRITE_OK),
        Err(rustix::io::Errno::ROFS | rustix::io::Errno::ACCESS | rustix::io::Errno::PERM)
    )
}
