//! What the elected node says of the whole cluster.

use serde::{Deserialize, Serialize};

use super::{
    NodeFile,
    go::{List, Time},
};

/// `zedkube/KubeClusterInfo/global`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KubeClusterInfo {
    pub nodes: List<KubeNodeInfo>,
    /// Of the applications' namespace, without those around virtual machines.
    pub app_pods: List<KubePodInfo>,
    #[serde(rename = "AppVMIs")]
    pub app_vmis: List<KubeVmiInfo>,
    pub storage: KubeStorageInfo,
    pub pod_ns_info: List<KubePodNsInfo>,
}

impl NodeFile for KubeClusterInfo {
    const TYPE: &'static str = "KubeClusterInfo";
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KubeNodeInfo {
    pub name: String,
    /// 0: unknown; 1: ready; 2: not ready; 3: not reachable.
    pub status: u8,
    pub is_master: bool,
    pub uses_etcd: bool,
    pub creation_time: Time,
    pub last_transition_time: Time,
    pub kubelet_version: String,
    #[serde(rename = "InternalIP")]
    pub internal_ip: String,
    #[serde(rename = "ExternalIP")]
    pub external_ip: String,
    pub schedulable: bool,
    /// 0: unknown; 1: not clustered; 2: leaving; 3: joining; 4: joined.
    pub admission: u8,
    #[serde(rename = "NodeID")]
    pub node_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KubePodInfo {
    pub name: String,
    /// 0: unknown; 1: pending; 2: running; 3: succeeded; 4: failed.
    pub status: u8,
    /// Of all its containers.
    pub restart_count: i64,
    pub restart_timestamp: Time,
    pub creation_timestamp: Time,
    #[serde(rename = "PodIP")]
    pub pod_ip: String,
    pub node_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KubeVmiInfo {
    pub name: String,
    /// 0: unset; 1: pending; 2: scheduling; 3: scheduled; 4: running; 5: succeeded; 6: failed;
    /// 7: unknown.
    pub status: u8,
    pub creation_time: Time,
    pub last_transition_time: Time,
    pub is_ready: bool,
    pub node_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KubePodNsInfo {
    pub name: String,
    pub pod_count: u32,
    pub pod_running_count: u32,
    pub pod_pending_count: u32,
    pub pod_failed_count: u32,
    pub pod_succeeded_count: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KubeStorageInfo {
    /// 0: unset; 1: failed; 2: degraded; 3: healthy.
    pub health: u8,
    pub transition_time: Time,
    pub volumes: List<KubeVolumeInfo>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KubeVolumeInfo {
    pub name: String,
    /// 0: unknown; 1: creating; 2: attached; 3: detached; 4: attaching; 5: detaching; 6: deleting.
    pub state: u8,
    /// 0: unknown; 1: healthy; 2: degraded; 3: faulted.
    pub robustness: u8,
    pub created_at: Time,
    pub provisioned_bytes: u64,
    pub allocated_bytes: u64,
    /// 1: bound.
    pub pvc_status: u8,
    pub replicas: List<KubeReplicaInfo>,
    pub robustness_substate: u8,
    #[serde(rename = "VolumeID")]
    pub volume_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KubeReplicaInfo {
    pub name: String,
    pub owner_node: String,
    pub rebuild_progress_percentage: u8,
    /// 0: unknown; 1: rebuilding; 2: online; 3: failed; 4: offline; 5: starting; 6: stopping.
    pub status: u8,
}
