//! An API server, an agent for each node, and directories in the place of kubelet's.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use wharf_core::install::manifests::render_volumes;
use wharf_testbed::{apiserver::ApiServer, debian, devices, process::Process, wait_for};

use crate::temp_dir;

const START: Duration = Duration::from_secs(120);
/// Small, so that making file systems does not take longer than what is measured.
pub const IMAGE_BYTES: u64 = 32 << 20;

pub struct World {
    // In the order in which they end.
    pub node: Node,
    server: ApiServer,
    agent: PathBuf,
    pub dir: TempDir,
}

/// A node: its agent, and where its directories are.
pub struct Node {
    name: String,
    pub process: Process,
    place: PathBuf,
}

/// A pod that exists for the API server alone.
pub struct Pod {
    name: String,
    uid: String,
}

impl World {
    pub fn start(agent: &Path) -> Result<World> {
        let needs = [("mkfs.ext4", "e2fsprogs"), ("losetup", "mount"), ("fio", "fio")];
        debian::ensure("the benchmark of volumes", &needs)?;
        let agent = fs::canonicalize(agent).with_context(|| agent.display().to_string())?;
        let server = ApiServer::start()?;
        let dir = temp_dir()?;
        fs::create_dir(dir.path().join("images"))?;
        kubectl(&server, &["apply", "-f", "-"], &render_volumes())?;
        kubectl(&server, &["wait", "--for=condition=Established", "crd", "--all"], "")?;
        let node = Node::start(&server, &agent, "n0", dir.path().join("n0"))?;
        let world = World { node, server, agent, dir };
        let parameters = json!({ "directory": world.images() });
        world.create(&[storage("main", "loopfile", &parameters)])?;
        Ok(world)
    }

    /// One more node.
    pub fn second(&self, name: &str) -> Result<Node> {
        Node::start(&self.server, &self.agent, name, self.dir.path().join(name))
    }

    /// What lies beside the agent's program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.agent.with_file_name(name)
    }

    pub fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        kubectl(&self.server, arguments, "")
    }

    /// All at once: a call of kubectl takes longer than a mount.
    pub fn create(&self, objects: &[Value]) -> Result<()> {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        kubectl(&self.server, &["create", "-f", "-"], &list.to_string())?;
        Ok(())
    }

    pub fn pod(&self, node: &Node, name: &str) -> Result<Pod> {
        self.create(&[json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "nodeName": node.name, "containers": [{ "name": "c", "image": "none" }] },
        })])?;
        let uid = self.kubectl(&["get", "pod", name, "-o", "jsonpath={.metadata.uid}"])?;
        Ok(Pod { name: name.to_owned(), uid })
    }

    /// An image with a file system on it, as volumes have it from their second mount on.
    pub fn formatted(&self, name: &str) -> Result<PathBuf> {
        let path = self.images().join(format!("{name}.img"));
        File::create_new(&path)?.set_len(IMAGE_BYTES)?;
        run("mkfs.ext4", &["-q", &path.to_string_lossy()])?;
        Ok(path)
    }

    /// Ends everything, and sees that the agents have left nothing behind.
    pub fn end(self) -> Result<()> {
        let devices = devices::loop_devices(self.dir.path());
        let mounts = devices::mounts(self.dir.path());
        ensure!(devices.is_empty() && mounts.is_empty(), "left behind: {devices:?} {mounts:?}");
        Ok(())
    }
}

impl Drop for World {
    /// Also when something fails in the middle.
    fn drop(&mut self) {
        // Killed before what it would mount again is taken away.
        let _ = self.node.process.kill();
        devices::remove_below(self.dir.path());
    }
}

