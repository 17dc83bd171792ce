//! The embedded back end: SQLite in the data directory, for one server.
//!
//! All writes go through one thread (`writer.rs`), which commits whatever has queued up with one
//! sync of the disk. Reads use their own connections (`reader.rs`), or memory (`cache.rs`). Watchers live on what the
//! writer publishes (`history.rs`) and fall back to the log table. Files: `wharf.db`,
//! `wharf.db-wal`, `wharf.db-shm`, `wharf.lock`.

mod apply;
mod cache;
mod history;
pub(crate) mod layout;
mod leases;
pub(crate) mod lock;
pub(crate) mod reader;
mod watch;
mod writer;

use std::{
    path::Path,
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use tokio::sync::{Semaphore, oneshot, watch as latest};

pub(crate) use self::watch::EmbeddedWatch;
use self::{
    cache::{Cache, Found},
    history::History,
    leases::Leases,
    lock::{DirLock, ensure_data_dir},
    reader::Readers,
    writer::{Queued, Reply, Request, Writer, count_wal_pages},
};
use crate::{
    error::{StoreError, StoreResult},
    types::{Change, Entry, LeaseId, Outcome, Page, RawListing, Revision, Txn},
};

/// Writers beyond this many wait for a place; it bounds the memory that waiting writes take.
const MAX_QUEUED: usize = 4096;

/// Connections for reads of one key or a short page, which run where they are called.
const POINT_READERS: usize = 4;
/// Connections for long lists and for watchers that catch up, which run on blocking threads.
const BULK_READERS: usize = 4;
/// A list of at most this many entries is short.
const SHORT_LIST: usize = 64;

#[derive(Clone)]
pub(crate) struct Embedded {
    shared: Arc<Shared>,
    /// `None` once closed. The writer thread ends when the last sender is gone.
    requests: Arc<Mutex<Option<mpsc::Sender<Queued>>>>,
    places: Arc<Semaphore>,
    /// Shared with the writer, so that a keep-alive never waits for the disk.
    leases: Arc<Mutex<Leases>>,
    latest: latest::Receiver<u64>,
}

/// What readers and watchers need; it does not keep the writer alive.
pub(crate) struct Shared {
    point: Readers,
    bulk: Readers,
    bulk_permits: Semaphore,
    cache: Arc<Cache>,
    history: Arc<History>,
}

impl Embedded {
    pub(crate) async fn open(data_dir: &Path) -> StoreResult<Embedded> {
        let data_dir = data_dir.to_owned();
        on_blocking_thread(move || Embedded::open_blocking(&data_dir)).await
    }

    fn open_blocking(data_dir: &Path) -> StoreResult<Embedded> {
        ensure_data_dir(data_dir)?;
        let lock = DirLock::take(data_dir)?;
        let path = layout::db_path(data_dir);
        let mut conn = layout::open_writer(&path)?;
        let classify = |error| layout::classify(&path, error);
        let revision = layout::revision(&conn).map_err(classify)?;
        let compacted = layout::compacted(&conn).map_err(classify)?;
        let wal_pages = count_wal_pages(&mut conn).map_err(classify)?;
        let history = Arc::new(History::new(revision, compacted));
        let cache = Arc::new(Cache::new());
        let shared = Shared {
            point: Readers::open(&path, POINT_READERS)?,
            bulk: Readers::open(&path, BULK_READERS)?,
            bulk_permits: Semaphore::new(BULK_READERS),
            cache: Arc::clone(&cache),
            history: Arc::clone(&history),
        };
        let (sender, requests) = mpsc::channel();
        let (latest, latest_receiver) = latest::channel(revision);
        let leases = Arc::new(Mutex::new(Leases::default()));
        let retry_expiry_at = None;
        let writer = Writer {
            conn,
            path,
            requests,
            cache,
            history,
            latest,
            revision,
            compacted,
            leases: Arc::clone(&leases),
            retry_expiry_at,
            wal_pages,
            lock,
        };
        std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| StoreError::Backend(Box::new(source)))?;
        Ok(Embedded {
            shared: Arc::new(shared),
            requests: Arc::new(Mutex::new(Some(sender))),
            places: Arc::new(Semaphore::new(MAX_QUEUED)),
            leases,
            latest: latest_receiver,
        })
    }

    pub(crate) fn get(&self, key: &str) -> StoreResult<Option<Entry>> {
        let ticket = match self.shared.cache.get(key) {
            Found::Here(entry) => return Ok(Some(entry)),
            Found::Absent(ticket) => ticket,
        };
        let entry = self.shared.point.with(|conn| reader::get(conn, key))?;
        if let Some(entry) = &entry {
            self.shared.cache.put(&ticket, entry);
        }
        Ok(entry)
    }

    pub(crate) async fn list(&self, prefix: &str, page: Page) -> StoreResult<RawListing> {
        if page.limit <= SHORT_LIST {
            return self.shared.point.with(|conn| reader::list(conn, prefix, &page));
        }
        let prefix = prefix.to_owned();
        self.shared.bulk(move |conn| reader::list(conn, &prefix, &page)).await
    }

    pub(crate) fn revision(&self) -> StoreResult<Revision> {
        let revision = *self.latest.borrow();
        match self.latest.has_changed() {
            Ok(_) => Ok(Revision(revision)),
            Err(_) => Err(StoreError::Closed),
        }
    }

    pub(crate) async fn commit(&self, txn: Txn) -> StoreResult<Outcome> {
        self.ask(|reply| Request::Commit { txn, reply }).await
    }

    pub(crate) fn watch(&self, prefix: &str, after: Revision) -> StoreResult<EmbeddedWatch> {
        self.revision()?;
        Ok(EmbeddedWatch::new(Arc::clone(&self.shared), self.latest.clone(), prefix, after))
    }

    pub(crate) fn recent_changes(
        &self,
        after: Revision,
        wanted: impl Fn(&str) -> bool,
    ) -> StoreResult<Option<(Vec<Change>, Revision)>> {
        self.revision()?;
        let Some(batches) = self.shared.history.after(after.0, usize::MAX) else {
            return Ok(None);
        };
        let is_new = |change: &&Change| change.revision() > after && wanted(change.key());
        let changes = batches.iter().flat_map(|batch| &batch.changes);
        let changes = changes.filter(is_new).cloned().collect();
        Ok(Some((changes, batches.last().map_or(after, |batch| Revision(batch.last)))))
    }

    pub(crate) async fn grant_lease(&self, ttl: Duration) -> StoreResult<LeaseId> {
        self.ask(|reply| Request::Grant { ttl, reply }).await
    }

    pub(crate) fn keep_alive(&self, lease: LeaseId) -> StoreResult<()> {
        self.revision()?;
        let live = leases::lock(&self.leases).keep_alive(lease, Instant::now());
        live.then_some(()).ok_or(StoreError::LeaseGone)
    }

    pub(crate) async fn revoke_lease(&self, lease: LeaseId) -> StoreResult<()> {
        self.ask(|reply| Request::Revoke { lease, reply }).await
    }

    /// Deletes the keys of leases that an earlier process held.
    pub(crate) async fn end_old_leases(&self) -> StoreResult<()> {
        self.ask(|reply| Request::EndOldLeases { reply }).await
    }

    pub(crate) async fn compact(&self, keep: u64) -> StoreResult<()> {
        self.ask(|reply| Request::Compact { keep, reply }).await
    }

    pub(crate) async fn close(&self) {
        // A second close finds the writer gone, which is all it wants.
        self.shared.point.close();
        self.shared.bulk.close();
        self.shared.cache.clear();
        self.ask(|reply| Request::Close { reply }).await.ok();
        self.sender().take();
    }

    /// Sends a request to the writer and waits for its answer.
    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> StoreResult<T> {
        let place =
            Arc::clone(&self.places).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let queued = Queued { request: request(reply), _place: place };
        self.sender()
            .as_ref()
            .ok_or(StoreError::Closed)?
            .send(queued)
            .map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    fn sender(&self) -> std::sync::MutexGuard<'_, Option<mpsc::Sender<Queued>>> {
        self.requests.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Shared {
    /// Runs a long read on a blocking thread.
    async fn bulk<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreResult<T> {
        let _permit = self.bulk_permits.acquire().await.map_err(|_| StoreError::Closed)?;
        let shared = Arc::clone(self);
        on_blocking_thread(move || shared.bulk.with(read)).await
    }
}

/// Runs blocking work; a panic in it becomes an error.
pub(crate) async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> StoreResult<T> + Send + 'static,
) -> StoreResult<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(StoreError::Backend(Box::new(error))))
}
