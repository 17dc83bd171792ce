//! How long all certificates and kubeconfigs of three controlplane nodes and two workers take.
#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use wharf_core::cluster::{ClusterSpec, NodeRole, NodeSpec};
use wharf_pki::{ClusterPki, Kubeconfig};

const ROUNDS: usize = 51;

fn main() -> Result<(), Box<dyn Error>> {
    let spec = spec();
    let (mut all, mut again) = (Vec::new(), Vec::new());
    let mut count = 0;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let mut pki = ClusterPki::new(Timestamp::now())?;
        pki.ensure(&spec, Timestamp::now())?;
        kubeconfigs(&pki, &spec)?;
        all.push(begin.elapsed());
        count = pki.leaves.len();
        let begin = Instant::now();
        pki.ensure(&spec, Timestamp::now())?;
        again.push(begin.elapsed());
    }
    println!("3 authorities, {count} certificates and all kubeconfigs: {:?}", median(all));
    println!("a second run, which changes nothing: {:?}", median(again));
    Ok(())
}

fn kubeconfigs(pki: &ClusterPki, spec: &ClusterSpec) -> Result<(), Box<dyn Error>> {
    for who in [Kubeconfig::Admin, Kubeconfig::ControllerManager, Kubeconfig::Scheduler] {
        pki.kubeconfig(spec, who)?;
    }
    for node in &spec.nodes {
        pki.kubeconfig(spec, Kubeconfig::Kubelet(&node.name))?;
        pki.kubeconfig(spec, Kubeconfig::KubeProxy(&node.name))?;
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn spec() -> ClusterSpec {
    let mut spec = ClusterSpec::new("c", SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8443), "1.36.3");
    for number in 1..=5 {
        let roles = match number {
            1..=3 => vec![NodeRole::Controlplane, NodeRole::Etcd],
            _ => vec![NodeRole::Worker],
        };
        let address = Ipv4Addr::new(10, 0, 0, number);
        spec.nodes.push(NodeSpec { name: format!("n{number}"), address, roles, host_key: None });
    }
    spec
}
