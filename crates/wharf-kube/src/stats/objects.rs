//! What is read of each kind, and what of it is kept.
//!
//! The API server checks Kubernetes' own objects. Those of KubeVirt and Longhorn may say anything:
//! a part that is not understood counts as one that is missing, and hides no other object.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::IgnoredAny};
use serde_json::Value;
use wharf_core::{
    node::{
        serve::Roles,
        stats::{
            AppPod, Machine, Node, Pod, Ready, is_app_pod, machine_number,
            storage::{
                Claim, Copied, Daemons, Engine, Replica, Volume, claim_number, robustness_number,
                volume_state_number,
            },
        },
    },
    selector::Labels,
};

use super::Seen;
use crate::{app_pods::phase, quantity::parse_whole, watch::Followed};

const NODE_ID: &str = "node-uuid";

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Meta {
    name: String,
    namespace: String,
    resource_version: String,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<IgnoredAny>,
    labels: Labels,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    /// Longhorn writes an empty one for what was unknown from the beginning.
    #[serde(deserialize_with = "lenient")]
    last_transition_time: Option<Timestamp>,
}

fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// The default for what cannot be understood.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// A part that nobody has checked.
#[derive(Clone, Default)]
pub(super) struct Unchecked<T>(T);

impl<'de, T: DeserializeOwned + Default> Deserialize<'de> for Unchecked<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        lenient(deserializer).map(Self)
    }
}

