//! A cluster that grows its control plane.

use serde_json::Value;
use wharf_testbed::wait_for;

use crate::{
    CONTROL, WORKER,
    bed::{Bed, DEADLINE, inventory},
    join, nodes_ready, pids,
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

    // A controlplane node that was begun is taken back: its vote goes with it.
    let before = inventory(bed.host("node2"));
    let two = bed.wish("grow", &[("node1", CONTROL), ("node2", CONTROL), ("node4", WORKER)]);
    bed.send(&["update", "grow", "--no-wait"], &two).ok();
    wait_for("the second vote", DEADLINE, || {
        let steps = bed.operations("grow")[0]["steps"].as_array().unwrap().clone();
        let promoted = |step: &&Value| step["name"] == "promote" && step["state"] == "done";
        Ok(steps.iter().find(promoted).map(|_| ()))
    })
    .unwrap();
    bed.world.local(&["cluster", "cancel", "grow"]).ok();
    wait_for("the cancel to settle", DEADLINE, || {
        Ok((bed.status("grow") == "Running").then_some(()))
    })
    .unwrap();
    bed.send(&["update", "grow"], &bed.wish("grow", &small)).ok();
    assert_eq!(voters(&bed, "node1"), 1);
    assert_eq!(nodes_ready(&bed, "grow"), 2);
    assert_eq!(inventory(bed.host("node2")), before);

    // Not in the order of their names.
    let large = [("node1", CONTROL), ("node3", CONTROL), ("node2", CONTROL), ("node4", WORKER)];
    bed.send(&["update", "grow"], &bed.wish("grow", &large)).ok();
    assert_eq!(voters(&bed, "node1"), 3);
    assert_eq!(nodes_ready(&bed, "grow"), 4);
    assert_eq!((pids(&bed, "node1"), pids(&bed, "node4")), running);
    join::a_kubelet_waits_for_its_own_cluster(&bed, "grow", "node2", "node1");

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
