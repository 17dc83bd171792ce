//! The guard: what it does about storage that hangs, containers that are started anew, journals that
//! cannot be read, and what becomes of one that hangs or is of another version.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use rustix::process::{Pid, Signal as KernelSignal, kill_process};
use serde_json::{Value, json};
use wharf_block::{
    nbd::ImageName,
    proxy::{self, Options, Program},
};
use wharf_testbed::{
    devices::processes,
    process::{Signal, binary, example},
};

use crate::{
    common::kubectl,
    hung::Stopped,
    proxy::BlockServer,
    world::{World, is_mounted, run},
};

const SHORT: &str = "lease_seconds = 10";
const LEASE: &str = "the lease for volumes";

/// The number of the tenure, as others see it.
fn tenure(world: &World) -> u64 {
    let path = "jsonpath={.spec.leaseTransitions}";
    let lease = format!("volumes-{}", world.node());
    let get = ["get", "lease", &lease, "-n", "wharf-system", "-o", path];
    kubectl(&world.server, &get, &Value::Null).parse().unwrap()
}

fn guards(world: &World) -> BTreeSet<i32> {
    let all = processes(&world.path("state").display().to_string(), &["volume-guard"]);
    all.into_iter().map(|pid| pid.as_raw_nonzero().get()).collect()
}

fn signal(process: i32, signal: KernelSignal) {
    kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
}

/// The node loses the API server and its storage at once. It cannot know that nothing is written any more,
/// and others take over when its lease has ended: it forces itself down then, and if that does
/// nothing (here it is only a file), no new tenure says that all is well.
#[test]
fn a_cut_that_cannot_be_verified_keeps_the_tenure_closed_and_forces_the_machine_down() {
    let place = tempfile::tempdir().unwrap();
    let trigger = place.path().join("trigger");
    let reboot = format!("self_fence_reboot = true\nreboot_trigger = '{}'", trigger.display());
    let mut world = World::with(&format!("{SHORT}\n{reboot}"));
    let server = BlockServer::start(&world);
    server.image("back", 64);
    let disk = fuse_file(&world, &server);
    // The image lies on a directory whose server can be stopped.
    File::create(world.path("images/frozen.img")).unwrap();
    run("mount", &[Path::new("--bind"), &disk, &world.path("images/frozen.img")]);
    world.volume("pv-frozen", "frozen", &json!({}));
    world.image("well", 64);
    world.volume("pv-well", "well", &json!({}));
    let (frozen, well) = (world.pod("a"), world.pod("b"));
    let before = world.leftovers();
    assert_eq!(world.mount(&frozen, "pv-frozen", "frozen"), Ok(()));
    assert_eq!(world.mount(&well, "pv-well", "well"), Ok(()));
    let held = tenure(&world);

    let worker = processes(&world.path("fuse").display().to_string(), &["\0work\0"]);
    let stopped = Stopped::new(worker[0]);
    // What is remembered of the file would be told without its server.
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    world.server.process().signal(Signal::STOP).unwrap();
    world.wait_until("the machine to be forced down", |_| {
        fs::read_to_string(&trigger).is_ok_and(|said| said == "b")
    });
    assert!(!is_writable(&world.dir_of(&well, "pv-well")), "what hangs keeps no other volume");
    world.server.process().signal(Signal::CONT).unwrap();
    let names = |world: &World| world.agent.fault(LEASE).is_some_and(|it| it.contains("pv-frozen"));
    world.wait_until("the volume to be named", names);
    world.wait_until("the other volume to leave", |world| world.record("pv-well").is_none());
    assert!(names(&world), "{:?}", world.agent.fault(LEASE));
    assert_eq!(tenure(&world), held, "others would take a new one for the proof of a cut");
    assert!(world.record("pv-frozen").is_some());

    drop(stopped);
    world.wait_until("the volume to leave", |world| world.record("pv-frozen").is_none());
    world.wait_until("a new tenure", |world| tenure(world) > held);
    world.wait_until("the journals to go", |world| world.leftovers() == before);
}

