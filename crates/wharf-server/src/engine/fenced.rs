//! Writes that only a cluster's owner can make.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use jiff::Timestamp;
use wharf_core::cluster::{ClusterRecord, ServerId};
use wharf_store::{
    Compare, Outcome, Revision, Store, StoreError, Stored, Txn,
    typed::{Kind, key_of},
};

/// How often a write is tried again because somebody else changed the record; each time somebody
/// got ahead, so this many in a row means that something is wrong.
const TRIES: usize = 100;

/// The right to write about one cluster, as long as its record carries the owner and the epoch. The
/// epoch alone would not do: it begins again when a deleted name is given to a new cluster.
#[derive(Clone)]
pub struct Fenced {
    store: Store,
    me: ServerId,
    cluster: String,
    epoch: u64,
    /// The revision at which the record was last seen as ours; 0 before that.
    seen: Arc<AtomicU64>,
}

#[derive(Debug, thiserror::Error)]
pub enum FencedError {
    /// Another server owns the cluster now; nothing was written.
    #[error("the cluster {cluster} is another server's at epoch {found}; ours was {mine}")]
    Fenced { cluster: String, mine: u64, found: u64 },
    #[error("the cluster {cluster} is gone")]
    Gone { cluster: String },
    #[error("the record of the cluster {cluster} was changed by others {TRIES} times in a row")]
    Contended { cluster: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Fenced {
    pub fn new(store: Store, me: ServerId, cluster: String, epoch: u64) -> Self {
        Self { store, me, cluster, epoch, seen: Arc::default() }
    }

    /// Commits what `build` makes of the record as it stands. It is called again when somebody
    /// else, such as a user, wrote the record meanwhile.
    ///
    /// The condition is the record's revision: a take-over writes the record, so a transaction
    /// that was built under an older epoch is refused by the store.
    pub async fn commit(
        &self,
        build: impl Fn(&Stored<ClusterRecord>) -> Result<Txn, StoreError>,
    ) -> Result<Revision, FencedError> {
        for _ in 0..TRIES {
            let record = self.own_record().await?;
            let txn = build(&record)?.when(record.unchanged());
            if let Outcome::Committed(revision) = self.store.commit(txn).await? {
                return Ok(revision);
            }
        }
        Err(FencedError::Contended { cluster: self.cluster.clone() })
    }

    /// Changes a record that users write too. `change` sees it as it stands, and is called again
    /// when somebody else wrote it meanwhile; `None` leaves it as it is. False if it was left, or is
    /// not there.
    pub async fn change<T: Kind>(
        &self,
        id: &str,
        change: impl Fn(&T) -> Option<T>,
    ) -> Result<bool, FencedError> {
        for _ in 0..TRIES {
            let record = self.own_record().await?;
            let Some(old) = self.store.read::<T>(id).await? else { return Ok(false) };
            let Some(new) = change(&old.value) else { return Ok(false) };
            let txn = Txn::new().when(record.unchanged()).replace(&old, &new, Timestamp::now())?;
            if let Outcome::Committed(_) = self.store.commit(txn).await? {
                return Ok(true);
            }
        }
        Err(FencedError::Contended { cluster: self.cluster.clone() })
    }

    /// Commits a transaction with conditions of its own; refused if one of those does not hold.
    ///
    /// For many writes at once: the record is read only when it has changed, which is seldom, and
    /// is not written, so that they do not get in each other's way.
    pub async fn try_commit(&self, txn: &Txn) -> Result<Outcome, FencedError> {
        for _ in 0..TRIES {
            let seen = match self.seen.load(Ordering::Acquire) {
                0 => self.own_record().await?.revision,
                seen => Revision(seen),
            };
            let ours = Compare::ModifiedAt(key_of::<ClusterRecord>(&self.cluster), seen);
            let outcome = self.store.commit(txn.clone().when(ours)).await?;
            // Refused: was it the record, or one of the caller's conditions?
            if outcome != Outcome::Refused || self.own_record().await?.revision == seen {
                return Ok(outcome);
            }
        }
        Err(FencedError::Contended { cluster: self.cluster.clone() })
    }

    /// The cluster's record, if it is still ours.
    async fn own_record(&self) -> Result<Stored<ClusterRecord>, FencedError> {
        let Some(record) = self.store.read::<ClusterRecord>(&self.cluster).await? else {
            return Err(FencedError::Gone { cluster: self.cluster.clone() });
        };
        let found = &record.value.ownership;
        if found.epoch != self.epoch || found.owner.as_ref() != Some(&self.me) {
            let (cluster, mine, found) = (self.cluster.clone(), self.epoch, found.epoch);
            return Err(FencedError::Fenced { cluster, mine, found });
        }
        self.seen.store(record.revision.0, Ordering::Release);
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use wharf_core::cluster::{ClusterSpec, ClusterState, Origin, Ownership};
    use wharf_store::{StoreLocation, StoreOptions};

    use super::*;

    #[tokio::test]
    async fn a_name_that_begins_again_at_the_same_epoch_is_not_written_by_its_old_owner() {
        let dir = tempfile::tempdir().unwrap();
        let location = StoreLocation::Embedded { data_dir: dir.path().to_owned() };
        let store = Store::open(&StoreOptions { location }).await.unwrap();
        let (a, b) = (ServerId("a".to_owned()), ServerId("b".to_owned()));
        let spec = ClusterSpec::new("demo", SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8443), "1.36.3");
        let now = Timestamp::now();
        let record = ClusterRecord {
            ownership: Ownership { owner: Some(b.clone()), epoch: 1 },
            ..ClusterRecord::new(spec, ClusterState::Running, Origin::Imported, now)
        };
        let made = store.commit(Txn::new().create("demo", &record, now).unwrap()).await.unwrap();
        assert!(matches!(made, Outcome::Committed(_)));
        let write = async |me| {
            let fenced = Fenced::new(store.clone(), me, "demo".to_owned(), 1);
            fenced.commit(|stored| Txn::new().write("demo", &stored.value, now, None)).await
        };
        assert!(matches!(write(a).await, Err(FencedError::Fenced { .. })));
        write(b).await.unwrap();
    }

    #[tokio::test]
    async fn many_writes_go_on_beside_changes_of_the_record_until_it_is_another_s() {
        let dir = tempfile::tempdir().unwrap();
        let location = StoreLocation::Embedded { data_dir: dir.path().to_owned() };
        let store = Store::open(&StoreOptions { location }).await.unwrap();
        let spec = ClusterSpec::new("demo", SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8443), "1.36.3");
        let now = Timestamp::now();
        let mut record = ClusterRecord {
            ownership: Ownership { owner: Some(ServerId("a".to_owned())), epoch: 1 },
            ..ClusterRecord::new(spec, ClusterState::Running, Origin::Imported, now)
        };
        let put = async |record: &ClusterRecord| {
            let txn = Txn::new().write("demo", record, now, None).unwrap();
            assert!(matches!(store.commit(txn).await.unwrap(), Outcome::Committed(_)));
        };
        let fenced = Fenced::new(store.clone(), ServerId("a".to_owned()), "demo".to_owned(), 1);
        let create = async |key: &str| {
            let txn = Txn::new().when(Compare::Absent(key.to_owned())).put(key, "x");
            fenced.try_commit(&txn).await
        };
        put(&record).await;
        assert!(matches!(create("one").await, Ok(Outcome::Committed(_))));
        assert!(matches!(create("one").await, Ok(Outcome::Refused)), "its own condition");
        put(&record).await;
        assert!(matches!(create("two").await, Ok(Outcome::Committed(_))), "a user's change");
        record.ownership.epoch = 2;
        put(&record).await;
        assert!(matches!(create("three").await, Err(FencedError::Fenced { found: 2, .. })));
        assert!(store.get("three").await.unwrap().is_none());
    }
}
