//! Volumes on real loop devices, before a real API server, called as kubelet calls.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "volumes/anew.rs"]
mod anew;
#[path = "volumes/claims.rs"]
mod claims;
mod common;
#[path = "volumes/crash.rs"]
mod crash;
#[path = "volumes/crowd.rs"]
mod crowd;
#[path = "volumes/csi.rs"]
mod csi;
#[path = "volumes/deletion.rs"]
mod deletion;
#[path = "volumes/door.rs"]
mod door;
#[path = "volumes/ends.rs"]
mod ends;
#[path = "volumes/guard.rs"]
mod guard;
#[path = "volumes/hung.rs"]
mod hung;
#[path = "volumes/leftover.rs"]
mod leftover;
#[path = "volumes/nodes.rs"]
mod nodes;
#[path = "volumes/owners.rs"]
mod owners;
#[path = "volumes/proxy.rs"]
mod proxy;
#[path = "volumes/sizes.rs"]
mod sizes;
#[path = "volumes/wire.rs"]
mod wire;
#[path = "volumes/world.rs"]
mod world;

use std::{
    fs::{self, File},
    path::Path,
};

use serde_json::{Value, json};
use wharf_testbed::process::Signal;
use world::{World, is_mounted, run};

#[test]
fn a_volume_is_attached_formatted_mounted_and_leaves_nothing() {
    let world = World::new();
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    let pod = world.pod("a");
    let before = world.leftovers();

    let dir = world.dir_of(&pod, "pv-1");
    assert_eq!(world.mount(&pod, "pv-1", "one"), Ok(()));
    assert!(is_mounted(&dir));
    fs::write(dir.join("file"), "kept").unwrap();
    let record = world.record("pv-1").unwrap();
    let entry = &record["attachments"][0];
    assert_eq!(entry["node"], world.node());
    assert_eq!(entry["podUID"], pod.uid);
    assert_eq!(entry["phase"], "Attached");
    assert_eq!(entry["generation"], 1);
    assert!(Path::new(entry["device"].as_str().unwrap()).exists());
    // kubelet may ask again for what is there.
    assert_eq!(world.mount(&pod, "pv-1", "one"), Ok(()));
    assert_eq!(world.record("pv-1").unwrap()["attachments"].as_array().unwrap().len(), 1);

    let other = world.pod("b");
    let refused = world.mount(&other, "pv-1", "one").unwrap_err();
    assert!(refused.contains("default/a"), "{refused}");
    assert!(!is_mounted(&world.dir_of(&other, "pv-1")));
    // People see it on the volume, and not for longer than the pod waits.
    let said = world.conditions("pv-1");
    let [[kind, reason, message]] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!((kind.as_str(), reason.as_str()), ("Waiting", "Held"));
    assert!(message.starts_with("pod default/b on node n0 waits: pod default/a"), "{message}");
    let held = ("VolumeHeld".to_owned(), message.clone());
    assert!(world.events("pv-1").contains(&held), "{:?}", world.events("pv-1"));
    world.remove(&other);
    world.wait_until("nobody to wait any more", |world| world.conditions("pv-1").is_empty());
    let other = world.pod("b");

    assert_eq!(world.unmount(&pod, "pv-1"), Ok(()));
    assert_eq!(world.unmount(&pod, "pv-1"), Ok(()), "kubelet may ask again");
    assert_eq!(world.record("pv-1"), None);
    assert_eq!(world.leftovers(), before);

    assert_eq!(world.mount(&other, "pv-1", "one"), Ok(()));
    assert_eq!(fs::read_to_string(world.dir_of(&other, "pv-1").join("file")).unwrap(), "kept");
    assert_eq!(world.record("pv-1").unwrap()["attachments"][0]["generation"], 2);
    assert_eq!(world.unmount(&other, "pv-1"), Ok(()));
    assert_eq!(world.leftovers(), before);
}

