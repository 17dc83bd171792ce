//! The agent as a process of its own, and places to run it in.

#![allow(dead_code)]

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use wharf_api::node_files::AgentHealth;
use wharf_testbed::{
    apiserver::ApiServer,
    process::{Process, example},
    wait_for,
};

/// Changes are told by the kernel; the machine may be busy.
pub const SOON: Duration = Duration::from_secs(40);
pub const CLUSTER_ID: &str = "0b1a2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

/// An address of this machine in the small network of that number, which every process of tests has
/// for itself.
pub fn loopback(network: u8, host: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    let second = 64 + high % 128;
    // Sixteen networks of sixteen addresses.
    format!("127.{second}.{low}.{}", network * 16 + host)
}

/// A network of its own; gone with the value.
pub struct Namespace {
    name: String,
}

impl Namespace {
    pub fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let name = format!("wharf-agent-{}-{number}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]));
        let new = Self { name };
        new.ip(&["link", "set", "lo", "up"]);
        new
    }

    /// Runs a program in it.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = run(self.command(program).args(arguments));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn ip(&self, arguments: &[&str]) {
        self.run("ip", arguments);
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// A cable between two of them, both ends up.
    pub fn connect(&self, other: &Self, here: &str, there: &str) {
        self.ip(&["link", "add", here, "type", "veth", "peer", "name", there]);
        self.ip(&["link", "set", there, "netns", &other.name]);
        self.ip(&["link", "set", here, "up"]);
        other.ip(&["link", "set", there, "up"]);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    output
}

/// All rules of a namespace. Handles and counters are left out.
pub fn nft_rules(namespace: &Namespace) -> String {
    namespace.run("nft", &["-s", "list", "ruleset"])
}

/// The real agent on folders of its own.
pub struct Agent {
    dir: TempDir,
    run: PathBuf,
    process: Process,
    command: Box<dyn Fn() -> Command + Send + Sync>,
}

impl Agent {
    /// Starts it and waits until it tells of its health. It keeps no network.
    pub fn start(namespace: Option<&Namespace>, more: &str) -> Self {
        Self::start_trusting(namespace, more, None)
    }

    /// The same with a file of certificates instead of those of the machine.
    pub fn start_trusting(
        namespace: Option<&Namespace>,
        more: &str,
        authorities: Option<&Path>,
    ) -> Self {
        let authorities = authorities.map(|file| ("SSL_CERT_FILE", file.as_os_str()));
        Self::start_where(namespace, more, authorities.as_slice())
    }

    /// The same with variables in its environment.
    pub fn start_where(
        namespace: Option<&Namespace>,
        more: &str,
        environment: &[(&str, &OsStr)],
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let agent = Self::spawn(dir, run, namespace, more, environment);
        agent.wait_for_health();
        agent
    }

    /// The same on folders below a directory, by which its process is found when nobody ends it.
    pub fn start_below(place: &Path, more: &str) -> Self {
        fs::create_dir_all(place).unwrap();
        let dir = tempfile::tempdir_in(place).unwrap();
        let run = dir.path().join("run");
        let agent = Self::spawn(dir, run, None, more, &[]);
        agent.wait_for_health();
        agent
    }

    /// Starts it with another run directory, and waits for nothing.
    pub fn start_in(run: &Path, more: &str) -> Self {
        Self::spawn(tempfile::tempdir().unwrap(), run.to_owned(), None, more, &[])
    }

    fn spawn(
        dir: TempDir,
        run: PathBuf,
        namespace: Option<&Namespace>,
        more: &str,
        environment: &[(&str, &OsStr)],
    ) -> Self {
        let config = dir.path().join("agent.toml");
        let text = format!(
            "network_file = ''\nrun_dir = '{}'\npersist_dir = '{}/persist'\n{more}\n",
            run.display(),
            dir.path().display()
        );
        fs::write(&config, text).unwrap();
        let program = example("node_agent").unwrap();
        let name = namespace.map(|namespace| namespace.name.clone());
        let own = |(name, value): &(&str, &OsStr)| ((*name).to_owned(), (*value).to_owned());
        let environment: Vec<(String, OsString)> = environment.iter().map(own).collect();
        let command = Box::new(move || {
            let mut command = match &name {
                // `ip` replaces itself by the program: signals go to the agent.
                Some(name) => {
                    let mut command = Command::new("ip");
                    command.args(["netns", "exec", name]).arg(&program);
                    command
                }
                None => Command::new(&program),
            };
            command.arg(&config).envs(environment.iter().map(|(name, value)| (name, value)));
            command
        });
        let process = Process::spawn(command()).unwrap();
        Self { dir, run, process, command }
    }

