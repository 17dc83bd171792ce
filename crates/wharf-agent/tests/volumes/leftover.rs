//! What was left on a node: by holders that were pushed out, by a node that was made anew, by pods that
//! are gone for good. It leaves, and what is held by right stays.

use std::fs;

use serde_json::{Value, json};

use crate::{
    common::{create, kubectl},
    guard::Container,
    proxy::Writer,
    world::{NODE, World, is_mounted},
};

/// The loop device of a volume, by its record.
fn device(world: &World, volume: &str) -> Value {
    world.record(volume).unwrap()["attachments"][0]["device"].clone()
}

/// An image and a volume of the same name.
fn make_volume(world: &World, name: &str) {
    world.image(name, 64);
    world.volume(name, name, &json!({}));
}

/// Others pushed this node out of both volumes while its agent was away. One of them it has got again
/// since; of the other it has only the device and what is mounted from it, of which no journal knows.
#[test]
fn of_the_garbage_list_only_that_leaves_the_node_which_it_does_not_hold_by_right() {
    // Long enough for all that is done while the agent is away.
    let mut world = World::with("lease_seconds = 120");
    make_volume(&world, "pv-back");
    make_volume(&world, "pv-stale");
    let (pod, lost) = (world.pod("a"), world.pod("b"));
    assert_eq!(world.mount(&pod, "pv-back", "pv-back"), Ok(()));
    assert_eq!(world.unmount(&pod, "pv-back"), Ok(()));
    assert_eq!(world.mount(&pod, "pv-back", "pv-back"), Ok(()));
    let held = world.record("pv-back").unwrap()["attachments"].clone();
    assert_eq!(held[0]["generation"], 2);
    let own = world.leftovers();
    assert_eq!(world.mount(&lost, "pv-stale", "pv-stale"), Ok(()));
    let stale = world.record("pv-stale").unwrap()["attachments"][0].clone();
    let writer = Writer::start(world.dir_of(&pod, "pv-back").join("log"));
    writer.wait_for_more();

    world.agent.process().kill().unwrap();
    kubectl(&world.server, &["delete", "attachments.wharf.dev", "pv-stale"], &Value::Null);
    fs::remove_file(world.path("state/journals/pv-stale.json")).unwrap();
    let entry = |of: &Value, volume: &str, generation: u64| {
        json!({
            "volume": volume, "image": volume, "generation": generation, "bootID": of["bootID"],
            "device": of["device"], "mountDir": of["mountDir"],
            "since": "2026-01-01T00:00:00Z", "reason": "its node was lost",
        })
    };
    // Also a push that was noted, and then not carried out.
    let entries = [
        entry(&held[0], "pv-back", 1),
        entry(&held[0], "pv-back", 2),
        entry(&stale, "pv-stale", 1),
    ];
    create(
        &world.server,
        &json!({ "apiVersion": "wharf.dev/v1", "kind": "NodeGarbage",
                 "metadata": { "name": NODE }, "entries": entries }),
    );
    assert_eq!(world.garbage(NODE).len(), 3);
    world.agent.restart();
    world.wait_until("the list to be worked off", |world| world.garbage(NODE).is_empty());

    assert!(!is_mounted(&world.dir_of(&lost, "pv-stale")));
    assert_eq!(world.leftovers(), own, "all of the other volume is there, and nothing else");
    assert_eq!(world.record("pv-back").unwrap()["attachments"], held);
    writer.wait_for_more();
    let (_, ended) = writer.end();
    assert!(ended.is_ok(), "who holds it by right has seen nothing: {ended:?}");
    assert_eq!(world.mount(&lost, "pv-stale", "pv-stale"), Ok(()), "it may be had again");
    for (pod, volume) in [(&pod, "pv-back"), (&lost, "pv-stale")] {
        assert_eq!(world.unmount(pod, volume), Ok(()));
    }
}

/// Somebody deletes the Node and makes it anew while its agent runs: to Kubernetes it is another machine
/// of the same name, and what the first one held is not the second one's.
#[test]
fn a_node_that_is_made_anew_lets_go_and_gets_the_volume_by_a_grant_of_its_own() {
    let world = World::new();
    make_volume(&world, "pv-1");
    let pod = world.pod("a");
    let before = world.leftovers();
    assert_eq!(world.mount(&pod, "pv-1", "pv-1"), Ok(()));
    let file = world.dir_of(&pod, "pv-1").join("file");
    fs::write(&file, "kept").unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let held = world.record("pv-1").unwrap()["attachments"][0].clone();

    kubectl(&world.server, &["delete", "node", NODE], &Value::Null);
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
    create(&world.server, &node);
    let uid = world.read(&["node", NODE])["metadata"]["uid"].clone();
    assert_ne!(held["nodeUID"], uid);
    world.wait_until("what the first one held to leave", |world| {
        world.record("pv-1").is_none() && world.leftovers() == before
    });
    world.wait_until("its pod to be deleted", |world| world.is_deleted(&pod));

    let next = world.pod("b");
    assert_eq!(world.mount(&next, "pv-1", "pv-1"), Ok(()));
    let entry = world.record("pv-1").unwrap()["attachments"][0].clone();
    assert_eq!(entry["nodeUID"], uid);
    assert!(entry["generation"].as_u64() > held["generation"].as_u64(), "{entry}");
    let kept = fs::read_to_string(world.dir_of(&next, "pv-1").join("file")).unwrap();
    assert_eq!(kept, "kept");
    assert_eq!(world.unmount(&next, "pv-1"), Ok(()));
    assert_eq!(world.garbage(NODE), Vec::<Value>::new());
    assert_eq!(world.leftovers(), before);
}

/// Nobody asks for the unmount: kubelet has forgotten the pods, and the API server too. Of one of them a
/// container is left, which may still write.
#[test]
fn what_pods_left_that_are_gone_for_good_is_unmounted_and_nothing_of_others() {
    let world = World::new();
    let pods = ["a", "b", "c"].map(|name| world.pod(name));
    let volumes = ["pv-gone", "pv-kept", "pv-used"];
    let before = world.leftovers();
    for (pod, volume) in pods.iter().zip(volumes) {
        make_volume(&world, volume);
        assert_eq!(world.mount(pod, volume, volume), Ok(()));
    }
    let [gone, kept, used] = &pods;
    let stays = [device(&world, "pv-kept"), device(&world, "pv-used")];
    let writer = Writer::start(world.dir_of(kept, "pv-kept").join("log"));
    let container = Container::start(&world, &world.dir_of(used, "pv-used"));
    let log = world.dir_of(used, "pv-used").join("log");
    let length = || log.metadata().map_or(0, |found| found.len());
    world.wait_until("the container to write", |_| length() > 0);

    world.remove(gone);
    world.remove(used);
    world.wait_until("what nobody uses to leave", |world| {
        !is_mounted(&world.dir_of(gone, "pv-gone")) && world.record("pv-gone").is_none()
    });
    assert!(!world.path("state/journals/pv-gone.json").exists());
    assert_eq!(world.devices().len(), 2);
    assert_eq!([device(&world, "pv-kept"), device(&world, "pv-used")], stays);
    writer.wait_for_more();
    let (_, ended) = writer.end();
    assert!(ended.is_ok(), "{ended:?}");
    let written = length();
    world.wait_until("the container to write on", |_| length() > written);

    drop(container);
    world.wait_until("that of its pod to leave, too", |world| world.record("pv-used").is_none());
    assert!(!is_mounted(&world.dir_of(used, "pv-used")));
    assert_eq!(world.unmount(kept, "pv-kept"), Ok(()));
    assert_eq!(world.leftovers(), before);
}
