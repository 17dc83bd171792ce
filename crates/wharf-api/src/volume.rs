//! Volumes of a cluster on the wire.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::resource::Head;

/// A PersistentVolume of ours: who holds it, and whether they are well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    #[serde(flatten)]
    pub head: Head,
    pub name: String,
    /// Of the claim that it is bound to: namespace and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "shop/data-db-0")]
    pub claim: Option<String>,
    pub storage_cluster: String,
    /// `loopfile`, `proxy`, `rbd` or `dir`; absent when the storage cluster is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    pub image: String,
    /// `flex` or `csi`; empty when only the record of its holders is left.
    pub front_end: String,
    /// As Kubernetes writes quantities.
    #[schema(example = "10Gi")]
    pub size: String,
    pub access_modes: Vec<String>,
    /// Of the PersistentVolume: `Bound`, `Available`, `Released`; `Gone` when only the record of its
    /// holders is left.
    pub phase: String,
    /// So often it was granted for writing.
    pub generation: u64,
    /// `free`; `held`; `leaving`: who holds it may be pushed out; `waiting`: a pod waits for it;
    /// `stuck`: a person has to do something.
    #[schema(example = "held")]
    pub state: String,
    pub holders: Vec<VolumeHolder>,
    /// The pods that wait for it: namespace and name, with the node.
    pub waiting: Vec<WaitingPod>,
}

/// A pod that may use the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeHolder {
    pub node: String,
    pub namespace: String,
    pub pod: String,
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    pub read_only: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    pub generation: u64,
    /// `Attaching`, `Attached`, `Fencing` or `Released`.
    pub phase: String,
    /// Since when somebody has held the volume without a break.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub since: Option<Timestamp>,
    /// `Ready`, `NotReady`, `Unknown`, `Gone`, `Recreated`, `Rebooted` or `OutOfService`.
    pub node_status: String,
    /// The lease of the node's agent: `held`, `ended` or `missing`.
    pub lease: String,
    /// The lease lasts at least until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub lease_until: Option<Timestamp>,
    /// By what right it holds it, as a sentence.
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingPod {
    pub namespace: String,
    pub pod: String,
    pub node: String,
    /// What it waits for, as a sentence.
    pub why: String,
}

/// Everything that can be said about a volume, in sentences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeWhy {
    pub volume: String,
    pub state: String,
    /// Who holds it and by what right, what pods wait for, and what is left where.
    pub sentences: Vec<String>,
    /// What a person may do about it.
    pub next: Vec<String>,
}

/// Says that a holder does not write any more.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DetachRequest {
    /// May be left out where one node holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// One pod of the node, by name or by namespace and name; without it all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Without it nothing is changed: the answer says what would be.
    #[serde(default)]
    pub force: bool,
    /// How it is known that the holder does not write any more. It is kept in the audit record, and
    /// is required with `force`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a detach has done, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Detached {
    pub volume: String,
    /// Whether it was done; without `force` it is not.
    pub done: bool,
    /// The holders that are meant.
    pub holders: Vec<VolumeHolder>,
    pub may_be_lost: Vec<String>,
    pub message: String,
}
