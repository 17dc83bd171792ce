//! A real Ceph beside the world of volumes, and a second node.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use wharf_testbed::{ceph::Ceph, debian, process::binary, wait_for};

use crate::{
    common::{Agent, create, kubectl},
    world::{Pod, World},
};

/// Ceph's programs start slowly on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);
pub const CLUSTER: &str = "ceph";

pub struct Scene {
    pub world: World,
    pub ceph: Ceph,
}

impl Scene {
    pub fn new() -> Self {
        let block = format!("/usr/lib/{}-linux-gnu/qemu/block-rbd.so", std::env::consts::ARCH);
        let needs = [("qemu-storage-daemon", "qemu-system-common"), (&block, "qemu-block-extra")];
        debian::ensure("volumes of Ceph", &needs).unwrap();
        let ceph = Ceph::start().unwrap();
        let world = World::new();
        let parameters = json!({
            "monitors": ceph.monitors(), "pool": ceph.pool(), "user": ceph.user(),
            "keyring": ceph.keyring(),
        });
        create(
            &world.server,
            &json!({
                "apiVersion": "wharf.dev/v1", "kind": "StorageCluster",
                "metadata": { "name": CLUSTER },
                "spec": { "backend": "rbd", "parameters": parameters },
            }),
        );
        Self { world, ceph }
    }

    /// An image of so many MiB, and its volume.
    pub fn volume(&self, name: &str, image: &str, size: u64) {
        self.rbd(&["create", &self.of_pool(image), "--size", &format!("{size}M")]);
        self.world.volume_of(CLUSTER, name, image);
    }

    pub fn of_pool(&self, image: &str) -> String {
        format!("{}/{image}", self.ceph.pool())
    }

    pub fn rbd(&self, words: &[&str]) -> String {
        self.ceph.run("rbd", words).unwrap()
    }

    pub fn images(&self) -> Vec<String> {
        self.rbd(&["ls", self.ceph.pool()]).lines().map(str::to_owned).collect()
    }

    /// The addresses of the clients that Ceph knows of.
    pub fn watchers(&self, image: &str) -> Vec<String> {
        let text = self.rbd(&["status", &self.of_pool(image), "--format", "json"]);
        let status: Value = serde_json::from_str(&text).unwrap();
        let address = |watcher: &Value| watcher["address"].as_str().unwrap().to_owned();
        status["watchers"].as_array().unwrap().iter().map(address).collect()
    }

    /// What is written down beside an image.
    pub fn ledger(&self, image: &str) -> Vec<String> {
        let object = format!("wharf.{image}");
        let list = ["--pool", self.ceph.pool(), "listomapkeys", &object];
        self.ceph.run("rados", &list).unwrap().lines().map(str::to_owned).collect()
    }

    pub fn forget(&self, image: &str, key: &str) {
        let object = format!("wharf.{image}");
        self.ceph.run("rados", &["--pool", self.ceph.pool(), "rmomapkey", &object, key]).unwrap();
    }

    /// The year until which a client is shut out.
    pub fn shut_out_until(&self, address: &str) -> Option<u32> {
        let list = self.ceph.run("ceph", &["osd", "blocklist", "ls"]).unwrap();
        let until = list.lines().find_map(|line| line.strip_prefix(address))?;
        until.trim().split('-').next()?.parse().ok()
    }

    /// The entry of the only holder.
    pub fn entry(&self, volume: &str) -> Value {
        self.world.record(volume).unwrap()["attachments"][0].clone()
    }

    /// Changes the entry of the only holder.
    pub fn change_entry(&self, volume: &str, key: &str, value: &str) {
        let path = format!("/attachments/0/{key}");
        let patch = json!([{ "op": "replace", "path": path, "value": value }]).to_string();
        let words = ["patch", "attachments.wharf.dev", volume, "--type=json", "-p", &patch];
        kubectl(&self.world.server, &words, &Value::Null);
    }

    pub fn mount(&self, pod: &Pod, volume: &str, image: &str) -> Result<(), String> {
        self.world.mount_of(CLUSTER, pod, volume, image)
    }

    /// The processes that serve images to the first node.
    pub fn clients(&self) -> Vec<Pid> {
        clients(&self.world.path(""))
    }

    pub fn signal_clients(&self, signal: Signal) {
        for client in self.clients() {
            kill_process(client, signal).unwrap();
        }
    }

    pub fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        wait_for(what, DEADLINE, || Ok(is_so(self).then_some(())))
            .unwrap_or_else(|error| panic!("{error:?}: {:#?}", self.world.leftovers()));
    }
}

