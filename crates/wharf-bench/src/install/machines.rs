//! The machines of a measurement, and looks at what was made of them.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use serde_json::Value;
use wharf_testbed::{Host, Options, TestBed, wait_for};

const DNS: &str = include_str!("machines/dns.sh");
/// A machine that builds other things at the same time takes minutes for what takes seconds.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// Bare machines that came with the bundle's files, and what is added to them.
pub fn start(name: &str, count: usize, binds: &[wharf_testbed::Bind]) -> Result<TestBed> {
    let mut options = Options::hosts(count).with_bundle()?;
    options.hosts.iter_mut().for_each(|host| host.binds.extend(binds.iter().cloned()));
    TestBed::start_with(&TestBed::unique_name(name), &options)
}

/// Does the same on all hosts at the same time; gives the first error after all have ended.
pub fn on_all<T: Send>(
    hosts: &[Host],
    action: impl Fn(usize, &Host) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let action = &action;
    thread::scope(|scope| {
        let running: Vec<_> = hosts
            .iter()
            .enumerate()
            .map(|(place, host)| scope.spawn(move || action(place, host)))
            .collect();
        let results: Vec<Result<T>> = running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
            .collect();
        results.into_iter().collect()
    })
}

/// Gives a script to a shell on the host. The words must not need quoting.
pub fn run_script(host: &Host, shell: &str, script: &str, words: &[&str]) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), script)?;
    let mut command = host.ssh_command();
    command.args([shell, "-s", "--"]).args(words).stdin(File::open(file.path())?);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        bail!("{} ({}): {}", host.name(), output.status, text(&output.stderr).trim());
    }
    Ok(text(&output.stdout))
}

/// Puts our program where the server puts it, so that it need not be uploaded; where that is.
pub fn preload(program: &Path, hosts: &[Host]) -> Result<String> {
    let output = Command::new("sha256sum").arg(program).output().context("cannot run sha256sum")?;
    ensure!(output.status.success(), "cannot read {}", program.display());
    let sum = String::from_utf8_lossy(&output.stdout).chars().take(64).collect::<String>();
    let place = wharf_core::install::host::uploaded_path(&sum);
    on_all(hosts, |_, host| {
        let to = host.root().join(place.trim_start_matches('/'));
        to.parent().map(std::fs::create_dir_all).transpose()?;
        std::fs::copy(program, &to).with_context(|| format!("cannot write {}", to.display()))?;
        Ok(())
    })?;
    Ok(place)
}

/// The bundle's kubectl as the administrator of a cluster.
#[derive(Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    pub fn new(kubeconfig: PathBuf) -> Result<Kubectl> {
        let program = wharf_bundle::cache::find("kubectl")
            .context("there is no kubectl: run `cargo xtask assets`")?;
        Ok(Kubectl { program, kubeconfig })
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// What must succeed.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        self.run(words)?.with_context(|| format!("kubectl {words:?} failed"))
    }

    fn run(&self, words: &[&str]) -> Result<Option<String>> {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(words).stdin(Stdio::null());
        let output = command.output().context("cannot start kubectl")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(output.status.success().then_some(text))
    }

    /// Waits until all these nodes are there and Ready.
    pub fn wait_until_ready(&self, nodes: &[&str]) -> Result<()> {
        // It watches by itself, so that the look costs the cluster little.
        let mut words = vec!["wait", "--for=condition=Ready", "--timeout=60s"];
        let nodes: Vec<String> = nodes.iter().map(|node| format!("node/{node}")).collect();
        words.extend(nodes.iter().map(String::as_str));
        wait_for("all nodes to be ready", DEADLINE, || Ok(self.run(&words)?.map(drop)))
    }

    /// How many nodes the API says are Ready.
    pub fn ready_nodes(&self) -> Result<usize> {
        Ok(self.ready_times()?.len())
    }

    /// When the last of so many nodes became Ready, all of which must be.
    pub fn last_ready(&self, nodes: usize) -> Result<Timestamp> {
        let times = self.ready_times()?;
        ensure!(times.len() == nodes, "{} of {nodes} nodes are Ready", times.len());
        times.into_iter().max().context("there are no nodes")
    }

    fn ready_times(&self) -> Result<Vec<Timestamp>> {
        let list = self.run(&["get", "nodes", "-o", "json"])?.context("the API gives no nodes")?;
        let list: Value = serde_json::from_str(&list)?;
        let nodes = list.get("items").and_then(Value::as_array).context("no list of nodes")?;
        Ok(nodes.iter().filter_map(ready_since).collect())
    }
}

fn ready_since(node: &Value) -> Option<Timestamp> {
    let conditions = node.pointer("/status/conditions")?.as_array()?;
    let is_ready = |condition: &&Value| {
        let is = |key: &str, value: &str| condition.get(key).is_some_and(|v| v == value);
        is("type", "Ready") && is("status", "True")
    };
    conditions.iter().find(is_ready)?.get("lastTransitionTime")?.as_str()?.parse().ok()
}

/// Waits until the cluster's DNS answers this host.
pub fn wait_for_dns(host: &Host, address: &str) -> Result<()> {
    run_script(host, "bash", DNS, &[address]).map(drop).context("the cluster's DNS")
}

/// The load of the last minute: what else went on.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
