//! Storage that has just died, or is merely slow: who waits for it, and what becomes of others.

use std::{
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use wharf_block::loops::{self, Observed};
use wharf_testbed::{devices::processes, wait_for};

use crate::{
    common::{create, kubectl},
    guard::fuse_file,
    proxy::{BlockServer, Writer},
    world::{Pod, World, is_mounted, run},
};

const DEADLINE: Duration = Duration::from_secs(180);
/// How long a step may take.
const STEP: Duration = Duration::from_secs(95);
/// Far less than that, and more than it takes others who do not wait for one.
const WITHOUT_WAITING: Duration = Duration::from_secs(70);
/// Of those who let an unmount hang, and who have the kernel drop its caches, which waits for all unmounts
/// of the machine.
static ALONE: Mutex<()> = Mutex::new(());
/// The smallest that is large enough for xfs, of which nothing is kept in memory for us.
const MIB: u64 = 320;

fn xfs(world: &World, cluster: &str, name: &str) {
    let options = json!({ "storageCluster": cluster, "image": name });
    let source = json!({ "driver": "wharf.dev/volume", "fsType": "xfs", "options": options });
    world.volume(name, name, &json!({ "flexVolume": source }));
}

fn mount_xfs(world: &World, cluster: &str, pod: &Pod, name: &str) {
    let more = json!({ "storageCluster": cluster, "kubernetes.io/fsType": "xfs" });
    assert_eq!(world.mount_with(pod, name, name, &more), Ok(()));
}

/// How large the file system there is.
fn size(dir: &Path) -> u64 {
    let found = rustix::fs::statvfs(dir).unwrap();
    found.f_blocks * found.f_frsize
}

/// A process that does not go on until this is dropped.
pub struct Stopped(Pid);

impl Stopped {
    pub fn new(process: Pid) -> Self {
        kill_process(process, Signal::STOP).unwrap();
        Self(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ended = kill_process(self.0, Signal::CONT);
    }
}

/// A file system that takes no change until this is dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn new(dir: &Path) -> Self {
        assert!(Command::new("fsfreeze").arg("-f").arg(dir).status().unwrap().success());
        Self(dir.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _thawed = Command::new("fsfreeze").arg("-u").arg(&self.0).output();
    }
}

#[test]
fn a_look_at_storage_that_just_died_ends_soon_and_loses_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::new();
    let server = BlockServer::start(&world);
    server.image("pv-1", MIB);
    xfs(&world, "net", "pv-1");
    world.image("pv-2", MIB);
    xfs(&world, "main", "pv-2");
    let (hung, well) = (world.pod("a"), world.pod("b"));
    let before = world.leftovers();
    mount_xfs(&world, "net", &hung, "pv-1");
    mount_xfs(&world, "main", &well, "pv-2");
    let file = world.dir_of(&hung, "pv-1").join("file");
    fs::write(&file, "not stored yet").unwrap();
    let worker = processes(&world.path("state").display().to_string(), &["\0work\0"]);
    let stopped = Stopped::new(worker[0]);
    // What is remembered of the device would be read without it.
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();

    let begun = Instant::now();
    world.image_grows("pv-2", MIB + 80);
    world.patch("pv", "pv-2", &json!({ "spec": { "capacity": { "storage": "400Mi" } } }));
    let there = world.dir_of(&well, "pv-2");
    world.wait_until("the other volume to grow", |_| size(&there) > MIB << 20);
    assert!(begun.elapsed() < WITHOUT_WAITING, "it waited {:?}", begun.elapsed());
    world.wait_until("the look to be given up", |world| world.agent.fault("sizes").is_some());
    let told = world.agent.fault("sizes").unwrap();
    assert!(told.contains("see how large it is"), "{told}");
    let begun = Instant::now();
    let refused = world.unmount(&hung, "pv-1").unwrap_err();
    assert!(refused.contains("has not come back for"), "{refused}");
    assert!(begun.elapsed() < WITHOUT_WAITING, "it waited {:?}", begun.elapsed());

    // It was only slow.
    drop(stopped);
    world.wait_until("the unmount", |world| world.unmount(&hung, "pv-1").is_ok());
    mount_xfs(&world, "net", &hung, "pv-1");
    assert_eq!(fs::read_to_string(&file).unwrap(), "not stored yet");
    for (pod, volume) in [(&hung, "pv-1"), (&well, "pv-2")] {
        assert_eq!(world.unmount(pod, volume), Ok(()));
    }
    assert_eq!(world.leftovers(), before);
}

