//! A storage cluster is deleted: its volumes leave every node, also when their storage hangs.

use std::fs;

use serde_json::{Value, json};
use wharf_testbed::process::Signal;

use crate::{
    common::kubectl,
    proxy::{BlockServer, Writer},
    world::{World, is_mounted},
};

#[test]
fn a_deleted_storage_cluster_leaves_every_node_and_no_other_is_touched() {
    let world = World::new();
    let mut second = world.second("n1");
    let mut server = BlockServer::start(&world);
    for volume in ["pv-1", "pv-2"] {
        server.volume(&world, volume, volume);
    }
    world.image("kept", 64);
    world.volume("pv-kept", "kept", &json!({}));
    let here = world.pod("a");
    let there = world.pod_on("n1", &second, "b");
    let before = world.leftovers();
    assert_eq!(world.mount(&here, "pv-kept", "kept"), Ok(()));
    let kept = Writer::start(world.dir_of(&here, "pv-kept").join("log"));
    let own = world.leftovers();
    assert_eq!(world.mount_of("net", &here, "pv-1", "pv-1"), Ok(()));
    assert_eq!(world.mount_of("net", &there, "pv-2", "pv-2"), Ok(()));
    let hung = Writer::start(world.dir_of(&here, "pv-1").join("log"));
    hung.wait_for_more();

    // The storage hangs, and one agent is away when the cluster is deleted.
    server.process.signal(Signal::STOP).unwrap();
    second.agent.process().kill().unwrap();
    kubectl(&world.server, &["delete", "storagecluster", "net", "--wait=false"], &Value::Null);
    let (_, ended) = hung.ended();
    assert!(ended.is_err(), "what hung came loose");
    world.wait_until("the volume to leave this node", |world| {
        world.release();
        !is_mounted(&world.dir_of(&here, "pv-1")) && world.record("pv-1").is_none()
    });
    world.wait_until("what is left to be told", |world| {
        let report = status(world)["report"].to_string();
        report.contains("pv-2") && report.contains("n1")
    });
    assert!(is_mounted(&world.dir_of(&there, "pv-2")));

    second.agent.restart();
    world.wait_until("the volume to leave the other node", |world| {
        world.release();
        !is_mounted(&world.dir_of(&there, "pv-2"))
    });
    world.wait_until("the storage cluster to go", |world| {
        world.release();
        status(world).is_null()
    });
    assert_eq!(world.leftovers(), own, "only the other cluster's volume is left");
    kept.wait_for_more();
    let (_, ended) = kept.end();
    assert!(ended.is_ok(), "the other cluster's volume saw nothing of it: {ended:?}");
    assert!(fs::exists(world.path("images/kept.img")).unwrap());
    assert_eq!(world.unmount(&here, "pv-kept"), Ok(()));
    assert_eq!(world.leftovers(), before);
}

/// The status of the storage cluster; null when it is gone.
fn status(world: &World) -> Value {
    let object = world.find(&["storagecluster", "net"]);
    if object.is_null() {
        return Value::Null;
    }
    object.get("status").cloned().unwrap_or_else(|| json!({}))
}

/// A claim that is mounted, one that nobody uses, one whose volume stays by its policy, and one whose
/// claim is gone already when the agents hear of it. All leave the cluster, and no byte is erased.
#[test]
fn claims_and_volumes_go_with_their_storage_cluster_and_images_stay() {
    let mut world = World::with("scan_seconds = 1");
    world.class("gone", &json!({}));
    world.class("kept", &json!({ "reclaimPolicy": "Retain" }));
    let claims = [("gone", "used"), ("gone", "unused"), ("kept", "retained"), ("gone", "released")];
    let volumes = claims.map(|(class, name)| world.claim("default", class, name));
    let [used, _, _, released] = &volumes;
    let pod = world.pod("a");
    let before = world.leftovers();
    assert_eq!(world.mount(&pod, used, used), Ok(()));

    world.agent.process().signal(Signal::STOP).unwrap();
    kubectl(&world.server, &["delete", "storagecluster", "main", "--wait=false"], &Value::Null);
    // As Kubernetes does when the claims have gone by that.
    world.phase("pv", released, "Released");
    world.agent.process().signal(Signal::CONT).unwrap();
    let is_deleted = |world: &World, what: &[&str]| {
        let object = world.find(what);
        object.is_null() || !object["metadata"]["deletionTimestamp"].is_null()
    };
    world.wait_until("the storage cluster to go", |world| {
        world.find(&["storagecluster", "main"]).is_null()
    });
    for (volume, (_, claim)) in volumes.iter().zip(claims) {
        assert!(is_deleted(&world, &["pvc", claim]), "{claim}");
        assert!(is_deleted(&world, &["pv", volume]), "{claim}");
        assert!(world.has_image(volume), "{claim}");
        assert_eq!(world.record(volume), None, "{claim}");
    }
    world.wait_until("nothing to be left here", |world| world.leftovers() == before);
    // Its container would keep the device for as long as it runs.
    world.wait_until("the pod to be deleted", |world| world.is_deleted(&pod));

    // Somebody makes it again while Kubernetes still has the volumes.
    volumes.iter().for_each(|volume| world.phase("pv", volume, "Released"));
    world.storage("main", &world.path("images"));
    for name in ["next", "after-next"] {
        world.claim("default", "gone", name);
    }
    for (volume, (_, claim)) in volumes.iter().zip(claims) {
        assert!(world.has_image(volume), "{claim}: all volumes were looked at since");
    }
}