    pub fn wait_for_health(&self) {
        let told = wait_for("the agent's health", SOON, || Ok(self.health()));
        assert!(told.is_ok(), "{}", self.process.output());
    }

    /// Kills it without a warning and starts it again on the same folders.
    pub fn restart(&mut self) {
        self.process.kill().unwrap();
        let _ = fs::remove_file(self.path("wharf/AgentHealth/global.json"));
        self.process = Process::spawn((self.command)()).unwrap();
        self.wait_for_health();
    }

    /// A file below its run directory.
    pub fn path(&self, file: &str) -> PathBuf {
        self.run.join(file)
    }

    pub fn persistent(&self, file: &str) -> PathBuf {
        self.dir.path().join("persist").join(file)
    }

    pub fn publish(&self, file: &str, value: &Value) {
        put(&self.path(file), value.to_string().as_bytes());
    }

    pub fn unpublish(&self, file: &str) {
        fs::remove_file(self.path(file)).unwrap();
    }

    pub fn read(&self, file: &str) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.path(file)).ok()?).ok()
    }

    pub fn health(&self) -> Option<AgentHealth> {
        let bytes = fs::read(self.path("wharf/AgentHealth/global.json")).ok()?;
        wharf_api::node_files::read(&bytes).ok()
    }

    pub fn is_healthy(&self) -> bool {
        self.health().is_some_and(|health| health.is_healthy())
    }

    /// Whether one of its tasks works and has no fault.
    pub fn works(&self, name: &str) -> bool {
        let tasks = self.health().map(|health| health.tasks.0).unwrap_or_default();
        tasks.iter().any(|task| task.name == name && task.working && task.faults.is_empty())
    }

    pub fn fault(&self, subject: &str) -> Option<String> {
        let health = self.health()?;
        let mut faults = health.tasks.iter().flat_map(|task| task.faults.iter());
        faults.find(|fault| fault.subject == subject).map(|fault| fault.reason.clone())
    }

    /// What is told of something that is no fault.
    pub fn note(&self, name: &str) -> Option<String> {
        let health = self.health()?;
        let mut notes = health.tasks.iter().flat_map(|task| task.conditions.iter());
        notes.find(|note| note.name == name).map(|note| note.text.clone())
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// As agents write: the whole file or none of it.
pub fn put(path: &Path, content: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let new = path.with_extension("tmp");
    fs::write(&new, content).unwrap();
    fs::rename(new, path).unwrap();
}

/// What curl got.
#[derive(Debug)]
pub struct Reply {
    pub code: u16,
    headers: String,
    pub body: String,
}

impl Reply {
    pub fn get(url: &str, arguments: &[&str]) -> Result<Self> {
        Self::of(Command::new("curl").args(CURL).args(arguments).arg(url).output()?)
    }

    fn of(output: Output) -> Result<Self> {
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout)?;
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        let code = head.split(' ').nth(1).unwrap_or_default().parse()?;
        Ok(Self { code, headers: head.to_owned(), body: body.to_owned() })
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let mut lines = self.headers.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

const CURL: &[&str] =
    &["-sS", "-i", "--connect-timeout", "3", "--max-time", "30", "--noproxy", "*"];

/// Asks from a namespace: a path below `base`, then curl's arguments.
pub fn curl(namespace: &Namespace, base: &str, arguments: &[&str]) -> Result<Reply> {
    let (path, arguments) = arguments.split_first().unwrap();
    let url = format!("{base}{path}");
    Reply::of(namespace.command("curl").args(CURL).args(arguments).arg(url).output()?)
}

pub fn kubectl(server: &ApiServer, arguments: &[&str], object: &Value) -> String {
    let mut child = Command::new(wharf_bundle::cache::find("kubectl").unwrap())
        .arg("--kubeconfig")
        .arg(server.kubeconfig_file())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(object.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

pub fn create(server: &ApiServer, object: &Value) {
    kubectl(server, &["create", "-f", "-"], object);
}

/// A virtual machine, as small as KubeVirt's schema lets it be.
pub fn machine(namespace: &str, name: &str, status: &Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "domain": { "devices": {} } }, "status": status,
    })
}
