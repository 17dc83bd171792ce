//! Where a queue lies in the store: all of it below `repair/<cluster>/`, so that one watch sees it.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{StreamExt, stream};
use wharf_core::{
    cluster::ClusterRecord,
    repair::{Entry, Queue, QueueHead, RepairConfig, cordon_owner},
};
use wharf_store::{Change, Page, Revision, Store, StoreResult, Stored, Txn, typed::key_of};

use crate::{
    app::AppState,
    clusters,
    engine::{Fenced, FencedError},
};

/// How many entries are read at once; each is about a kilobyte.
const PAGE: usize = 500;
/// How many are deleted in one transaction; below the store's limit.
const BATCH: usize = 100;

/// Requests to a cluster at the same time.
const AT_ONCE: usize = 16;

/// The prefix of all keys of a cluster's queue.
pub(super) fn prefix(cluster: &str) -> String {
    key_of::<Entry>(&format!("{cluster}/"))
}

/// In hexadecimal digits of one length, so that lists are in the order of the index.
pub(super) fn entry_id(cluster: &str, index: u64) -> String {
    format!("{cluster}/entries/{index:016x}")
}

pub(super) fn head_id(cluster: &str) -> String {
    format!("{cluster}/head")
}

pub(super) fn config_id(cluster: &str) -> String {
    format!("{cluster}/config")
}

/// A queue as it was read, with what is needed to change it safely.
#[derive(Default)]
pub(super) struct Held {
    pub queue: Queue,
    /// The revision of each entry.
    pub revisions: BTreeMap<u64, Revision>,
    /// That of the head, if there is one.
    pub head: Option<Revision>,
    pub config: RepairConfig,
}

impl Held {
    /// Reads a queue, with the revision from which on its changes are to be taken in.
    pub async fn read(store: &Store, cluster: &str) -> StoreResult<(Self, Revision)> {
        let mut held = Self::default();
        let begun = store.revision().await?;
        if let Some(head) = store.read::<QueueHead>(&head_id(cluster)).await? {
            held.head = Some(head.revision);
            held.queue.head = head.value;
        }
        if let Some(config) = store.read::<RepairConfig>(&config_id(cluster)).await? {
            held.config = config.value;
        }
        let all = key_of::<Entry>(&format!("{cluster}/entries/"));
        let mut after = None;
        loop {
            let page = Page { after, limit: PAGE, descending: false };
            let listing = store.list(&all, page).await?;
            listing.entries.iter().for_each(|entry| held.take_entry(entry));
            after = listing.entries.last().filter(|_| listing.more).map(|last| last.key.clone());
            if after.is_none() {
                return Ok((held, begun));
            }
        }
    }

    /// Takes in what somebody wrote. What is known already, or is older, changes nothing.
    pub fn take_in(&mut self, cluster: &str, change: &Change) {
        let prefix = prefix(cluster);
        let Some(place) = change.key().strip_prefix(&prefix) else { return };
        match (place, change) {
            ("head", Change::Put(entry))
                if self.head.is_none_or(|known| known < entry.modified) =>
            {
                match Stored::<QueueHead>::decode(entry) {
                    Ok(head) => {
                        self.head = Some(head.revision);
                        self.queue.head = head.value;
                    }
                    Err(bad) => tracing::error!(cluster, bad.reason, "the queue cannot be read"),
                }
            }
            ("config", Change::Put(entry)) => match Stored::<RepairConfig>::decode(entry) {
                Ok(config) => self.config = config.value,
                Err(bad) => {
                    tracing::error!(cluster, bad.reason, "the configuration cannot be read");
                }
            },
            (_, Change::Put(entry)) if place.starts_with("entries/") => self.take_entry(entry),
            (_, Change::Deleted { revision, .. }) => {
                if let Some(index) = index_of(place)
                    && self.revisions.get(&index).is_some_and(|known| known < revision)
                {
                    self.drop_entry(index);
                }
            }
            _ => {}
        }
    }

    fn take_entry(&mut self, entry: &wharf_store::Entry) {
        match Stored::<Entry>::decode(entry) {
            Ok(stored) => self.put(stored.value, stored.revision),
            // It stays in the store, for a person to look at.
            Err(bad) => tracing::error!(bad.id, bad.reason, "a repair entry cannot be read"),
        }
    }

