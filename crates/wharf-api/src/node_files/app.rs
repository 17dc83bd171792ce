//! Applications: what is wanted of them, and what the agents say of each.

use serde::{Deserialize, Serialize};

use super::{
    NodeFile,
    cluster::UuidAndVersion,
    go::{List, Time, Uuid},
    network::AppNetAdapter,
};

/// `zedagent/AppInstanceConfig/<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AppInstanceConfig {
    #[serde(rename = "UUIDandVersion")]
    pub uuid_and_version: UuidAndVersion,
    pub display_name: String,
    pub errors: List<String>,
    pub fixed_resources: VmConfig,
    pub disable_logs: bool,
    pub volume_ref_config_list: List<VolumeRef>,
    pub activate: bool,
    pub app_net_adapter_list: List<AppNetAdapter>,
    pub io_adapter_list: List<IoAdapter>,
    pub restart_cmd: OpsCommand,
    pub purge_cmd: OpsCommand,
    pub local_restart_cmd: OpsCommand,
    pub local_purge_cmd: OpsCommand,
    pub remote_console: bool,
    /// This node is the one that the application is meant for.
    #[serde(rename = "IsDesignatedNodeID")]
    pub is_designated_node_id: bool,
}

impl NodeFile for AppInstanceConfig {
    const TYPE: &'static str = "AppInstanceConfig";
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VmConfig {
    /// In kibibytes.
    pub memory: i64,
    pub max_mem: i64,
    #[serde(rename = "VCpus")]
    pub vcpus: i64,
    /// 4 is a native container, without a machine around it.
    pub virtualization_mode: u8,
    pub enable_vnc: bool,
    pub vnc_display: u32,
    pub vnc_passwd: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VolumeRef {
    #[serde(rename = "VolumeID")]
    pub volume_id: Uuid,
    pub generation_counter: i64,
    pub local_generation_counter: i64,
    pub ref_count: u64,
    pub mount_dir: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct IoAdapter {
    /// 1 is an Ethernet port.
    #[serde(rename = "Type")]
    pub type_: u8,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct OpsCommand {
    pub counter: u32,
    pub apply_time: String,
}

/// `zedmanager/AppInstanceStatus/<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AppInstanceStatus {
    #[serde(rename = "UUIDandVersion")]
    pub uuid_and_version: UuidAndVersion,
    pub display_name: String,
    pub domain_name: String,
    pub activated: bool,
    pub activate_inprogress: bool,
    pub boot_time: Time,
    /// The number of a `SwState`.
    pub state: u8,
    pub missing_network: bool,
    pub missing_memory: bool,
    pub error: String,
    pub error_time: Time,
    /// The wish as it counts on this node.
    pub effective_activate: bool,
    #[serde(rename = "IsDesignatedNodeID")]
    pub is_designated_node_id: bool,
    /// Another node reports its figures.
    pub no_upload_stats_to_controller: bool,
}

impl NodeFile for AppInstanceStatus {
    const TYPE: &'static str = "AppInstanceStatus";
}

/// `zedkube/ENClusterAppStatus/<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EnClusterAppStatus {
    #[serde(rename = "AppUUID")]
    pub app_uuid: Uuid,
    #[serde(rename = "IsDNidNode")]
    pub is_dnid_node: bool,
    pub scheduled_on_this_node: bool,
    pub status_running: bool,
    pub is_volume_detached: bool,
    #[serde(rename = "AppIsVMI")]
    pub app_is_vmi: bool,
    pub app_kube_name: String,
    /// 0: unknown; 1: the API cannot be reached; 2: not in the cluster; 3: not running; 4: running.
    pub app_kube_status: u8,
    #[serde(rename = "VMIName")]
    pub vmi_name: String,
    #[serde(rename = "VNCPort")]
    pub vnc_port: u32,
    /// In words: `Unknown`, `Halting`, `Running`…
    pub domain_state: String,
    pub unknown_since: Time,
    pub effective_activate: bool,
}

impl NodeFile for EnClusterAppStatus {
    const TYPE: &'static str = "ENClusterAppStatus";
}

/// `zedmanager/DomainConfig/<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DomainConfig {
    #[serde(rename = "UUIDandVersion")]
    pub uuid_and_version: UuidAndVersion,
    pub display_name: String,
    pub activate: bool,
    pub app_num: i64,
    #[serde(rename = "KubeImageName")]
    pub kube_image_name: String,
    #[serde(rename = "IsDNidNode")]
    pub is_dnid_node: bool,
}

impl NodeFile for DomainConfig {
    const TYPE: &'static str = "DomainConfig";
}

/// `domainmgr/DomainStatus/<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DomainStatus {
    #[serde(rename = "UUIDandVersion")]
    pub uuid_and_version: UuidAndVersion,
    pub display_name: String,
    /// The number of a `SwState`.
    pub state: u8,
    pub activated: bool,
    pub app_num: i64,
    pub domain_name: String,
    pub domain_id: i64,
    pub boot_time: Time,
    pub virtualization_mode: u8,
    pub enable_vnc: bool,
    pub vnc_display: u32,
    pub error: String,
    pub error_time: Time,
    pub boot_failed: bool,
    /// Where it runs.
    pub node_name: String,
}

impl NodeFile for DomainStatus {
    const TYPE: &'static str = "DomainStatus";
}

/// `domainmgr/DomainMetric/<uuid>`. Memory is in mebibytes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DomainMetric {
    #[serde(rename = "UUIDandVersion")]
    pub uuid_and_version: UuidAndVersion,
    #[serde(rename = "CPUTotalNs")]
    pub cpu_total_ns: u64,
    #[serde(rename = "CPUScaled")]
    pub cpu_scaled: u32,
    #[serde(rename = "AllocatedMB")]
    pub allocated_mb: u32,
    pub used_memory: u32,
    pub max_used_memory: u32,
    pub available_memory: u32,
    pub used_memory_percent: f64,
    pub last_heard: Time,
    pub activated: bool,
    pub node_name: String,
}

impl NodeFile for DomainMetric {
    const TYPE: &'static str = "DomainMetric";
}
