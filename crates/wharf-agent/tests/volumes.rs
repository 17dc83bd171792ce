//! Volumes on real loop devices, before a real API server, called as kubelet calls.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "volumes/world.rs"]
mod world;

use std::{fs, path::Path};

use serde_json::json;
use world::{World, is_mounted};

#[test]
fn a_volume_is_attached_formatted_mounted_and_leaves_nothing() {
    let world = World::new();
    world.image("one", 64);
    world.volume("pv-1", "one", json!({}));
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
