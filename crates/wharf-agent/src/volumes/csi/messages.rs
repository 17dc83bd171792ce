//! The messages of CSI 1.x and of kubelet's registration of plugins, as far as they are used.
//!
//! Names and numbers are those of the protocols. What is not here is passed over when it is read.
//! An enum is a number on the wire, and one of several fields is written as each of them alone.

use std::collections::BTreeMap;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// What kubelet is told about a plugin.
#[derive(Clone, PartialEq, Message)]
pub struct PluginInfo {
    #[prost(string, tag = "1")]
    pub r#type: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// What kubelet says of it then.
#[derive(Clone, PartialEq, Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetPluginInfoResponse {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub vendor_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetPluginCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<PluginCapability>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PluginCapability {
    #[prost(message, optional, tag = "1")]
    pub service: Option<Kind>,
    #[prost(message, optional, tag = "2")]
    pub volume_expansion: Option<Kind>,
}

/// One of the kinds of something.
#[derive(Clone, PartialEq, Message)]
pub struct Kind {
    #[prost(int32, tag = "1")]
    pub r#type: i32,
}

/// Of a plugin: volumes grow while they are in use.
pub const ONLINE_EXPANSION: i32 = 1;
/// Of a node.
pub const GET_VOLUME_STATS: i32 = 2;
pub const EXPAND_VOLUME: i32 = 3;

#[derive(Clone, PartialEq, Message)]
pub struct ProbeResponse {
    #[prost(message, optional, tag = "1")]
    pub ready: Option<BoolValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct BoolValue {
    #[prost(bool, tag = "1")]
    pub value: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodePublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "4")]
    pub target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    #[prost(btree_map = "string, string", tag = "8")]
    pub volume_context: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct VolumeCapability {
    #[prost(message, optional, tag = "1")]
    pub block: Option<Empty>,
    #[prost(message, optional, tag = "2")]
    pub mount: Option<MountVolume>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct AccessMode {
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

pub const SINGLE_NODE_WRITER: i32 = 1;
pub const SINGLE_NODE_READER_ONLY: i32 = 2;
pub const MULTI_NODE_READER_ONLY: i32 = 3;
pub const MULTI_NODE_SINGLE_WRITER: i32 = 4;
pub const MULTI_NODE_MULTI_WRITER: i32 = 5;
pub const SINGLE_NODE_SINGLE_WRITER: i32 = 6;
pub const SINGLE_NODE_MULTI_WRITER: i32 = 7;

#[derive(Clone, PartialEq, Message)]
pub struct NodeUnpublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub target_path: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeGetVolumeStatsRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeGetVolumeStatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub usage: Vec<VolumeUsage>,
}

#[derive(Clone, PartialEq, Message)]
pub struct VolumeUsage {
    #[prost(int64, tag = "1")]
    pub available: i64,
    #[prost(int64, tag = "2")]
    pub total: i64,
    #[prost(int64, tag = "3")]
    pub used: i64,
    #[prost(int32, tag = "4")]
    pub unit: i32,
}

pub const BYTES: i32 = 1;
pub const INODES: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub struct NodeExpandVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeExpandVolumeResponse {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeGetCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<NodeServiceCapability>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeServiceCapability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<Kind>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeGetInfoResponse {
    #[prost(string, tag = "1")]
    pub node_id: String,
    /// 0: as many as there are.
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
}
