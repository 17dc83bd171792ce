//! Bringing a backup back.

use std::{fs, path::Path};

use rusqlite::Connection;
use tokio::runtime::Handle;

use super::{Moved, PAGE, REVISION_JUMP, count, integrity_problems};
use crate::{
    embedded::{
        layout::{self, DB_FILE, classify},
        lock::{DirLock, LOCK_FILE, ensure_data_dir, io_error, sync_dir, write_error},
        on_blocking_thread, reader,
    },
    error::{StoreError, StoreResult},
    etcd::{Etcd, OFFSET_KEY, RESTORING_KEY},
    limits::{MAX_OPS, MAX_TXN_BYTES},
    migrate::{SCHEMA_KEY, StoreSchema},
    store::{SCHEMA, StoreLocation},
    types::{Compare, Outcome, Page, RawListing, Revision, Txn},
};

/// The database while it is not whole, and what SQLite keeps beside it.
const PARTIAL_FILE: &str = "wharf.db.restoring";
const PARTIAL_JOURNAL: &str = "wharf.db.restoring-journal";

/// Puts a backup's records into an empty store. Keys that were bound to a lease stay out: their
/// holders are gone.
pub async fn restore(file: &Path, location: &StoreLocation) -> StoreResult<Moved> {
    restore_in_pages(file, location, PAGE).await
}

pub(super) async fn restore_in_pages(
    file: &Path,
    location: &StoreLocation,
    page: usize,
) -> StoreResult<Moved> {
    let file = file.to_owned();
    let location = location.clone();
    on_blocking_thread(move || match location {
        StoreLocation::Embedded { data_dir } => restore_embedded(&file, &data_dir),
        StoreLocation::Etcd { endpoints, options } => Handle::current().block_on(async {
            let backup = open_checked(&file)?;
            let etcd = Etcd::open(&endpoints, &options).await?;
            let moved = restore_etcd(&backup, &file, &etcd, page).await;
            etcd.close();
            moved
        }),
    })
    .await
}

/// Opens a backup, unless it is damaged or of a newer version.
fn open_checked(file: &Path) -> StoreResult<Connection> {
    layout::ensure_readable(file)?;
    let conn = layout::open_reader(file)?;
    layout::ensure_layout(&conn, file)?;
    let problems = integrity_problems(&conn).map_err(|error| classify(file, error))?;
    if let Some(first) = problems.first() {
        return Err(StoreError::Damaged { path: file.to_owned(), source: first.clone().into() });
    }
    if let Some(entry) = reader::get(&conn, SCHEMA_KEY).map_err(|error| classify(file, error))? {
        StoreSchema::decode(&entry)?.ensure_known(SCHEMA)?;
    }
    Ok(conn)
}

fn restore_embedded(file: &Path, data_dir: &Path) -> StoreResult<Moved> {
    drop(open_checked(file)?);
    let is_new = !data_dir.exists();
    ensure_data_dir(data_dir)?;
    let read = |source| io_error("read", data_dir, source);
    if fs::read_dir(data_dir).map_err(read)?.next().is_some() {
        return Err(StoreError::NotEmpty { what: format!("the directory {}", data_dir.display()) });
    }
    match DirLock::take(data_dir) {
        Ok(_held_to_the_end) => fill_empty(file, data_dir).inspect_err(|_| undo(data_dir, is_new)),
        // What is there belongs to another.
        Err(error @ StoreError::InUse { .. }) => Err(error),
        Err(error) => {
            undo(data_dir, is_new);
            Err(error)
        }
    }
}

fn fill_empty(file: &Path, data_dir: &Path) -> StoreResult<Moved> {
    let (db, partial) = (layout::db_path(data_dir), data_dir.join(PARTIAL_FILE));
    let moved = restore_file(file, &partial)?;
    fs::rename(&partial, &db).map_err(|source| write_error("rename", &partial, source))?;
    sync_dir(data_dir)?;
    Ok(moved)
}