/// An image on a network file system that does not answer for a while, and a pod that has just ended.
#[test]
fn an_unmount_waits_for_a_device_that_does_not_answer_and_loses_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::new();
    let server = BlockServer::start(&world);
    server.image("back", 64);
    let disk = fuse_file(&world, &server);
    File::create(world.path("images/one.img")).unwrap();
    run("mount", &[Path::new("--bind"), &disk, &world.path("images/one.img")]);
    world.volume("pv-1", "one", &json!({}));
    let pod = world.pod("a");
    let before = world.leftovers();
    assert_eq!(world.mount(&pod, "pv-1", "one"), Ok(()));
    let dir = world.dir_of(&pod, "pv-1");
    fs::write(dir.join("file"), "not stored yet").unwrap();
    let stopped = fall_silent(&world, &disk);

    thread::scope(|scope| {
        let unmount = scope.spawn(|| world.unmount(&pod, "pv-1"));
        world.wait_until("it to be unmounted for the pod, or refused", |_| {
            !is_mounted(&dir) || unmount.is_finished()
        });
        drop(stopped);
        assert_eq!(unmount.join().unwrap(), Ok(()));
    });
    assert_eq!((world.leftovers(), world.record("pv-1")), (before.clone(), None));
    assert_eq!(world.mount(&pod, "pv-1", "one"), Ok(()));
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "not stored yet");
    assert_eq!(world.unmount(&pod, "pv-1"), Ok(()));
    assert_eq!(world.leftovers(), before);
}

/// Stops the server of an image. A device is asked for its file by the kernel's memory of that, which is lost
/// by a change that nobody answered: then the device does not answer either.
fn fall_silent(world: &World, file: &Path) -> Stopped {
    let worker = processes(&world.path("fuse").display().to_string(), &["\0work\0"]);
    let stopped = Stopped::new(worker[0]);
    let [device] = world.devices().try_into().unwrap();
    let number = device.strip_prefix("loop").unwrap().parse().unwrap();
    world.wait_until("the device to fall silent", |_| {
        // The program of this name would look before it changes anything.
        let change = ["-e", "chmod 0600, $ARGV[0]"];
        let mut change = Command::new("perl").args(change).arg(file).spawn().unwrap();
        let state = format!("/proc/{}/stat", change.id());
        wait_for("the change to wait for an answer", DEADLINE, || {
            Ok(fs::read_to_string(&state)?.contains("(perl) S").then_some(()))
        })
        .unwrap();
        change.kill().unwrap();
        change.wait().unwrap();
        matches!(loops::observe(number), Some(Observed::Silent { .. }))
    });
    stopped
}

/// Nobody is going to store what the pod wrote last. It must not stay for ever because of that.
#[test]
fn a_volume_whose_storage_does_not_come_back_is_cut_off_and_leaves_the_node() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::new();
    let server = BlockServer::start(&world);
    server.volume(&world, "pv-1", "pv-1");
    world.image("pv-2", 64);
    world.volume("pv-2", "pv-2", &json!({}));
    let (hung, well) = (world.pod("a"), world.pod("b"));
    let before = world.leftovers();
    assert_eq!(world.mount(&well, "pv-2", "pv-2"), Ok(()));
    let own = world.leftovers();
    assert_eq!(world.mount_of("net", &hung, "pv-1", "pv-1"), Ok(()));
    let writer = Writer::start(world.dir_of(&well, "pv-2").join("log"));
    let dir = world.dir_of(&hung, "pv-1");
    fs::write(dir.join("file"), "never stored").unwrap();
    let worker = processes(&world.path("state").display().to_string(), &["\0work\0"]);
    let _stopped = Stopped::new(worker[0]);

    let begun = Instant::now();
    world.wait_until("an unmount to succeed", |world| world.unmount(&hung, "pv-1").is_ok());
    assert!(begun.elapsed() >= STEP, "it was cut off after {:?}", begun.elapsed());
    assert!(!is_mounted(&dir));
    assert_eq!((world.leftovers(), world.record("pv-1")), (own, None));
    world.wait_until("its pod to be deleted", |world| world.is_deleted(&hung));
    writer.wait_for_more();
    let (_, ended) = writer.end();
    assert!(ended.is_ok(), "the other volume saw nothing of it: {ended:?}");
    assert!(!world.is_deleted(&well));
    assert_eq!(world.unmount(&well, "pv-2"), Ok(()));
    assert_eq!(world.leftovers(), before);
}

