//! All certificates and kubeconfigs of a cluster, against kubeadm's.
//!
//! kubeadm makes what a cluster of one machine needs and writes it to files; ours does the same in a
//! process of its own. A second row is a cluster of five machines in the way the server keeps it,
//! as one record. All take turns.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};

use super::InstallArgs;
use crate::{
    report::{Report, Row},
    temp_dir,
    worker::certificates::{Machines, Made},
};

const ROUNDS: usize = 21;
const GOAL: f64 = 0.1;
const ONE: Machines = Machines { controlplanes: 1, workers: 0 };
const FIVE: Machines = Machines { controlplanes: 3, workers: 2 };

pub fn run(_: &InstallArgs, report: &mut Report) -> Result<()> {
    eprintln!("certificates: ours in turn with kubeadm's, {ROUNDS} rounds");
    let kubeadm = wharf_bundle::cache::find("kubeadm")
        .context("there is no kubeadm: run `cargo xtask assets`")?;
    let (mut one, mut five, mut peer) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // One look at each is enough: every round does the same.
        let looked_at = round == 0;
        one.push(make(ONE, false, looked_at)?);
        five.push(make(FIVE, true, looked_at)?);
        peer.push(make_by_kubeadm(&kubeadm)?);
    }
    let peer = median(peer);
    let row = |name: &str, ours: Vec<f64>| {
        let made = format!("medians of {ROUNDS} rounds; kubeadm's certs all and kubeconfig all");
        Row::cost(name, median(ours), "kubeadm, 1 machine", peer, "ms").detail(made)
    };
    report.add(row("certificates and kubeconfigs, 1 machine", one).goal(GOAL));
    report.add(row("certificates and kubeconfigs, 3+2 machines, one record", five).goal(GOAL));
    Ok(())
}

/// Makes one cluster's files, or its record, in a new process; milliseconds.
fn make(machines: Machines, record: bool, looked_at: bool) -> Result<f64> {
    let dir = temp_dir()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", "certificates", "--dir"]).arg(dir.path());
    command.args(["--controlplanes", &machines.controlplanes.to_string()]);
    command.args(["--workers", &machines.workers.to_string()]);
    if record {
        command.arg("--record");
    }
    let (milliseconds, _) = timed(&mut command)?;
    if looked_at {
        if record {
            Made::read_record(dir.path())?.write_files(dir.path())?;
        }
        check(dir.path(), machines)?;
    }
    Ok(milliseconds)
}

/// A certificate that must be there: its file, who signed it, what OpenSSL must accept it for.
type Expected = (String, &'static str, &'static str);

fn expected(machines: Machines) -> Vec<Expected> {
    let everywhere = [
        ("apiserver-kubelet-client", "kubernetes-ca", "sslclient"),
        ("apiserver-etcd-client", "etcd-ca", "sslclient"),
        ("front-proxy-client", "front-proxy-ca", "sslclient"),
        ("etcd-healthcheck-client", "etcd-ca", "sslclient"),
        ("controller-manager", "kubernetes-ca", "sslclient"),
        ("scheduler", "kubernetes-ca", "sslclient"),
        ("kube-admin", "kubernetes-ca", "sslclient"),
    ];
    let on_nodes = [
        ("kubelet", "kubernetes-ca", "sslclient"),
        ("kube-proxy", "kubernetes-ca", "sslclient"),
        ("kubelet-serving", "kubernetes-ca", "sslserver"),
    ];
    let on_controlplanes = [
        ("apiserver", "kubernetes-ca", "sslserver"),
        ("etcd-server", "etcd-ca", "sslserver"),
        ("etcd-peer", "etcd-ca", "sslserver"),
        ("etcd-peer", "etcd-ca", "sslclient"),
    ];
    let mut all: Vec<Expected> = everywhere.map(|(n, ca, use_)| (n.to_owned(), ca, use_)).to_vec();
    for node in 1..=machines.controlplanes + machines.workers {
        all.extend(on_nodes.map(|(n, ca, use_)| (format!("{n}_n{node}"), ca, use_)));
        if node <= machines.controlplanes {
            all.extend(on_controlplanes.map(|(n, ca, use_)| (format!("{n}_n{node}"), ca, use_)));
        }
    }
    all
}