/// An object with its parts.
#[derive(Clone, Deserialize)]
pub(super) struct Object<Spec, Status> {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

impl<Spec, Status> Followed for Object<Spec, Status>
where
    Spec: DeserializeOwned + Default + Clone + Send + 'static,
    Status: DeserializeOwned + Default + Clone + Send + 'static,
{
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

pub(super) type NodeSeen = Object<NodeSpec, NodeStatus>;

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    unschedulable: bool,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeStatus {
    conditions: Vec<Condition>,
    addresses: Vec<Address>,
    node_info: NodeInfo,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Address {
    #[serde(rename = "type")]
    type_: String,
    address: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeInfo {
    kubelet_version: String,
}

impl Seen for NodeSeen {
    type Kept = Node;

    fn reduce(self, _: &str) -> (String, Node) {
        let Object { metadata, spec, status } = self;
        let ready = find(&status.conditions, "Ready");
        let address = |type_: &str| {
            let found = status.addresses.iter().find(|address| address.type_ == type_);
            found.map(|found| found.address.clone()).unwrap_or_default()
        };
        let node = Node {
            ready: ready.map(|ready| match ready.status.as_str() {
                "True" => Ready::True,
                "False" => Ready::False,
                _ => Ready::Unknown,
            }),
            ready_since: ready.and_then(|ready| ready.last_transition_time),
            roles: Roles::of(&metadata.labels),
            created: metadata.creation_timestamp,
            deleting: metadata.deletion_timestamp.is_some(),
            schedulable: !spec.unschedulable,
            internal_ip: address("InternalIP"),
            external_ip: address("ExternalIP"),
            kubelet_version: status.node_info.kubelet_version,
            id: metadata.labels.get(NODE_ID).cloned().unwrap_or_default(),
        };
        (metadata.name, node)
    }
}

pub(super) type PodSeen = Object<PodSpec, PodStatus>;

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    node_name: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodStatus {
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: String,
    container_statuses: Vec<Container>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    restart_count: i64,
    last_state: LastState,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct LastState {
    terminated: Option<Terminated>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Terminated {
    finished_at: Option<Timestamp>,
}

impl Seen for PodSeen {
    type Kept = Pod;

    fn reduce(self, apps: &str) -> (String, Pod) {
        let Object { metadata, spec, status } = self;
        let name = format!("{}/{}", metadata.namespace, metadata.name);
        let containers = &status.container_statuses;
        let ended =
            containers.iter().filter_map(|container| container.last_state.terminated.as_ref());
        let app = is_app_pod(&metadata.namespace, &metadata.name, apps).then(|| AppPod {
            restarts: containers.iter().map(|container| container.restart_count).sum(),
            restarted: ended.filter_map(|ended| ended.finished_at).max(),
            created: metadata.creation_timestamp,
            ip: status.pod_ip,
            node: spec.node_name,
        });
        (name, Pod { phase: phase(&status.phase), app: app.map(Box::new) })
    }
}

pub(super) type MachineSeen = Object<IgnoredAny, Unchecked<MachineStatus>>;

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MachineStatus {
    phase: String,
    node_name: String,
    conditions: Vec<Condition>,
}

impl Seen for MachineSeen {
    type Kept = Machine;

    fn reduce(self, _: &str) -> (String, Machine) {
        let Unchecked(status) = self.status;
        let ready = find(&status.conditions, "Ready");
        let machine = Machine {
            status: machine_number(&status.phase),
            created: self.metadata.creation_timestamp,
            ready: ready.is_some_and(|ready| ready.status == "True"),
            ready_since: ready.and_then(|ready| ready.last_transition_time),
            node: status.node_name,
        };
        (self.metadata.name, machine)
    }
}

pub(super) type ClaimSeen = Object<ClaimSpec, ClaimStatus>;

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClaimSpec {
    volume_name: String,
    resources: Resources,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: BTreeMap<String, String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaimStatus {
    phase: String,
}

impl Seen for ClaimSeen {
    type Kept = Claim;

    fn reduce(self, _: &str) -> (String, Claim) {
        let bytes = self.spec.resources.requests.get("storage");
        let claim = Claim {
            status: claim_number(&self.status.phase),
            created: self.metadata.creation_timestamp,
            bytes: bytes.and_then(|bytes| parse_whole(bytes)).unwrap_or_default(),
            volume: self.spec.volume_name,
        };
        (self.metadata.name, claim)
    }
}

pub(super) type DaemonsSeen = Object<IgnoredAny, DaemonsStatus>;

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct DaemonsStatus {
    desired_number_scheduled: u32,
    number_ready: u32,
}

impl Seen for DaemonsSeen {
    type Kept = Daemons;

    fn reduce(self, _: &str) -> (String, Daemons) {
        let DaemonsStatus { desired_number_scheduled: wanted, number_ready: ready } = self.status;
        (self.metadata.name, Daemons { wanted, ready })
    }
}

pub(super) type VolumeSeen = Object<IgnoredAny, Unchecked<VolumeStatus>>;

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct VolumeStatus {
    state: String,
    robustness: String,
    actual_size: u64,
}

impl Seen for VolumeSeen {
    type Kept = Volume;

    fn reduce(self, _: &str) -> (String, Volume) {
        let Unchecked(status) = self.status;
        let volume = Volume {
            state: volume_state_number(&status.state),
            robustness: robustness_number(&status.robustness),
            bytes: status.actual_size,
        };
        (self.metadata.name, volume)
    }
}

pub(super) type ReplicaSeen = Object<Unchecked<ReplicaSpec>, Unchecked<ReplicaStatus>>;

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReplicaSpec {
    volume_name: String,
    #[serde(rename = "nodeID")]
    node: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReplicaStatus {
    current_state: String,
    #[serde(rename = "ownerID")]
    owner: String,
}

impl Seen for ReplicaSeen {
    type Kept = Replica;

    fn reduce(self, _: &str) -> (String, Replica) {
        let (Unchecked(spec), Unchecked(status)) = (self.spec, self.status);
        let replica = Replica {
            volume: spec.volume_name,
            node: if status.owner.is_empty() { spec.node } else { status.owner },
            state: status.current_state,
        };
        (self.metadata.name, replica)
    }
}

pub(super) type EngineSeen = Object<Unchecked<EngineSpec>, Unchecked<EngineStatus>>;

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct EngineSpec {
    volume_name: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct EngineStatus {
    /// By replica.
    #[serde(deserialize_with = "lenient")]
    replica_mode_map: BTreeMap<String, String>,
    /// By replica: address and port.
    #[serde(deserialize_with = "lenient")]
    current_replica_address_map: BTreeMap<String, String>,
    /// By `tcp://`, address and port.
    #[serde(deserialize_with = "lenient")]
    rebuild_status: BTreeMap<String, Rebuild>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Rebuild {
    progress: u8,
}

impl Seen for EngineSeen {
    type Kept = Engine;

    fn reduce(self, _: &str) -> (String, Engine) {
        let EngineStatus { replica_mode_map, current_replica_address_map, rebuild_status } =
            self.status.0;
        let progress = |replica: &str| {
            let address = current_replica_address_map.get(replica)?;
            Some(rebuild_status.get(&format!("tcp://{address}"))?.progress)
        };
        let copied = |(replica, mode): (String, String)| {
            let progress = progress(&replica).unwrap_or_default();
            (replica, Copied { mode, progress })
        };
        let copies = replica_mode_map.into_iter().map(copied).collect();
        (self.metadata.name, Engine { volume: self.spec.0.volume_name, copies })
    }
}

pub(super) type DisksSeen = Object<IgnoredAny, Unchecked<DisksStatus>>;

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct DisksStatus {
    disk_status: BTreeMap<String, Disk>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Disk {
    #[serde(deserialize_with = "lenient")]
    conditions: Vec<Condition>,
}

impl Seen for DisksSeen {
    type Kept = bool;

    fn reduce(self, _: &str) -> (String, bool) {
        let full = |disk: &Disk| {
            find(&disk.conditions, "Schedulable").is_some_and(|found| found.status == "False")
        };
        (self.metadata.name, self.status.0.disk_status.values().any(full))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wharf_core::node::apps::PodPhase;

    use super::*;

    fn read<S: Seen>(value: Value) -> (String, S::Kept) {
        serde_json::from_value::<S>(value).unwrap().reduce("apps")
    }

    #[test]
    fn what_is_not_understood_in_a_custom_object_counts_as_missing() {
        let (name, machine) = read::<MachineSeen>(json!({
            "metadata": { "name": "m" }, "status": { "phase": 7, "nodeName": "n1" },
        }));
        assert_eq!((name.as_str(), machine), ("m", Machine::default()));
        let (_, volume) = read::<VolumeSeen>(json!({ "metadata": { "name": "v" }, "status": [] }));
        assert_eq!(volume, Volume::default());
        let (_, engine) = read::<EngineSeen>(json!({
            "metadata": { "name": "e" }, "spec": { "volumeName": "v" },
            "status": { "replicaModeMap": { "r": "RW" }, "rebuildStatus": 4 },
        }));
        assert_eq!(engine.copies["r"], Copied { mode: "RW".to_owned(), progress: 0 });
    }

    #[test]
    fn a_disk_is_full_also_beside_a_condition_without_a_time() {
        let (_, full) = read::<DisksSeen>(json!({
            "metadata": { "name": "n1" },
            "status": { "diskStatus": { "d": { "conditions": [
                { "type": "Ready", "status": "Unknown", "lastTransitionTime": "" },
                { "type": "Schedulable", "status": "False", "lastTransitionTime": "" },
            ] } } },
        }));
        assert!(full);
    }

    #[test]
    fn only_pods_of_applications_are_kept_in_full() {
        let pod = |namespace: &str, name: &str| {
            read::<PodSeen>(json!({
                "metadata": { "namespace": namespace, "name": name },
                "spec": { "nodeName": "n1" },
                "status": { "phase": "Running", "containerStatuses": [
                    { "restartCount": 2, "lastState": { "terminated": {
                        "finishedAt": "2026-01-02T00:00:00Z" } } },
                    { "restartCount": 1, "lastState": {} },
                ] },
            }))
        };
        let (name, web) = pod("apps", "web");
        let app = web.app.unwrap();
        assert_eq!((name.as_str(), web.phase), ("apps/web", PodPhase::Running));
        assert_eq!((app.restarts, app.node.as_str()), (3, "n1"));
        assert_eq!(app.restarted.unwrap().to_string(), "2026-01-02T00:00:00Z");
        assert_eq!(pod("apps", "virt-launcher-web").1.app, None);
        assert_eq!(pod("kube-system", "web").1.app, None);
    }
}
