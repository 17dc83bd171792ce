//! What is applied to a cluster once its API answers, as YAML of several documents.

use std::net::Ipv4Addr;

use crate::cluster::ClusterSpec;

/// CoreDNS at the cluster's DNS address.
///
/// `forward` says whether names outside the cluster can be asked for: if no host resolves names
/// outside, forwarding (and its check for loops) would only break what works.
pub fn render_coredns(spec: &ClusterSpec, image: &str, forward: bool) -> String {
    let _ = (spec, image, forward);
    String::new()
}

/// metrics-server, which trusts kubelets by the cluster's authority (`ca_pem`).
pub fn render_metrics_server(image: &str, ca_pem: &str) -> String {
    let _ = (image, ca_pem);
    String::new()
}

/// The rights that no default grants: the API server's identity may use kubelets.
pub fn render_rbac() -> String {
    String::new()
}

/// One pod for each node that answers over HTTP, and a Service before them.
pub fn render_verify_servers(nodes: &[&str], image: &str) -> String {
    let _ = (nodes, image);
    String::new()
}

/// What a verifying pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyTargets {
    /// Addresses of the pods of [`render_verify_servers`].
    pub pods: Vec<Ipv4Addr>,
    pub dns: Ipv4Addr,
    pub cluster_domain: String,
}
