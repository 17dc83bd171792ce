//! What a drain reads of Kubernetes' objects; the rest is passed over.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use serde::{Deserialize, de::IgnoredAny};
use wharf_core::{
    drain::{BudgetFacts, NodeFacts, PodRef},
    selector::{Labels, Selector},
    volume::record::{Entry, Phase},
};

use crate::{cordon::mark_in, watch::Followed};

/// Kubelet puts it on the picture of a static pod.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Meta {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub deletion_timestamp: Option<Time>,
    pub labels: Labels,
    pub annotations: BTreeMap<String, String>,
    pub owner_references: Vec<OwnerReference>,
    managed_fields: Vec<Managed>,
}

impl Meta {
    /// What makes the object again.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller == Some(true))
    }

    /// Whether whoever made the object wrote a node's name into it. The scheduler does not write
    /// it: it binds, which leaves no such trace.
    pub fn names_its_node(&self) -> bool {
        self.managed_fields.iter().any(|part| part.fields_v1.spec.node_name.is_some())
    }
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Managed {
    fields_v1: Fields,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Fields {
    #[serde(rename = "f:spec")]
    spec: SpecFields,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct SpecFields {
    #[serde(rename = "f:nodeName")]
    node_name: Option<IgnoredAny>,
}

/// An object of which only the metadata matters.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    pub metadata: Meta,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodSeen {
    pub(super) metadata: Meta,
    pub(super) spec: PodSpec,
    status: PodStatus,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub priority: i32,
    node_name: String,
    volumes: Vec<Volume>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Volume {
    name: String,
    persistent_volume_claim: Option<Claim>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Claim {
    claim_name: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: String,
    conditions: Vec<Condition>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) type_: String,
    pub(crate) status: String,
    pub(crate) last_transition_time: Option<Timestamp>,
}

impl PodSeen {
    pub fn pod_ref(&self) -> PodRef {
        let Meta { namespace, name, uid, .. } = &self.metadata;
        PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
    }

    /// Empty while it is bound to none.
    pub fn node_name(&self) -> &str {
        &self.spec.node_name
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// A phase that nobody has written yet counts as the first.
    pub fn is_pending(&self) -> bool {
        matches!(self.status.phase.as_str(), "Pending" | "")
    }

    pub fn is_ready(&self) -> bool {
        let mut conditions = self.status.conditions.iter();
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }

    /// The names of the claims through which it uses persistent volumes.
    pub fn claims(&self) -> impl Iterator<Item = String> {
        self.spec.volumes.iter().filter_map(|volume| match &volume.persistent_volume_claim {
            Some(claim) => Some(claim.claim_name.clone()),
            // The claim of such a volume is named by Kubernetes.
            None => {
                let own = || format!("{}-{}", self.metadata.name, volume.name);
                volume.ephemeral.as_ref().map(|_| own())
            }
        })
    }
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSeen {
    pub(super) metadata: Meta,
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    unschedulable: bool,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeStatus {
    conditions: Vec<Condition>,
    volumes_in_use: Vec<String>,
    node_info: NodeInfo,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct NodeInfo {
    #[serde(rename = "bootID")]
    boot_id: String,
}

impl NodeSeen {
    pub fn labels(&self) -> &Labels {
        &self.metadata.labels
    }

    pub fn facts(&self) -> NodeFacts {
        let ready = self.status.conditions.iter().find(|condition| condition.type_ == "Ready");
        NodeFacts {
            name: self.metadata.name.clone(),
            unschedulable: self.spec.unschedulable,
            cordon: mark_in(&self.metadata.annotations),
            // A node whose kubelet never said anything may be about to come.
            unready_since: ready
                .filter(|ready| ready.status != "True")
                .and_then(|ready| ready.last_transition_time),
        }
    }

    /// The boot of which its kubelet last told.
    pub fn boot_id(&self) -> &str {
        &self.status.node_info.boot_id
    }

    /// As kubelet names them.
    pub fn volumes_in_use(self) -> Vec<String> {
        self.status.volumes_in_use
    }
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct BudgetSeen {
    pub metadata: Meta,
    spec: BudgetSpec,
    status: BudgetStatus,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BudgetSpec {
    selector: Option<Selector>,
    unhealthy_pod_eviction_policy: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BudgetStatus {
    observed_generation: i64,
    disruptions_allowed: i32,
    current_healthy: i32,
    desired_healthy: i32,
    expected_pods: i32,
}

impl BudgetSeen {
    pub fn key(&self) -> (String, String) {
        (self.metadata.namespace.clone(), self.metadata.name.clone())
    }

    pub fn facts(self, now: Timestamp) -> BudgetFacts {
        let Self { metadata, spec, status } = self;
        // Until its controller has looked at it, no eviction is granted, whatever it says.
        let is_known = status.observed_generation >= metadata.generation;
        BudgetFacts {
            namespace: metadata.namespace,
            name: metadata.name,
            selector: spec.selector,
            allowed: if is_known { status.disruptions_allowed } else { 0 },
            healthy: status.current_healthy,
            desired: status.desired_healthy,
            expected: status.expected_pods,
            always_allow_unready: spec
                .unhealthy_pod_eviction_policy
                .is_some_and(|policy| policy == "AlwaysAllow"),
            changed_at: Some(now),
            ..BudgetFacts::default()
        }
    }
}

/// A VolumeAttachment.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct AttachmentSeen {
    pub metadata: Meta,
    spec: AttachmentSpec,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AttachmentSpec {
    node_name: String,
    source: AttachmentSource,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AttachmentSource {
    persistent_volume_name: Option<String>,
}

impl AttachmentSeen {
    /// The persistent volume that it attaches to this node.
    pub fn volume_on(self, node: &str) -> Option<String> {
        self.spec.source.persistent_volume_name.filter(|_| self.spec.node_name == node)
    }
}

/// The record of who may use a volume of ours, which kubelet tells nobody of.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RecordSeen {
    pub metadata: Meta,
    attachments: Vec<Entry>,
}

impl RecordSeen {
    /// The UIDs of the pods on this node that have the volume. What a person released is nobody's.
    pub fn pods_on(&self, node: &str) -> Vec<String> {
        let holds = |entry: &&Entry| match entry.phase {
            Phase::Attaching | Phase::Attached | Phase::Fencing => entry.node == node,
            Phase::Released => false,
        };
        let holders = self.attachments.iter().filter(holds);
        holders.map(|entry| entry.pod_uid.clone()).collect()
    }
}

impl Followed for RecordSeen {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

#[derive(Deserialize)]
pub(super) struct ClaimSeen {
    #[serde(default)]
    pub spec: ClaimSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClaimSpec {
    pub volume_name: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct VolumeSeen {
    #[serde(default)]
    pub spec: VolumeSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct VolumeSpec {
    csi: Option<Csi>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Csi {
    driver: String,
    volume_handle: String,
}

impl VolumeSeen {
    /// As kubelet names it among those in use.
    pub fn name_in_use(self) -> Option<String> {
        let csi = self.spec.csi?;
        Some(format!("kubernetes.io/csi/{}^{}", csi.driver, csi.volume_handle))
    }
}

impl Followed for PodSeen {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Followed for NodeSeen {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Followed for BudgetSeen {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Followed for AttachmentSeen {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}
