//! What a cluster's certificates are, and that OpenSSL, etcd and Kubernetes take them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod cluster;
mod kubeconfig;
mod openssl;
mod renewal;
mod table;

use std::net::{Ipv4Addr, SocketAddrV4};

use jiff::Timestamp;
use wharf_core::cluster::{ClusterSpec, NodeRole, NodeSpec};
use wharf_pki::{Authority, ClusterPki};

fn spec(name: &str, nodes: &[(&str, Ipv4Addr, &[NodeRole])]) -> ClusterSpec {
    let mut spec = ClusterSpec::new(name, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8443), "1.36.3");
    spec.nodes = nodes
        .iter()
        .map(|(name, address, roles)| NodeSpec {
            name: (*name).to_owned(),
            address: *address,
            roles: roles.to_vec(),
            host_key: None,
        })
        .collect();
    spec
}

/// A controlplane node that also runs etcd, and a worker.
fn small() -> ClusterSpec {
    spec(
        "one",
        &[
            ("n1", Ipv4Addr::new(10, 0, 0, 1), &[NodeRole::Controlplane, NodeRole::Etcd]),
            ("w1", Ipv4Addr::new(10, 0, 0, 2), &[NodeRole::Worker]),
        ],
    )
}

fn made(spec: &ClusterSpec, now: Timestamp) -> ClusterPki {
    let mut pki = ClusterPki::new(now).unwrap();
    pki.ensure(spec, now).unwrap();
    pki
}

/// Who signed a leaf, told by its name alone.
fn authority_of(leaf: &str) -> Authority {
    match leaf {
        "apiserver-etcd-client" => Authority::Etcd,
        name if name.starts_with("etcd-") => Authority::Etcd,
        "front-proxy-client" => Authority::FrontProxy,
        _ => Authority::Kubernetes,
    }
}