/// Everything that kubelet does not say, or nobody has made.
#[test]
fn bad_calls_get_a_sentence_and_leave_nothing() {
    let world = World::new();
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    world.volume("pv-none", "missing", &json!({}));
    world.image("foreign", 64);
    world.volume("pv-foreign", "foreign", &json!({}));
    run("mkswap", &[&world.path("images/foreign.img")]);
    world.image("small", 1);
    world.volume(
        "pv-xfs",
        "small",
        &json!({ "flexVolume": {
        "driver": "wharf.dev/volume", "fsType": "xfs",
        "options": { "storageCluster": "main", "image": "small" } } }),
    );
    let pod = world.pod("a");
    let before = world.leftovers();
    let dir = world.dir_of(&pod, "pv-1").display().to_string();
    let options = world.options(&pod, "pv-1", "one");
    let with = |key: &str, value: Value| {
        let mut options = options.clone();
        options[key] = value;
        options.to_string()
    };
    let plain = options.to_string();
    let foreign = world.dir_of(&pod, "pv-foreign").display().to_string();
    let of_foreign = world.options(&pod, "pv-foreign", "foreign").to_string();
    let none = world.dir_of(&pod, "pv-none").display().to_string();
    let of_none = world.options(&pod, "pv-none", "missing").to_string();
    let xfs = world.dir_of(&pod, "pv-xfs").display().to_string();
    let mut of_xfs = world.options(&pod, "pv-xfs", "small");
    of_xfs["kubernetes.io/fsType"] = json!("xfs");
    let of_xfs = of_xfs.to_string();
    let dots = dir.replace("/pods/", "/pods/../pods/");
    let double = dir.replace("/pods/", "//pods/");
    let trailing = format!("{dir}/");
    let huge = format!("{{\"image\":\"{}\"}}", "x".repeat(100_000));
    let (unknown, other, cluster, shout) = (
        with("imagge", json!("one")),
        with("kubernetes.io/pod.uid", json!("another")),
        with("storageCluster", json!("nowhere")),
        with("kubernetes.io/readwrite", json!("maybe")),
    );
    for (arguments, part) in [
        (["mount", &dots, &plain], "`..`"),
        (["mount", &double, &plain], "empty"),
        (["mount", &trailing, &plain], "empty"),
        (
            ["mount", "/var/lib/elsewhere/pods/u/volumes/wharf.dev~volume/v", &plain],
            "kubelet's root",
        ),
        (["mount", &dir, "not json"], "flat JSON"),
        (["mount", &dir, &huge], "longer"),
        (["mount", &dir, &unknown], "is image meant?"),
        (["mount", &dir, &other], "by the mount directory"),
        (["mount", &dir, &cluster], "nowhere"),
        (["mount", &dir, &shout], "maybe"),
        (["mount", &none, &of_none], "there is no image"),
        (["mount", &foreign, &of_foreign], "swap"),
        (["mount", &xfs, &of_xfs], "mkfs.xfs failed"),
    ] {
        let refused = world.call(&arguments).unwrap_err();
        assert!(refused.starts_with("Failure: ") && refused.contains(part), "{part}: {refused}");
        assert_eq!(world.leftovers(), before, "{part}");
    }
    for volume in ["pv-1", "pv-none", "pv-foreign", "pv-xfs"] {
        assert_eq!(world.record(volume), None, "{volume}");
    }
    assert!(world.call(&["unmount", &dots]).unwrap_err().contains("`..`"));
    assert_eq!(world.call(&["attach", "{}", "n0"]), Err("Not supported: ".to_owned()));
}

/// A directory that cannot be written to, and one that is full.
#[test]
fn a_storage_that_cannot_be_written_to_fails_the_mount_and_leaves_nothing() {
    let world = World::new();
    let full = world.path("full");
    fs::create_dir(&full).unwrap();
    run(
        "mount",
        &[
            Path::new("-t"),
            Path::new("tmpfs"),
            Path::new("-o"),
            Path::new("size=64k"),
            Path::new("none"),
            &full,
        ],
    );
    world.storage("full", &full);
    File::create(full.join("one.img")).unwrap().set_len(32 << 20).unwrap();
    world.volume_of("full", "pv-full", "one");
    let pod = world.pod("a");
    let before = world.leftovers();
    let failed = world.mount_of("full", &pod, "pv-full", "one");
    assert!(failed.unwrap_err().starts_with("Failure: "));
    assert_eq!(world.leftovers(), before);

    run("mount", &[Path::new("-o"), Path::new("remount,ro"), &full]);
    let failed = world.mount_of("full", &pod, "pv-full", "one").unwrap_err();
    assert!(failed.contains("one.img"), "{failed}");
    assert_eq!(world.leftovers(), before);
    assert_eq!(world.record("pv-full"), None);
}

