//! What the engine knows of the world when it decides.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;

use crate::{disruption::Guard, quick::QuickMap};

/// The nodes of a cluster, by the address of their machine.
pub type Machines = QuickMap<String, Machine>;

/// The facts at one moment. Nothing of it is stored: after a start all of it is looked at again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observation {
    pub machines: Machines,
    /// What health checks said, by the entry's index.
    pub probes: QuickMap<u64, Probe>,
    /// The drains that this process is carrying out, by the entry's index, with the address.
    pub drains: HashMap<u64, String>,
    /// The entries whose command this process is running, or whose volumes it is fencing.
    pub commands: HashSet<u64>,
    /// What others have taken out of service. Repairs are counted from the queue itself.
    pub guard: Guard,
    pub etcd: Etcd,
    pub fleet: Fleet,
}

/// A machine that is a node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    pub node: String,
    pub controlplane: bool,
    pub etcd: bool,
    /// A person said on the Node that nothing is to be done to it.
    pub opted_out: bool,
    /// The owner of our cordon, if the Node carries one.
    pub cordoned_by: Option<String>,
    /// The Node carries the out-of-service taint of a repair.
    pub fenced: bool,
    /// The Node carries the mark by which its volumes go to others.
    pub volumes_fenced: bool,
}

impl Machine {
    /// Only one such machine may be out of service at a time.
    pub fn is_critical(&self) -> bool {
        self.controlplane || self.etcd
    }
}

/// The health checks of one entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Probe {
    pub in_flight: bool,
    pub last: Option<Probed>,
    /// Since when it has been healthy without a break.
    pub healthy_since: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probed {
    /// What was done to the machine after this time it says nothing about.
    pub begun: Timestamp,
    pub healthy: bool,
}

impl Probe {
    /// Notes the end of a health check.
    pub fn note(&mut self, probed: Probed) {
        self.in_flight = false;
        self.healthy_since = probed.healthy.then(|| self.healthy_since.unwrap_or(probed.begun));
        self.last = Some(probed);
    }
}

/// Whether a health check's end means healthy: it exited with 0 and said `true`, and nothing else.
pub fn is_healthy(exit_code: Option<i32>, stdout: &str) -> bool {
    exit_code == Some(0) && stdout.trim() == "true"
}

/// The state of etcd, as far as it bears on repairs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Etcd {
    /// Nobody has looked yet. A member that does not answer is not unknown but unhealthy.
    #[default]
    Unknown,
    /// Whether each member is healthy and in step, by the address of its machine. On imported
    /// clusters: each controlplane machine, by its API server's `/readyz/etcd`.
    Members(BTreeMap<String, bool>),
}

impl Etcd {
    pub(super) fn is_well(&self) -> bool {
        match self {
            Etcd::Unknown => false,
            Etcd::Members(members) => members.values().all(|healthy| *healthy),
        }
    }
}

/// How many machines there are and how many of them are ill, for the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fleet {
    pub machines: usize,
    pub unhealthy: usize,
    /// When the last pass found a storm.
    pub last_storm: Option<Timestamp>,
}
