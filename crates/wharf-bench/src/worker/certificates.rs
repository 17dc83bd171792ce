//! All certificates and kubeconfigs of a new cluster, as files.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
};

use anyhow::Result;
use jiff::Timestamp;
use wharf_core::cluster::{ClusterSpec, NodeRole, NodeSpec};
use wharf_pki::{Authority, ClusterPki, Kubeconfig};

#[derive(Debug, clap::Args)]
pub struct Certificates {
    #[arg(long)]
    dir: PathBuf,
    #[command(flatten)]
    machines: Machines,
}

/// How many machines the cluster has; they are named `n1`, `n2` and so on, the controlplane first.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Machines {
    #[arg(long)]
    pub controlplanes: u8,
    #[arg(long)]
    pub workers: u8,
}

pub fn run(args: &Certificates) -> Result<()> {
    make(args.machines, &args.dir)
}

pub fn make(machines: Machines, dir: &Path) -> Result<()> {
    let spec = spec(machines);
    let now = Timestamp::now();
    let mut pki = ClusterPki::new(now)?;
    pki.ensure(&spec, now)?;
    write(&pki, &spec, dir)
}

fn spec(machines: Machines) -> ClusterSpec {
    let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8443);
    let version = wharf_bundle::catalogue::KUBERNETES.version;
    let mut spec = ClusterSpec::new("bench", server, version);
    for number in 1..=machines.controlplanes.saturating_add(machines.workers) {
        let roles = if number <= machines.controlplanes {
            vec![NodeRole::Controlplane, NodeRole::Etcd]
        } else {
            vec![NodeRole::Worker]
        };
        let address = Ipv4Addr::new(10, 0, 0, number);
        spec.nodes.push(NodeSpec { name: format!("n{number}"), address, roles, host_key: None });
    }
    spec
}

fn write(pki: &ClusterPki, spec: &ClusterSpec, dir: &Path) -> Result<()> {
    let file = |name: &str, ending: &str, text: &str| {
        std::fs::write(dir.join(format!("{}.{ending}", name.replace('/', "_"))), text)
    };
    let authorities = Authority::ALL.map(|a| (a.name(), pki.authority(a)));
    let leaves = pki.leaves.iter().map(|(name, pair)| (name.as_str(), pair));
    for (name, pair) in authorities.into_iter().chain(leaves) {
        file(name, "crt", &pair.cert_pem)?;
        file(name, "key", pair.key_pem.expose())?;
    }
    file("sa", "key", pki.service_account.private_pem.expose())?;
    file("sa", "pub", &pki.service_account.public_pem)?;
    let mut users = vec![Kubeconfig::Admin, Kubeconfig::ControllerManager, Kubeconfig::Scheduler];
    for node in &spec.nodes {
        users.extend([Kubeconfig::Kubelet(&node.name), Kubeconfig::KubeProxy(&node.name)]);
    }
    for who in users {
        file(&who.leaf().to_string(), "conf", &pki.kubeconfig(spec, who)?)?;
    }
    Ok(())
}
