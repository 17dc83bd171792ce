//! Nodes of a cluster on the wire.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{cluster::Usage, drain::Drain, resource::Head};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    #[serde(flatten)]
    pub head: Head,
    pub name: String,
    pub address: String,
    pub roles: Vec<String>,
    /// `Ready`, `NotReady`, `Cordoned` or `Drained`.
    #[schema(example = "Ready")]
    pub status: String,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub operating_system: String,
    pub operating_system_image: String,
    /// The container runtime, under the name that existing clients know.
    pub docker_version: String,
    pub kubelet_version: String,
    /// The pods' addresses on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<String>,
    /// The host key that was pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
    /// Whether no new pods come to it; the status tells only of a node that is ready.
    pub cordoned: bool,
    /// The drain that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// What is known of its agent; absent on clusters that Wharf did not install.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// The reboot, shutdown or update that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<NodeOperation>,
    #[serde(flatten)]
    pub usage: Usage,
}

/// The agent of a node, as the server knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// `linked` or `no link`.
    #[schema(example = "linked")]
    pub link: String,
    /// `ok`, `faults`, or `unknown` before it has said so.
    #[schema(example = "ok")]
    pub health: String,
    /// What is not as it should be, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_contact: Option<Timestamp>,
    /// How far a drain on the node is, by the name that agents give it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_status: Option<String>,
}

/// A reboot, shutdown or update of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeOperation {
    #[serde(flatten)]
    pub head: Head,
    pub cluster: String,
    pub node: String,
    /// `reboot`, `shutdown` or `update`.
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// `running`, `succeeded`, `failed` or `canceled`.
    #[schema(example = "running")]
    pub state: String,
    /// While it runs, why it does not go on; afterwards why it failed, or what is to be known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether it waits for a drain; not in a cluster that is too small for it.
    pub deferred: bool,
    /// Why it waits for none, a sentence; absent as well while the node has not said whether it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_deferred: Option<String>,
    /// How far the drain is, by the name that the agent gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_status: Option<String>,
    /// The pods that block the drain, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocking: Vec<String>,
    pub requested_by: String,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// Somebody wants it to stop.
    pub canceled: bool,
}

/// The body of `?action=update`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateRequest {
    /// An http(s) address, or a path on the node.
    pub image: String,
    /// The image's checksum, in hexadecimal digits.
    pub sha256: String,
}