impl Node {
    fn start(server: &ApiServer, agent: &Path, name: &str, place: PathBuf) -> Result<Node> {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        kubectl(server, &["create", "-f", "-"], &node.to_string())?;
        fs::create_dir_all(&place)?;
        let config = place.join("agent.toml");
        let text = format!(
            "network_file = ''\nnode_name = '{name}'\nkubeconfig = '{kubeconfig}'\n\
             run_dir = '{place}/run'\npersist_dir = '{place}/persist'\n[volumes]\n\
             state_dir = '{place}/state'\nkubelet_root = '{place}/kubelet'\n\
             plugin_dir = '{place}/plugins'\n",
            kubeconfig = server.kubeconfig_file().display(),
            place = place.display(),
        );
        fs::write(&config, text)?;
        let mut command = Command::new(agent);
        command.args(["agent", "--config"]).arg(&config);
        let node = Node { name: name.to_owned(), process: Process::spawn(command)?, place };
        let works = || {
            let health = fs::read(node.place.join("run/wharf/AgentHealth/global.json"));
            let health: Value =
                serde_json::from_slice(&health.unwrap_or_default()).unwrap_or_default();
            let tasks = health.pointer("/Tasks").and_then(Value::as_array);
            let is_lease = |task: &&Value| task.get("Name") == Some(&json!("volumes-lease"));
            let lease = tasks.and_then(|tasks| tasks.iter().find(is_lease));
            let works = lease.and_then(|task| task.get("Working")) == Some(&json!(true));
            Ok((works && node.driver().exists()).then_some(()))
        };
        wait_for("the agent's lease for volumes", START, works)
            .with_context(|| node.process.output())?;
        Ok(node)
    }

    fn driver(&self) -> PathBuf {
        self.place.join("plugins/wharf.dev~volume/volume")
    }

    pub fn dir_of(&self, pod: &Pod, volume: &str) -> PathBuf {
        let below = format!("kubelet/pods/{}/volumes/wharf.dev~volume/{volume}", pod.uid);
        self.place.join(below)
    }

    /// Mounts a volume, whose image is called as it is, as kubelet would.
    pub fn mount(&self, cluster: &str, pod: &Pod, volume: &str) -> Result<Duration> {
        let options = json!({
            "kubernetes.io/fsType": "ext4", "kubernetes.io/readwrite": "rw",
            "kubernetes.io/pvOrVolumeName": volume, "kubernetes.io/pod.name": pod.name,
            "kubernetes.io/pod.namespace": "default", "kubernetes.io/pod.uid": pod.uid,
            "kubernetes.io/serviceAccount.name": "default",
            "storageCluster": cluster, "image": volume,
        });
        self.call(&["mount", &self.dir_of(pod, volume).to_string_lossy(), &options.to_string()])
    }

    pub fn unmount(&self, pod: &Pod, volume: &str) -> Result<Duration> {
        self.call(&["unmount", &self.dir_of(pod, volume).to_string_lossy()])
    }

    fn call(&self, arguments: &[&str]) -> Result<Duration> {
        let begin = Instant::now();
        let output = Command::new(self.driver()).args(arguments).output()?;
        let time = begin.elapsed();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if !output.status.success() || answer.get("status") != Some(&json!("Success")) {
            bail!("{answer}");
        }
        Ok(time)
    }
}

/// A storage cluster.
pub fn storage(name: &str, backend: &str, parameters: &Value) -> Value {
    json!({
        "apiVersion": "wharf.dev/v1", "kind": "StorageCluster", "metadata": { "name": name },
        "spec": { "backend": backend, "parameters": parameters },
    })
}

/// A volume whose image is called as it is.
pub fn volume(cluster: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "32Mi" }, "accessModes": ["ReadWriteOnce"],
            "flexVolume": {
                "driver": "wharf.dev/volume", "fsType": "ext4",
                "options": { "storageCluster": cluster, "image": name },
            },
        },
    })
}

/// Runs a program of the machine; answers what it printed.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {arguments:?}: {error}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn kubectl(server: &ApiServer, arguments: &[&str], input: &str) -> Result<String> {
    let program = wharf_bundle::cache::find("kubectl").context("kubectl is not built")?;
    let mut child = Command::new(program)
        .arg("--kubeconfig")
        .arg(server.kubeconfig_file())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("no input")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubectl {arguments:?}: {error}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
