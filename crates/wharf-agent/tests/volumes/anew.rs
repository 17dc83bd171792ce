//! A volume that was deleted and made anew under its name, and one whose journal is lost.

use std::fs::{self, File};

use serde_json::{Value, json};

use crate::{
    common::kubectl,
    world::{World, is_mounted},
};

/// The first pod's unmount was begun, and something was busy.
#[test]
fn a_volume_that_is_made_anew_with_another_image_is_never_mounted_from_the_old_one() {
    let world = World::new();
    world.image("old", 64);
    world.image("new", 64);
    world.volume("pv-1", "old", &json!({}));
    let (first, next) = (world.pod("a"), world.pod("b"));
    let before = world.leftovers();
    assert_eq!(world.mount(&first, "pv-1", "old"), Ok(()));
    fs::write(world.dir_of(&first, "pv-1").join("of-old"), "x").unwrap();
    let staged = world.path("kubelet/plugins/wharf.dev/volume/mounts/pv-1/of-old");
    let held = File::open(&staged).unwrap();
    assert!(world.unmount(&first, "pv-1").is_err());
    world.delete("pv", "pv-1");
    world.volume("pv-1", "new", &json!({}));
    let refused = world.mount(&next, "pv-1", "new").unwrap_err();
    assert!(refused.contains("still has image old of an earlier volume"), "{refused}");
    drop(held);

    world
        .wait_until("the new one to be mounted", |world| world.mount(&next, "pv-1", "new").is_ok());
    let dir = world.dir_of(&next, "pv-1");
    assert!(!dir.join("of-old").exists());
    assert_eq!(world.record("pv-1").unwrap()["attachments"][0]["image"], "new");
    fs::write(dir.join("of-new"), "x").unwrap();
    assert_eq!(world.unmount(&next, "pv-1"), Ok(()));
    assert_eq!(world.leftovers(), before);
}

/// A pod has a volume of a storage cluster that is deleted. Another volume has its name by then.
#[test]
fn the_end_of_a_storage_cluster_touches_no_volume_that_is_another_of_the_same_name() {
    let world = World::with("scan_seconds = 1");
    world.storage("over", &world.path("images"));
    world.image("old", 64);
    world.volume_of("over", "pv-1", "old");
    let pod = world.pod("a");
    let before = world.leftovers();
    assert_eq!(world.mount_of("over", &pod, "pv-1", "old"), Ok(()));
    world.delete("pv", "pv-1");
    world.volume("pv-1", "new", &json!({}));
    let uid = world.read(&["pv", "pv-1"])["metadata"]["uid"].clone();
    kubectl(&world.server, &["delete", "storagecluster", "over", "--wait=false"], &Value::Null);
    world.wait_until("the storage cluster to go", |world| {
        world.find(&["storagecluster", "over"]).is_null()
    });
    world.wait_until("nothing to be left here", |world| world.leftovers() == before);
    assert_eq!(world.record("pv-1"), None);
    let volume = world.read(&["pv", "pv-1"]);
    assert_eq!(volume["metadata"]["uid"], uid);
    assert_eq!(volume["metadata"]["deletionTimestamp"], Value::Null);
}

/// The agent's lease is well, so that nothing else would take it away.
#[test]
fn a_volume_whose_journal_cannot_be_read_leaves_with_its_last_pod_and_loses_nothing() {
    let world = World::with("rwo_scope = 'node'");
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    let pods = ["a", "b"].map(|name| world.pod(name));
    for pod in &pods {
        assert_eq!(world.mount(pod, "pv-1", "one"), Ok(()));
    }
    let dirs = pods.each_ref().map(|pod| world.dir_of(pod, "pv-1"));
    fs::write(dirs[0].join("file"), "written, and not flushed").unwrap();
    fs::write(world.path("state/journals/pv-1.json"), "{").unwrap();
    assert_eq!(world.unmount(&pods[0], "pv-1"), Ok(()));
    assert!(!is_mounted(&dirs[0]));
    assert!(is_mounted(&dirs[1]), "another pod has it");
    fs::write(dirs[1].join("other"), "goes on").unwrap();
    assert_eq!(world.unmount(&pods[1], "pv-1"), Ok(()));
    assert_eq!(world.unmount(&pods[1], "pv-1"), Ok(()), "kubelet may ask again");
    assert_eq!(world.devices(), Vec::<String>::new());
    assert!(world.path("state/journals/pv-1.json.unreadable").exists());
    world.wait_until("its entries to be taken out", |world| world.record("pv-1").is_none());

    let next = world.pod("c");
    assert_eq!(world.mount(&next, "pv-1", "one"), Ok(()));
    let dir = world.dir_of(&next, "pv-1");
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "written, and not flushed");
    assert_eq!(fs::read_to_string(dir.join("other")).unwrap(), "goes on");
    assert_eq!(world.unmount(&next, "pv-1"), Ok(()));
}
