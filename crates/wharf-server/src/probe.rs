//! Watching over a cluster that runs: does its API answer, and what is in it.
//!
//! Flow: every 15 s, with jitter, over all controlplane addresses. Three failures in a row make it
//! Unreachable, the first success makes it Running again. What was seen is stored when it changed.

use std::time::Duration;

use jiff::Timestamp;
use wharf_core::cluster::{
    ClusterRecord, ClusterState, Reason,
    health::HealthRecord,
    life::{ClusterEvent, Life, decide_transition},
};
use wharf_kube::Cluster;
use wharf_store::{StoreError, Stored, Txn};

use crate::{
    app::App,
    clusters,
    engine::{Fenced, FencedError},
};

const EVERY: Duration = Duration::from_secs(15);
/// Each wait differs by up to this part, so that a thousand clusters do not answer at once.
const JITTER: f64 = 0.2;
const DEADLINE: Duration = Duration::from_secs(10);
/// So many failures in a row before a cluster counts as unreachable.
const FAILURES: u32 = 3;

/// Probes until the cluster's state changes.
pub async fn run(
    app: &App,
    fenced: &Fenced,
    record: &Stored<ClusterRecord>,
) -> Result<(), FencedError> {
    let mut failures = 0;
    let mut cluster = None;
    loop {
        let seen = look(app, record, &mut cluster).await;
        let state = record.value.state;
        match seen {
            Ok(health) => {
                failures = 0;
                store_health(app, fenced, &record.id, &health).await?;
                if state == ClusterState::Unreachable {
                    return turn(fenced, ClusterEvent::GetInfoSucceed, None).await;
                }
            }
            Err(reason) => {
                failures += 1;
                tracing::debug!(cluster = record.id, reason, failures, "a probe failed");
                // A new connection next time: this one may be what is broken.
                cluster = None;
                if state == ClusterState::Running && failures >= FAILURES {
                    return turn(fenced, ClusterEvent::GetInfoFailed, Some(reason)).await;
                }
            }
        }
        tokio::time::sleep(EVERY.mul_f64(1.0 + JITTER * (rand::random::<f64>() - 0.5))).await;
    }
}

/// Asks the cluster once.
async fn look(
    app: &App,
    record: &Stored<ClusterRecord>,
    known: &mut Option<Cluster>,
) -> Result<HealthRecord, String> {
    let cluster = match known {
        Some(cluster) => cluster,
        None => known.insert(clusters::connect(app, &record.value).await?),
    };
    let look = async {
        let probe = cluster.probe(DEADLINE).await.map_err(|error| crate::error::chain(&error))?;
        let nodes = cluster.observe_nodes().await.map_err(|error| crate::error::chain(&error))?;
        Ok(clusters::health_of(&record.value, &probe, &nodes))
    };
    match tokio::time::timeout(DEADLINE * 2, look).await {
        Ok(result) => result,
        Err(_) => Err(format!("its API did not answer within {} s", DEADLINE.as_secs() * 2)),
    }
}

/// Stores what was seen if it differs from what is stored.
async fn store_health(
    app: &App,
    fenced: &Fenced,
    cluster: &str,
    health: &HealthRecord,
) -> Result<(), FencedError> {
    let stored = app.store.read::<HealthRecord>(cluster).await?;
    if stored.is_some_and(|stored| stored.value == *health) {
        return Ok(());
    }
    let write = |_: &_| Txn::new().write(cluster, health, Timestamp::now(), None);
    fenced.commit(write).await.map(|_| ())
}

async fn turn(
    fenced: &Fenced,
    event: ClusterEvent,
    reason: Option<String>,
) -> Result<(), FencedError> {
    let turned = fenced.commit(|stored| {
        let now = Timestamp::now();
        let next = decide_transition(Life::Recorded(stored.value.state), event);
        let Ok(Life::Recorded(state)) = next else { return Ok::<Txn, StoreError>(Txn::new()) };
        let reason = reason.clone().map(|text| Reason { text, since: now });
        let record = ClusterRecord { state, reason, ..stored.value.clone() };
        Txn::new().write(&stored.id, &record, now, None)
    });
    turned.await.map(|_| ())
}
