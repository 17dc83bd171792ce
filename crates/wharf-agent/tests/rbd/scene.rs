//! A real Ceph beside the world of volumes.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, channel},
    },
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use wharf_testbed::{ceph::Ceph, debian, devices::processes, wait_for};

use crate::{
    common::kubectl,
    world::{Pod, World},
};

/// Ceph's programs start slowly on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(180);
/// One scene at a time: devices that hang in one are seen by the agents of all.
static STAGE: Mutex<()> = Mutex::new(());
pub const CLUSTER: &str = "ceph";

pub struct Scene {
    pub world: World,
    pub ceph: Ceph,
    _stage: MutexGuard<'static, ()>,
}

impl Scene {
    pub fn new() -> Self {
        let stage = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
        let block = format!("/usr/lib/{}-linux-gnu/qemu/block-rbd.so", std::env::consts::ARCH);
        let needs = [("qemu-storage-daemon", "qemu-system-common"), (&block, "qemu-block-extra")];
        debian::ensure("volumes of Ceph", &needs).unwrap();
        let ceph = Ceph::start().unwrap();
        let world = World::new();
        let parameters = json!({
            "monitors": ceph.monitors(), "pool": ceph.pool(), "user": ceph.user(),
            "keyring": ceph.keyring(),
        });
        world.storage_of(CLUSTER, "rbd", &parameters);
        Self { world, ceph, _stage: stage }
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
        let state = self.world.path("state").display().to_string();
        processes(&state, &["qemu-storage-daemon"])
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
        let all = self.world.path("").display().to_string();
        for client in processes(&all, &["qemu-storage-daemon"]) {
            let _ = kill_process(client, Signal::KILL);
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
