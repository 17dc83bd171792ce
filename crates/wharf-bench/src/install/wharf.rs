//! Bare machines, made a cluster by a server of ours that the command line asks for one.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;
use wharf_testbed::{
    TestBed,
    process::{Process, free_port},
};

use super::{
    cluster::Shape,
    machines::{self, Kubectl},
};
use crate::temp_dir;

const START: Duration = Duration::from_secs(60);
const CLUSTER: &str = "bench";

/// What DNS is asked at; the default, which is known before there is a cluster.
const DNS_ADDRESS: &str = "10.43.0.10";

/// How long a cluster took, from the start of `wharf cluster create`, in seconds.
pub struct Installed {
    /// Until all nodes were Ready and DNS answered a host: what kubeadm is measured by.
    pub ready: f64,
    /// Until the command ended, with DNS and the pod network proved from a pod on every node.
    pub running: f64,
    /// What each phase took.
    pub phases: String,
}

pub fn install(wharf: &Path, shape: Shape) -> Result<Installed> {
    let bed = machines::start("install", shape.machines(), &[])?;
    machines::preload(wharf, bed.hosts())?;
    let server = Server::start(wharf, wharf, &bed)?;
    let host = bed.hosts().last().context("there are no machines")?;
    let begin = (Instant::now(), Timestamp::now());
    let (answered, running) = thread::scope(|scope| -> Result<_> {
        let dns = scope.spawn(|| {
            machines::wait_for_dns(host, DNS_ADDRESS).map(|()| begin.0.elapsed().as_secs_f64())
        });
        server.create(&bed, shape)?;
        let running = begin.0.elapsed().as_secs_f64();
        let answered = dns.join().map_err(|_| anyhow!("the thread that asks DNS panicked"))??;
        Ok((answered, running))
    })?;
    let last = Kubectl::new(server.kubeconfig()?)?.last_ready(shape.machines())?;
    // The time is told in whole seconds: it may have been up to one later.
    let all_ready = last.duration_since(begin.1).as_secs_f64() + 1.0;
    let phases = server.phases()?;
    drop(server);
    bed.down()?;
    Ok(Installed { ready: all_ready.max(answered), running, phases })
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
    /// Hosts get the program `agent`; those of the bed find the server.
    pub fn start(wharf: &Path, agent: &Path, bed: &TestBed) -> Result<Server> {
        let home = temp_dir()?;
        let path = |name: &str| home.path().join(name);
        std::fs::write(path("password"), "correct horse battery")?;
        let bundles = wharf_testbed::cache_dir()?.join("bundles").display().to_string();
        let agents = format!("{}:{}", bed.gateway(), free_port()?);
        let config = format!(
            "bundles_dir = {bundles:?}\nagent_program = {:?}\n\
             [agents]\nlisten = {agents:?}\naddresses = [{agents:?}]\n",
            std::path::absolute(agent)?.display().to_string()
        );
        std::fs::write(path("server.toml"), config)?;
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
    let time = |key: &str| phase.get(key)?.as_str()?.parse::<Timestamp>().ok();
    let took = time("endedAt")?.duration_since(time("startedAt")?).as_secs_f64();
    Some(format!("{} {took:.1}", phase.get("name")?.as_str()?))
}
