//! Two nodes with an agent each, on storage that they share.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use serde_json::{Value, json};

use crate::world::{Pod, World, is_mounted, run};

const ROUNDS: usize = 200;

/// Each round both want the volume at the same moment. Never do both get it, and what the winners
/// wrote is there in their order.
#[test]
fn of_two_nodes_that_race_never_both_get_the_volume() {
    let world = World::new();
    let second = world.second("n1");
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    let pods = [world.pod("a"), world.pod_on("n1", &second, "b")];
    let before = world.leftovers();
    let mut won_by = [0, 0];
    let mut expected = String::new();
    for round in 0..ROUNDS {
        // Both may have been in each other's way; kubelet asks again then.
        let winner = loop {
            let won = race(&world, &pods);
            assert!(!(won[0] && won[1]), "round {round}: both got it");
            if let Some(winner) = won.iter().position(|won| *won) {
                break winner;
            }
        };
        won_by[winner] += 1;
        let holder = &pods[winner];
        assert!(is_mounted(&world.dir_of(holder, "pv-1")));
        assert!(!is_mounted(&world.dir_of(&pods[1 - winner], "pv-1")));
        assert_eq!(world.devices().len(), 1, "round {round}");
        append(&world.dir_of(holder, "pv-1").join("log"), &format!("{round} {winner}\n"));
        expected += &format!("{round} {winner}\n");
        assert_eq!(world.unmount(holder, "pv-1"), Ok(()));
    }
    eprintln!("{ROUNDS} rounds, won by {won_by:?}");
    assert_eq!(world.leftovers(), before);
    assert_eq!(world.mount(&pods[0], "pv-1", "one"), Ok(()));
    let log = fs::read_to_string(world.dir_of(&pods[0], "pv-1").join("log")).unwrap();
    assert_eq!(log, expected);
    assert_eq!(world.unmount(&pods[0], "pv-1"), Ok(()));
}

fn race(world: &World, pods: &[Pod; 2]) -> [bool; 2] {
    std::thread::scope(|scope| {
        let calls = pods.each_ref().map(|pod| scope.spawn(|| world.mount(pod, "pv-1", "one")));
        calls.map(|call| call.join().unwrap().is_ok())
    })
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
    let refused = world.mount(&writer, "pv-read", "read").unwrap_err();
    assert!(refused.starts_with("Failure: "), "{refused}");
    for pod in [&here, &there] {
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
