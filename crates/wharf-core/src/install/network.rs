//! What the agent on a node must know of the network: a file that the installer writes and the
//! agent reads again whenever it changes.

use std::net::{Ipv4Addr, SocketAddrV4};

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

mod decide;
mod render;

pub use decide::{
    Interface, Mac, Masquerade, NetworkAction, NetworkDecision, ObservedNetwork, ObservedTable,
    ObservedTunnel, Route, Tunnel, TunnelPeer, Way, decide_network,
};
pub use render::{render_conflist, render_masquerade};

/// The file's place on a host.
pub const NETWORK_FILE: &str = "/etc/wharf/agent/network.json";
/// The bridge that joins a node's pods, and the tunnel to nodes on other segments.
pub const BRIDGE: &str = "wharf0";
pub const TUNNEL: &str = "wharf-vx";
/// The table of nft rules that the agent keeps: pods' traffic that leaves the cluster is hidden
/// behind the node's address.
pub const NFT_TABLE: &str = "ip wharf";
/// Where the addresses of a node's pods are noted.
pub const ADDRESSES: &str = "/var/lib/wharf/cni";
/// Marks the routes that the agent made: `ip route show proto 117`.
pub const ROUTE_PROTOCOL: u8 = 117;
/// What the tunnel's headers take of a packet: outer Ethernet, IPv4, UDP and VXLAN.
pub const TUNNEL_OVERHEAD: u32 = 50;
/// Where the node-local balancer listens; kubelet and kube-proxy know only this address.
pub const BALANCER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 6444);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkFile {
    pub node: NetworkNode,
    /// Everything that is inside: pods of all nodes, and Services.
    pub cluster_cidr: Ipv4Net,
    pub service_cidr: Ipv4Net,
    pub mode: NetworkMode,
    /// The interface that carries the traffic; without one it is found by the node's address.
    pub interface: Option<String>,
    /// All other nodes.
    pub peers: Vec<NetworkNode>,
    pub balancer: Balancer,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkNode {
    pub name: String,
    pub address: Ipv4Addr,
    pub pod_cidr: Ipv4Net,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// Routes to nodes on the same segment, the tunnel to others.
    Routed,
    /// The tunnel to all nodes.
    Vxlan,
    /// The agent leaves pods alone; only the balancer runs.
    None,
}

/// The node-local balancer before the API servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Balancer {
    pub listen: SocketAddrV4,
    pub servers: Vec<SocketAddrV4>,
    /// The cluster's authority in PEM, to tell a ready API server by `/readyz`.
    pub authority_file: String,
}

/// How large a pod's packets may be on nodes whose interfaces carry `interface_mtu`.
///
/// With mode `routed` a node on another segment is reached through the tunnel although pods send
/// full packets: the node's kernel then tells the pod at once what fits.
pub fn pod_mtu(mode: NetworkMode, interface_mtu: u32) -> u32 {
    match mode {
        NetworkMode::Routed | NetworkMode::None => interface_mtu,
        NetworkMode::Vxlan => interface_mtu.saturating_sub(TUNNEL_OVERHEAD),
    }
}