/// A file of a block server, as the kernel sees one of a network file system.
pub fn fuse_file(world: &World, server: &BlockServer) -> std::path::PathBuf {
    let options = Options {
        address: server.address.clone(),
        image: ImageName::new("back").unwrap(),
        generation: 1,
        read_only: false,
        dead_after: Duration::from_secs(600),
        threads: proxy::DEFAULT_THREADS,
    };
    let program = Program { path: binary("wharf-block").unwrap(), arguments: Vec::new() };
    proxy::start(&program, &world.path("fuse"), &options).unwrap().disk
}

fn is_writable(dir: &Path) -> bool {
    is_mounted(dir) && fs::write(dir.join("written"), "x").is_ok()
}

/// Mounts of its own with a pod's directory among them, and a process that writes there.
pub struct Container(Child);

impl Container {
    /// As a container, it has what it was given, and not what the host has: what is unmounted there, also
    /// by other tests, leaves it too.
    pub fn start(world: &World, dir: &Path) -> Self {
        let volume = dir.file_name().unwrap().to_str().unwrap();
        let staging = world.path(&format!("kubelet/plugins/wharf.dev/volume/mounts/{volume}"));
        let script = format!(
            "mount --bind {0} /mnt; umount -l {1} {0} 2>/dev/null; \
             while :; do echo line >> /mnt/log; sleep 0.05; done",
            dir.display(),
            staging.display(),
        );
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "slave", "sh", "-c", &script]);
        Self(command.spawn().unwrap())
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// kubelet starts the containers of a pod anew in the directory that it knows.
#[test]
fn a_directory_is_taken_from_its_pods_and_a_container_that_is_started_anew_does_not_get_it() {
    let mut world = World::with(SHORT);
    let shared = world.path("shared");
    fs::create_dir_all(shared.join("one")).unwrap();
    world.storage_of("shared", "dir", &json!({ "directory": shared }));
    world.volume_of("shared", "pv-dir", "one");
    let pod = world.pod("a");
    let before = world.leftovers();
    assert_eq!(world.mount_of("shared", &pod, "pv-dir", "one"), Ok(()));
    let dir = world.dir_of(&pod, "pv-dir");
    let mut container = Container::start(&world, &dir);
    let log = shared.join("one/log");
    let length = |path: &Path| path.metadata().map_or(0, |found| found.len());
    world.wait_until("the container to write", |_| length(&log) > 0);

    world.agent.process().kill().unwrap();
    let ended = std::cell::RefCell::new(&mut container);
    world.wait_until("the container to be ended", |_| ended.borrow_mut().has_ended());
    let written = length(&log);
    assert!(!is_mounted(&dir), "nobody who is started now gets it");
    let _again = Container::start(&world, &dir);
    world.wait_until("it to write to what is there", |_| length(&dir.join("log")) > 0);
    assert_eq!(length(&log), written);

    world.agent.restart();
    world.wait_until("the record to go", |world| world.record("pv-dir").is_none());
    world.wait_until("the journal to go", |world| world.leftovers() == before);
    assert_eq!(length(&log), written);
}

/// Both volumes are cut off, and of one pod somebody does not want the end.
#[test]
fn a_pod_that_may_not_be_deleted_keeps_no_other_whose_volume_was_cut_off() {
    let mut world = World::with(SHORT);
    let pods = [("a", "pv-1"), ("b", "pv-2")].map(|(name, volume)| {
        world.image(volume, 64);
        world.volume(volume, volume, &json!({}));
        let pod = world.pod(name);
        assert_eq!(world.mount(&pod, volume, volume), Ok(()));
        pod
    });
    world.protect("pods", "a");
    world.server.process().signal(Signal::STOP).unwrap();
    world.wait_until("the volumes to be taken away", |world| world.devices().is_empty());
    world.server.process().signal(Signal::CONT).unwrap();
    world.wait_until("the other pod to be deleted", |world| world.is_deleted(&pods[1]));
    world.wait_until("people to be told of the first", |world| {
        let told = world.agent.fault("pods whose volumes were cut off");
        told.is_some_and(|why| why.contains("it is protected"))
    });
    assert!(!world.is_deleted(&pods[0]));
}

