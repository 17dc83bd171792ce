//! The node and its cluster.

use serde::{Deserialize, Serialize};

use super::{
    NodeFile,
    go::{Ip, IpPrefix, List, Time, Uuid},
};

/// `zedagent/EdgeNodeInfo/global`: who the node is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EdgeNodeInfo {
    pub device_name: String,
    #[serde(rename = "DeviceID")]
    pub device_id: String,
    pub project_name: String,
    #[serde(rename = "ProjectID")]
    pub project_id: String,
    pub enterprise_name: String,
    #[serde(rename = "EnterpriseID")]
    pub enterprise_id: String,
}

impl NodeFile for EdgeNodeInfo {
    const TYPE: &'static str = "EdgeNodeInfo";
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct UuidAndVersion {
    #[serde(rename = "UUID")]
    pub uuid: Uuid,
    pub version: String,
}

/// `zedagent/EdgeNodeClusterConfig/global`: the node belongs to a cluster of several.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EdgeNodeClusterConfig {
    pub cluster_name: String,
    #[serde(rename = "ClusterID")]
    pub cluster_id: UuidAndVersion,
    /// The logical label of the port.
    pub cluster_interface: String,
    #[serde(rename = "ClusterIPPrefix")]
    pub cluster_ip_prefix: Option<IpPrefix>,
    pub is_worker_node: bool,
    #[serde(rename = "JoinServerIP")]
    pub join_server_ip: Ip,
    pub bootstrap_node: bool,
    pub cipher_token: CipherBlock,
}

impl NodeFile for EdgeNodeClusterConfig {
    const TYPE: &'static str = "EdgeNodeClusterConfig";
}

/// What is encrypted for this node. Only the device's own services can open it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CipherBlock {
    #[serde(rename = "CipherBlockID")]
    pub cipher_block_id: String,
    #[serde(rename = "CipherContextID")]
    pub cipher_context_id: String,
    /// Base64.
    pub initial_value: Option<String>,
    /// Base64.
    #[serde(rename = "pubsub-large-CipherData", alias = "CipherData")]
    pub cipher_data: Option<String>,
    /// Base64.
    pub clear_text_hash: Option<String>,
    pub is_cipher: bool,
}

/// `zedkube/EdgeNodeClusterStatus/global`: how far the node is in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EdgeNodeClusterStatus {
    pub cluster_name: String,
    #[serde(rename = "ClusterID")]
    pub cluster_id: UuidAndVersion,
    /// The logical label, as in the configuration.
    pub cluster_interface: String,
    #[serde(rename = "ClusterIPPrefix")]
    pub cluster_ip_prefix: Option<IpPrefix>,
    #[serde(rename = "ClusterIPIsReady")]
    pub cluster_ip_is_ready: bool,
    pub is_worker_node: bool,
    #[serde(rename = "JoinServerIP")]
    pub join_server_ip: Ip,
    pub bootstrap_node: bool,
    /// In clear text, whatever its name says.
    pub encrypted_cluster_token: String,
    pub error: ErrorDescription,
}

impl NodeFile for EdgeNodeClusterStatus {
    const TYPE: &'static str = "EdgeNodeClusterStatus";
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ErrorDescription {
    pub error: String,
    pub error_time: Time,
    pub error_severity: i32,
    pub error_retry_condition: String,
    pub error_entities: List<serde_json::Value>,
}

/// `zedkube/KubeLeaseInfo/global`: the election of the node that reports for the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KubeLeaseInfo {
    pub in_lease_election: bool,
    pub is_stats_leader: bool,
    pub election_running: bool,
    pub leader_identity: String,
    pub latest_change: Time,
}

impl NodeFile for KubeLeaseInfo {
    const TYPE: &'static str = "KubeLeaseInfo";
}