/// Removes what a restore that failed has made in an empty directory, so that it can be tried again.
/// The error is what matters; what cannot be removed is named by the next try.
fn undo(data_dir: &Path, is_new: bool) {
    for file in [PARTIAL_JOURNAL, PARTIAL_FILE, DB_FILE, LOCK_FILE] {
        fs::remove_file(data_dir.join(file)).ok();
    }
    if is_new {
        fs::remove_dir(data_dir).ok();
    }
}

fn restore_file(file: &Path, partial: &Path) -> StoreResult<Moved> {
    let failed = |source| write_error("write", partial, source);
    fs::copy(file, partial).map_err(failed)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(partial, mode).map_err(failed)?;
    let moved = jump(partial).map_err(|error| classify(partial, error))?;
    fs::File::open(partial).and_then(|file| file.sync_all()).map_err(failed)?;
    Ok(moved)
}

/// Leaves out leases and history, and raises the revision.
fn jump(partial: &Path) -> rusqlite::Result<Moved> {
    let mut conn = Connection::open(partial)?;
    let txn = conn.transaction()?;
    let revision = layout::revision(&txn)? + REVISION_JUMP;
    txn.execute("DELETE FROM kv WHERE lease IS NOT NULL", [])?;
    txn.execute("DELETE FROM log WHERE id NOT IN (SELECT log FROM kv)", [])?;
    layout::set_compacted(&txn, revision)?;
    txn.commit()?;
    let moved = count(&conn)?;
    conn.close().map_err(|(_, error)| error)?;
    Ok(moved)
}

async fn restore_etcd(
    backup: &Connection,
    file: &Path,
    etcd: &Etcd,
    page: usize,
) -> StoreResult<Moved> {
    let failed = |error| classify(file, error);
    let not_empty =
        || StoreError::NotEmpty { what: format!("the prefix {} of etcd", crate::etcd::ROOT) };
    if !etcd.list("", &Page::first(1)).await?.entries.is_empty() {
        return Err(not_empty());
    }
    let snapshot = backup.unchecked_transaction().map_err(failed)?;
    let offset = layout::revision(&snapshot).map_err(failed)? + REVISION_JUMP;
    let begin = Txn::new()
        .when(Compare::Absent(RESTORING_KEY.to_owned()))
        .when(Compare::Absent(OFFSET_KEY.to_owned()))
        .put(RESTORING_KEY, "true")
        .put(OFFSET_KEY, offset.to_string());
    if etcd.commit(&begin).await? == Outcome::Refused {
        return Err(not_empty());
    }
    let mut records = 0;
    let mut next = Some(Page::first(page));
    while let Some(page) = next {
        let listing = reader::list_in(&snapshot, "", &page).map_err(failed)?;
        next = page.next(&listing);
        records += write_page(etcd, listing).await?;
    }
    let revision = commit(etcd, &Txn::new().delete(RESTORING_KEY)).await?;
    Ok(Moved { records, revision: Revision(revision.0 + offset) })
}

/// Writes a page's records in as few transactions as etcd's limits allow.
async fn write_page(etcd: &Etcd, listing: RawListing) -> StoreResult<u64> {
    let mut records = 0;
    let mut txn = Txn::new();
    let mut bytes = 0;
    for raw in listing.entries.into_iter().filter(|raw| !raw.leased) {
        let size = raw.entry.key.len() + raw.entry.value.len();
        if txn.ops.len() == MAX_OPS || bytes + size > MAX_TXN_BYTES {
            commit(etcd, &std::mem::take(&mut txn)).await?;
            bytes = 0;
        }
        bytes += size;
        records += 1;
        txn = txn.put(raw.entry.key, raw.entry.value);
    }
    commit(etcd, &txn).await?;
    Ok(records)
}

/// Writes without conditions; nobody else uses a store that is being restored.
async fn commit(etcd: &Etcd, txn: &Txn) -> StoreResult<Revision> {
    match etcd.commit(txn).await? {
        Outcome::Committed(revision) => Ok(revision),
        Outcome::Refused => Err(StoreError::Backend("etcd refused an unconditional write".into())),
    }
}