    /// Notes an entry as it stands at a revision, unless a later one is known.
    pub fn put(&mut self, entry: Entry, revision: Revision) {
        let index = entry.index;
        if self.revisions.get(&index).is_some_and(|known| *known >= revision) {
            return;
        }
        self.revisions.insert(index, revision);
        self.queue.entries.insert(index, entry);
    }

    pub fn drop_entry(&mut self, index: u64) {
        self.revisions.remove(&index);
        self.queue.entries.remove(&index);
    }

    /// Whether there is anything for the engine to do.
    pub fn is_at_rest(&self) -> bool {
        self.queue.entries.values().all(|entry| entry.is_finished() && !entry.deleted)
    }
}

fn index_of(place: &str) -> Option<u64> {
    u64::from_str_radix(place.strip_prefix("entries/")?, 16).ok()
}

/// Adds to a transaction the end of what is kept of a queue beside its entries.
pub fn forget(txn: Txn, cluster: &str) -> Txn {
    txn.delete(key_of::<QueueHead>(&head_id(cluster)))
        .delete(key_of::<RepairConfig>(&config_id(cluster)))
}

/// The end of a cluster does not wait longer for its API: it may be gone already.
const FAREWELL: Duration = Duration::from_secs(5);

/// Takes back what repairs did to the nodes of a cluster that is about to be forgotten, as far as it
/// answers: afterwards nobody knows of it.
pub async fn give_all_back(app: &AppState, cluster: &str) -> StoreResult<()> {
    let (held, _) = Held::read(&app.store, cluster).await?;
    let entries = held.queue.entries.into_values();
    let mut touched =
        entries.filter(|entry| !entry.nodename.is_empty() && entry.started.is_some()).peekable();
    let record = app.store.read::<ClusterRecord>(cluster).await?;
    let Some(record) = record.filter(|_| touched.peek().is_some()) else { return Ok(()) };
    let Ok(api) = clusters::connect(app, &record.value).await else { return Ok(()) };
    let give_back = touched.map(|entry| {
        let (api, owner) = (&api, cordon_owner(&held.queue.head, &entry.address));
        async move {
            let uncordon = api.uncordon(&entry.nodename, &owner);
            let unfence =
                async { if entry.fenced { api.unfence(&entry.nodename).await } else { Ok(()) } };
            let both = async { tokio::join!(uncordon, unfence) };
            match tokio::time::timeout(FAREWELL, both).await {
                Ok((Ok(_), Ok(()))) => {}
                failed => {
                    tracing::warn!(?failed, cluster, node = entry.nodename, "may stay cordoned");
                }
            }
        }
    });
    stream::iter(give_back).buffer_unordered(AT_ONCE).collect::<()>().await;
    Ok(())
}

/// Deletes all entries of a cluster that is about to be forgotten. Nobody adds any more: that is
/// refused in a cluster that is being deleted, or whose record cannot be read.
pub async fn empty(store: &Store, cluster: &str) -> StoreResult<()> {
    while let Some(txn) = removal(store, cluster).await? {
        // Without a condition: it cannot be refused.
        let _ = store.commit(txn).await?;
    }
    Ok(())
}

/// The same by the cluster's owner.
pub async fn empty_fenced(
    store: &Store,
    cluster: &str,
    fenced: &Fenced,
) -> Result<(), FencedError> {
    while let Some(txn) = removal(store, cluster).await? {
        fenced.commit(|_| Ok(txn.clone())).await?;
    }
    Ok(())
}

/// A transaction that deletes some entries; `None` when there are no more.
async fn removal(store: &Store, cluster: &str) -> StoreResult<Option<Txn>> {
    let all = key_of::<Entry>(&format!("{cluster}/entries/"));
    let page = Page { after: None, limit: BATCH, descending: false };
    let listing = store.list(&all, page).await?;
    let keys = listing.entries.into_iter().map(|entry| entry.key);
    let txn = keys.fold(Txn::new(), Txn::delete);
    Ok((!txn.ops.is_empty()).then_some(txn))
}
