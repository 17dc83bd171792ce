//! Bare machines, made a cluster by a server of ours that the command line asks for one.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use wharf_testbed::{TestBed, process::Process};

use super::{
    cluster::Shape,
    machines::{self, Kubectl, run_script},
};
use crate::temp_dir;

const START: Duration = Duration::from_secs(60);
const CLUSTER: &str = "bench";

/// Seconds from the start of `wharf cluster create` to its end, when the cluster is Running: all
/// nodes Ready, DNS and the pod network verified. And how long each phase took.
pub fn install(wharf: &Path, shape: Shape) -> Result<(f64, String)> {
    let bed = machines::start("install", shape.machines(), &[])?;
    machines::preload(wharf, bed.hosts())?;
    let server = Server::start(wharf)?;
    let begin = Instant::now();
    server.create(&bed, shape)?;
    let seconds = begin.elapsed().as_secs_f64();
    server.check(&bed, shape)?;
    let phases = server.phases()?;
    drop(server);
    bed.down()?;
    Ok((seconds, phases))
}

fn wish(bed: &TestBed, shape: Shape) -> Result<Value> {
    let node = |(place, host): (usize, &wharf_testbed::Host)| {
        let roles: &[&str] =
            if place < shape.controlplanes { &["controlplane", "etcd"] } else { &["worker"] };
        json!({"name": host.name(), "address": host.address().to_string(), "roles": roles})
    };
    let nodes: Vec<Value> =
        bed.hosts().iter().take(shape.machines()).enumerate().map(node).collect();
    Ok(json!({
        "name": CLUSTER,
        "nodes": nodes,
        "sshUser": "root",
        "sshKey": std::fs::read_to_string(bed.ssh_key_path()?)?,
        "singleCloudAddress": format!("{}:8443", bed.gateway()),
        "clusterUpstreamDNS": [],
    }))
}

/// A server on data of its own.
pub struct Server {
    wharf: PathBuf,
    home: TempDir,
    _process: Process,
}

impl Server {
    pub fn start(wharf: &Path) -> Result<Server> {
        let home = temp_dir()?;
        let path = |name: &str| home.path().join(name);
        std::fs::write(path("password"), "correct horse battery")?;
        let bundles = wharf_testbed::cache_dir()?.join("bundles").display().to_string();
        std::fs::write(path("server.toml"), format!("bundles_dir = {bundles:?}\n"))?;
        let mut command = Command::new(wharf);
        command.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(path("data"));
        command.arg("--admin-password-file").arg(path("password"));
        command.arg("--config").arg(path("server.toml"));
        let mut process = Process::spawn(command)?;
        process.wait_for_output("\"serving http", START)?;
        Ok(Server { wharf: wharf.to_owned(), home, _process: process })
    }

    /// Returns when the cluster is Running.
    pub fn create(&self, bed: &TestBed, shape: Shape) -> Result<()> {
        self.ask(&["cluster", "create", "-f", "-"], &wish(bed, shape)?.to_string()).map(drop)
    }

    /// The same for a cluster that is there.
    pub fn update(&self, bed: &TestBed, shape: Shape) -> Result<()> {
        let words = ["cluster", "update", CLUSTER, "-f", "-"];
        self.ask(&words, &wish(bed, shape)?.to_string()).map(drop)
    }

    /// A file with the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> Result<PathBuf> {
        let file = self.home.path().join("kubeconfig");
        std::fs::write(&file, self.ask(&["cluster", "kubeconfig", CLUSTER], "")?)?;
        Ok(file)
    }

    /// Runs the command line against it and gives what it printed.
    fn ask(&self, words: &[&str], input: &str) -> Result<String> {
        let mut child = Command::new(&self.wharf)
            .args(words)
            .arg("--data-dir")
            .arg(self.home.path().join("data"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().context("no standard input")?;
        stdin.write_all(input.as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("wharf {words:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What `Running` says is looked at by others: kubectl, and a host that asks DNS.
    fn check(&self, bed: &TestBed, shape: Shape) -> Result<()> {
        let ready = Kubectl::new(self.kubeconfig()?)?.ready_nodes()?;
        ensure!(ready == shape.machines(), "only {ready} of our nodes are Ready");
        let shown = self.ask(&["cluster", "show", CLUSTER, "-o", "json"], "")?;
        let shown: Value = serde_json::from_str(&shown)?;
        let address = shown.get("clusterDNSServiceIP").and_then(Value::as_str);
        let address = address.context("the cluster names no DNS address")?;
        let host = bed.hosts().last().context("there are no machines")?;
        let route = format!("ip route replace {address} dev host0");
        run_script(host, "sh", &route, &[])?;
        machines::wait_for_dns(host, address)
    }

    /// The phases of the newest operation with their seconds.
    fn phases(&self) -> Result<String> {
        let list = self.ask(&["cluster", "operations", CLUSTER, "-o", "json"], "")?;
        let list: Value = serde_json::from_str(&list)?;
        let phases = list.pointer("/0/phases").and_then(Value::as_array).context("no phases")?;
        let words: Vec<String> = phases.iter().filter_map(phase_in_words).collect();
        Ok(words.join(", "))
    }
}

fn phase_in_words(phase: &Value) -> Option<String> {
    let time = |key: &str| phase.get(key)?.as_str()?.parse::<jiff::Timestamp>().ok();
    let took = time("endedAt")?.duration_since(time("startedAt")?).as_secs_f64();
    Some(format!("{} {took:.1}", phase.get("name")?.as_str()?))
}
