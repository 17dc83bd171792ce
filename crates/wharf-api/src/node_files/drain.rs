//! Drains before device operations and updates, and what the device says of both.

use serde::{Deserialize, Serialize};

use super::{
    NodeFile,
    cluster::UuidAndVersion,
    go::{List, Time},
};

/// `zedagent/NodeDrainRequest/global` for a device operation, `baseosmgr/NodeDrainRequest/global`
/// for an update. While it is there a drain is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeDrainRequest {
    pub requested_at: Time,
    /// The number of a `Requester`.
    pub requested_by: u8,
    /// `reboot`, `shutdown`, or the id of the base OS.
    pub context: String,
}

impl NodeFile for NodeDrainRequest {
    const TYPE: &'static str = "NodeDrainRequest";
}

/// `zedkube/NodeDrainStatus/global`, and the content of the force file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeDrainStatus {
    /// The number of a `DrainStatus`.
    pub status: u8,
    /// The number of a `Requester`.
    pub requested_by: u8,
    /// Why it does not go on, or why it failed. Only we say it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The pods that block, with their budgets, a sentence each. Only we name them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocking: Vec<String>,
}

impl NodeFile for NodeDrainStatus {
    const TYPE: &'static str = "NodeDrainStatus";
}

/// `nodeagent/NodeAgentStatus/nodeagent`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeAgentStatus {
    pub name: String,
    pub update_inprogress: bool,
    pub device_reboot: bool,
    pub device_shutdown: bool,
    pub device_poweroff: bool,
    pub all_domains_halted: bool,
    pub reboot_reason: String,
    pub reboot_time: Time,
    pub restart_counter: u32,
    /// A device operation waits for a drain.
    pub wait_drain_in_progress: bool,
}

impl NodeFile for NodeAgentStatus {
    const TYPE: &'static str = "NodeAgentStatus";
}

/// `zedagent/ZedAgentStatus/zedagent`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ZedAgentStatus {
    pub name: String,
    /// 1: got from the controller; 2: failed; 3: failed for now; 4: read from what was saved.
    pub config_get_status: u8,
    pub reboot_cmd: bool,
    pub shutdown_cmd: bool,
    pub poweroff_cmd: bool,
    /// Why it is about to reboot.
    pub requested_reboot_reason: String,
}

impl NodeFile for ZedAgentStatus {
    const TYPE: &'static str = "ZedAgentStatus";
}

/// `zedagent/BaseOsConfig/<uuid>`: the operating system that is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct BaseOsConfig {
    #[serde(rename = "UUIDandVersion")]
    pub uuid_and_version: UuidAndVersion,
    pub base_os_version: String,
    #[serde(rename = "ContentTreeUUID")]
    pub content_tree_uuid: String,
    pub retry_count: u32,
    pub activate: bool,
}

impl NodeFile for BaseOsConfig {
    const TYPE: &'static str = "BaseOsConfig";
}

/// `baseosmgr/BaseOsStatus/<uuid>`: how far it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct BaseOsStatus {
    #[serde(rename = "UUIDandVersion")]
    pub uuid_and_version: UuidAndVersion,
    pub base_os_version: String,
    pub activated: bool,
    pub reboot: bool,
    pub too_early: bool,
    #[serde(rename = "ContentTreeStatusList")]
    pub content_trees: List<serde_json::Value>,
    pub partition_label: String,
    pub partition_device: String,
    pub partition_state: String,
    /// The number of a `SwState`.
    pub state: u8,
    pub error: String,
    pub error_time: Time,
}

impl NodeFile for BaseOsStatus {
    const TYPE: &'static str = "BaseOsStatus";
}
