//! Clusters on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::resource::Head;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    #[serde(flatten)]
    pub head: Head,
    pub name: String,
    #[schema(example = "Running")]
    pub status: String,
    /// Why the status is what it is, where that needs saying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub nodes: Vec<ClusterNode>,
    pub node_count: usize,
    /// The server that works on the cluster.
    pub owner: Option<String>,
    /// How often the cluster has changed hands.
    pub epoch: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterNode {
    pub name: String,
    pub address: String,
    pub roles: Vec<String>,
}
