//! The engine of one queue, for as long as this server owns the cluster.
//!
//! Flow: a queue without anything to do is only watched in the store. When there is something, a
//! [`Session`] holds it in memory, looks at the cluster, and works until all is done.
//!
//! Guarantees: whatever a session began is ended before it ends, so that nothing of it happens
//! under another owner that could have been stopped.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use wharf_core::{cluster::ClusterRecord, repair::note_repairs};
use wharf_store::{Revision, StoreError};

use super::{
    board::{Counted, Place, Said},
    records::{Held, prefix},
    session::Session,
};
use crate::{
    app::App,
    disruptions::Part,
    engine::{Fenced, FencedError, OwnedCluster},
};

/// Clusters whose nodes are looked at only for what a crash may have left there: so many at once,
/// since a server may take over a thousand.
static TIDIERS: Semaphore = Semaphore::const_new(8);

/// Before a cluster that did not answer is asked again for what is left on its nodes.
const TIDY_AGAIN: Duration = Duration::from_secs(60);

/// What is remembered between two sessions.
#[derive(Default)]
struct Memory {
    /// Nothing of ours is left on nodes. Not known at first: a crash may have left a cordon.
    tidy: bool,
    last_storm: Option<Timestamp>,
}

pub(super) struct Engine {
    pub app: App,
    pub cluster: String,
    pub fenced: Fenced,
    epoch: u64,
    place: Place,
}

/// Works on the queue of a cluster until told to stop.
pub async fn keep(owned: OwnedCluster, stop: CancellationToken) {
    let fenced = owned.fenced();
    let OwnedCluster { app, cluster, epoch } = owned.clone();
    let place = app.repairs.open(&cluster);
    let engine = Engine { app, cluster, fenced, epoch, place };
    let mut memory = Memory::default();
    while !stop.is_cancelled() {
        // The future of a session is large, and most clusters have none.
        let turn = Box::pin(engine.turn(&mut memory, &stop)).await;
        match turn {
            Ok(revision) => {
                let patience = if memory.tidy { Duration::MAX } else { TIDY_AGAIN };
                let changed = tokio::time::timeout(patience, engine.next_change(revision));
                tokio::select! {
                    () = stop.cancelled() => return,
                    // Whatever came of it, the queue is looked at.
                    _ = changed => {}
                }
            }
            Err(error) => {
                if !owned.goes_on(error, "repairs", &stop).await {
                    return;
                }
            }
        }
    }
}

impl Engine {
    pub fn said(&self) -> &Arc<Said> {
        &self.place.said
    }

    /// Does what there is to do; the revision from which on to wait for more.
    async fn turn(
        &self,
        memory: &mut Memory,
        stop: &CancellationToken,
    ) -> Result<Revision, FencedError> {
        let (held, revision) = Held::read(&self.app.store, &self.cluster).await?;
        self.said().count(Counted::of(&held.queue));
        self.note_repairs(&held).await?;
        let at_rest = held.is_at_rest();
        // Where nothing ever was there is nothing to tidy up.
        memory.tidy |= held.queue.head.next_index == 0;
        if at_rest && memory.tidy {
            return Ok(revision);
        }
        let _turn = match at_rest {
            false => None,
            true => tokio::select! {
                () = stop.cancelled() => return Ok(revision),
                turn = TIDIERS.acquire() => Some(turn),
            },
        };
        let watch = self.app.store.watch(&prefix(&self.cluster), revision).await?;
        let mut session = Session::begin(self, (held, revision), watch, memory.last_storm);
        let ended = session.run(stop).await;
        memory.last_storm = session.last_storm();
        let revision = session.end().await;
        memory.tidy = ended?;
        Ok(revision)
    }

    /// What entries had in hand when the last owner ended is out of service still.
    async fn note_repairs(&self, held: &Held) -> Result<(), StoreError> {
        let machines = match held.is_at_rest() {
            true => Default::default(),
            false => {
                let record = self.app.store.read::<ClusterRecord>(&self.cluster).await?;
                match record {
                    Some(record) => super::facts::known_machines(&self.app, &record.value).await?,
                    None => Default::default(),
                }
            }
        };
        self.app.disruptions.decide_repairs(&self.cluster, |_| {
            let mut guard = wharf_core::disruption::Guard::default();
            note_repairs(&mut guard, &held.queue, &machines);
            let addresses = held.queue.entries.values().filter(|entry| entry.phase.holds());
            let repairs = addresses
                .filter_map(|entry| Some((entry.address.clone(), guard.get(&entry.address)?)));
            ((), repairs.collect())
        });
        self.app.disruptions.loaded(&self.cluster, self.epoch, Part::Repairs);
        Ok(())
    }

    async fn next_change(&self, seen: Revision) -> Result<(), StoreError> {
        // If the past is gone, there was a change.
        let mut watch = self.app.store.watch(&prefix(&self.cluster), seen).await?;
        watch.next().await.map(drop)
    }
}
