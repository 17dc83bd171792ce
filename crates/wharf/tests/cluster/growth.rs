//! A cluster that grows its control plane, and one that was made by hand.

use serde_json::{Value, json};
use wharf_testbed::{apiserver::ApiServer, wait_for};

use crate::{
    CONTROL, WORKER,
    bed::{Bed, DEADLINE},
    nodes_ready, pids,
};

/// The members of etcd that vote.
fn voters(bed: &Bed, host: &str) -> usize {
    let list = "/opt/wharf/bin/etcdctl --endpoints=https://127.0.0.1:2379 \
                --cacert /etc/wharf/pki/etcd/ca.crt --cert /etc/wharf/pki/etcd/server.crt \
                --key /etc/wharf/pki/etcd/server.key member list -w json";
    let list: Value =
        serde_json::from_str(&bed.host(host).run(&["sh", "-c", list]).unwrap()).unwrap();
    let votes = |member: &&Value| member["isLearner"] != true;
    list["members"].as_array().unwrap().iter().filter(votes).count()
}

#[test]
fn one_controlplane_becomes_three_and_the_first_may_go() {
    let bed = Bed::start("grow", 4);
    let small = [("node1", CONTROL), ("node4", WORKER)];
    bed.send(&["create"], &bed.wish("grow", &small)).ok();
    assert_eq!(voters(&bed, "node1"), 1);
    let running = (pids(&bed, "node1"), pids(&bed, "node4"));

    let large = [("node1", CONTROL), ("node2", CONTROL), ("node3", CONTROL), ("node4", WORKER)];
    bed.send(&["update", "grow"], &bed.wish("grow", &large)).ok();
    assert_eq!(voters(&bed, "node1"), 3);
    assert_eq!(nodes_ready(&bed, "grow"), 4);
    assert_eq!((pids(&bed, "node1"), pids(&bed, "node4")), running);

    bed.host("node1").power_cut().unwrap();
    wait_for("the API through the worker", DEADLINE, || {
        Ok(bed.kubectl_through("node4", "grow", &["get", "nodes"]).ok().map(|_| ()))
    })
    .unwrap();
    // What was down at a delete is named with what is left on it; the others are clean.
    let deleted = bed.world.local(&["cluster", "delete", "grow", "--yes", "--mode", "force"]).ok();
    assert!(deleted.stderr.contains("left on node1"), "{deleted:?}");
    let operation = bed.operations("grow").remove(0);
    let leftovers = operation["leftovers"].as_array().unwrap();
    assert_eq!(leftovers.len(), 1, "{operation}");
    assert_eq!(leftovers[0]["host"], "node1", "{operation}");
}

#[test]
fn a_cluster_that_was_made_by_hand_is_imported_and_watched() {
    let mut world = crate::world::World::empty();
    world.start("127.0.0.1:0", &[]);
    let api = ApiServer::start().unwrap();
    let file = world.path("by-hand.kubeconfig");
    std::fs::write(&file, api.kubeconfig()).unwrap();
    let file = file.display().to_string();
    let import = ["cluster", "import", "by-hand", "--kubeconfig", &file, "-o", "json"];
    let imported = world.local(&import).json();
    assert_eq!((&imported["status"], &imported["origin"]), (&json!("Running"), &json!("imported")));
    assert!(imported["version"].as_str().unwrap().starts_with("v1."), "{imported}");

    // Twice is refused, and so is one that does not answer; nothing is stored of either.
    world.local(&import).exits(4);
    drop(api);
    let dead = world.local(&["cluster", "import", "dead", "--kubeconfig", &file]);
    assert_ne!(dead.exit, 0, "{dead:?}");
    assert!(dead.stderr.contains("error: "), "{dead:?}");
    let list = world.local(&["cluster", "list", "-o", "json"]).json();
    assert_eq!(list.as_array().unwrap().len(), 1, "{list}");

    // Its nodes are not ours to change; forgetting it touches nothing.
    world.local(&["cluster", "delete", "by-hand", "--yes"]).ok();
    world.local(&["cluster", "show", "by-hand"]).exits(3);
}