/// Refuses a set that is not whole, or that OpenSSL does not accept.
fn check(dir: &Path, machines: Machines) -> Result<()> {
    for (name, authority, purpose) in expected(machines) {
        let (file, key) = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
        let mut verify = Command::new("openssl");
        verify.args(["verify", "-x509_strict", "-purpose", purpose, "-CAfile"]);
        timed(verify.arg(dir.join(format!("{authority}.crt"))).arg(&file))?;
        ensure!(
            printed(&["x509", "-noout", "-pubkey", "-in"], &file)?
                == printed(&["pkey", "-pubout", "-in"], &key)?,
            "the key of {name} does not go with it"
        );
    }
    let mut kubeconfigs =
        vec!["kube-admin".to_owned(), "controller-manager".to_owned(), "scheduler".to_owned()];
    for node in 1..=machines.controlplanes + machines.workers {
        kubeconfigs.extend([format!("kubelet_n{node}"), format!("kube-proxy_n{node}")]);
    }
    for name in kubeconfigs {
        let text = std::fs::read_to_string(dir.join(format!("{name}.conf")))?;
        ensure!(text.contains("client-key-data"), "the kubeconfig {name} holds no key");
    }
    Ok(())
}

/// What OpenSSL says of a file.
fn printed(arguments: &[&str], file: &Path) -> Result<String> {
    Ok(timed(Command::new("openssl").args(arguments).arg(file))?.1)
}

/// The same by kubeadm, for its first machine; milliseconds.
fn make_by_kubeadm(program: &Path) -> Result<f64> {
    let dir = temp_dir()?;
    let config = dir.path().join("kubeadm.yaml");
    let (certificates, kubeconfigs) = (dir.path().join("pki"), dir.path().join("kubeconfig"));
    std::fs::write(&config, render_config(&certificates))?;
    let phase = |name: &str| {
        let mut command = Command::new(program);
        command.args(["init", "phase", name, "all", "--config"]).arg(&config);
        command
    };
    let (first, _) = timed(&mut phase("certs"))?;
    let (second, _) = timed(phase("kubeconfig").arg("--kubeconfig-dir").arg(&kubeconfigs))?;
    let text = printed(&["x509", "-noout", "-text", "-in"], &certificates.join("apiserver.crt"))?;
    ensure!(text.contains("id-ecPublicKey"), "kubeadm did not use ECDSA");
    ensure!(kubeconfigs.join("admin.conf").is_file(), "kubeadm made no kubeconfig");
    Ok(first + second)
}

fn render_config(certificates: &Path) -> String {
    let version = wharf_bundle::catalogue::KUBERNETES.version;
    format!(
        "\
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: 10.0.0.1, bindPort: 6443}}
nodeRegistration: {{name: n1, criSocket: 'unix:///run/none.sock'}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v{version}
certificatesDir: {}
encryptionAlgorithm: ECDSA-P256
controlPlaneEndpoint: 10.0.0.1:6443
",
        certificates.display()
    )
}

/// Runs a program to its end; milliseconds from its start, and what it printed.
fn timed(command: &mut Command) -> Result<(f64, String)> {
    command.stdin(Stdio::null());
    let begin = Instant::now();
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let elapsed = begin.elapsed();
    if !output.status.success() {
        bail!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok((elapsed.as_secs_f64() * 1e3, String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_is_not_whole_or_not_right_is_refused() {
        wharf_testbed::debian::ensure("the benchmarks", &[("openssl", "openssl")]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let remake = || Made::new(FIVE).unwrap().write_files(dir.path()).unwrap();
        remake();
        check(dir.path(), FIVE).unwrap();

        std::fs::remove_file(file("kubelet_n5.crt")).unwrap();
        assert!(check(dir.path(), FIVE).is_err(), "a certificate is missing");
        remake();
        std::fs::remove_file(file("kube-proxy_n4.conf")).unwrap();
        assert!(check(dir.path(), FIVE).is_err(), "a kubeconfig is missing");
        remake();
        std::fs::copy(file("kubelet_n1.key"), file("kubelet_n2.key")).unwrap();
        assert!(check(dir.path(), FIVE).is_err(), "a key of another certificate");
        remake();
        std::fs::copy(file("etcd-ca.crt"), file("kubernetes-ca.crt")).unwrap();
        assert!(check(dir.path(), FIVE).is_err(), "another authority");
    }
}
