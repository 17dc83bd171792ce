//! What was seen of a cluster that runs: its version, its nodes, what they can carry and what is
//! used of it.

use std::{collections::BTreeMap, net::Ipv4Addr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::record::Kind;

/// The last look at a cluster. The id is the cluster's name; it is written when something changed,
/// always together with its [`HealthSummary`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HealthRecord {
    pub cluster: String,
    /// As the API server says it: `v1.36.3`.
    pub version: Option<String>,
    pub node_count: usize,
    pub ready_count: usize,
    /// Sums over the nodes that are not controlplane nodes: what workloads can have.
    pub capacity: Amounts,
    pub used: Amounts,
    /// Whether `used` was measured; otherwise it is the sum of what pods requested.
    pub measured: bool,
    pub nodes: Vec<NodeHealth>,
}

impl Kind for HealthRecord {
    const KIND: &'static str = "nodehealth";
}

/// A [`HealthRecord`] without its nodes, as a record of its own: the nodes of a thousand clusters
/// are a hundred megabytes, which no list of clusters can read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthSummary {
    pub cluster: String,
    pub version: Option<String>,
    pub node_count: usize,
    pub ready_count: usize,
    pub capacity: Amounts,
    pub used: Amounts,
    pub measured: bool,
}

impl Kind for HealthSummary {
    const KIND: &'static str = "health";
}

/// What a node or a cluster has, or uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Amounts {
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    pub pods: u64,
}

impl std::iter::Sum for Amounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, next| Self {
            cpu_milli: sum.cpu_milli.saturating_add(next.cpu_milli),
            memory_bytes: sum.memory_bytes.saturating_add(next.memory_bytes),
            pods: sum.pods.saturating_add(next.pods),
        })
    }
}

/// A Kubernetes Node as it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct NodeHealth {
    pub name: String,
    pub address: Option<Ipv4Addr>,
    pub ready: bool,
    /// Why it is not ready, in its own words.
    pub reason: Option<String>,
    pub cordoned: bool,
    /// Cordoned, and no pod is left that a drain would move.
    pub drained: bool,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub operating_system: String,
    pub operating_system_image: String,
    /// Name and version: `containerd://2.2.9`.
    pub container_runtime: String,
    pub kubelet_version: String,
    pub capacity: Amounts,
    pub used: Amounts,
    pub created_at: Option<Timestamp>,
}

/// Every label that says what a node is for begins with this; see [`NodeHealth::roles`].
const ROLE_LABEL: &str = "node-role.kubernetes.io/";

impl NodeHealth {
    /// What its labels say that it is for, spelled as in the API.
    pub fn roles(&self) -> Vec<String> {
        let named = self.labels.keys().filter_map(|label| label.strip_prefix(ROLE_LABEL));
        let mut roles: Vec<String> = named
            .map(|role| match role {
                "control-plane" | "master" => "controlplane".to_owned(),
                other => other.to_owned(),
            })
            .collect();
        roles.sort();
        roles.dedup();
        roles
    }

    pub fn is_controlplane(&self) -> bool {
        self.roles().iter().any(|role| role == "controlplane")
    }
}

impl HealthRecord {
    /// A record with its counts and sums taken from the nodes.
    pub fn new(
        cluster: &str,
        version: Option<String>,
        nodes: Vec<NodeHealth>,
        measured: bool,
    ) -> Self {
        let carrying = || nodes.iter().filter(|node| !node.is_controlplane());
        Self {
            cluster: cluster.to_owned(),
            version,
            node_count: nodes.len(),
            ready_count: nodes.iter().filter(|node| node.ready).count(),
            capacity: carrying().map(|node| node.capacity).sum(),
            used: carrying().map(|node| node.used).sum(),
            measured,
            nodes,
        }
    }

    pub fn summary(&self) -> HealthSummary {
        HealthSummary {
            cluster: self.cluster.clone(),
            version: self.version.clone(),
            node_count: self.node_count,
            ready_count: self.ready_count,
            capacity: self.capacity,
            used: self.used,
            measured: self.measured,
        }
    }
}

/// How much of `capacity` is used, as the API shows it: two digits after the point.
pub fn render_ratio(used: u64, capacity: u64) -> String {
    if capacity == 0 {
        return "0.00".to_owned();
    }
    format!("{:.2}", used as f64 / capacity as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, role: &str, cpu_milli: u64) -> NodeHealth {
        let amounts = Amounts { cpu_milli, memory_bytes: 10, pods: 1 };
        NodeHealth {
            name: name.to_owned(),
            ready: true,
            labels: BTreeMap::from([(format!("{ROLE_LABEL}{role}"), "true".to_owned())]),
            capacity: amounts,
            used: amounts,
            ..NodeHealth::default()
        }
    }

    #[test]
    fn sums_leave_controlplane_nodes_out() {
        let nodes = vec![
            node("a", "control-plane", 1000),
            node("b", "worker", 2000),
            node("c", "worker", 500),
        ];
        let health = HealthRecord::new("demo", None, nodes, true);
        assert_eq!((health.node_count, health.ready_count), (3, 3));
        assert_eq!(health.capacity, Amounts { cpu_milli: 2500, memory_bytes: 20, pods: 2 });
        assert!(health.nodes[0].is_controlplane());
    }

    #[test]
    fn a_summary_reads_the_record_of_the_whole() {
        let health = HealthRecord::new("demo", None, vec![node("b", "worker", 1)], true);
        let text = serde_json::to_string(&health).unwrap();
        let summary: HealthSummary = serde_json::from_str(&text).unwrap();
        assert_eq!(summary, health.summary());
    }

    #[test]
    fn ratios_have_two_digits_and_survive_an_empty_cluster() {
        assert_eq!(render_ratio(1, 3), "0.33");
        assert_eq!(render_ratio(2, 1), "2.00");
        assert_eq!(render_ratio(5, 0), "0.00");
    }
}
