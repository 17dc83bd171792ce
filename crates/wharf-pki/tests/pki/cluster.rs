//! A real etcd of three members and a real API server, started with nothing but these files.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use serde_json::Value;
use tempfile::TempDir;
use wharf_core::cluster::{ClusterSpec, NodeRole};
use wharf_pki::{Authority, ClusterPki, Kubeconfig};
use wharf_testbed::{process::Process, wait_for};

use crate::{made, spec};

const START: Duration = Duration::from_secs(120);

#[test]
fn etcd_and_the_api_server_work_with_these_files_and_know_everyone() {
    let cluster = Cluster::start().unwrap();
    let admin = |args: &[&str]| cluster.kubectl(Kubeconfig::Admin, args).unwrap();

    assert_eq!(admin(&["get", "--raw", "/readyz"]), "ok");
    // The context of the node, and a cluster name that is a truth value for older YAML.
    assert_eq!(admin(&["--context", "on-n1", "get", "--raw", "/readyz"]), "ok");
    admin(&["create", "clusterrole", "made-by-admin", "--verb=get", "--resource=pods"]);

    let known = [
        (Kubeconfig::Admin, "kube-admin", "system:masters"),
        (Kubeconfig::ControllerManager, "system:kube-controller-manager", "system:authenticated"),
        (Kubeconfig::Scheduler, "system:kube-scheduler", "system:authenticated"),
        (Kubeconfig::Kubelet("n2"), "system:node:n2", "system:nodes"),
        (Kubeconfig::KubeProxy("n3"), "system:kube-proxy", "system:authenticated"),
    ];
    for (who, name, group) in known {
        let user = cluster.who_am_i(who).unwrap();
        assert_eq!(user["username"], name);
        assert!(user["groups"].as_array().unwrap().contains(&group.into()), "{user}");
    }
    // Each kubelet has the rights of its own node, and no more.
    cluster.register_node(Kubeconfig::Kubelet("n2"), "n2").unwrap();
    let other = cluster.register_node(Kubeconfig::Kubelet("n2"), "n3").unwrap_err();
    assert!(other.to_string().contains("forbidden"), "{other}");

    admin(&["create", "serviceaccount", "robot"]);
    let token = admin(&["create", "token", "robot"]);
    let robot = cluster.who_am_i_by_token(token.trim()).unwrap();
    assert_eq!(robot["username"], "system:serviceaccount:default:robot");
}

#[test]
fn secrets_lie_encrypted_in_etcd_and_only_its_own_clients_may_look() {
    let cluster = Cluster::start().unwrap();
    let create = ["create", "secret", "generic", "hidden", "--from-literal=word=plaintext-word"];
    cluster.kubectl(Kubeconfig::Admin, &create).unwrap();

    let get = ["get", "/registry/secrets/default/hidden", "--print-value-only"];
    let stored = cluster.etcdctl("etcd-healthcheck-client", &get).unwrap();
    assert!(stored.starts_with("k8s:enc:secretbox:v1:"), "{stored:?}");
    assert!(!stored.contains("plaintext-word"));
    // Signed by Kubernetes' authority, which etcd does not know: not even the administrator.
    assert!(cluster.etcdctl("kube-admin", &get).is_err());
    assert!(cluster.etcdctl("front-proxy-client", &get).is_err());
}

struct Cluster {
    spec: ClusterSpec,
    dir: TempDir,
    // In this order they end: the API server before its etcd.
    _apiserver: Process,
    _etcds: Vec<Process>,
}

impl Cluster {
    fn start() -> Result<Self> {
        let spec = loopback_spec();
        let dir = tempfile::tempdir()?;
        write(&made(&spec, Timestamp::now()), &spec, dir.path())?;
        let token = std::fs::read_to_string(dir.path().join("etcd-token"))?;
        let etcds = spec.nodes.iter().map(|node| {
            Process::spawn(etcd(&program("etcd")?, &spec, &node.name, &token, dir.path())?)
        });
        let mut etcds = etcds.collect::<Result<Vec<_>>>()?;
        wait_until_healthy(&spec, dir.path(), &mut etcds)?;
        let mut apiserver =
            Process::spawn(apiserver(&program("kube-apiserver")?, &spec, dir.path()))?;
        wait_until_ready(dir.path(), &mut apiserver)?;
        Ok(Self { spec, dir, _apiserver: apiserver, _etcds: etcds })
    }