impl Drop for Scene {
    /// What hangs comes loose with its client; the world then removes the rest.
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.world.agent.process().output());
        }
        let _ = self.world.agent.process().kill();
        end_clients(&self.world.path(""));
    }
}

fn clients(dir: &Path) -> Vec<Pid> {
    let dir = dir.display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ours = processes.filter(|process| {
        let line = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
        line.starts_with("qemu-storage-daemon") && line.contains(&dir)
    });
    ours.filter_map(|process| Pid::from_raw(process.file_name().to_str()?.parse().ok()?)).collect()
}

fn end_clients(dir: &Path) {
    for client in clients(dir) {
        let _ = kill_process(client, Signal::KILL);
    }
}

/// Another node on the same machine.
pub struct Second {
    pub agent: Agent,
    dir: TempDir,
}

impl Second {
    pub const NAME: &str = "n1";

    pub fn new(scene: &Scene) -> Self {
        let node =
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": Self::NAME } });
        create(&scene.world.server, &node);
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "node_name = '{}'\nkubeconfig = '{}'\n[volumes]\nstate_dir = '{2}/state'\n\
             kubelet_root = '{2}/kubelet'\nplugin_dir = '{2}/plugins'\ndriver = '{3}'\n",
            Self::NAME,
            scene.world.server.kubeconfig_file().display(),
            dir.path().display(),
            binary("wharf-flex").unwrap().display(),
        );
        let agent = Agent::start(None, &config);
        let second = Self { agent, dir };
        let is_ready = || second.agent.works("volumes-lease") && second.driver().exists();
        wait_for("the second agent", DEADLINE, || Ok(is_ready().then_some(()))).unwrap();
        second
    }

    fn driver(&self) -> PathBuf {
        self.dir.path().join("plugins/wharf.dev~volume/volume")
    }

    pub fn pod(&self, scene: &Scene, name: &str) -> Pod {
        create(
            &scene.world.server,
            &json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
                "spec": { "nodeName": Self::NAME, "containers": [{ "name": "c", "image": "none" }] },
            }),
        );
        let get = ["get", "pod", name, "-o", "jsonpath={.metadata.uid}"];
        let uid = kubectl(&scene.world.server, &get, &Value::Null);
        Pod { name: name.to_owned(), uid }
    }

    pub fn dir_of(&self, pod: &Pod, volume: &str) -> PathBuf {
        let below = format!("kubelet/pods/{}/volumes/wharf.dev~volume/{volume}", pod.uid);
        self.dir.path().join(below)
    }

    pub fn mount(&self, scene: &Scene, pod: &Pod, volume: &str, image: &str) -> Result<(), String> {
        let mut options = scene.world.options(pod, volume, image);
        options["storageCluster"] = json!(CLUSTER);
        self.call(&["mount", self.dir_of(pod, volume).to_str().unwrap(), &options.to_string()])
    }

    pub fn unmount(&self, pod: &Pod, volume: &str) -> Result<(), String> {
        self.call(&["unmount", self.dir_of(pod, volume).to_str().unwrap()])
    }

    fn call(&self, arguments: &[&str]) -> Result<(), String> {
        let output = Command::new(self.driver()).args(arguments).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        match answer["status"].as_str().unwrap() {
            "Success" => Ok(()),
            status => Err(format!("{status}: {}", answer["message"].as_str().unwrap_or_default())),
        }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("second: {}", self.agent.process().output());
        }
        let _ = self.agent.process().kill();
        let here = self.dir.path().display().to_string();
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            if line.contains("volume-guard") && line.contains(&here) {
                let _ = Command::new("kill").arg("-9").arg(process.file_name()).status();
            }
        }
        let devices = fs::read_dir("/sys/block").unwrap().flatten().filter(|device| {
            let file = fs::read_to_string(device.path().join("loop/backing_file"));
            file.is_ok_and(|file| file.contains(&here))
        });
        let devices: Vec<_> = devices.map(|it| Path::new("/dev").join(it.file_name())).collect();
        end_clients(self.dir.path());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
        for point in points.into_iter().rev().filter(|point| point.contains(&here)) {
            let _ = Command::new("umount").args(["-l", point]).output();
        }
        for device in devices {
            let _ = Command::new("losetup").arg("-d").arg(device).output();
        }
    }
}

/// Writes a file and sees that it is stored.
pub fn store(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// The same beside the test: it may hang.
pub fn store_aside(path: &Path, text: &str) -> Receiver<io::Result<()>> {
    let (sender, receiver) = channel();
    let (path, text) = (path.to_owned(), text.to_owned());
    thread::spawn(move || {
        let _nobody_waits = sender.send(store(&path, &text));
    });
    receiver
}
