//! The pods of applications, followed: what an agent has to know of them, and nothing else.
//!
//! A pod has some kilobytes, most of them about who wrote which field. Of each some hundred bytes are
//! kept, so that a node can follow all pods of a namespace in next to no memory.

use jiff::Timestamp;
use serde::Deserialize;
use wharf_core::node::apps::{Pod, PodPhase};

use crate::{
    cluster::Cluster,
    namespace::{Kept, Named, NamespaceWatch},
    quantity::parse_whole,
    watch::Followed,
};

/// The kind that owns the pod in which a virtual machine runs.
const MACHINE: &str = "VirtualMachineInstance";
/// A container that waits for these is only on its way.
const ON_ITS_WAY: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// A pod of the applications' namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AppPod {
    pub uid: String,
    /// Its name and place, as decisions take them.
    pub pod: Pod,
    /// When its kubelet took it over.
    pub started: Option<Timestamp>,
    /// The claims through which it uses volumes, by name.
    pub claims: Vec<String>,
    /// What its containers may use together; 0 where one of them has no limit.
    pub memory_bytes: u64,
    /// Why it does not run, in the cluster's words.
    pub trouble: Option<String>,
}

/// All pods, by their names.
pub type AppPods = Kept<AppPod>;

impl Cluster {
    /// Follows the pods of a namespace.
    pub fn watch_app_pods(&self, namespace: &str) -> NamespaceWatch<AppPod> {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        NamespaceWatch::new(self, &path, |pod: PodObject| pod.into())
    }
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct PodObject {
    metadata: Meta,
    spec: Spec,
    status: Status,
}

impl Followed for PodObject {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Named for PodObject {
    fn name(&self) -> &str {
        &self.metadata.name
    }
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: String,
    uid: String,
    resource_version: String,
    deletion_timestamp: Option<String>,
    owner_references: Vec<Owner>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Owner {
    kind: String,
    name: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: String,
    containers: Vec<Container>,
    volumes: Vec<Volume>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Container {
    resources: Resources,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Resources {
    limits: Limits,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Limits {
    memory: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Volume {
    persistent_volume_claim: Option<Claim>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Claim {
    claim_name: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: String,
    reason: String,
    start_time: Option<Timestamp>,
    conditions: Vec<Condition>,
    container_statuses: Vec<ContainerStatus>,
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
    message: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    name: String,
    state: State,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct State {
    waiting: Option<Waiting>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: String,
}

impl From<PodObject> for AppPod {
    fn from(object: PodObject) -> Self {
        let PodObject { metadata, spec, status } = object;
        let trouble = status.trouble();
        let machine = metadata.owner_references.into_iter().find(|owner| owner.kind == MACHINE);
        Self {
            memory_bytes: memory_limit(&spec.containers),
            uid: metadata.uid,
            pod: Pod {
                name: metadata.name,
                node: spec.node_name,
                phase: phase(&status.phase),
                deleting: metadata.deletion_timestamp.is_some(),
                vmi: machine.map(|machine| machine.name),
            },
            started: status.start_time,
            claims: spec
                .volumes
                .into_iter()
                .filter_map(|volume| Some(volume.persistent_volume_claim?.claim_name))
                .collect(),
            trouble,
        }
    }
}

/// A phase that nobody has written yet counts as the first.
pub(crate) fn phase(phase: &str) -> PodPhase {
    match phase {
        "" | "Pending" => PodPhase::Pending,
        "Running" => PodPhase::Running,
        "Succeeded" => PodPhase::Succeeded,
        "Failed" => PodPhase::Failed,
        _ => PodPhase::Unknown,
    }
}

fn memory_limit(containers: &[Container]) -> u64 {
    let limits = containers.iter().map(|one| parse_whole(&one.resources.limits.memory));
    limits.sum::<Option<u64>>().unwrap_or_default()
}

impl Status {
    /// Only what stays as it is while it lasts: times in it would be news without end.
    fn trouble(&self) -> Option<String> {
        if !self.reason.is_empty() {
            return Some(self.reason.clone());
        }
        let unscheduled = self
            .conditions
            .iter()
            .find(|condition| condition.r#type == "PodScheduled" && condition.status == "False");
        if let Some(condition) = unscheduled {
            return Some(condition.message.clone());
        }
        let all = self.init_container_statuses.iter().chain(&self.container_statuses);
        let mut waiting = all.filter_map(|container| {
            let reason = &container.state.waiting.as_ref()?.reason;
            let waits = !reason.is_empty() && !ON_ITS_WAY.contains(&reason.as_str());
            waits.then(|| format!("container {}: {reason}", container.name))
        });
        waiting.next()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> AppPod {
        serde_json::from_value::<PodObject>(value).unwrap().into()
    }

    #[test]
    fn of_a_pod_only_what_agents_need_is_kept() {
        let pod = read(json!({
            "metadata": {
                "name": "virt-launcher-web-0b1a2-x", "uid": "u", "resourceVersion": "7",
                "ownerReferences": [{ "kind": "VirtualMachineInstance", "name": "web-0b1a2x" }],
                "managedFields": [{ "manager": "kubelet" }],
            },
            "spec": {
                "nodeName": "n1",
                "containers": [
                    { "name": "compute", "resources": { "limits": { "memory": "1Gi" } } },
                    { "name": "new", "resources": { "limits": { "memory": "1Mi" } } },
                ],
                "initContainers": [{ "name": "guest-console-log" }],
                "volumes": [{ "persistentVolumeClaim": { "claimName": "data" } }, { "emptyDir": {} }],
            },
            "status": {
                "phase": "Running", "startTime": "2026-01-02T03:04:05Z",
                "containerStatuses": [
                    { "name": "compute", "state": { "running": {} } },
                    { "name": "new", "state": { "waiting": { "reason": "ContainerCreating" } } },
                ],
                "initContainerStatuses": [
                    { "name": "guest-console-log", "lastState": { "terminated": {} },
                      "state": { "waiting": { "reason": "CrashLoopBackOff" } } },
                ],
            },
        }));
        let expected = AppPod {
            uid: "u".to_owned(),
            pod: Pod {
                name: "virt-launcher-web-0b1a2-x".to_owned(),
                node: "n1".to_owned(),
                phase: PodPhase::Running,
                deleting: false,
                vmi: Some("web-0b1a2x".to_owned()),
            },
            started: Some("2026-01-02T03:04:05Z".parse().unwrap()),
            claims: vec!["data".to_owned()],
            memory_bytes: (1 << 30) + (1 << 20),
            trouble: Some("container guest-console-log: CrashLoopBackOff".to_owned()),
        };
        assert_eq!(pod, expected);
    }

    #[test]
    fn a_pod_that_was_just_made_or_is_leaving_is_understood() {
        let made = read(json!({ "metadata": { "name": "a" }, "spec": { "containers": [{}] } }));
        assert_eq!((made.pod.phase, made.memory_bytes), (PodPhase::Pending, 0));
        let leaving = read(json!({
            "metadata": { "name": "a", "deletionTimestamp": "2026-01-02T03:04:05Z" },
            "status": { "phase": "Failed", "reason": "Evicted" },
        }));
        assert!(leaving.pod.deleting);
        assert_eq!(leaving.trouble.as_deref(), Some("Evicted"));
        let unscheduled = read(json!({
            "metadata": { "name": "a" },
            "status": { "phase": "Pending", "conditions": [
                { "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" },
            ] },
        }));
        assert_eq!(unscheduled.trouble.as_deref(), Some("0/3 nodes are available"));
    }
}
