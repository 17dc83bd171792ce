//! The node's place in its cluster, and the server that tells others of it.
//!
//! [`cluster`] turns the wish (EdgeNodeClusterConfig) into what is (EdgeNodeClusterStatus), by the
//! addresses that the interfaces really carry. Only while the cluster's address is there does
//! [`server`] listen on it, and [`firewall`] lets others reach it where the host filters. The other
//! side is [`join`]: a node that joins waits until the server says that it is this cluster.

use std::net::IpAddr;

use ipnet::IpNet;

mod addresses;
pub mod cluster;
mod config;
pub mod firewall;
pub mod http;
pub mod join;
pub mod roles;
pub mod server;

pub use config::ClusterConfig;

/// Where the node is reached by its cluster, while it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub if_name: String,
    pub address: IpAddr,
    /// The cluster's network around that address.
    pub prefix: IpNet,
    pub cluster_id: String,
}
