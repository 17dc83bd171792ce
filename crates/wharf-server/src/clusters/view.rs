//! All clusters as they are shown, in memory: a list of a thousand of them is asked for again and
//! again, by people's pages and by programs, and reading their records takes most of its time.
//!
//! Guarantees: what [`View::all`] gives is never older than a read of the store at its call: it takes
//! in what the store has committed since the last call before it answers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::{Duration, Instant},
};

use wharf_core::{
    cluster::{ClusterRecord, health::HealthSummary},
    record::Kind,
};
use wharf_store::{Change, Decoded, Entry, Revision, Store, StoreResult, Stored};

/// A cluster as it is shown.
pub struct Shown {
    pub record: Decoded<ClusterRecord>,
    pub revision: Revision,
    pub health: Option<HealthSummary>,
    /// Its JSON under each prefix of the API, made when it is first asked for.
    pub rendered: [OnceLock<Vec<u8>>; 2],
}

impl Shown {
    pub fn new(record: Decoded<ClusterRecord>, health: Option<HealthSummary>) -> Self {
        let revision = record.as_ref().map_or_else(|bad| bad.revision, |good| good.revision);
        Self { record, revision, health, rendered: Default::default() }
    }

    pub fn id(&self) -> &str {
        match &self.record {
            Ok(stored) => &stored.id,
            Err(unreadable) => &unreadable.id,
        }
    }

    /// What cannot be read counts as Unreachable, which is ready.
    pub fn is_ready(&self) -> bool {
        self.record.as_ref().map_or(true, |stored| stored.value.state.is_ready())
    }
}

/// What depends on the time, as a warning that something ends in a month, is made anew by then.
const KEEP: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub struct View {
    seen: Mutex<Option<Seen>>,
}

struct Seen {
    /// All that was committed up to here is in `clusters`.
    revision: Revision,
    clusters: BTreeMap<String, Arc<Shown>>,
    read_at: Instant,
}

impl View {
    /// All clusters, by name.
    pub async fn all(&self, store: &Store) -> StoreResult<Vec<Arc<Shown>>> {
        if let Some(seen) = &mut *self.seen()
            && seen.catch_up(store)?
        {
            return Ok(seen.clusters.values().cloned().collect());
        }
        let read = Seen::read(store).await?;
        let all = read.clusters.values().cloned().collect();
        *self.seen() = Some(read);
        Ok(all)
    }

    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        // After a panic in the middle of a change it may be half taken in: then it is read anew.
        self.seen.lock().unwrap_or_else(|poisoned| {
            self.seen.clear_poison();
            let mut seen = poisoned.into_inner();
            *seen = None;
            seen
        })
    }
}

impl Seen {
    async fn read(store: &Store) -> StoreResult<Self> {
        // The earlier of the two revisions counts: what came between them is taken in twice.
        let (records, revision) = store.read_all::<ClusterRecord>("").await?;
        let (health, _) = store.read_all::<HealthSummary>("").await?;
        let mut health: BTreeMap<String, HealthSummary> =
            health.into_iter().flatten().map(|health| (health.id, health.value)).collect();
        let shown = |record: Decoded<ClusterRecord>| {
            let shown = Shown::new(record, None);
            let health = health.remove(shown.id());
            (shown.id().to_owned(), Arc::new(Shown { health, ..shown }))
        };
        let clusters = records.into_iter().map(shown).collect();
        Ok(Self { revision, clusters, read_at: Instant::now() })
    }

    /// Takes in what was committed meanwhile; false if all has to be read anew.
    fn catch_up(&mut self, store: &Store) -> StoreResult<bool> {
        if self.read_at.elapsed() >= KEEP {
            return Ok(false);
        }
        let is_shown = |key: &str| kind_of(key) != Kindred::Other;
        let Some((changes, revision)) = store.recent_changes(self.revision, is_shown)? else {
            return Ok(false);
        };
        // Clusters first: a transaction may write a cluster's health before the cluster itself.
        let (clusters, health): (Vec<_>, Vec<_>) =
            changes.iter().partition(|change| kind_of(change.key()) == Kindred::Cluster);
        clusters.into_iter().chain(health).for_each(|change| self.take_in(change));
        self.revision = revision;
        Ok(true)
    }

    fn take_in(&mut self, change: &Change) {
        let id = change.key().split_once('/').map_or(change.key(), |(_, id)| id);
        let old = self.clusters.get(id);
        let new = match (kind_of(change.key()), change) {
            (Kindred::Cluster, Change::Put(entry)) => {
                let health = old.and_then(|old| old.health.clone());
                Some(Shown::new(Stored::decode(entry), health))
            }
            (Kindred::Cluster, Change::Deleted { .. }) => {
                self.clusters.remove(id);
                None
            }
            // A summary of a cluster that is gone is not shown: it is deleted with its cluster.
            (Kindred::Health, Change::Put(entry)) => {
                old.map(|old| Shown::new(old.record.clone(), summary(entry)))
            }
            (Kindred::Health, Change::Deleted { .. }) => {
                old.map(|old| Shown::new(old.record.clone(), None))
            }
            (Kindred::Other, _) => None,
        };
        if let Some(new) = new {
            self.clusters.insert(id.to_owned(), Arc::new(new));
        }
    }
}

