//! Volumes of a block server: agents, workers and nodes are lost, and nobody else writes.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::process::{Signal as KernelSignal, kill_process};
use serde_json::{Value, json};
use wharf_block::nbd::{ImageName, client::Control};
use wharf_testbed::{
    devices::processes,
    process::{Process, Signal, binary},
    wait_for,
};

use crate::{
    common::{create, kubectl},
    world::{World, is_mounted},
};

const DEADLINE: Duration = Duration::from_secs(180);

/// A block server of this world.
pub struct BlockServer {
    pub process: Process,
    pub address: String,
}

impl BlockServer {
    pub fn start(world: &World) -> Self {
        Self::start_with(world, &json!({}))
    }

    /// With parameters of the storage cluster beside the server's address.
    pub fn start_with(world: &World, more: &Value) -> Self {
        let dir = world.path("served");
        fs::create_dir(&dir).unwrap();
        let mut command = Command::new(binary("wharf-block").unwrap());
        command.arg("serve").arg(dir).arg("127.0.0.1:0");
        let mut process = Process::spawn(command).unwrap();
        process.wait_for_output("listening on ", DEADLINE).unwrap();
        let said = process.output();
        let address = said.trim().rsplit(' ').next().unwrap().to_owned();
        let mut parameters = json!({ "server": address });
        parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.storage_of("net", "proxy", &parameters);
        Self { process, address }
    }

    /// A volume on a new image of 64 MiB.
    pub fn volume(&self, world: &World, name: &str, image: &str) {
        self.image(image, 64);
        world.volume_of("net", name, image);
    }

    /// A new image of so many MiB.
    pub fn image(&self, name: &str, size: u64) {
        let mut server = Control::connect(&self.address, DEADLINE).unwrap();
        server.create(&ImageName::new(name).unwrap(), size << 20).unwrap();
    }
}

/// Somebody who appends and syncs line after line, until an error or the end.
pub struct Writer {
    stop: Arc<AtomicBool>,
    synced: Arc<AtomicU64>,
    running: JoinHandle<io::Result<()>>,
}

impl Writer {
    pub fn start(path: PathBuf) -> Self {
        let (stop, synced) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (told, count) = (stop.clone(), synced.clone());
        let running = thread::spawn(move || {
            let mut file = File::options().append(true).create(true).open(path)?;
            while !told.load(Ordering::SeqCst) {
                writeln!(file, "{}", count.load(Ordering::SeqCst))?;
                file.sync_data()?;
                count.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        });
        Self { stop, synced, running }
    }

    /// Waits until it has got some lines further.
    pub fn wait_for_more(&self) {
        let goal = self.synced.load(Ordering::SeqCst) + 20;
        wait_for("the writer to get on", DEADLINE, || {
            Ok((self.synced.load(Ordering::SeqCst) >= goal).then_some(()))
        })
        .unwrap();
    }

    /// How many lines are on the disk, and how it ended.
    pub fn end(self) -> (u64, io::Result<()>) {
        self.stop.store(true, Ordering::SeqCst);
        self.ended()
    }

    /// Waits for the error that ends it.
    pub fn ended(self) -> (u64, io::Result<()>) {
        let ended = self.running.join().unwrap();
        (self.synced.load(Ordering::SeqCst), ended)
    }
}

/// The lines of a writer, which must all be there.
fn assert_log(path: &Path, at_least: u64) {
    let log = fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines.len() as u64 >= at_least, "{} of {at_least} lines", lines.len());
    for (number, line) in lines.iter().enumerate().take(usize::try_from(at_least).unwrap()) {
        assert_eq!(*line, number.to_string());
    }
}

#[test]
fn killed_agents_and_workers_cost_a_writer_nothing() {
    let mut world = World::new();
    let server = BlockServer::start(&world);
    server.volume(&world, "pv-1", "one");
    let pod = world.pod("a");
    let before = world.leftovers();
    assert_eq!(world.mount_of("net", &pod, "pv-1", "one"), Ok(()));
    let log = world.dir_of(&pod, "pv-1").join("log");
    let writer = Writer::start(log.clone());
    writer.wait_for_more();

    world.agent.process().kill().unwrap();
    writer.wait_for_more();
    let here = world.path("state").display().to_string();
    for _ in 0..3 {
        let worker = processes(&here, &["\0work\0"]);
        assert_eq!(worker.len(), 1, "a volume has one worker");
        kill_process(worker[0], KernelSignal::KILL).unwrap();
        writer.wait_for_more();
    }
    world.agent.restart();
    world.wait_ready();
    writer.wait_for_more();
    let (synced, ended) = writer.end();
    assert!(ended.is_ok(), "{ended:?}");
    assert_log(&log, synced);

    assert_eq!(world.unmount(&pod, "pv-1"), Ok(()));
    assert_eq!(world.leftovers(), before);
    assert_eq!(processes(&here, &["\0hold\0", "\0work\0"]), [], "no process is left");
}

