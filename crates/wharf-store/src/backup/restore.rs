//! Bringing a backup back.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rusqlite::Connection;

use super::{Moved, REVISION_JUMP, count, integrity_problems};
use crate::{
    embedded::{
        layout::{self, classify},
        lock::{DirLock, ensure_data_dir, io_error, sync_dir},
        on_blocking_thread, reader,
    },
    error::{StoreError, StoreResult},
    etcd::{Etcd, OFFSET_KEY, RESTORING_KEY},
    limits::{MAX_OPS, MAX_TXN_BYTES},
    migrate::{SCHEMA_KEY, StoreSchema},
    store::{EtcdOptions, SCHEMA, StoreLocation},
    types::{Compare, Outcome, Page, RawListing, Revision, Txn},
};

/// Puts a backup's records into an empty store. Keys that were bound to a lease stay out: their
/// holders are gone.
pub async fn restore(file: &Path, location: &StoreLocation) -> StoreResult<Moved> {
    let file = file.to_owned();
    match location.clone() {
        StoreLocation::Embedded { data_dir } => {
            on_blocking_thread(move || restore_embedded(&file, &data_dir)).await
        }
        StoreLocation::Etcd { endpoints, options } => {
            let listing = on_blocking_thread(move || {
                let conn = open_checked(&file)?;
                reader::list(&conn, "", &Page::ALL).map_err(|error| classify(&file, error))
            })
            .await?;
            restore_etcd(listing, &endpoints, &options).await
        }
    }
}

/// Opens a backup, unless it is damaged or of a newer version.
fn open_checked(file: &Path) -> StoreResult<Connection> {
    fs::metadata(file).map_err(|source| io_error("read", file, source))?;
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
    ensure_data_dir(data_dir)?;
    let read = |source| io_error("read", data_dir, source);
    if fs::read_dir(data_dir).map_err(read)?.next().is_some() {
        return Err(StoreError::NotEmpty { what: format!("the directory {}", data_dir.display()) });
    }
    let _lock = DirLock::take(data_dir)?;
    let db = layout::db_path(data_dir);
    let partial = PathBuf::from(format!("{}.restoring", db.display()));
    let result = restore_file(file, &partial);
    match result {
        Ok(moved) => {
            fs::rename(&partial, &db).map_err(|source| io_error("rename", &partial, source))?;
            sync_dir(data_dir)?;
            Ok(moved)
        }
        Err(error) => {
            fs::remove_file(&partial).ok();
            Err(error)
        }
    }
}

fn restore_file(file: &Path, partial: &Path) -> StoreResult<Moved> {
    let failed = |source| io_error("write", partial, source);
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
    listing: RawListing,
    endpoints: &[String],
    options: &EtcdOptions,
) -> StoreResult<Moved> {
    let etcd = Etcd::open(endpoints, options).await?;
    let one = Page { after: None, limit: 1, descending: false };
    let not_empty =
        || StoreError::NotEmpty { what: format!("the prefix {} of etcd", crate::etcd::ROOT) };
    if !etcd.list("", &one).await?.entries.is_empty() {
        return Err(not_empty());
    }
    let offset = listing.revision.0 + REVISION_JUMP;
    let begin = Txn::new()
        .when(Compare::Absent(RESTORING_KEY.to_owned()))
        .when(Compare::Absent(OFFSET_KEY.to_owned()))
        .put(RESTORING_KEY, "true")
        .put(OFFSET_KEY, offset.to_string());
    if etcd.commit(&begin).await? == Outcome::Refused {
        return Err(not_empty());
    }
    let mut records = 0;
    let mut txn = Txn::new();
    let mut bytes = 0;
    for raw in listing.entries.into_iter().filter(|raw| !raw.leased) {
        let size = raw.entry.key.len() + raw.entry.value.len();
        if txn.ops.len() == MAX_OPS || bytes + size > MAX_TXN_BYTES {
            commit(&etcd, &std::mem::take(&mut txn)).await?;
            bytes = 0;
        }
        bytes += size;
        records += 1;
        txn = txn.put(raw.entry.key, raw.entry.value);
    }
    commit(&etcd, &txn).await?;
    let revision = commit(&etcd, &Txn::new().delete(RESTORING_KEY)).await?;
    etcd.close();
    Ok(Moved { records, revision: Revision(revision.0 + offset) })
}

/// Writes without conditions; nobody else uses a store that is being restored.
async fn commit(etcd: &Etcd, txn: &Txn) -> StoreResult<Revision> {
    match etcd.commit(txn).await? {
        Outcome::Committed(revision) => Ok(revision),
        Outcome::Refused => Err(StoreError::Backend("etcd refused an unconditional write".into())),
    }
}