/// The storage cluster is deleted while somebody hangs in one of its volumes, whom only the cut sets free.
#[test]
fn a_volume_in_which_somebody_hangs_keeps_no_other_of_its_cluster() {
    let world = World::new();
    world.image("pv-1", MIB);
    xfs(&world, "main", "pv-1");
    world.image("two", 64);
    world.volume("pv-2", "two", &json!({}));
    let (hung, well) = (world.pod("a"), world.pod("b"));
    let before = world.leftovers();
    mount_xfs(&world, "main", &hung, "pv-1");
    assert_eq!(world.mount(&well, "pv-2", "two"), Ok(()));
    let frozen = Frozen::new(&world.dir_of(&hung, "pv-1"));
    world.image_grows("pv-1", MIB + 80);
    world.patch("pv", "pv-1", &json!({ "spec": { "capacity": { "storage": "400Mi" } } }));
    let place = world.path("kubelet").display().to_string();
    world.wait_until("the growth to hang", |_| !processes(&place, &["xfs_growfs"]).is_empty());

    let begun = Instant::now();
    let delete = ["delete", "storagecluster", "main", "--wait=false"];
    kubectl(&world.server, &delete, &Value::Null);
    world.wait_until("the other volume to leave", |world| {
        world.release();
        !is_mounted(&world.dir_of(&well, "pv-2")) && world.record("pv-2").is_none()
    });
    assert!(begun.elapsed() < WITHOUT_WAITING, "it waited {:?}", begun.elapsed());
    world.wait_until("all of it to leave", |world| {
        world.release();
        world.leftovers() == before && world.record("pv-1").is_none()
    });
    drop(frozen);
}

/// Takes connections and never says a word.
#[test]
fn claims_of_storage_that_never_answers_keep_no_other_claim_waiting() {
    let world = World::new();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = json!({ "server": mute.local_addr().unwrap().to_string() });
    world.storage_of("mute", "proxy", &server);
    class(&world, "mute");
    class(&world, "main");
    (0..12).for_each(|number| claim(&world, "mute", &format!("a-mute-{number}")));
    let told = || events_of(&world, "a-mute-0");
    world.wait_until("a claim to be told", |_| told().contains("ProvisioningFailed"));
    let holder = leader(&world);

    let begun = Instant::now();
    claim(&world, "main", "z-well");
    world.wait_until("the other claim to get its volume", |_| {
        !volume_of(&world, "z-well").is_empty()
    });
    // One question to the storage takes 20 s until it is given up.
    assert!(begun.elapsed() < Duration::from_secs(15), "it waited {:?}", begun.elapsed());
    assert_eq!(leader(&world), holder, "the lease was kept meanwhile");
    assert_eq!(volume_of(&world, "a-mute-0"), "");
}

fn class(world: &World, name: &str) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
        "provisioner": "wharf.dev/volume", "parameters": { "storageCluster": name },
    });
    create(&world.server, &class);
}

fn claim(world: &World, class: &str, name: &str) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "64Mi" } },
        },
    });
    create(&world.server, &claim);
}

fn events_of(world: &World, claim: &str) -> String {
    let field = format!("involvedObject.name={claim}");
    let events = ["get", "events", "--field-selector", &field, "-o", "jsonpath={.items[*].reason}"];
    kubectl(&world.server, &events, &Value::Null)
}

/// The volume that was made for a claim: nobody binds them here.
fn volume_of(world: &World, claim: &str) -> String {
    let path = format!("jsonpath={{.items[?(@.spec.claimRef.name==\"{claim}\")].metadata.name}}");
    kubectl(&world.server, &["get", "pv", "-o", &path], &Value::Null)
}

/// Who is elected, and since when.
fn leader(world: &World) -> String {
    let path = "jsonpath={.spec.holderIdentity} {.spec.leaseTransitions} {.spec.acquireTime}";
    let lease = ["get", "lease", "wharf-volumes", "-n", "wharf-system", "-o", path];
    kubectl(&world.server, &lease, &Value::Null)
}