    fn kubectl(&self, who: Kubeconfig<'_>, args: &[&str]) -> Result<String> {
        let mut command = Command::new(program("kubectl")?);
        command.arg("--kubeconfig").arg(self.dir.path().join(file_name(&who.leaf().to_string())));
        // Only the administrator's names the address of this API server; the others' name local
        // ones, which here are not for us to take.
        if who != Kubeconfig::Admin {
            command.args(["--server", &server(&self.spec)]);
        }
        run(command.args(args))
    }

    fn register_node(&self, who: Kubeconfig<'_>, name: &str) -> Result<String> {
        let file = self.dir.path().join(format!("node-{name}.json"));
        let node =
            format!(r#"{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "{name}"}}}}"#);
        std::fs::write(&file, node)?;
        self.kubectl(who, &["create", "--validate=false", "-f", &file.display().to_string()])
    }

    fn who_am_i(&self, who: Kubeconfig<'_>) -> Result<Value> {
        let answer = self.kubectl(who, &["auth", "whoami", "-o", "json"])?;
        let answer: Value = serde_json::from_str(&answer)?;
        Ok(answer["status"]["userInfo"].clone())
    }

    fn who_am_i_by_token(&self, token: &str) -> Result<Value> {
        let mut command = Command::new(program("kubectl")?);
        command
            .args(["--kubeconfig", "/dev/null", "--server", &server(&self.spec)])
            .args(["--token", token, "--certificate-authority"])
            .arg(self.dir.path().join("kubernetes-ca.crt"))
            .args(["auth", "whoami", "-o", "json"]);
        let answer: Value = serde_json::from_str(&run(&mut command)?)?;
        Ok(answer["status"]["userInfo"].clone())
    }

    fn etcdctl(&self, leaf: &str, args: &[&str]) -> Result<String> {
        etcdctl(&self.spec, self.dir.path(), leaf, args)
    }
}

/// Three nodes on addresses of the loopback interface that no other test has, so that the ports
/// are those of a real cluster.
fn loopback_spec() -> ClusterSpec {
    let [a, b] = std::array::from_fn(|_| 1 + (rand::random::<u8>() >> 1));
    let at = |n| Ipv4Addr::new(127, 64 | (a >> 1), b, n);
    let roles: &[NodeRole] = &[NodeRole::Controlplane, NodeRole::Etcd];
    spec("on", &[("n1", at(1), roles), ("n2", at(2), roles), ("n3", at(3), roles)])
}

fn program(name: &str) -> Result<PathBuf> {
    wharf_bundle::cache::find(name)
        .with_context(|| format!("there is no {name}: run `cargo xtask assets`"))
}

fn server(spec: &ClusterSpec) -> String {
    format!("https://{}:6443", spec.nodes[0].address)
}

fn file_name(leaf: &str) -> String {
    leaf.replace('/', "_")
}

fn write(pki: &ClusterPki, spec: &ClusterSpec, dir: &Path) -> Result<()> {
    let file = |name: &str, text: &str| std::fs::write(dir.join(name), text);
    for authority in Authority::ALL {
        file(&format!("{}.crt", authority.name()), &pki.authority(authority).cert_pem)?;
    }
    for (name, leaf) in &pki.leaves {
        file(&format!("{}.crt", file_name(name)), &leaf.cert_pem)?;
        file(&format!("{}.key", file_name(name)), leaf.key_pem.expose())?;
    }
    file("sa.key", pki.service_account.private_pem.expose())?;
    file("sa.pub", &pki.service_account.public_pem)?;
    file("etcd-token", &pki.etcd_token)?;
    let key = pki.encryption_key.expose();
    let provider = format!(r#"{{"secretbox": {{"keys": [{{"name": "k1", "secret": "{key}"}}]}}}}"#);
    let encryption = format!(
        r#"{{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{{"resources": ["secrets"], "providers": [{provider}, {{"identity": {{}}}}]}}]}}"#
    );
    file("encryption.json", &encryption)?;
    let kubelets = spec.nodes.iter().map(|node| Kubeconfig::Kubelet(&node.name));
    let proxies = spec.nodes.iter().map(|node| Kubeconfig::KubeProxy(&node.name));
    let others = [Kubeconfig::Admin, Kubeconfig::ControllerManager, Kubeconfig::Scheduler];
    for who in kubelets.chain(proxies).chain(others) {
        file(&file_name(&who.leaf().to_string()), &pki.kubeconfig(spec, who)?)?;
    }
    Ok(())
}

fn etcd(
    program: &Path,
    spec: &ClusterSpec,
    name: &str,
    token: &str,
    dir: &Path,
) -> Result<Command> {
    let node = spec.node(name).context("no such node")?;
    let (client, peer) =
        (format!("https://{}:2379", node.address), format!("https://{}:2380", node.address));
    let members: Vec<_> =
        spec.nodes.iter().map(|n| format!("{}=https://{}:2380", n.name, n.address)).collect();
    let file = |name: String| dir.join(name).display().to_string();
    let mut command = Command::new(program);
    command.env_clear().args(["--name", name, "--log-level", "warn", "--client-cert-auth"]);
    command.args(["--data-dir", &file(format!("data-{name}")), "--peer-client-cert-auth"]);
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &members.join(","), "--initial-cluster-token", token]);
    for (prefix, leaf) in [("--", "etcd-server"), ("--peer-", "etcd-peer")] {
        command.args([format!("{prefix}cert-file"), file(format!("{leaf}_{name}.crt"))]);
        command.args([format!("{prefix}key-file"), file(format!("{leaf}_{name}.key"))]);
        command.args([format!("{prefix}trusted-ca-file"), file("etcd-ca.crt".to_owned())]);
    }
    Ok(command)
}