/// kubelet asks twice after its own restart, and for two pods at once.
#[test]
fn calls_side_by_side_give_one_device_and_one_result() {
    let world = World::new();
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    let pod = world.pod("a");
    let before = world.leftovers();
    std::thread::scope(|scope| {
        let calls: Vec<_> =
            (0..8).map(|_| scope.spawn(|| world.mount(&pod, "pv-1", "one"))).collect();
        for call in calls {
            assert_eq!(call.join().unwrap(), Ok(()));
        }
    });
    assert_eq!(world.devices().len(), 1);
    assert_eq!(world.record("pv-1").unwrap()["attachments"].as_array().unwrap().len(), 1);
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..8).map(|_| scope.spawn(|| world.unmount(&pod, "pv-1"))).collect();
        for call in calls {
            assert_eq!(call.join().unwrap(), Ok(()));
        }
    });
    assert_eq!(world.leftovers(), before);
    // Two pods that both want it: one gets it.
    let other = world.pod("b");
    let won = std::thread::scope(|scope| {
        let pods = [&pod, &other];
        let calls = pods.map(|pod| scope.spawn(|| world.mount(pod, "pv-1", "one")));
        calls.map(|call| call.join().unwrap().is_ok())
    });
    assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
    let winner = if won[0] { &pod } else { &other };
    assert_eq!(world.unmount(winner, "pv-1"), Ok(()));
    assert_eq!(world.leftovers(), before);
}

/// Nothing but the mount directory and the journal is needed to unmount.
#[test]
fn an_unmount_needs_neither_the_api_nor_the_volume() {
    let mut world = World::new();
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    let pod = world.pod("a");
    let before = world.leftovers();
    assert_eq!(world.mount(&pod, "pv-1", "one"), Ok(()));
    // The volume and its storage cluster's object go first.
    world.delete("pv", "pv-1");
    assert_eq!(world.unmount(&pod, "pv-1"), Ok(()));
    assert_eq!(world.leftovers(), before);
    assert_eq!(world.record("pv-1"), None);

    world.volume("pv-1", "one", &json!({}));
    assert_eq!(world.mount(&pod, "pv-1", "one"), Ok(()));
    let generation = world.record("pv-1").unwrap()["attachments"][0]["generation"].clone();
    assert_eq!(generation, 2, "a volume that was made anew does not begin below its image");
    world.server.process().signal(Signal::STOP).unwrap();
    let unmounted = world.unmount(&pod, "pv-1");
    let devices = world.devices();
    world.server.process().signal(Signal::CONT).unwrap();
    assert_eq!(unmounted, Ok(()), "without an answer of the API server");
    assert_eq!(devices.len(), 0, "the device has left the node");
    world.wait_until("the record to go", |world| world.record("pv-1").is_none());
    world.wait_until("the journal to go", |world| world.leftovers() == before);
}

/// A file of the unmounted file system is busy once.
#[test]
fn a_device_that_is_busy_stays_claimed_until_it_is_free() {
    let world = World::new();
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    let pod = world.pod("a");
    let before = world.leftovers();
    assert_eq!(world.mount(&pod, "pv-1", "one"), Ok(()));
    let staged = world.path("kubelet/plugins/wharf.dev/volume/mounts/pv-1/held");
    let held = File::create(&staged).unwrap();
    let refused = world.unmount(&pod, "pv-1").unwrap_err();
    assert!(refused.contains("unmount"), "{refused}");
    assert!(world.record("pv-1").is_some(), "it is not given up before it is gone");
    drop(held);
    assert_eq!(world.unmount(&pod, "pv-1"), Ok(()));
    assert_eq!(world.leftovers(), before);
    assert_eq!(world.record("pv-1"), None);
}