#[test]
fn a_guard_that_hangs_or_is_another_is_replaced_and_the_lease_goes_on() {
    let mut world = World::with(SHORT);
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    let pod = world.pod("a");
    assert_eq!(world.mount(&pod, "pv-1", "one"), Ok(()));
    let (held, first) = (tenure(&world), guards(&world));
    assert_eq!(first.len(), 1);

    first.iter().for_each(|guard| signal(*guard, KernelSignal::STOP));
    let is_new = |known: &BTreeSet<i32>| {
        let now = guards(&world);
        (now.len() == 1 && now.is_disjoint(known)).then_some(now)
    };
    world.wait_until("another guard", |_| is_new(&first).is_some());
    let second = is_new(&first).unwrap();

    // The same program in another file: an update.
    let other = world.path("other-agent");
    fs::copy(example("node_agent").unwrap(), &other).unwrap();
    let mut command = Command::new(&other);
    command.args(["agent", "volume-guard", "--state-dir"]).arg(world.path("state"));
    command.arg("--kubelet-root").arg(world.path("kubelet"));
    let mut stranger = command.spawn().unwrap();
    let mut known: BTreeSet<i32> = &first | &second;
    known.insert(stranger.id().try_into().unwrap());
    stranger.wait().unwrap();
    world.wait_until("a guard of the agent's own", |_| is_new(&known).is_some());

    assert_eq!(tenure(&world), held);
    assert!(world.device_bytes() != [0] && is_writable(&world.dir_of(&pod, "pv-1")));
    world.agent.process().kill().unwrap();
    world.wait_until("the device to be empty", |world| world.device_bytes() == [0]);
}

/// One of a volume that is in use, and one of which nothing is there.
#[test]
fn a_journal_that_cannot_be_read_keeps_no_other_volume_and_its_own_is_cut_off() {
    let mut world = World::with(SHORT);
    for (volume, image) in [("pv-bad", "bad"), ("pv-well", "well")] {
        world.image(image, 64);
        world.volume(volume, image, &json!({}));
    }
    let (bad, well) = (world.pod("a"), world.pod("b"));
    assert_eq!(world.mount(&bad, "pv-bad", "bad"), Ok(()));
    assert_eq!(world.mount(&well, "pv-well", "well"), Ok(()));
    let held = tenure(&world);
    world.agent.process().kill().unwrap();
    let journals = world.path("state/journals");
    for volume in ["pv-bad", "pv-none"] {
        fs::write(journals.join(format!("{volume}.json")), "{").unwrap();
    }

    world.wait_until("both devices to be empty", |world| world.device_bytes() == [0, 0]);
    assert!(!is_writable(&world.dir_of(&bad, "pv-bad")));
    world.agent.restart();
    world.wait_until("a new tenure", |world| tenure(world) > held);
    world.wait_until("all of it to leave", |world| {
        let is_gone = |volume: &str| world.record(volume).is_none();
        world.devices().is_empty() && is_gone("pv-bad") && is_gone("pv-well")
    });
    for volume in ["pv-bad", "pv-none"] {
        let aside = fs::read_to_string(journals.join(format!("{volume}.json.unreadable")));
        assert_eq!(aside.unwrap(), "{");
    }
    let next = [world.pod("c"), world.pod("d")];
    for (pod, (volume, image)) in next.iter().zip([("pv-bad", "bad"), ("pv-well", "well")]) {
        world.wait_until("it to be had again", |world| world.mount(pod, volume, image).is_ok());
        assert_eq!(world.unmount(pod, volume), Ok(()));
    }
}
