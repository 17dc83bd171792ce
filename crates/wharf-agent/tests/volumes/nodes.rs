//! Two nodes with an agent each, on storage that they share.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::{Value, json};

use crate::world::{Pod, World, run};

/// How often each node gets the volume.
const ROUNDS: usize = 100;

/// Both nodes want the volume again and again, a new one as soon as it is given up. Never do both have
/// it, and what they wrote is there in the order of their grants.
#[test]
fn of_two_nodes_that_race_never_both_have_the_volume() {
    let world = World::new();
    let second = world.second("n1");
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    let pods = [world.pod("a"), world.pod_on("n1", &second, "b")];
    let before = world.leftovers();
    let (inside, log) = (AtomicUsize::new(0), Mutex::new(String::new()));
    let race = |pod: &Pod| {
        for round in 0..ROUNDS {
            // Whoever waits too long is told so, and kubelet asks again.
            while world.mount(pod, "pv-1", "one").is_err() {}
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "both have it");
            let line = format!("{} {round}\n", pod.name);
            append(&world.dir_of(pod, "pv-1").join("log"), &line);
            log.lock().unwrap().push_str(&line);
            assert_eq!(world.devices().len(), 1);
            inside.fetch_sub(1, Ordering::SeqCst);
            assert_eq!(world.unmount(pod, "pv-1"), Ok(()));
        }
    };
    thread::scope(|scope| {
        for pod in &pods {
            scope.spawn(|| race(pod));
        }
    });
    assert_eq!(world.leftovers(), before);
    assert_eq!(world.mount(&pods[0], "pv-1", "one"), Ok(()));
    let written = fs::read_to_string(world.dir_of(&pods[0], "pv-1").join("log")).unwrap();
    assert_eq!(written, log.into_inner().unwrap());
    let generation = world.record("pv-1").unwrap()["attachments"][0]["generation"].clone();
    assert!(generation.as_u64().unwrap() > 2 * ROUNDS as u64, "each grant has its own");
    assert_eq!(world.unmount(&pods[0], "pv-1"), Ok(()));
}

fn append(path: &Path, line: &str) {
    let mut file = File::options().append(true).create(true).open(path).unwrap();
    file.write_all(line.as_bytes()).unwrap();
    file.sync_all().unwrap();
}

/// Several may read an image at once, if nobody writes; several may write to a directory.
#[test]
fn what_may_be_shared_is_shared_and_nothing_else() {
    let world = World::new();
    let second = world.second("n1");
    let here = world.pod("a");
    let there = world.pod_on("n1", &second, "b");
    let before = world.leftovers();

    world.image("read", 64);
    run("mkfs.ext4", &[Path::new("-q"), &world.path("images/read.img")]);
    world.volume("pv-read", "read", &json!({ "accessModes": ["ReadOnlyMany"] }));
    let reads = json!({ "kubernetes.io/readwrite": "ro" });
    for pod in [&here, &there] {
        assert_eq!(world.mount_with(pod, "pv-read", "read", &reads), Ok(()));
        assert!(fs::write(world.dir_of(pod, "pv-read").join("x"), "x").is_err());
    }
    let writer = world.pod("c");
    assert_eq!(world.mount(&writer, "pv-read", "read"), Ok(()));
    let refused = fs::write(world.dir_of(&writer, "pv-read").join("x"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "nobody writes to it");
    for pod in [&here, &there, &writer] {
        assert_eq!(world.unmount(pod, "pv-read"), Ok(()));
    }

    world.image("many", 64);
    world.volume("pv-many", "many", &json!({ "accessModes": ["ReadWriteMany"] }));
    let refused = world.mount(&here, "pv-many", "many").unwrap_err();
    assert!(refused.contains("ReadWriteMany"), "{refused}");

    let shared = world.path("shared");
    fs::create_dir_all(shared.join("all")).unwrap();
    world.storage_of("shared", "dir", &json!({ "directory": shared }));
    let source = json!({ "driver": "wharf.dev/volume",
                         "options": { "storageCluster": "shared", "image": "all" } });
    let more = json!({ "accessModes": ["ReadWriteMany"], "flexVolume": source });
    world.volume("pv-all", "all", &more);
    for pod in [&here, &there] {
        assert_eq!(world.mount_of("shared", pod, "pv-all", "all"), Ok(()));
    }
    let record: Value = world.record("pv-all").unwrap();
    assert_eq!(record["attachments"].as_array().unwrap().len(), 2);
    fs::write(world.dir_of(&here, "pv-all").join("from-a"), "a").unwrap();
    let seen = fs::read_to_string(world.dir_of(&there, "pv-all").join("from-a")).unwrap();
    assert_eq!(seen, "a");
    for pod in [&here, &there] {
        assert_eq!(world.unmount(pod, "pv-all"), Ok(()));
    }
    assert_eq!(fs::read_to_string(shared.join("all/from-a")).unwrap(), "a");
    assert_eq!(world.leftovers(), before);
    for volume in ["pv-read", "pv-many", "pv-all"] {
        assert_eq!(world.record(volume), None, "{volume}");
    }
}