/// The node is gone for Kubernetes, and its machine writes on. The volume goes to another node, the
/// machine can do no harm, and cleans up when it is a node again.
#[test]
fn a_lost_node_is_shut_out_and_cleans_up_when_it_comes_back() {
    let world = World::new();
    let mut lost = world.second("n1");
    let server = BlockServer::start(&world);
    server.volume(&world, "pv-1", "one");
    let there = world.pod_on("n1", &lost, "a");
    let here = world.pod("b");
    let before = world.leftovers();
    assert_eq!(world.mount_of("net", &there, "pv-1", "one"), Ok(()));
    let old = world.dir_of(&there, "pv-1");
    let writer = Writer::start(old.join("log"));
    writer.wait_for_more();
    let refused = world.mount_of("net", &here, "pv-1", "one").unwrap_err();
    assert!(refused.contains("default/a"), "{refused}");
    assert_eq!(world.conditions("pv-1")[0][0], "Waiting");

    lost.agent.process().kill().unwrap();
    kubectl(&world.server, &["delete", "node", "n1"], &Value::Null);
    world.wait_until("the volume to come here", |world| {
        world.mount_of("net", &here, "pv-1", "one").is_ok()
    });
    let (synced, ended) = writer.ended();
    assert!(ended.is_err(), "it was shut out");
    let dir = world.dir_of(&here, "pv-1");
    assert_log(&dir.join("log"), synced);
    fs::write(dir.join("mine"), "written by the new holder").unwrap();
    let mine = Writer::start(dir.join("new"));
    mine.wait_for_more();
    world.wait_until("what is left to be listed", |world| world.garbage("n1").len() == 1);
    assert_eq!(world.conditions("pv-1"), Vec::<[String; 3]>::new(), "who waited has it");
    let told = world.events("pv-1");
    let taken = "taken from node n1 for pod default/b: ";
    let is_told =
        |(reason, note): &&(String, String)| reason == "VolumeTakenOver" && note.starts_with(taken);
    assert_eq!(told.iter().filter(is_told).count(), 1, "{told:?}");
    assert!(is_mounted(&old), "nobody has cleaned up there yet");

    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
    create(&world.server, &node);
    lost.agent.restart();
    world.wait_until("the old node to let go", |world| {
        !is_mounted(&old) && world.garbage("n1").is_empty()
    });
    mine.wait_for_more();
    let (written, ended) = mine.end();
    assert!(ended.is_ok(), "the new holder saw nothing of it: {ended:?}");
    assert_log(&dir.join("new"), written);
    assert_eq!(world.unmount(&here, "pv-1"), Ok(()));
    world.wait_until("nothing to be left", |world| world.leftovers() == before);
}

/// The agent is started anew and hears of no API server. What it tells people of a volume ends with that.
#[test]
fn a_fault_of_a_volume_ends_with_it_also_where_no_record_could_say_so() {
    let mut world = World::new();
    let mut server = BlockServer::start_with(&world, &json!({ "deadAfterSeconds": "2" }));
    server.volume(&world, "pv-1", "one");
    let pod = world.pod("a");
    assert_eq!(world.mount_of("net", &pod, "pv-1", "one"), Ok(()));
    world.server.process().signal(Signal::STOP).unwrap();
    world.agent.restart();
    server.process.signal(Signal::STOP).unwrap();
    world.wait_until("it to be told", |world| world.agent.fault("volume pv-1").is_some());
    world.wait_until("the unmount", |world| world.unmount(&pod, "pv-1").is_ok());
    world.wait_until("it to be told no more", |world| world.agent.fault("volume pv-1").is_none());
    world.server.process().signal(Signal::CONT).unwrap();
    server.process.signal(Signal::CONT).unwrap();
    world.wait_until("the record to go", |world| world.record("pv-1").is_none());
}

/// The server is stopped, and goes on later. Nobody reads or writes meanwhile.
#[test]
fn a_block_server_that_falls_silent_is_told_of_until_it_is_back() {
    let world = World::new();
    // One waits for as long as it takes, the other gives up: what is told stays so until the server is back.
    let mut server = BlockServer::start_with(&world, &json!({ "deadAfterSeconds": "600" }));
    let impatient = json!({ "server": server.address, "deadAfterSeconds": "2" });
    world.storage_of("impatient", "proxy", &impatient);
    server.volume(&world, "pv-1", "pv-1");
    server.volume(&world, "pv-3", "pv-3");
    server.image("pv-2", 64);
    world.volume_of("impatient", "pv-2", "pv-2");
    let pods = [world.pod("a"), world.pod("b")];
    assert_eq!(world.mount_of("net", &pods[0], "pv-1", "pv-1"), Ok(()));
    assert_eq!(world.mount_of("impatient", &pods[1], "pv-2", "pv-2"), Ok(()));
    assert_eq!(world.agent.fault("volume pv-1"), None);

    server.process.signal(Signal::STOP).unwrap();
    let told = |world: &World, volume: &str, word: &str, part: &str| {
        let fault = world.agent.fault(&format!("volume {volume}")).unwrap_or_default();
        let said = world.conditions(volume);
        let is_said = |one: &[String; 3]| {
            let [kind, reason, message] = one;
            kind == "StorageAway" && reason == word && message.contains(part)
        };
        fault.contains(&server.address) && fault.contains(part) && said.iter().any(is_said)
    };
    world.wait_until("it to be told", |world| {
        told(world, "pv-1", "Reconnecting", "reads and writes wait")
    });
    world.wait_until("its end to be told", |world| {
        told(world, "pv-2", "Dead", "reads and writes fail")
    });
    let said = world.conditions("pv-1");
    let [[_, _, message]] = said.as_slice() else { panic!("{said:?}") };
    let begin =
        format!("node n0 does not reach the volume's storage: the block server {}", server.address);
    assert!(message.starts_with(&begin), "{message}");
    assert_eq!(world.agent.fault("volume pv-3"), None, "nobody has it");

    server.process.signal(Signal::CONT).unwrap();
    for (pod, volume) in pods.iter().zip(["pv-1", "pv-2"]) {
        world.wait_until("it to be told no more", |world| {
            world.agent.fault(&format!("volume {volume}")).is_none()
                && world.conditions(volume).is_empty()
        });
        assert_eq!(world.unmount(pod, volume), Ok(()));
    }
}