/// What is shown of a cluster that the key belongs to.
#[derive(PartialEq, Eq)]
enum Kindred {
    Cluster,
    Health,
    Other,
}

fn kind_of(key: &str) -> Kindred {
    match key.split_once('/') {
        Some((ClusterRecord::KIND, _)) => Kindred::Cluster,
        Some((HealthSummary::KIND, _)) => Kindred::Health,
        Some(_) | None => Kindred::Other,
    }
}

fn summary(entry: &Entry) -> Option<HealthSummary> {
    Stored::<HealthSummary>::decode(entry).ok().map(|stored| stored.value)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use wharf_core::cluster::{
        ClusterSpec, ClusterState, Origin,
        health::{HealthRecord, NodeHealth},
    };
    use wharf_store::{Outcome, StoreLocation, StoreOptions, Txn, typed::key_of};

    use super::*;
    use crate::http::convert;

    async fn store(dir: &std::path::Path) -> Store {
        let location = StoreLocation::Embedded { data_dir: dir.to_owned() };
        Store::open(&StoreOptions { location }).await.unwrap()
    }

    async fn commit(store: &Store, txn: Txn) {
        assert!(matches!(store.commit(txn).await.unwrap(), Outcome::Committed(_)));
    }

    fn record(name: &str, state: ClusterState) -> ClusterRecord {
        let nowhere = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 1);
        let spec = ClusterSpec::new(name, nowhere, "v1.36.3");
        ClusterRecord::new(spec, state, Origin::Imported, Timestamp::UNIX_EPOCH)
    }

    fn health(name: &str, nodes: usize) -> HealthSummary {
        HealthRecord::new(name, None, vec![NodeHealth::default(); nodes], true).summary()
    }

    /// Name, state and number of nodes of each cluster.
    async fn seen(view: &View, store: &Store) -> Vec<(String, &'static str, Option<usize>)> {
        let all = view.all(store).await.unwrap();
        let one = |shown: &Arc<Shown>| {
            let state = shown.record.as_ref().map_or("unreadable", |good| good.value.state.name());
            (shown.id().to_owned(), state, shown.health.as_ref().map(|health| health.node_count))
        };
        all.iter().map(one).collect()
    }

    #[tokio::test]
    async fn every_commit_is_seen_by_the_next_list() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path()).await;
        let (view, now) = (View::default(), Timestamp::UNIX_EPOCH);
        assert!(seen(&view, &store).await.is_empty());

        // The health first, as it may lie in the transaction of an import.
        let txn = Txn::new().write("b", &health("b", 3), now, None).unwrap();
        let txn = txn.write("b", &record("b", ClusterState::Running), now, None).unwrap();
        commit(&store, txn).await;
        assert_eq!(seen(&view, &store).await, [("b".to_owned(), "Running", Some(3))]);

        let txn = Txn::new().write("b", &record("b", ClusterState::Unreachable), now, None);
        let txn = txn.unwrap().write("a", &record("a", ClusterState::Creating), now, None).unwrap();
        commit(&store, txn).await;
        let txn = Txn::new().write("b", &health("b", 5), now, None).unwrap();
        commit(&store, txn).await;
        let both = [("a".to_owned(), "Creating", None), ("b".to_owned(), "Unreachable", Some(5))];
        assert_eq!(seen(&view, &store).await, both);
        assert_eq!(seen(&View::default(), &store).await, both, "as one that is read anew");

        // Deleted and made again: the health of the old one is not the new one's.
        let txn = Txn::new().delete(key_of::<ClusterRecord>("b"));
        commit(&store, txn.delete(key_of::<HealthSummary>("b"))).await;
        let again = record("b", ClusterState::Creating);
        commit(&store, Txn::new().write("b", &again, now, None).unwrap()).await;
        assert_eq!(seen(&view, &store).await[1], ("b".to_owned(), "Creating", None));
        store.close().await;
        assert!(view.all(&store).await.is_err(), "a closed store is no empty list");
    }

    #[tokio::test]
    async fn a_list_is_the_same_json_as_its_clusters() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path()).await;
        let (view, now) = (View::default(), Timestamp::UNIX_EPOCH);
        for names in [[].as_slice(), &["a"], &["b", "c"]] {
            for name in names {
                let record = record(name, ClusterState::Running);
                commit(&store, Txn::new().write(name, &record, now, None).unwrap()).await;
            }
            let all = view.all(&store).await.unwrap();
            for prefix in [wharf_api::PREFIX, wharf_api::LEGACY_PREFIX, wharf_api::PREFIX] {
                let typed = all.iter().map(|one| convert::cluster::shown(prefix, one)).collect();
                let path = format!("{prefix}/clusters");
                let typed = wharf_api::resource::Collection::new("cluster", &path, typed);
                let joined = convert::cluster::collection(prefix, &all).unwrap();
                assert_eq!(joined, serde_json::to_vec(&typed).unwrap());
            }
        }
    }
}
