//! Writes that only a cluster's owner can make.

use wharf_core::cluster::ClusterRecord;
use wharf_store::{Outcome, Revision, Store, StoreError, Stored, Txn};

/// How often a write is tried again because somebody else changed the record; each time somebody
/// got ahead, so this many in a row means that something is wrong.
const TRIES: usize = 100;

/// The right to write about one cluster, as long as its record carries the epoch.
#[derive(Clone)]
pub struct Fenced {
    store: Store,
    cluster: String,
    epoch: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum FencedError {
    /// Another server owns the cluster now; nothing was written.
    #[error(
        "the cluster {cluster} is at epoch {found}, no longer at {mine}: another server owns it"
    )]
    Fenced { cluster: String, mine: u64, found: u64 },
    #[error("the cluster {cluster} is gone")]
    Gone { cluster: String },
    #[error("the record of the cluster {cluster} was changed by others {TRIES} times in a row")]
    Contended { cluster: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Fenced {
    pub fn new(store: Store, cluster: String, epoch: u64) -> Self {
        Self { store, cluster, epoch }
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
            let Some(record) = self.store.read::<ClusterRecord>(&self.cluster).await? else {
                return Err(FencedError::Gone { cluster: self.cluster.clone() });
            };
            let found = record.value.ownership.epoch;
            if found != self.epoch {
                let cluster = self.cluster.clone();
                return Err(FencedError::Fenced { cluster, mine: self.epoch, found });
            }
            let txn = build(&record)?.when(record.unchanged());
            if let Outcome::Committed(revision) = self.store.commit(txn).await? {
                return Ok(revision);
            }
        }
        Err(FencedError::Contended { cluster: self.cluster.clone() })
    }
}
