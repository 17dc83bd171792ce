//! The kube-proxy of a node.

use crate::install::{
    credentials::path,
    document::{DocumentInput, Stage},
};

use super::{Component, Kind, Service, directory, quoted, text_file};

const CONFIG: &str = "/etc/wharf/kube-proxy/config.yaml";
/// The tables that it makes.
pub const NFT_TABLES: [&str; 2] = ["ip kube-proxy", "ip6 kube-proxy"];

pub fn component(input: &DocumentInput<'_>) -> Component {
    Component {
        stage: Stage::Node,
        service: Service {
            name: "kube-proxy",
            description: "Kubernetes Services of a node",
            after: &["agent"],
            kind: Kind::Exec,
            program: "kube-proxy",
            arguments: vec![format!("--config={CONFIG}")],
            settings: vec!["LimitNOFILE=65536".to_owned()],
        },
        directories: vec![directory("/etc/wharf/kube-proxy", 0o755)],
        files: vec![text_file(CONFIG, 0o644, render_config(input))],
        reloaded_files: Vec::new(),
        credentials: vec![path::PROXY_KUBECONFIG],
        reloaded_credentials: Vec::new(),
    }
}

/// The kernel's limits for tracked connections stay as the host's owner set them: kube-proxy may
/// not write them inside a container, and elsewhere nobody would take them back.
fn render_config(input: &DocumentInput<'_>) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection:
  kubeconfig: {kubeconfig}
hostnameOverride: {node}
clusterCIDR: {cluster_cidr}
bindAddress: {address}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
nftables:
  # How long changes are gathered before they are applied.
  minSyncPeriod: 100ms
conntrack:
  maxPerCore: 0
  min: 0
  tcpEstablishedTimeout: 0s
  tcpCloseWaitTimeout: 0s
",
        kubeconfig = path::PROXY_KUBECONFIG,
        node = quoted(&input.node.name),
        cluster_cidr = input.spec.cluster_cidr.trunc(),
        address = input.node.address,
    )
}