/// Nothing is mounted any more, but somebody looks at the device itself.
#[test]
fn a_device_that_somebody_has_open_stays_claimed_until_he_lets_go() {
    let world = World::new();
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    let pod = world.pod("a");
    let before = world.leftovers();
    assert_eq!(world.mount(&pod, "pv-1", "one"), Ok(()));
    let [device] = world.devices().try_into().unwrap();
    let open = File::open(format!("/dev/{device}")).unwrap();
    let refused = world.unmount(&pod, "pv-1").unwrap_err();
    assert!(refused.contains("is in use"), "{refused}");
    assert!(!is_mounted(&world.dir_of(&pod, "pv-1")), "the pod may go");
    assert_eq!(world.devices(), [device], "the device is there");
    assert_eq!(world.record("pv-1").unwrap()["attachments"][0]["podUID"], pod.uid);
    drop(open);
    assert_eq!(world.unmount(&pod, "pv-1"), Ok(()));
    assert_eq!(world.record("pv-1"), None);
    assert_eq!(world.leftovers(), before);
}

/// Nobody hears of the agent any more: others may take over soon, so that it must not write then.
#[test]
fn an_agent_that_cannot_renew_its_lease_cuts_its_volumes_off_and_frees_their_pods() {
    let mut world = World::with("lease_seconds = 10");
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    let pod = world.pod("a");
    let before = world.leftovers();
    assert_eq!(world.mount(&pod, "pv-1", "one"), Ok(()));
    let kept = world.dir_of(&pod, "pv-1").join("kept");
    fs::write(&kept, "before").unwrap();
    File::open(&kept).unwrap().sync_all().unwrap();
    let tenure = world.record("pv-1").unwrap()["attachments"][0]["tenure"].clone();

    world.server.process().signal(Signal::STOP).unwrap();
    world.wait_until("the volume to be taken away", |world| world.devices().is_empty());
    assert!(!kept.exists(), "the pod's directory is unmounted");
    world.server.process().signal(Signal::CONT).unwrap();
    world.wait_until("the record to go", |world| world.record("pv-1").is_none());
    world.wait_until("the pod to be deleted", |world| world.is_deleted(&pod));
    assert_eq!(world.leftovers(), before);

    // In a new tenure all is as before.
    let next = world.pod("b");
    world.wait_until("the volume to be had again", |world| {
        world.mount(&next, "pv-1", "one").is_ok()
    });
    let kept = fs::read_to_string(world.dir_of(&next, "pv-1").join("kept")).unwrap();
    assert_eq!(kept, "before");
    assert_ne!(world.record("pv-1").unwrap()["attachments"][0]["tenure"], tenure);
    assert_eq!(world.unmount(&next, "pv-1"), Ok(()));
}

/// The agent is gone, and cannot cut anything off by itself.
#[test]
fn the_guard_cuts_volumes_off_when_the_agent_was_killed() {
    let mut world = World::with("lease_seconds = 10");
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    let pod = world.pod("a");
    let before = world.leftovers();
    assert_eq!(world.mount(&pod, "pv-1", "one"), Ok(()));
    let file = world.dir_of(&pod, "pv-1").join("file");
    world.agent.process().kill().unwrap();
    world.wait_until("the device to be empty", |world| world.device_bytes() == [0]);
    assert!(fs::write(&file, "after").is_err(), "nothing can be written any more");
    world.agent.restart();
    world.wait_until("the device to go", |world| world.devices().is_empty());
    world.wait_until("the record to go", |world| world.record("pv-1").is_none());
    world.wait_until("the journal to go", |world| world.leftovers() == before);
    world.wait_until("the pod to be deleted", |world| world.is_deleted(&pod));
}

