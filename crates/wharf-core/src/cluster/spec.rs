//! What a user asks for: the machines of a cluster and how it shall be.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
};

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

/// A cluster as it was asked for, checked and with its defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSpec {
    pub name: String,
    pub nodes: Vec<NodeSpec>,
    pub network: NetworkSpec,
    /// Where the cluster's machines find the server.
    pub single_cloud_address: SocketAddrV4,
    pub ssh: SshSpec,
    pub cluster_cidr: Ipv4Net,
    pub service_cidr: Ipv4Net,
    pub cluster_domain: String,
    pub cluster_dns_service_ip: Ipv4Addr,
    pub cluster_upstream_dns: Vec<Ipv4Addr>,
    /// Without a leading `v`.
    pub kubernetes_version: String,
    pub private_registries: Vec<RegistrySpec>,
    pub disable_port_check: bool,
    /// No node was given the role etcd, so that it goes with controlplane, also for nodes that are
    /// added later; the user is shown the roles as they were given.
    #[serde(default)]
    pub etcd_implied: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    pub name: String,
    pub address: Ipv4Addr,
    /// Sorted, each once; `etcd` stands on every node that shall run it, also where the user left
    /// it out because the controlplane nodes imply it.
    pub roles: Vec<NodeRole>,
    /// The host key that the user gave (an OpenSSH public key or its `SHA256:` fingerprint);
    /// without one the key of the first contact is pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
}

impl NodeSpec {
    pub fn is(&self, role: NodeRole) -> bool {
        self.roles.contains(&role)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeRole {
    Controlplane,
    Etcd,
    Worker,
    Edge,
}

impl NodeRole {
    pub const ALL: [NodeRole; 4] =
        [NodeRole::Controlplane, NodeRole::Etcd, NodeRole::Worker, NodeRole::Edge];

    /// As it is spelled in the API and in labels.
    pub fn name(self) -> &'static str {
        match self {
            NodeRole::Controlplane => "controlplane",
            NodeRole::Etcd => "etcd",
            NodeRole::Worker => "worker",
            NodeRole::Edge => "edge",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSpec {
    pub plugin: NetworkPlugin,
    /// The interface that carries the pods' traffic; without one it is found by the node's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iface: Option<String>,
}

/// Who connects the pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkPlugin {
    /// Routes between nodes on one segment, VXLAN to nodes on others.
    Routed,
    /// VXLAN between all nodes.
    Vxlan,
    /// Nobody: the user brings a network.
    None,
}

impl NetworkPlugin {
    pub fn name(&self) -> &'static str {
        match self {
            NetworkPlugin::Routed => "routed",
            NetworkPlugin::Vxlan => "vxlan",
            NetworkPlugin::None => "none",
        }
    }
}

/// How the hosts are reached. The key itself is a secret and lies elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshSpec {
    pub user: String,
    pub port: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jump: Option<JumpSpec>,
}

/// A host through which the others are reached, with the same key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JumpSpec {
    pub user: String,
    pub host: String,
    pub port: u16,
    /// The key that it must show, given by the user or pinned at the first contact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
}

/// A registry from which containerd may pull. The password is a secret and lies elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrySpec {
    pub url: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ca_cert: String,
}

/// What of a cluster must stay secret; stored sealed, never shown, never logged.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSecrets {
    pub ssh_key: String,
    #[serde(default)]
    pub ssh_key_passphrase: String,
    /// By the registry's url.
    #[serde(default)]
    pub registry_passwords: BTreeMap<String, String>,
}

impl std::fmt::Debug for ClusterSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterSecrets(…)")
    }
}

/// Where nothing else is asked for.
pub(crate) const CLUSTER_CIDR: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 42, 0, 0), 16);
pub(crate) const SERVICE_CIDR: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 43, 0, 0), 16);
const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 43, 0, 10);
const UPSTREAM_DNS: [Ipv4Addr; 2] =
    [Ipv4Addr::new(223, 5, 5, 5), Ipv4Addr::new(114, 114, 114, 114)];
pub(crate) const SSH_PORT: u16 = 22;

impl ClusterSpec {
    /// A cluster without nodes, with every default.
    pub fn new(name: &str, single_cloud_address: SocketAddrV4, kubernetes_version: &str) -> Self {
        Self {
            name: name.to_owned(),
            nodes: Vec::new(),
            network: NetworkSpec { plugin: NetworkPlugin::Routed, iface: None },
            single_cloud_address,
            ssh: SshSpec { user: String::new(), port: SSH_PORT, jump: None },
            cluster_cidr: CLUSTER_CIDR,
            service_cidr: SERVICE_CIDR,
            cluster_domain: "cluster.local".to_owned(),
            cluster_dns_service_ip: DNS_SERVICE,
            cluster_upstream_dns: UPSTREAM_DNS.to_vec(),
            kubernetes_version: kubernetes_version.to_owned(),
            private_registries: Vec::new(),
            disable_port_check: false,
            etcd_implied: false,
        }
    }

    pub fn nodes_with(&self, role: NodeRole) -> impl Iterator<Item = &NodeSpec> {
        self.nodes.iter().filter(move |node| node.is(role))
    }

    pub fn node(&self, name: &str) -> Option<&NodeSpec> {
        self.nodes.iter().find(|node| node.name == name)
    }
}
