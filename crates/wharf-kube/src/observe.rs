//! What a cluster's nodes are, have and do.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ListParams;
use serde::Deserialize;

use crate::{
    cluster::Cluster,
    drain::MIRROR,
    error::Result,
    quantity::{parse_millis, parse_whole},
};

/// A node as it is at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeObservation {
    pub name: String,
    pub uid: String,
    pub ready: bool,
    /// Why it is not ready, in Kubernetes' words; empty when it is.
    pub reason: String,
    pub unschedulable: bool,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub internal_ip: Option<String>,
    pub os: String,
    pub os_image: String,
    pub runtime_version: String,
    pub kubelet_version: String,
    pub boot_id: String,
    pub pod_cidr: Option<String>,
    pub capacity: Resources,
    pub allocatable: Resources,
    /// What the pods on it asked for; `pods` is their number.
    pub requests: Resources,
    /// What they really use; `None` where nobody measures.
    pub usage: Option<Usage>,
    /// So many of them a drain would move.
    pub movable_pods: u64,
    pub created_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub pods: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
}

/// Labels by which a controlplane node is known, whoever installed it.
pub(crate) const CONTROLPLANE: [&str; 3] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/controlplane",
    "node-role.kubernetes.io/master",
];

impl NodeObservation {
    pub fn is_controlplane(&self) -> bool {
        CONTROLPLANE.iter().any(|label| self.labels.contains_key(*label))
    }
}

/// What runs on the nodes of a cluster, by their names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Load {
    pods: BTreeMap<String, PodLoad>,
    usage: BTreeMap<String, Usage>,
}

/// What pods mean for their node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct PodLoad {
    requests: Resources,
    movable: u64,
}

impl PodLoad {
    fn add(&mut self, other: PodLoad) {
        self.requests.add(other.requests);
        self.movable += other.movable;
    }
}

impl Cluster {
    /// All nodes with what runs on them.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn observe_nodes(&self) -> Result<Vec<NodeObservation>> {
        self.observe_nodes_under(&self.observe_load().await?).await
    }

    /// All nodes, with what was seen to run on them: the list of pods is the largest by far, and
    /// need not be read with every look.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn observe_nodes_under(&self, load: &Load) -> Result<Vec<NodeObservation>> {
        let observation = |node: SeenNode| {
            let pods = load.pods.get(&node.metadata.name).copied().unwrap_or_default();
            let usage = load.usage.get(&node.metadata.name).copied();
            observe(node, pods, usage)
        };
        Ok(self.nodes().await?.into_iter().map(observation).collect())
    }

    /// What the pods on all nodes asked for and use.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn observe_load(&self) -> Result<Load> {
        // One after the other, so that one connection does for all: a thousand clusters are
        // watched by one process, and connections are most of what each of them costs.
        let mut pods: BTreeMap<String, PodLoad> = BTreeMap::new();
        let running = ListParams::default().fields("status.phase!=Succeeded,status.phase!=Failed");
        self.list_each("/api/v1/pods", running, |pod: SeenPod| {
            let load = pod.load();
            if let Some(node) = pod.spec.node_name {
                pods.entry(node).or_default().add(load);
            }
        })
        .await?;
        Ok(Load { pods, usage: self.node_usage().await })
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<SeenNode>> {
        self.list("/api/v1/nodes", ListParams::default()).await
    }

    /// By node; empty where there is no metrics API, or it does not work: that is a fault of one
    /// pod, and must not make the cluster look dead.
    async fn node_usage(&self) -> BTreeMap<String, Usage> {
        let path = "/apis/metrics.k8s.io/v1beta1/nodes";
        let all = ListParams::default();
        let metrics = self.with_timeout(METRICS).list::<NodeMetrics>(path, all).await;
        metrics.unwrap_or_default().into_iter().map(NodeMetrics::into_usage).collect()
    }
}

/// The API server passes the question on to a pod, which may be gone without a word.
const METRICS: Duration = Duration::from_secs(3);