/// The images have grown, and the volumes say so.
#[test]
fn a_file_system_grows_while_it_is_mounted() {
    let world = World::new();
    let pod = world.pod("a");
    let sizes = [("xfs", 320, 400), ("ext4", 64, 96)];
    for (fs_type, size, _) in sizes {
        world.image(fs_type, size);
        let source = json!({ "driver": "wharf.dev/volume", "fsType": fs_type,
                             "options": { "storageCluster": "main", "image": fs_type } });
        world.volume(fs_type, fs_type, &json!({ "flexVolume": source }));
        let of_kubelet = json!({ "kubernetes.io/fsType": fs_type });
        assert_eq!(world.mount_with(&pod, fs_type, fs_type, &of_kubelet), Ok(()));
    }
    let size = |volume: &str| {
        let found = rustix::fs::statvfs(world.dir_of(&pod, volume)).unwrap();
        found.f_blocks * found.f_frsize
    };
    for (volume, small, large) in sizes {
        assert!(size(volume) < small << 20);
        world.image_grows(volume, large);
        let storage = json!({ "storage": format!("{large}Mi") });
        world.patch("pv", volume, &json!({ "spec": { "capacity": storage } }));
    }
    world.wait_until("the devices to grow", |world| {
        let mut bytes = world.device_bytes();
        bytes.sort_unstable();
        bytes == [96 << 20, 400 << 20]
    });
    world.wait_until("xfs to grow", |_| size("xfs") > 320 << 20);
    // For ext4 the kernel wants a capability that this machine's root may lack.
    let has = rustix::thread::capabilities(None).unwrap().effective;
    if has.contains(rustix::thread::CapabilitySet::SYS_RESOURCE) {
        world.wait_until("ext4 to grow", |_| size("ext4") > 64 << 20);
    } else {
        world.wait_until("people to be told why it does not grow", |world| {
            world.agent.fault("sizes").is_some_and(|why| why.contains("resize2fs failed"))
        });
    }
    for (volume, ..) in sizes {
        fs::write(world.dir_of(&pod, volume).join("file"), "used meanwhile").unwrap();
        assert_eq!(world.unmount(&pod, volume), Ok(()));
    }
}

/// What the storage cluster and the pod ask of the mount is asked of the kernel.
#[test]
fn a_volume_is_mounted_as_it_was_asked_for() {
    let world = World::new();
    let directory = world.path("images");
    let parameters = json!({ "directory": directory, "mountOptions": "noatime,nodev" });
    world.storage_of("quiet", "loopfile", &parameters);
    world.image("one", 64);
    world.volume_of("quiet", "pv-1", "one");
    let pod = world.pod("a");
    let before = world.leftovers();
    assert_eq!(world.mount_of("quiet", &pod, "pv-1", "one"), Ok(()));
    let dir = world.dir_of(&pod, "pv-1");
    let options = mount_options(&dir);
    assert!(options.contains("noatime") && options.contains("nodev"), "{options}");
    fs::write(dir.join("file"), "kept").unwrap();
    assert_eq!(world.unmount(&pod, "pv-1"), Ok(()));

    let reads = json!({ "storageCluster": "quiet", "kubernetes.io/readwrite": "ro" });
    assert_eq!(world.mount_with(&pod, "pv-1", "one", &reads), Ok(()));
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "kept");
    let refused = fs::write(dir.join("file"), "changed").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(world.unmount(&pod, "pv-1"), Ok(()));
    assert_eq!(world.leftovers(), before);

    let parameters = json!({ "directory": directory, "mountOptions": "noatime,sparkling" });
    world.storage_of("odd", "loopfile", &parameters);
    world.image("two", 64);
    world.volume_of("odd", "pv-2", "two");
    let refused = world.mount_of("odd", &pod, "pv-2", "two").unwrap_err();
    assert!(refused.contains("sparkling") || refused.contains("mount"), "{refused}");
    assert_eq!(world.leftovers(), before);
}

/// Of a mount and of its file system.
fn mount_options(dir: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == dir.to_str());
    line.unwrap().split_once(dir.to_str().unwrap()).unwrap().1.to_owned()
}
