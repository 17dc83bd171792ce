//! Watching over a cluster that runs: does its API answer, and what is in it.
//!
//! Flow: every 15 s, with jitter, over all controlplane addresses. Three failures in a row make it
//! Unreachable, the first success makes it Running again. What was seen is stored when it changed,
//! but no more than once a minute when only the use of its nodes did.
//!
//! A server that takes over a thousand clusters at once spreads their first probes, and reads the
//! nodes of a few at a time: the lists of one cluster may be megabytes.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::sync::Semaphore;
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
/// Usage changes with every look; each record of it is the whole list of nodes.
const USE_EVERY: Duration = Duration::from_secs(60);
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
    let mut cluster = None;
    let mut stored = app.store.read::<HealthRecord>(&record.id).await?.map(|stored| {
        // When it was written does not matter: the first difference is stored.
        Kept::of(&stored.value, None)
    });
    if first && stored.is_some() {
        tokio::time::sleep(EVERY.mul_f64(rand::random())).await;
    }
    loop {
        let seen = look(app, record, &mut cluster).await;
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
        let _turn = tokio::time::timeout(TURN, TURNS.acquire()).await;
        let nodes = cluster.observe_nodes().await.map_err(|error| crate::error::chain(&error))?;
        Ok(clusters::health_of(&record.value, &probe, &nodes))
    };
    match tokio::time::timeout(DEADLINE * 2, look).await {
        Ok(result) => result,
        Err(_) => Err(format!("its API did not answer within {} s", DEADLINE.as_secs() * 2)),
    }
}

/// What is stored of a cluster, in a few bytes: a thousand lists of nodes are a hundred megabytes.
#[derive(Debug, Clone, Copy)]
struct Kept {
    all: u64,
    /// All but the use.
    lasting: u64,
    /// When this server wrote it.
    at: Option<Instant>,
}

impl Kept {
    fn of(health: &HealthRecord, at: Option<Instant>) -> Self {
        let hash = |health: &HealthRecord| {
            let mut hasher = DefaultHasher::new();
            health.hash(&mut hasher);
            hasher.finish()
        };
        Self { all: hash(health), lasting: hash(&health.without_use()), at }
    }

    /// Whether what was seen now is worth a write.
    fn is_outdated(&self, seen: &Kept, now: Instant) -> bool {
        let is_recent = self.at.is_some_and(|at| now.duration_since(at) < USE_EVERY);
        self.lasting != seen.lasting || (self.all != seen.all && !is_recent)
    }
}

/// Stores what was seen if it differs from what is stored.
async fn store_health(
    fenced: &Fenced,
    health: &HealthRecord,
    stored: &mut Option<Kept>,
) -> Result<(), FencedError> {
    let now = Instant::now();
    let seen = Kept::of(health, Some(now));
    if stored.is_some_and(|stored| !stored.is_outdated(&seen, now)) {
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
    use wharf_core::cluster::health::{Amounts, NodeHealth};

    use super::*;

    #[test]
    fn changes_are_stored_at_once_but_use_alone_once_a_minute() {
        let of = |ready, cpu_milli| {
            let used = Amounts { cpu_milli, ..Amounts::default() };
            let node = NodeHealth { ready, used, ..NodeHealth::default() };
            HealthRecord::new("demo", None, vec![node], true)
        };
        let begin = Instant::now();
        let stored = Kept::of(&of(true, 1), Some(begin));
        let is_outdated = |health: &HealthRecord, seconds| {
            stored.is_outdated(&Kept::of(health, None), begin + Duration::from_secs(seconds))
        };
        assert!(!is_outdated(&of(true, 1), 600));
        assert!(!is_outdated(&of(true, 2), 59));
        assert!(is_outdated(&of(true, 2), 60));
        assert!(is_outdated(&of(false, 1), 1));
        let unknown = Kept { at: None, ..stored };
        assert!(unknown.is_outdated(&Kept::of(&of(true, 2), None), begin));
    }
}
