//! Where the nodes of a cluster are reached.

use std::net::IpAddr;

use kube::api::ListParams;
use serde::Deserialize;

use crate::{cluster::Cluster, error::Result};

/// A Node by name, with its first `InternalIP`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    pub name: String,
    /// `None` where its kubelet has told none.
    pub address: Option<IpAddr>,
}

impl Cluster {
    /// All Nodes of the cluster, by name.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn node_addresses(&self) -> Result<Vec<NodeAddress>> {
        let nodes: Vec<Node> = self.list("/api/v1/nodes", ListParams::default()).await?;
        Ok(nodes.into_iter().map(NodeAddress::from).collect())
    }
}

#[derive(Deserialize)]
struct Node {
    metadata: Meta,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Meta {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    addresses: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    r#type: String,
    address: String,
}

impl From<Node> for NodeAddress {
    fn from(node: Node) -> Self {
        let mut internal =
            node.status.addresses.iter().filter(|address| address.r#type == "InternalIP");
        let address = internal.find_map(|address| address.address.parse().ok());
        Self { name: node.metadata.name, address }
    }
}
