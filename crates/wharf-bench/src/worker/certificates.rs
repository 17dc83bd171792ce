//! All certificates and kubeconfigs of a new cluster, as files or as the record of a server.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
};

use anyhow::Result;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use wharf_core::cluster::{ClusterSpec, NodeRole, NodeSpec};
use wharf_pki::{Authority, ClusterPki, Kubeconfig};

#[derive(Debug, clap::Args)]
pub struct Certificates {
    #[arg(long)]
    dir: PathBuf,
    #[command(flatten)]
    machines: Machines,
    /// Write one record instead of one file for each
    #[arg(long)]
    record: bool,
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
    let made = Made::new(args.machines)?;
    if args.record { made.write_record(&args.dir) } else { made.write_files(&args.dir) }
}

/// Everything of one cluster.
#[derive(Serialize, Deserialize)]
pub struct Made {
    pki: ClusterPki,
    kubeconfigs: BTreeMap<String, String>,
}

impl Made {
    pub fn new(machines: Machines) -> Result<Self> {
        let spec = spec(machines);
        let now = Timestamp::now();
        let mut pki = ClusterPki::new(now)?;
        pki.ensure(&spec, now)?;
        let mut users =
            vec![Kubeconfig::Admin, Kubeconfig::ControllerManager, Kubeconfig::Scheduler];
        for node in &spec.nodes {
            users.extend([Kubeconfig::Kubelet(&node.name), Kubeconfig::KubeProxy(&node.name)]);
        }
        let mut kubeconfigs = BTreeMap::new();
        for who in users {
            kubeconfigs.insert(who.leaf().to_string(), pki.kubeconfig(&spec, who)?);
        }
        Ok(Self { pki, kubeconfigs })
    }

    /// As kubeadm does: a file for each certificate, key and kubeconfig.
    pub fn write_files(&self, dir: &Path) -> Result<()> {
        let file = |name: &str, ending: &str, text: &str| {
            std::fs::write(dir.join(format!("{}.{ending}", name.replace('/', "_"))), text)
        };
        let authorities = Authority::ALL.map(|a| (a.name(), self.pki.authority(a)));
        let leaves = self.pki.leaves.iter().map(|(name, pair)| (name.as_str(), pair));
        for (name, pair) in authorities.into_iter().chain(leaves) {
            file(name, "crt", &pair.cert_pem)?;
            file(name, "key", pair.key_pem.expose())?;
        }
        file("sa", "key", self.pki.service_account.private_pem.expose())?;
        file("sa", "pub", &self.pki.service_account.public_pem)?;
        for (name, text) in &self.kubeconfigs {
            file(name, "conf", text)?;
        }
        Ok(())
    }

    /// As the server does, which keeps a cluster's certificates as one record.
    fn write_record(&self, dir: &Path) -> Result<()> {
        Ok(std::fs::write(record_file(dir), serde_json::to_vec(self)?)?)
    }

    pub fn read_record(dir: &Path) -> Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(record_file(dir))?)?)
    }
}

fn record_file(dir: &Path) -> PathBuf {
    dir.join("record.json")
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
