//! What the elected node says of the cluster, in the numbers that are published.
//!
//! [`Facts`] is all that is kept of the cluster's objects; volumes are put together in [`storage`].

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{apps::PodPhase, serve::Roles};

pub mod storage;

/// The pods around virtual machines are no applications.
const LAUNCHER: &str = "virt-launcher-";

/// What is kept of the cluster's objects, by their names.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    pub nodes: &'a BTreeMap<String, Node>,
    /// Of all namespaces, as `namespace/name`.
    pub pods: &'a BTreeMap<String, Pod>,
    pub machines: &'a BTreeMap<String, Machine>,
    /// `None` in a cluster without Longhorn.
    pub storage: Option<storage::Facts<'a>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    pub ready: Option<Ready>,
    pub ready_since: Option<Timestamp>,
    pub roles: Roles,
    pub created: Option<Timestamp>,
    pub deleting: bool,
    pub schedulable: bool,
    pub kubelet_version: String,
    pub internal_ip: String,
    pub external_ip: String,
    /// The device's id, where it is labelled.
    pub id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    pub phase: PodPhase,
    /// Of others only their number is told.
    pub app: Option<Box<AppPod>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AppPod {
    pub restarts: i64,
    pub restarted: Option<Timestamp>,
    pub created: Option<Timestamp>,
    pub ip: String,
    pub node: String,
}

/// A virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    pub status: u8,
    pub created: Option<Timestamp>,
    pub ready: bool,
    pub ready_since: Option<Timestamp>,
    pub node: String,
}

/// Whether more than its phase is told of a pod.
pub fn is_app_pod(namespace: &str, name: &str, app_namespace: &str) -> bool {
    namespace == app_namespace && !name.starts_with(LAUNCHER)
}

/// 2: leaving; 3: joining, its kubelet has not spoken yet; 4: joined.
pub fn admission_number(node: &Node) -> u8 {
    match (node.deleting, node.ready) {
        (true, _) => 2,
        (false, None) => 3,
        (false, Some(_)) => 4,
    }
}

/// What the Ready condition of a Node says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    True,
    False,
    /// Its kubelet is silent.
    Unknown,
}

/// 0: unknown; 1: ready; 2: not ready; 3: not reachable.
pub fn node_number(ready: Option<Ready>) -> u8 {
    match ready {
        None => 0,
        Some(Ready::True) => 1,
        Some(Ready::False) => 2,
        Some(Ready::Unknown) => 3,
    }
}

/// 0: unknown; 1: pending; 2: running; 3: succeeded; 4: failed.
pub fn pod_number(phase: PodPhase) -> u8 {
    match phase {
        PodPhase::Unknown => 0,
        PodPhase::Pending => 1,
        PodPhase::Running => 2,
        PodPhase::Succeeded => 3,
        PodPhase::Failed => 4,
    }
}

/// Of a virtual machine, by the phase as KubeVirt writes it; 7 is a phase that nobody knows.
pub fn machine_number(phase: &str) -> u8 {
    const PHASES: [&str; 7] =
        ["", "Pending", "Scheduling", "Scheduled", "Running", "Succeeded", "Failed"];
    number_of(&PHASES, phase).unwrap_or(7)
}

fn number_of(words: &[&str], word: &str) -> Option<u8> {
    let place = words.iter().position(|known| *known == word)?;
    u8::try_from(place).ok()
}

/// How many pods a namespace has, by their phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodCounts {
    pub all: u32,
    pub running: u32,
    pub pending: u32,
    pub failed: u32,
    pub succeeded: u32,
}

/// Counts the pods of each namespace.
pub fn count_pods<'a>(
    pods: impl IntoIterator<Item = (&'a str, PodPhase)>,
) -> BTreeMap<&'a str, PodCounts> {
    let mut counts: BTreeMap<&str, PodCounts> = BTreeMap::new();
    for (namespace, phase) in pods {
        let count = counts.entry(namespace).or_default();
        count.all += 1;
        match phase {
            PodPhase::Unknown => {}
            PodPhase::Pending => count.pending += 1,
            PodPhase::Running => count.running += 1,
            PodPhase::Succeeded => count.succeeded += 1,
            PodPhase::Failed => count.failed += 1,
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_their_published_numbers() {
        let nodes = [None, Some(Ready::True), Some(Ready::False), Some(Ready::Unknown)];
        assert_eq!(nodes.map(node_number), [0, 1, 2, 3]);
        let pods = [PodPhase::Unknown, PodPhase::Pending, PodPhase::Running, PodPhase::Failed];
        assert_eq!(pods.map(pod_number), [0, 1, 2, 4]);
        let machines = ["", "Pending", "Scheduled", "Running", "Failed", "Unknown", "New"];
        assert_eq!(machines.map(machine_number), [0, 1, 3, 4, 6, 7, 7]);
    }

    #[test]
    fn a_node_joins_is_there_and_leaves() {
        let node = |ready, deleting| Node { ready, deleting, ..Node::default() };
        let nodes = [node(None, false), node(Some(Ready::False), false), node(None, true)];
        assert_eq!(nodes.each_ref().map(admission_number), [3, 4, 2]);
    }

    #[test]
    fn pods_around_virtual_machines_are_no_applications() {
        assert!(is_app_pod("apps", "web-1", "apps"));
        assert!(!is_app_pod("apps", "virt-launcher-web", "apps"));
        assert!(!is_app_pod("other", "web-1", "apps"));
    }

    #[test]
    fn pods_are_counted_by_namespace_and_phase() {
        use PodPhase::*;
        let pods = [("a", Running), ("b", Pending), ("a", Failed), ("a", Unknown), ("a", Running)];
        let counts = count_pods(pods);
        let all = PodCounts { all: 4, running: 2, failed: 1, ..PodCounts::default() };
        assert_eq!(counts["a"], all);
        assert_eq!((counts["b"].all, counts["b"].pending), (1, 1));
    }
}
