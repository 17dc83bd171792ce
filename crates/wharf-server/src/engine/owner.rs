//! The loop that keeps a server a member and gives it its clusters.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wharf_core::cluster::{
    ClusterRecord, ServerId,
    ownership::{Decision, decide_ownership},
};
use wharf_store::{
    Decoded, Held, Outcome, Store, StoreResult, Stored, Txn,
    typed::{encode, key_of},
};

use super::{
    Owned,
    member::{MEMBER_TTL, Member, observe_members},
};

/// How long to wait before trying again after the store failed.
const RETRY: Duration = Duration::from_secs(1);
/// Take-overs at once: a restart with a thousand clusters shares its disk writes.
const TAKE_OVERS_AT_ONCE: usize = 64;

pub struct Engine {
    pub store: Store,
    pub me: Member,
    pub owned: watch::Sender<Owned>,
    pub is_member: Arc<AtomicBool>,
}

impl Engine {
    /// Works until told to stop; then gives the membership back, so that others need not wait.
    pub async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            if let Err(error) = self.be_a_member(&stop).await {
                tracing::warn!(?error, "this server is no member at the moment; it tries again");
            }
            self.is_member.store(false, Ordering::Release);
            self.owned.send_replace(Owned::new());
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    /// One membership, from the lease's grant to its end.
    async fn be_a_member(&self, stop: &CancellationToken) -> StoreResult<()> {
        let id = &self.me.id;
        let key = key_of::<Member>(&id.0);
        let value = encode(&id.0, &self.me, Timestamp::now(), None)?;
        let Some(held) = self.store.hold(&key, value, MEMBER_TTL).await? else {
            // The id is random, so the key can only be our own, of a lease that is about to end.
            tracing::warn!(server = %id, "the last membership has not ended yet");
            return Ok(());
        };
        tracing::info!(server = %id, epoch = %held.epoch(), "this server is a member");
        self.is_member.store(true, Ordering::Release);
        let ended = tokio::select! {
            () = stop.cancelled() => Ok(()),
            () = held.lost() => {
                tracing::warn!(server = %id, "the lease as a member was lost");
                Ok(())
            }
            result = self.follow(&held) => result,
        };
        self.owned.send_replace(Owned::new());
        let released = held.release().await;
        ended.and(released)
    }

    /// Looks at all clusters whenever a member changes, and at one whenever it does.
    async fn follow(&self, held: &Held) -> StoreResult<()> {
        let now = self.store.revision().await?;
        let mut members = self.store.watch(&key_of::<Member>(""), now).await?;
        let mut clusters = self.store.watch(&key_of::<ClusterRecord>(""), now).await?;
        let mut present = self.look(held).await?;
        loop {
            tokio::select! {
                changes = members.next() => {
                    changes?;
                    present = self.look(held).await?;
                }
                changes = clusters.next() => {
                    let keys = changes?.iter().map(|change| change.key().to_owned()).collect();
                    self.look_at(held, &present, keys).await?;
                }
            }
        }
    }

    /// Decides about all clusters; the members that there are.
    async fn look(&self, held: &Held) -> StoreResult<Vec<ServerId>> {
        let members = observe_members(&self.store).await?;
        let (clusters, _) = self.store.read_all::<ClusterRecord>("").await?;
        let owned = self.decide(held, &members, clusters).await?;
        self.owned.send_if_modified(|old| {
            let changed = *old != owned;
            *old = owned;
            changed
        });
        Ok(members)
    }

    /// Decides about the clusters under these keys, as they are now: with a thousand clusters
    /// that run, most changes are of one of them.
    async fn look_at(
        &self,
        held: &Held,
        members: &[ServerId],
        keys: BTreeSet<String>,
    ) -> StoreResult<()> {
        let mut clusters = Vec::new();
        for key in &keys {
            clusters.extend(self.store.get(key).await?.map(|entry| Stored::decode(&entry)));
        }
        let mut owned = self.decide(held, members, clusters).await?;
        self.owned.send_if_modified(|all| {
            let mut changed = false;
            for key in &keys {
                let id = key.split_once('/').map_or(key.as_str(), |(_, id)| id);
                let epoch = owned.remove(id);
                changed |= all.get(id) != epoch.as_ref();
                match epoch {
                    Some(epoch) => all.insert(id.to_owned(), epoch),
                    None => all.remove(id),
                };
            }
            changed
        });
        Ok(())
    }

    /// Which of these clusters are ours, after taking over those that should be.
    async fn decide(
        &self,
        held: &Held,
        members: &[ServerId],
        clusters: Vec<Decoded<ClusterRecord>>,
    ) -> StoreResult<Owned> {
        let decisions = clusters.into_iter().filter_map(|cluster| match cluster {
            Ok(cluster) => {
                let current = &cluster.value.ownership;
                let decision = decide_ownership(&self.me.id, members, &cluster.id, current);
                Some((cluster, decision))
            }
            Err(unreadable) => {
                let (cluster, reason) = (unreadable.id, unreadable.reason);
                tracing::error!(cluster, reason, "a cluster's record cannot be read");
                None
            }
        });
        let owned: Vec<StoreResult<Option<(String, u64)>>> = stream::iter(decisions)
            .map(|(cluster, decision)| self.carry_out(held, cluster, decision))
            .buffer_unordered(TAKE_OVERS_AT_ONCE)
            .collect()
            .await;
        Ok(owned.into_iter().collect::<StoreResult<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// The cluster with its epoch if it is ours afterwards.
    async fn carry_out(
        &self,
        held: &Held,
        cluster: Stored<ClusterRecord>,
        decision: Decision,
    ) -> StoreResult<Option<(String, u64)>> {
        let ownership = match decision {
            Decision::Leave => return Ok(None),
            Decision::Keep { epoch } => return Ok(Some((cluster.id, epoch))),
            Decision::TakeOver(ownership) => ownership,
        };
        let epoch = ownership.epoch;
        let taken = ClusterRecord { ownership, ..cluster.value.clone() };
        // Only a member may take over: should the lease have ended meanwhile, this is refused.
        let txn = Txn::new().when(held.still_held()).replace(&cluster, &taken, Timestamp::now())?;
        match self.store.commit(txn).await? {
            Outcome::Committed(_) => {
                tracing::info!(cluster = cluster.id, epoch, "took over the cluster");
                Ok(Some((cluster.id, epoch)))
            }
            // Somebody wrote the record: the watch brings us back to it.
            Outcome::Refused => Ok(None),
        }
    }
}

/// A new identity for this start of the server: the host's name, for people, and chance.
pub fn new_server_id(hostname: &str) -> ServerId {
    ServerId(format!("{hostname}-{}", crate::access::random_text::<8>()))
}
