//! Ports of the device and networks of applications.

use serde::{Deserialize, Serialize};

use super::{
    NodeFile,
    cluster::UuidAndVersion,
    go::{Ip, List, Time, Uuid},
};

/// `nim/DeviceNetworkStatus/global`: the ports that the device has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeviceNetworkStatus {
    pub ports: List<NetworkPort>,
}

impl NodeFile for DeviceNetworkStatus {
    const TYPE: &'static str = "DeviceNetworkStatus";
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetworkPort {
    pub if_name: String,
    pub logicallabel: String,
    pub invalid_config: bool,
    #[serde(rename = "IsL3Port")]
    pub is_l3_port: bool,
    pub addr_info_list: List<AddrInfo>,
    /// Newer devices name the cluster's address apart.
    #[serde(rename = "ClusterIPAddr")]
    pub cluster_ip_addr: Ip,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AddrInfo {
    pub addr: Ip,
}

/// A network that an application is attached to, as wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AppNetAdapter {
    pub name: String,
    pub network: Uuid,
    /// Empty where none is asked for.
    #[serde(rename = "AppIPAddr")]
    pub app_ip_addr: Ip,
    /// Base64; not there where none is asked for.
    pub app_mac_addr: Option<String>,
    pub intf_order: u32,
    /// Base64. This and what follows is set in a status alone.
    pub mac: Option<String>,
    pub vif: String,
    pub assigned_addresses: AssignedAddresses,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AssignedAddresses {
    #[serde(rename = "IPv4Addrs")]
    pub ipv4: List<AssignedAddress>,
    #[serde(rename = "IPv6Addrs")]
    pub ipv6: List<AssignedAddress>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AssignedAddress {
    pub address: Ip,
}

/// `zedmanager/AppNetworkConfig/<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AppNetworkConfig {
    #[serde(rename = "UUIDandVersion")]
    pub uuid_and_version: UuidAndVersion,
    pub display_name: String,
    pub activate: bool,
    pub app_net_adapter_list: List<AppNetAdapter>,
}

impl NodeFile for AppNetworkConfig {
    const TYPE: &'static str = "AppNetworkConfig";
}

/// `zedrouter/AppNetworkStatus/<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AppNetworkStatus {
    #[serde(rename = "UUIDandVersion")]
    pub uuid_and_version: UuidAndVersion,
    pub app_num: i64,
    pub activated: bool,
    pub display_name: String,
    pub app_net_adapter_list: List<AppNetAdapter>,
    pub await_network_instance: bool,
    pub error: String,
    pub error_time: Time,
}

impl NodeFile for AppNetworkStatus {
    const TYPE: &'static str = "AppNetworkStatus";
}

/// `zedrouter/NetworkInstanceStatus/<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetworkInstanceStatus {
    #[serde(rename = "UUIDandVersion")]
    pub uuid_and_version: UuidAndVersion,
    pub display_name: String,
    pub activated: bool,
    pub bridge_name: String,
    /// Addresses that were given out, by the MAC that has them.
    #[serde(rename = "IPAssignments")]
    pub ip_assignments: std::collections::BTreeMap<String, AssignedAddresses>,
    pub error: String,
    pub error_time: Time,
}

impl NodeFile for NetworkInstanceStatus {
    const TYPE: &'static str = "NetworkInstanceStatus";
}
