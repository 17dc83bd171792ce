//! Real machines, a real server, and the command line between them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{path::PathBuf, process::Command, time::Duration};

use serde_json::{Value, json};
use wharf_bundle::{Bundle, cache::Cache};
use wharf_testbed::{Bind, Host, Options, TestBed, process::free_port, wait_for};

use crate::world::{Ran, World};

/// A machine that builds other things at the same time takes minutes for what takes seconds.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// Machines of a test, with a server that may turn them into clusters.
pub struct Bed {
    pub world: World,
    pub machines: TestBed,
    agents_port: Option<u16>,
}

impl Bed {
    /// Hosts that came with the bundle, so that nothing but the agent's program is uploaded.
    pub fn start(name: &str, hosts: usize) -> Self {
        Self::start_with(name, Options::hosts(hosts), World::empty())
    }

    /// The same, with a directory that all hosts share at this place: [`Self::shared`].
    pub fn start_sharing(name: &str, hosts: usize, at: &str) -> Self {
        let world = World::empty();
        let source = world.path("shared");
        std::fs::create_dir(&source).unwrap();
        let mut options = Options::hosts(hosts);
        let bind = Bind { source, target: at.into(), read_only: false };
        options.hosts.iter_mut().for_each(|host| host.binds.push(bind.clone()));
        Self::start_with(name, options, world)
    }

    fn start_with(name: &str, options: Options, world: World) -> Self {
        let options = options.with_bundle().unwrap();
        let machines = TestBed::start_with(&TestBed::unique_name(name), &options).unwrap();
        let mut bed = Self { world, machines, agents_port: None };
        bed.start_server();
        bed
    }

    /// The directory that all hosts share, as this machine sees it.
    pub fn shared(&self) -> PathBuf {
        self.world.path("shared")
    }

    pub fn start_server(&mut self) {
        self.start_server_with("");
    }

