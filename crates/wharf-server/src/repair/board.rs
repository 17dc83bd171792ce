//! What the engines of this server say about their queues: to lists and to `/metrics`.
//!
//! Only of clusters that this server owns, and gone with them.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};
use wharf_core::{
    drain::Report,
    repair::{BlockingPod, Entry, Phase, Queue, Status, Wait},
};

/// One board for a server.
#[derive(Clone, Default)]
pub struct Board {
    clusters: Arc<Mutex<BTreeMap<String, Arc<Said>>>>,
}

/// What is said of one queue.
#[derive(Default)]
pub(super) struct Said {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waits: HashMap<u64, Wait>,
    drains: HashMap<u64, Report>,
    counted: Counted,
}

/// What `/metrics` tells of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Counted {
    enabled: bool,
    items: [usize; 4],
    /// Which statuses the entries of a machine have, in the order of [`Status::ALL`].
    machines: BTreeMap<Box<str>, [bool; 4]>,
}

impl Counted {
    pub fn of(queue: &Queue) -> Self {
        let mut counted = Self { enabled: queue.head.enabled, ..Self::default() };
        for entry in queue.entries.values() {
            let place = Status::ALL.iter().position(|status| *status == entry.status());
            let known = counted.machines.entry(entry.address.as_str().into()).or_default();
            let Some(place) = place else { continue };
            known.iter_mut().skip(place).take(1).for_each(|has| *has = true);
            counted.items.iter_mut().skip(place).take(1).for_each(|count| *count += 1);
        }
        counted
    }
}

/// What the engine says of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// A sentence.
    pub wait: String,
    /// What keeps a drain that is under way from going on.
    pub blocking_pods: Vec<BlockingPod>,
}

impl Said {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment, so it is whole also after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_waits(&self, waits: HashMap<u64, Wait>) {
        self.state().waits = waits;
    }

    pub fn count(&self, counted: Counted) {
        self.state().counted = counted;
    }

    pub fn drain(&self, index: u64, report: Option<Report>) {
        let mut state = self.state();
        match report {
            Some(report) => state.drains.insert(index, report),
            None => state.drains.remove(&index),
        };
    }

    pub fn of(&self, entry: &Entry) -> Option<Live> {
        let state = self.state();
        let wait = state.waits.get(&entry.index)?;
        let report = matches!(entry.phase, Phase::Draining { .. })
            .then(|| state.drains.get(&entry.index))
            .flatten();
        let Some(report) = report else {
            return Some(Live { wait: wait.to_string(), blocking_pods: Vec::new() });
        };
        let blocking: Vec<_> = report.waiting.iter().filter(|one| one.blocks()).cloned().collect();
        let first = blocking.first().map(|one| format!("; {one}")).unwrap_or_default();
        let wait = format!("{wait}, {} pods left{first}", report.left);
        Some(Live { wait, blocking_pods: BlockingPod::of(&blocking) })
    }
}

impl Board {
    fn clusters(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Said>>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is said of a cluster's queue; `None` when its engine is another server's.
    pub(super) fn live(&self, cluster: &str) -> Option<Arc<Said>> {
        self.clusters().get(cluster).cloned()
    }

    /// A place for an engine to speak at until the returned value is dropped.
    pub(super) fn open(&self, cluster: &str) -> Place {
        let said = Arc::new(Said::default());
        self.clusters().insert(cluster.to_owned(), said.clone());
        Place { board: self.clone(), cluster: cluster.to_owned(), said }
    }
}

pub(super) struct Place {
    board: Board,
    cluster: String,
    pub said: Arc<Said>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut clusters = self.board.clusters();
        // Its successor may have opened its own already.
        if clusters.get(&self.cluster).is_some_and(|known| Arc::ptr_eq(known, &self.said)) {
            clusters.remove(&self.cluster);
        }
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").finish_non_exhaustive()
    }
}

impl Collector for Board {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let all: Vec<(String, Counted)> = self
            .clusters()
            .iter()
            .map(|(cluster, said)| (cluster.clone(), said.state().counted.clone()))
            .collect();
        let mut family = |name: &str, help: &str, rows: &[(Vec<(&str, &str)>, i64)]| {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, value) in rows {
                ConstGauge::new(*value).encode(metric.encode_family(labels)?)?;
            }
            fmt::Result::Ok(())
        };
        let enabled: Vec<_> = all
            .iter()
            .map(|(cluster, one)| (vec![("cluster", cluster.as_str())], i64::from(one.enabled)))
            .collect();
        family("repair_queue_enabled", "1 while the repair queue is worked on", &enabled)?;
        let items = all.iter().flat_map(|(cluster, one)| {
            Status::ALL.iter().zip(one.items).map(move |(status, count)| {
                let labels = vec![("cluster", cluster.as_str()), ("status", status.name())];
                (labels, i64::try_from(count).unwrap_or(i64::MAX))
            })
        });
        let items: Vec<_> = items.collect();
        family("repair_queue_items", "Entries of the repair queue", &items)?;
        let machines = all.iter().flat_map(|(cluster, one)| {
            one.machines.iter().flat_map(move |(address, statuses)| {
                Status::ALL.iter().zip(statuses).map(move |(status, has)| {
                    let labels = vec![
                        ("cluster", cluster.as_str()),
                        ("address", &**address),
                        ("status", status.name()),
                    ];
                    (labels, i64::from(*has))
                })
            })
        });
        let machines: Vec<_> = machines.collect();
        let help = "1 where the machine has an entry of that status";
        family("machine_repair_status", help, &machines)
    }
}