// What is read of Kubernetes' objects: a probe of a thousand clusters reads hundreds of megabytes a
// minute, and building all of each object takes several times as long as passing over it.

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SeenNode {
    pub metadata: SeenMeta,
    spec: SeenNodeSpec,
    pub status: SeenStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SeenMeta {
    pub name: String,
    uid: String,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SeenNodeSpec {
    unschedulable: Option<bool>,
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SeenStatus {
    conditions: Option<Vec<SeenCondition>>,
    addresses: Option<Vec<SeenAddress>>,
    capacity: Option<Quantities>,
    allocatable: Option<Quantities>,
    node_info: SeenInfo,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SeenCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SeenAddress {
    #[serde(rename = "type")]
    type_: String,
    address: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SeenInfo {
    operating_system: String,
    os_image: String,
    container_runtime_version: String,
    kubelet_version: String,
    #[serde(rename = "bootID")]
    boot_id: String,
}

/// The quantities that are counted.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Quantities {
    cpu: Option<Quantity>,
    memory: Option<Quantity>,
    pods: Option<Quantity>,
}

#[derive(Deserialize)]
struct SeenPod {
    metadata: SeenMarks,
    spec: SeenPodSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SeenMarks {
    annotations: BTreeMap<String, String>,
    owner_references: Vec<SeenOwner>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SeenOwner {
    kind: String,
    controller: Option<bool>,
}

impl SeenPod {
    fn load(&self) -> PodLoad {
        // Pods of a DaemonSet come back whatever one does, and a mirror pod is only a picture.
        let is_set =
            |owner: &SeenOwner| owner.controller == Some(true) && owner.kind == "DaemonSet";
        let stays = self.metadata.annotations.contains_key(MIRROR)
            || self.metadata.owner_references.iter().any(is_set);
        PodLoad { requests: requests_of(&self.spec), movable: u64::from(!stays) }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SeenPodSpec {
    node_name: Option<String>,
    containers: Vec<SeenContainer>,
    init_containers: Option<Vec<SeenContainer>>,
    overhead: Option<Quantities>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SeenContainer {
    restart_policy: Option<String>,
    resources: Option<SeenRequests>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SeenRequests {
    requests: Option<Quantities>,
}

#[derive(Deserialize)]
struct NodeMetrics {
    metadata: SeenMeta,
    usage: Quantities,
}

impl NodeMetrics {
    fn into_usage(self) -> (String, Usage) {
        let Resources { cpu_millis, memory_bytes, .. } = resources(Some(&self.usage));
        (self.metadata.name, Usage { cpu_millis, memory_bytes })
    }
}

impl Resources {
    fn add(&mut self, other: Resources) {
        self.cpu_millis += other.cpu_millis;
        self.memory_bytes += other.memory_bytes;
        self.pods += other.pods;
    }

    fn max(self, other: Resources) -> Resources {
        Resources {
            cpu_millis: self.cpu_millis.max(other.cpu_millis),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            pods: self.pods.max(other.pods),
        }
    }

    fn plus(mut self, other: Resources) -> Resources {
        self.add(other);
        self
    }
}

fn observe(node: SeenNode, pods: PodLoad, usage: Option<Usage>) -> NodeObservation {
    let SeenNode { metadata, spec, status } = node;
    let (ready, reason) = readiness(&status);
    let mut addresses = status.addresses.unwrap_or_default().into_iter();
    let info = status.node_info;
    NodeObservation {
        name: metadata.name,
        uid: metadata.uid,
        ready,
        reason,
        unschedulable: spec.unschedulable.unwrap_or_default(),
        labels: metadata.labels.unwrap_or_default(),
        annotations: metadata.annotations.unwrap_or_default(),
        internal_ip: addresses.find(|one| one.type_ == "InternalIP").map(|one| one.address),
        os: info.operating_system,
        os_image: info.os_image,
        runtime_version: info.container_runtime_version,
        kubelet_version: info.kubelet_version,
        boot_id: info.boot_id,
        pod_cidr: spec.pod_cidr,
        capacity: resources(status.capacity.as_ref()),
        allocatable: resources(status.allocatable.as_ref()),
        requests: pods.requests,
        usage,
        movable_pods: pods.movable,
        created_at: metadata.creation_timestamp,
    }
}

/// Whether the node is ready, and why not.
pub(crate) fn readiness(status: &SeenStatus) -> (bool, String) {
    let mut conditions = status.conditions.iter().flatten();
    match conditions.find(|condition| condition.type_ == "Ready") {
        Some(condition) if condition.status == "True" => (true, String::new()),
        Some(condition) => {
            let message = condition.message.clone().filter(|message| !message.is_empty());
            (false, message.or_else(|| condition.reason.clone()).unwrap_or_default())
        }
        None => (false, "its kubelet has not reported yet".to_owned()),
    }
}

fn resources(list: Option<&Quantities>) -> Resources {
    let Some(list) = list else { return Resources::default() };
    let cpu = list.cpu.as_ref().and_then(|text| parse_millis(&text.0));
    let whole = |quantity: &Option<Quantity>| {
        quantity.as_ref().and_then(|text| parse_whole(&text.0)).unwrap_or_default()
    };
    Resources {
        cpu_millis: cpu.and_then(|millis| u64::try_from(millis).ok()).unwrap_or_default(),
        memory_bytes: whole(&list.memory),
        pods: whole(&list.pods),
    }
}

/// What the scheduler counts for a pod: its containers and side cars together, or its greediest
/// init container with the side cars that run by then, whichever is more.
fn requests_of(spec: &SeenPodSpec) -> Resources {
    let of = |container: &SeenContainer| {
        let requirements = container.resources.as_ref();
        resources(requirements.and_then(|requirements| requirements.requests.as_ref()))
    };
    let mut side_cars = Resources::default();
    let mut starting = Resources::default();
    for init in spec.init_containers.iter().flatten() {
        let asked = of(init);
        if init.restart_policy.as_deref() == Some("Always") {
            side_cars.add(asked);
            starting = starting.max(side_cars);
        } else {
            starting = starting.max(side_cars.plus(asked));
        }
    }
    let running = spec.containers.iter().map(of).fold(side_cars, Resources::plus);
    let overhead = resources(spec.overhead.as_ref());
    Resources { pods: 1, ..running.max(starting).plus(overhead) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn requests(spec: serde_json::Value) -> (u64, u64) {
        let asked = requests_of(&serde_json::from_value(spec).unwrap());
        assert_eq!(asked.pods, 1);
        (asked.cpu_millis, asked.memory_bytes)
    }

    #[test]
    fn a_pod_counts_for_what_the_scheduler_reserves() {
        let asks = |cpu: &str| json!({ "requests": { "cpu": cpu, "memory": "1Ki" } });
        let plain = json!({ "containers": [
            { "name": "a", "resources": asks("100m") },
            { "name": "b", "resources": asks("50m") },
            { "name": "c" },
        ] });
        assert_eq!(requests(plain), (150, 2048));
        let init = json!({
            "initContainers": [{ "name": "i", "resources": asks("1") }],
            "containers": [{ "name": "a", "resources": asks("100m") }],
            "overhead": { "cpu": "10m" },
        });
        assert_eq!(requests(init), (1010, 1024));
        let side_car = json!({
            "initContainers": [
                { "name": "s", "restartPolicy": "Always", "resources": asks("200m") },
                { "name": "i", "resources": asks("50m") },
            ],
            "containers": [{ "name": "a", "resources": asks("100m") }],
        });
        assert_eq!(requests(side_car), (300, 2048));
    }

    fn node(name: &str, label: Option<&str>, usage: Option<Usage>) -> NodeObservation {
        let labels = label.map(|label| json!({ label: "true" })).unwrap_or_default();
        let node = json!({
            "metadata": { "name": name, "labels": labels },
            "status": {
                "capacity": { "cpu": "2", "memory": "1Ki", "pods": "110" },
                "allocatable": { "cpu": "1900m", "memory": "1000", "pods": "110" },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        let requests = Resources { cpu_millis: 100, memory_bytes: 10, pods: 3 };
        let load = PodLoad { requests, movable: 2 };
        observe(serde_json::from_value(node).unwrap(), load, usage)
    }

    #[test]
    fn a_drain_moves_all_but_mirror_pods_and_those_of_daemon_sets() {
        let movable = |metadata: serde_json::Value| {
            let pod = json!({ "metadata": metadata, "spec": { "containers": [] } });
            serde_json::from_value::<SeenPod>(pod).unwrap().load().movable
        };
        let owner = |kind: &str, controller: bool| {
            json!({ "ownerReferences": [{ "apiVersion": "apps/v1", "kind": kind, "name": "x",
                "uid": "1", "controller": controller }] })
        };
        assert_eq!(movable(json!({})), 1);
        assert_eq!(movable(owner("ReplicaSet", true)), 1);
        assert_eq!(movable(owner("DaemonSet", false)), 1);
        assert_eq!(movable(owner("DaemonSet", true)), 0);
        assert_eq!(movable(json!({ "annotations": { MIRROR: "hash" } })), 0);
    }

    #[test]
    fn a_node_shows_what_it_has_and_what_is_asked_of_it() {
        let used = Some(Usage { cpu_millis: 30, memory_bytes: 7 });
        let worker = node("a", None, used);
        assert!(worker.ready && !worker.is_controlplane());
        assert_eq!(worker.capacity, Resources { cpu_millis: 2000, memory_bytes: 1024, pods: 110 });
        assert_eq!(worker.allocatable.cpu_millis, 1900);
        assert_eq!(worker.requests, Resources { cpu_millis: 100, memory_bytes: 10, pods: 3 });
        assert_eq!((worker.usage, worker.movable_pods), (used, 2));
        assert!(node("m", Some("node-role.kubernetes.io/control-plane"), None).is_controlplane());
    }

    #[test]
    fn a_node_that_is_not_ready_says_why() {
        let status = |conditions| {
            readiness(&serde_json::from_value(json!({ "conditions": conditions })).unwrap())
        };
        let not = json!([{ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status." }]);
        assert_eq!(status(not), (false, "Kubelet stopped posting node status.".to_owned()));
        let short = json!([{ "type": "Ready", "status": "False", "reason": "KubeletNotReady" }]);
        assert_eq!(status(short), (false, "KubeletNotReady".to_owned()));
        assert_eq!(status(json!([])), (false, "its kubelet has not reported yet".to_owned()));
    }
}
