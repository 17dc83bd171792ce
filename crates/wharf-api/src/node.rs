//! Nodes of a cluster on the wire.

use std::collections::BTreeMap;

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
    #[serde(flatten)]
    pub usage: Usage,
}