    /// The same with more in its configuration.
    pub fn start_server_with(&mut self, more: &str) {
        let cache = wharf_testbed::cache_dir().unwrap();
        let bundles = cache.join("bundles").display().to_string();
        let config = self.world.path("server.toml");
        // The same port whenever it is started, so that agents find it again.
        let port = *self.agents_port.get_or_insert_with(|| free_port().unwrap());
        let agents = format!("{}:{port}", self.machines.gateway());
        let text = format!(
            "bundles_dir = {bundles:?}\n{more}\n[agents]\nlisten = {agents:?}\naddresses = [{agents:?}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let config = config.display().to_string();
        self.world.start("127.0.0.1:0", &["--config", &config]);
    }

    /// Where agents are linked to the server.
    pub fn agents_port(&self) -> u16 {
        self.agents_port.unwrap()
    }

    pub fn host(&self, name: &str) -> &Host {
        self.machines.host(name).unwrap()
    }

    /// A wish for a cluster: the nodes with their roles, in order.
    pub fn wish(&self, name: &str, nodes: &[(&str, &[&str])]) -> Value {
        let nodes: Vec<Value> = nodes
            .iter()
            .map(|(host, roles)| {
                let address = self.host(host).address().to_string();
                json!({"name": host, "address": address, "roles": roles})
            })
            .collect();
        let key = std::fs::read_to_string(self.machines.ssh_key_path().unwrap()).unwrap();
        json!({
            "name": name,
            "nodes": nodes,
            "sshUser": "root",
            "sshKey": key,
            "singleCloudAddress": format!("{}:8443", self.machines.gateway()),
            "clusterUpstreamDNS": [],
        })
    }

    /// Runs `wharf cluster VERB… -f -` with a wish.
    pub fn send(&self, verb: &[&str], wish: &Value) -> Ran {
        let dir = self.world.data_dir().display().to_string();
        let args = [&["cluster"], verb, &["-f", "-", "--data-dir", &dir]].concat();
        self.world.run_with_input(&args, &wish.to_string())
    }

    /// The nodes of a cluster, as the command line lists them.
    pub fn nodes(&self, name: &str) -> Vec<Value> {
        let list = self.world.local(&["node", "list", name, "-o", "json"]).json();
        list.as_array().unwrap().clone()
    }

    /// Waits until the agents of so many nodes are linked, and nothing is wrong with them.
    pub fn wait_for_links(&self, name: &str, nodes: usize) {
        wait_for("the agents to be linked and well", DEADLINE, || {
            let agents: Vec<Value> =
                self.nodes(name).iter().map(|node| node["agent"].clone()).collect();
            let well = |agent: &&Value| agent["link"] == "linked" && agent["health"] == "ok";
            let count = agents.iter().filter(well).count();
            if count < nodes {
                anyhow::ensure!(agents.len() <= nodes, "{agents:?}");
            }
            Ok((count == nodes).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}: {:#?}", self.nodes(name)));
    }

    pub fn get(&self, name: &str) -> Value {
        self.world.local(&["cluster", "show", name, "-o", "json"]).json()
    }

    pub fn status(&self, name: &str) -> String {
        self.get(name)["status"].as_str().unwrap().to_owned()
    }

    /// The operations on a cluster, newest first.
    pub fn operations(&self, name: &str) -> Vec<Value> {
        let list = self.world.local(&["cluster", "operations", name, "-o", "json"]).json();
        list.as_array().unwrap().clone()
    }

    /// Waits for the end of the newest operation on a cluster.
    pub fn wait_for_end(&self, name: &str) -> Value {
        wait_for("the operation to end", DEADLINE, || {
            let last = self.operations(name).remove(0);
            Ok((last["state"] != "running").then_some(last))
        })
        .unwrap()
    }

    /// A private SSH key that no host knows.
    pub fn another_key(&self) -> String {
        let file = self.world.path("another-key");
        let mut make = Command::new("ssh-keygen");
        make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&file);
        assert!(make.status().unwrap().success());
        std::fs::read_to_string(&file).unwrap()
    }

    /// A file with the cluster's kubeconfig.
    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        let file = self.world.path(&format!("{name}.kubeconfig"));
        let text = self.world.local(&["cluster", "kubeconfig", name]).ok().stdout;
        std::fs::write(&file, text).unwrap();
        file
    }

    /// The same through the balancer on a worker, which listens for that machine only.
    pub fn kubectl_through(
        &self,
        worker: &str,
        cluster: &str,
        args: &[&str],
    ) -> Result<String, String> {
        let port = free_port().unwrap();
        let _tunnel = self.host(worker).tunnel(port, 6444).unwrap();
        let server = format!("https://127.0.0.1:{port}");
        self.kubectl(cluster, &[&["--server", &server], args].concat())
    }

    /// Makes these objects, as `kubectl apply` does.
    pub fn apply(&self, cluster: &str, objects: &[Value]) {
        let file = self.world.path("objects.json");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        std::fs::write(&file, list.to_string()).unwrap();
        self.kubectl(cluster, &["apply", "-f", &file.display().to_string()]).unwrap();
    }

    /// The full name of an image of the bundle.
    pub fn image(&self, component: &str) -> String {
        let dir = Cache::from_env().unwrap().default_bundle_dir();
        let bundle = Bundle::open(&dir).unwrap();
        bundle.image_of(component).unwrap().0.to_owned()
    }

    /// The bundle's kubectl with the administrator's rights.
    pub fn kubectl(&self, cluster: &str, args: &[&str]) -> Result<String, String> {
        let program = wharf_bundle::cache::find("kubectl").expect("kubectl is in the bundle");
        let output = Command::new(program)
            .arg("--kubeconfig")
            .arg(self.kubeconfig(cluster))
            .arg("--request-timeout=20s")
            .args(args)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }
}

impl Bed {
    /// Devices of a machine that lost its power stay in the kernel that all machines share. They go with
    /// their last user.
    pub fn detach_devices(&self) {
        for image in std::fs::read_dir(self.shared()).into_iter().flatten().flatten() {
            let found = Command::new("losetup").arg("-j").arg(image.path()).output();
            let text = found.map(|output| output.stdout).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            for device in text.lines().filter_map(|line| line.split(':').next()) {
                let _ = Command::new("losetup").args(["-d", device]).output();
            }
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.detach_devices();
    }
}

/// What a host holds that a cluster might leave behind: files, units, links, tables, mounts. Those of
/// credentials are systemd's, for as long as one of its own services runs: a timer starts one 15 minutes
/// after the boot.
pub fn inventory(host: &Host) -> Vec<String> {
    const LOOK: &str = "
        find /etc /opt /usr/local /var/lib /var/log/pods /var/log/containers /srv /root -xdev \
            -not -path '/var/lib/systemd/*' -not -path '/var/lib/dpkg/*' \
            -not -path '/var/lib/dbus/*' 2>/dev/null | sort
        find /var/lib/kubelet /var/lib/containerd -mindepth 1 -maxdepth 1 2>/dev/null | sort
        find /run -maxdepth 2 -xdev -name '*wharf*' 2>/dev/null | sort
        systemctl list-unit-files --no-legend --no-pager | awk '{print \"unit\", $1, $2}' | sort
        ip -o link | awk -F': ' '{print \"link\", $2}' | sed 's/@.*//' | sort
        ip route | sed 's/^/route /' | sort
        ls /run/netns 2>/dev/null | sed 's/^/netns /'
        nft list tables | sort
        awk '$5 !~ \"^/run/credentials/\" {print \"mount\", $5}' /proc/self/mountinfo | sort
        sysctl -n net.ipv4.ip_forward net.bridge.bridge-nf-call-iptables 2>/dev/null
        for dir in /sys/fs/cgroup/*/kubepods /sys/fs/cgroup/*/kubepods.slice; do
            [ -e $dir ] && echo cgroup $dir
        done
        pgrep -a 'kube|etcd|containerd|wharf' | awk '{print \"process\", $2}'
        true
    ";
    let text = host.run(&["sh", "-c", LOOK]).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The host holds what it held, nothing more and nothing less.
#[track_caller]
pub fn assert_as_before(host: &Host, before: &[String]) {
    let now = inventory(host);
    let more: Vec<_> = now.iter().filter(|line| !before.contains(line)).collect();
    let less: Vec<_> = before.iter().filter(|line| !now.contains(line)).collect();
    assert!(now == before, "{}: more {more:#?}, less {less:#?}", host.name());
}

/// Every file that an installation puts on a host, with all that changes when it is written, moved
/// or touched. Left out is what the components themselves keep writing.
pub fn stamps(host: &Host) -> Vec<String> {
    const LOOK: &str = r"find /etc /opt /usr/local /var/lib/wharf -xdev \
        \( -path /var/lib/wharf/etcd -o -path /var/lib/wharf/containerd \
           -o -path /var/lib/wharf/volumes \) -prune \
        -o -printf '%p %y %m %i %s %T@ %C@ %l\n' | sort";
    let text = host.run(&["sh", "-c", LOOK]).unwrap();
    text.lines().map(str::to_owned).collect()
}
