//! Watching over a cluster that runs: does its API answer, and what is in it.
//!
//! Flow: every 15 s, with jitter, over all controlplane addresses. Three failures in a row make it
//! Unreachable, the first success makes it Running again. What was seen is stored when it changed.
//! What runs on the nodes is asked once a minute: the list of pods is the largest by far.
//!
//! A server that takes over a thousand clusters at once spreads their first probes, and reads the
//! nodes of a few at a time: the lists of one cluster may be megabytes.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::sync::{Semaphore, broadcast};
use wharf_core::cluster::{
    ClusterRecord, ClusterState, Reason,
    health::HealthRecord,
    life::{ClusterEvent, Life, decide_transition},
};
use wharf_kube::{Cluster, KubeError, Load};
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
/// The use of nodes changes with every look, and each record of it is the whole list of nodes. A
/// little less than four probes, so that it is every fourth.
const LOAD_EVERY: Duration = Duration::from_secs(55);
/// So many clusters' nodes and pods are in memory at once.
const READERS: usize = 8;
/// Whoever waited so long for its turn goes ahead: clusters that hang in the middle of an answer must
/// not keep the others waiting.
const TURN: Duration = Duration::from_secs(2);

static TURNS: Semaphore = Semaphore::const_new(READERS);

/// Probes until the cluster's state changes. `first`: the server has only just taken it over, perhaps
/// with many others.
pub async fn run(
    app: &App,
    fenced: &Fenced,
    record: &Stored<ClusterRecord>,
    first: bool,
) -> Result<(), FencedError> {
    let mut failures = 0;
    let mut view = View::default();
    let mut nudges = app.nudges.subscribe();
    let stored = app.store.read::<HealthRecord>(&record.id).await?;
    let mut stored = stored.map(|stored| digest(&stored.value));
    if first && stored.is_some() {
        tokio::time::sleep(EVERY.mul_f64(rand::random())).await;
    }
    loop {
        let seen = look(app, record, &mut view).await;
        let state = record.value.state;
        match seen {
            Ok(health) => {
                failures = 0;
                store_health(fenced, &health, &mut stored).await?;
                if state == ClusterState::Unreachable {
                    return turn(fenced, ClusterEvent::GetInfoSucceed, None).await;
                }
            }
            Err(reason) => {
                failures += 1;
                tracing::debug!(cluster = record.id, reason, failures, "a probe failed");
                // A new connection next time: this one may be what is broken.
                view.cluster = None;
                if state == ClusterState::Running && failures >= FAILURES {
                    return turn(fenced, ClusterEvent::GetInfoFailed, Some(reason)).await;
                }
            }
        }
        let pause = EVERY.mul_f64(1.0 + JITTER * (rand::random::<f64>() - 0.5));
        // Over, or cut short.
        let _ = tokio::time::timeout(pause, nudged(&mut nudges, &record.id)).await;
    }
}

/// Returns when somebody wants this cluster to be looked at.
async fn nudged(nudges: &mut broadcast::Receiver<String>, cluster: &str) {
    loop {
        match nudges.recv().await {
            Ok(name) if name != cluster => {}
            // Too many to know: it may be among them.
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// What is kept of a cluster between two looks.
#[derive(Default)]
struct View {
    cluster: Option<Cluster>,
    load: Option<(Load, Instant)>,
}

/// Asks the cluster once.
async fn look(
    app: &App,
    record: &Stored<ClusterRecord>,
    view: &mut View,
) -> Result<HealthRecord, String> {
    let cluster = match &view.cluster {
        Some(cluster) => cluster,
        None => view.cluster.insert(clusters::connect(app, &record.value).await?),
    };
    let known = &mut view.load;
    let look = async {
        let probe = cluster.probe(DEADLINE).await?;
        let _turn = tokio::time::timeout(TURN, TURNS.acquire()).await;
        let now = Instant::now();
        let load = match known {
            Some((load, at)) if !is_old(*at, now) => load,
            _ => &mut known.insert((cluster.observe_load().await?, now)).0,
        };
        let mut nodes = cluster.observe_nodes_under(load).await?;
        if nodes.iter().any(|node| node.unschedulable) {
            // Whether nothing is left on a cordoned node is not told by an older list.
            nodes = cluster.observe_nodes().await?;
        }
        Ok(clusters::health_of(&record.value, &probe, &nodes))
    };
    match tokio::time::timeout(DEADLINE * 2, look).await {
        Ok(result) => result.map_err(|error: KubeError| crate::error::chain(&error)),
        Err(_) => Err(format!("its API did not answer within {} s", DEADLINE.as_secs() * 2)),
    }
}

fn is_old(read_at: Instant, now: Instant) -> bool {
    now.duration_since(read_at) >= LOAD_EVERY
}

/// What is stored of a cluster, in a few bytes: a thousand lists of nodes are a hundred megabytes.
fn digest(health: &HealthRecord) -> u64 {
    let mut hasher = DefaultHasher::new();
    health.hash(&mut hasher);
    hasher.finish()
}

/// Stores what was seen if it differs from what is stored.
async fn store_health(
    fenced: &Fenced,
    health: &HealthRecord,
    stored: &mut Option<u64>,
) -> Result<(), FencedError> {
    let seen = digest(health);
    if *stored == Some(seen) {
        return Ok(());
    }
    fenced.commit(|_| clusters::put_health(Txn::new(), health, Timestamp::now())).await?;
    *stored = Some(seen);
    Ok(())
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

#[cfg(test)]
mod tests {
    use wharf_core::cluster::health::NodeHealth;

    use super::*;

    #[test]
    fn what_runs_on_the_nodes_is_asked_with_every_fourth_probe() {
        let begin = Instant::now();
        let shortest = EVERY.mul_f64(1.0 - JITTER / 2.0);
        let longest = EVERY.mul_f64(1.0 + JITTER / 2.0);
        assert!(!is_old(begin, begin + longest * 3));
        assert!(is_old(begin, begin + EVERY * 4));
        assert!(is_old(begin, begin + shortest * 5));
    }

    #[test]
    fn every_difference_is_worth_a_write() {
        let of = |ready| {
            let node = NodeHealth { ready, ..NodeHealth::default() };
            digest(&HealthRecord::new("demo", None, vec![node], true))
        };
        assert_eq!(of(true), of(true));
        assert_ne!(of(true), of(false));
    }
}