fn apiserver(program: &Path, spec: &ClusterSpec, dir: &Path) -> Command {
    let address = spec.nodes[0].address;
    let etcds: Vec<_> =
        spec.nodes.iter().map(|node| format!("https://{}:2379", node.address)).collect();
    let mut command = Command::new(program);
    command
        .arg(format!("--etcd-servers={}", etcds.join(",")))
        .args([format!("--bind-address={address}"), format!("--advertise-address={address}")])
        .args(["--secure-port=6443", "--endpoint-reconciler-type=none"])
        .args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"])
        .arg(format!("--service-cluster-ip-range={}", spec.service_cidr))
        .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
        .args(["--requestheader-allowed-names=front-proxy-client"])
        .args(["--requestheader-username-headers=X-Remote-User"])
        .args(["--requestheader-group-headers=X-Remote-Group"])
        .args(["--requestheader-extra-headers-prefix=X-Remote-Extra-"]);
    let files = [
        ("client-ca-file", "kubernetes-ca.crt"),
        ("etcd-cafile", "etcd-ca.crt"),
        ("etcd-certfile", "apiserver-etcd-client.crt"),
        ("etcd-keyfile", "apiserver-etcd-client.key"),
        ("tls-cert-file", "apiserver_n1.crt"),
        ("tls-private-key-file", "apiserver_n1.key"),
        ("kubelet-certificate-authority", "kubernetes-ca.crt"),
        ("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
        ("kubelet-client-key", "apiserver-kubelet-client.key"),
        ("requestheader-client-ca-file", "front-proxy-ca.crt"),
        ("proxy-client-cert-file", "front-proxy-client.crt"),
        ("proxy-client-key-file", "front-proxy-client.key"),
        ("service-account-key-file", "sa.pub"),
        ("service-account-signing-key-file", "sa.key"),
        ("encryption-provider-config", "encryption.json"),
    ];
    for (flag, name) in files {
        command.arg(format!("--{flag}={}", dir.join(name).display()));
    }
    command
}

fn etcdctl(spec: &ClusterSpec, dir: &Path, leaf: &str, args: &[&str]) -> Result<String> {
    let endpoints: Vec<_> =
        spec.nodes.iter().map(|node| format!("https://{}:2379", node.address)).collect();
    let mut command = Command::new(program("etcdctl")?);
    command
        .current_dir(dir)
        .env_clear()
        .args(["--endpoints", &endpoints.join(","), "--cacert", "etcd-ca.crt"])
        .args(["--command-timeout", "5s", "--dial-timeout", "3s"])
        .args(["--cert", &format!("{leaf}.crt"), "--key", &format!("{leaf}.key")])
        .args(args);
    run(&mut command)
}

fn wait_until_healthy(spec: &ClusterSpec, dir: &Path, etcds: &mut [Process]) -> Result<()> {
    wait_for("all members of etcd to be healthy", START, || {
        for etcd in &mut *etcds {
            ensure!(etcd.status()?.is_none(), "etcd ended:\n{}", etcd.output());
        }
        Ok(etcdctl(spec, dir, "etcd-healthcheck-client", &["endpoint", "health"]).ok())
    })
    .map(drop)
}

fn wait_until_ready(dir: &Path, apiserver: &mut Process) -> Result<()> {
    let mut command = Command::new(program("kubectl")?);
    command.arg("--kubeconfig").arg(dir.join("kube-admin")).args(["get", "--raw", "/readyz"]);
    let ready = wait_for("the API server to be ready", START, || {
        ensure!(apiserver.status()?.is_none(), "it ended");
        Ok(run(&mut command).ok())
    });
    ready.map(drop).with_context(|| format!("it printed:\n{}", apiserver.output()))
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
