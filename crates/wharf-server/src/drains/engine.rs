//! One task for each cluster that this server owns: it carries out all drains of the cluster.
//!
//! Flow: read the records, begin what runs, follow the changes. A cluster without drains costs a
//! watch of the store. A crash anywhere is a new look at the records: a drain that ran goes on, one
//! that is over takes back the cordon that it left.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::task::{AbortHandle, JoinSet};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use wharf_core::{
    cluster::{ClusterRecord, ClusterState, health::HealthRecord},
    disruption::{Disruption, Kind},
    drain::DrainRecord,
};
use wharf_store::{Change, Decoded, StoreError, Stored, typed::key_of};

use super::{CORDON_OWNER, carry::Carry};
use crate::{
    disruptions::{Claim, Part},
    engine::OwnedCluster,
    installer,
};

/// How long to wait before trying again after the store failed.
const RETRY: Duration = Duration::from_secs(1);
/// A server that takes a thousand clusters over reads what was seen of them in ten seconds.
const TIDY_SPREAD: Duration = Duration::from_millis(10);

/// Carries out the drains of a cluster until told to stop. What is under way then goes on when the
/// next owner begins.
pub async fn keep(owned: OwnedCluster, stop: CancellationToken) {
    let mut drains = Drains { owned, live: HashMap::new(), tasks: JoinSet::new() };
    let spread = TIDY_SPREAD.saturating_mul(drains.owned.app.owned.borrow().len() as u32);
    drains.tasks.spawn(tidy(drains.owned.clone(), spread.mul_f64(rand::random())));
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            Err(error) = drains.follow() => error,
        };
        if !drains.owned.goes_on(ended, "drains", &stop).await {
            return;
        }
    }
}

struct Drains {
    owned: OwnedCluster,
    /// The last drain that was begun for each node. It stays when that is over: news of it may
    /// come late.
    live: HashMap<String, Live>,
    tasks: JoinSet<()>,
}

struct Live {
    id: String,
    cancel: CancellationToken,
    task: AbortHandle,
}

impl Drains {
    /// Never ends but by an error.
    async fn follow(&mut self) -> Result<std::convert::Infallible, StoreError> {
        let OwnedCluster { app, cluster, epoch } = self.owned.clone();
        let prefix = DrainRecord::key(&cluster, "");
        let (records, revision) = app.store.read_all::<DrainRecord>(&prefix).await?;
        let mut watch = app.store.watch(&key_of::<DrainRecord>(&prefix), revision).await?;
        records.into_iter().for_each(|record| self.look(record));
        app.disruptions.loaded(&cluster, epoch, Part::Drains);
        loop {
            tokio::select! {
                changes = watch.next() => for change in changes? {
                    match change {
                        Change::Put(entry) => self.look(Stored::decode(&entry)),
                        Change::Deleted { key, .. } => self.drop(&key),
                    }
                },
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended && error.is_panic() {
                        tracing::error!(?error, cluster, "a task of drains failed");
                    }
                }
            }
        }
    }

    /// Does what a record asks for, if that is not under way.
    fn look(&mut self, record: Decoded<DrainRecord>) {
        let record = match record {
            Ok(record) => record.value,
            Err(unreadable) => {
                let (drain, reason) = (unreadable.id, unreadable.reason);
                tracing::error!(drain, reason, "the record of a drain cannot be read");
                return;
            }
        };
        match self.live.get(&record.node) {
            Some(live) if live.id == record.id => {
                if record.canceled {
                    live.cancel.cancel();
                }
                return;
            }
            // It is over; what it left on the node is taken over.
            Some(older) => older.task.abort(),
            None => {}
        }
        if !record.is_running() && !record.cordon_left {
            return;
        }
        let (node, id) = (record.node.clone(), record.id.clone());
        let cancel = CancellationToken::new();
        if record.canceled {
            cancel.cancel();
        }
        let claim = (record.is_running() && record.admitted).then(|| self.restore(&record));
        let (app, fenced) = (self.owned.app.clone(), self.owned.fenced());
        let carry = Arc::new(Carry::new(app, fenced, record, cancel.clone()));
        let task = self.tasks.spawn(async move {
            // A task of its own: a panic in it ends the drain, and that is written down.
            let work = tokio::spawn(carry.clone().carry_out(claim));
            if let Err(error) = AbortOnDropHandle::new(work).await
                && error.is_panic()
            {
                tracing::error!(?error, node = carry.node(), "a drain panicked");
                carry.give_up().await;
            }
        });
        self.live.insert(node, Live { id, cancel, task });
    }

    /// A drain that was let in before counts before anybody new is let in.
    fn restore(&self, record: &DrainRecord) -> Claim {
        let known = Disruption { kind: Kind::Drain, critical: record.critical };
        self.owned.app.disruptions.restore(&self.owned.cluster, &record.machine, known)
    }

    /// The record is gone, and its cluster with it.
    fn drop(&mut self, key: &str) {
        let node = key.rsplit_once('/').map_or(key, |(_, node)| node);
        if let Some(live) = self.live.remove(node) {
            live.task.abort();
        }
    }
}

/// Takes back cordons that bear our mark and that nobody answers for any more: of a drain that is
/// over, of a removal whose update is over. They come to light by what was last seen of the
/// cluster. A node that no record of ours knows is left alone: a cluster may be in the care of more
/// than one installation of Wharf, and all of them leave the same mark.
async fn tidy(owned: OwnedCluster, delay: Duration) {
    tokio::time::sleep(delay).await;
    let OwnedCluster { app, cluster, .. } = &owned;
    let (record, health) = loop {
        let record = app.store.read::<ClusterRecord>(cluster).await;
        match (record, app.store.read::<HealthRecord>(cluster).await) {
            (Ok(Some(record)), Ok(Some(health))) => break (record.value, health.value),
            (Ok(None), _) | (_, Ok(None) | Err(StoreError::Unreadable { .. })) => return,
            (Err(_), _) | (_, Err(_)) => tokio::time::sleep(RETRY).await,
        }
    };
    for node in &health.nodes {
        match node.annotations.get(wharf_kube::CORDON_OWNER).map(String::as_str) {
            Some(CORDON_OWNER) => give_back(&owned, &node.name, CORDON_OWNER, is_kept).await,
            Some(installer::CORDON_OWNER) if record.nodes.contains_key(&node.name) => {
                give_back(&owned, &node.name, installer::CORDON_OWNER, is_being_updated).await;
            }
            Some(_) | None => {}
        }
    }
}

async fn give_back(
    owned: &OwnedCluster,
    node: &str,
    owner: &str,
    is_kept: impl AsyncFn(&OwnedCluster, &str) -> Result<bool, StoreError>,
) {
    let mut pause = super::carry::FIRST_PAUSE;
    loop {
        match is_kept(owned, node).await {
            Ok(true) => return,
            Ok(false) => {
                match super::carry::uncordon(&owned.app, &owned.cluster, node, owner).await {
                    Ok(()) => return,
                    Err(reason) => {
                        let cluster = &owned.cluster;
                        tracing::warn!(cluster, node, reason, "a cordon of ours is still there");
                    }
                }
            }
            Err(error) => tracing::warn!(?error, node, "will look again at a cordon of ours"),
        }
        tokio::time::sleep(pause).await;
        pause = super::carry::longer(pause);
    }
}

/// Whether the cordon of a drain is not ours to take back, or a drain's own affair.
async fn is_kept(owned: &OwnedCluster, node: &str) -> Result<bool, StoreError> {
    let key = DrainRecord::key(&owned.cluster, node);
    let record = owned.app.store.read::<DrainRecord>(&key).await?;
    Ok(record.is_none_or(|record| record.value.is_running() || record.value.cordon_left))
}

async fn is_being_updated(owned: &OwnedCluster, _: &str) -> Result<bool, StoreError> {
    let record = owned.app.store.read::<ClusterRecord>(&owned.cluster).await?;
    Ok(record.is_some_and(|record| record.value.state == ClusterState::Updating))
}
