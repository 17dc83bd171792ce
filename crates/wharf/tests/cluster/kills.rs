//! The server dies in the middle of what it does.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use wharf_testbed::wait_for;

use crate::{
    CONTROL, WORKER,
    bed::{Bed, DEADLINE},
    cordoned, nodes_ready,
};

/// A cancel is over within this time, whatever hangs.
pub const SETTLED: Duration = Duration::from_secs(10);

const NODES: [(&str, &[&str]); 3] = [("node1", CONTROL), ("node2", WORKER), ("node3", WORKER)];

#[test]
fn operations_go_on_after_the_server_was_killed_in_every_step() {
    let mut bed = Bed::start("kill", 3);
    bed.send(&["create", "--no-wait"], &bed.wish("kill", &NODES[..2])).ok();
    let killed_in = kill_in_every_step(&mut bed, "kill");
    // Steps that end within one look cannot be hit; most are longer.
    assert!(killed_in.len() >= 9, "{killed_in:?}");
    assert_eq!((bed.status("kill").as_str(), nodes_ready(&bed, "kill")), ("Running", 2));
    assert_eq!(created_events(&bed, "kill"), 1);

    bed.send(&["update", "kill", "--no-wait"], &bed.wish("kill", &NODES)).ok();
    let killed_in = kill_in_every_step(&mut bed, "kill");
    assert!(killed_in.len() >= 5, "{killed_in:?}");
    assert_eq!((bed.status("kill").as_str(), nodes_ready(&bed, "kill")), ("Running", 3));
    assert_eq!(created_events(&bed, "kill"), 1);

    a_canceled_removal_gives_the_node_back(&mut bed);
    a_removal_goes_on_after_a_kill_in_its_drain(&mut bed);

    // Half done a delete never comes back as finished.
    bed.world.local(&["cluster", "delete", "kill", "--yes", "--no-wait"]).ok();
    kill_in_every_step(&mut bed, "kill");
    bed.world.local(&["cluster", "show", "kill"]).exits(3);
    assert_eq!(
        bed.host("node2").run(&["sh", "-c", "ls /etc/wharf /opt/wharf || true"]).unwrap(),
        ""
    );
}

fn a_canceled_removal_gives_the_node_back(bed: &mut Bed) {
    let fewer = bed.wish("kill", &NODES[..2]);
    hold(bed);
    for killed in [false, true] {
        bed.send(&["update", "kill", "--no-wait"], &fewer).ok();
        wait_until_held(bed);
        if killed {
            // What the server that died had cordoned, the next one knows of.
            bed.world.kill_server();
            bed.start_server();
        }
        bed.world.local(&["cluster", "cancel", "kill"]).ok();
        wait_for("the cancel to settle", SETTLED, || {
            Ok((bed.status("kill") == "Running").then_some(()))
        })
        .unwrap();
        let operation = bed.operations("kill").remove(0);
        assert_eq!(operation["state"], "canceled", "{operation}");
        assert_eq!(cordoned(bed, "kill"), [""; 0], "killed: {killed}");
        assert_eq!(nodes_ready(bed, "kill"), 3);
        let pending = bed.get("kill")["pending"].clone();
        assert_eq!(
            (&pending[0]["name"], &pending[0]["change"]),
            (&json!("node3"), &json!("remove"))
        );
        wait_until_unheld(bed);
    }
}

fn a_removal_goes_on_after_a_kill_in_its_drain(bed: &mut Bed) {
    bed.send(&["update", "kill", "--no-wait"], &bed.wish("kill", &NODES[..2])).ok();
    wait_until_held(bed);
    bed.world.kill_server();
    bed.start_server();
    bed.kubectl("kill", &["delete", "pdb", "held"]).unwrap();
    let ended = bed.wait_for_end("kill");
    assert_eq!(ended["state"], "succeeded", "{ended}");
    assert_eq!((bed.status("kill").as_str(), nodes_ready(bed, "kill")), ("Running", 2));
    assert_eq!(cordoned(bed, "kill"), [""; 0]);
    assert_eq!(bed.get("kill")["pending"], json!([]));
}

/// Two pods that only node3 may run, and of which one may be missing: a drain of node3 moves the
/// first and waits for the second.
fn hold(bed: &Bed) {
    let labels = json!({"app": "held"});
    let pod = json!({
        "nodeSelector": {"kubernetes.io/hostname": "node3"},
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "held", "image": bed.image("pause")}],
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "held"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    });
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "held"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
    });
    bed.apply("kill", &[deployment, budget]);
    wait_until_unheld(bed);
}

/// Waits until both pods run, so that one of them may be evicted.
fn wait_until_unheld(bed: &Bed) {
    wait_for("the budget to allow one", DEADLINE, || Ok((allowed(bed) == "1").then_some(())))
        .unwrap();
}

/// Waits until the drain of node3 has cordoned it and evicted the first pod.
fn wait_until_held(bed: &Bed) {
    wait_for("the drain to wait for the budget", DEADLINE, || {
        let last = bed.operations("kill").remove(0);
        assert_eq!(last["state"], "running", "{last}");
        Ok((cordoned(bed, "kill") == ["node3"] && allowed(bed) == "0").then_some(()))
    })
    .unwrap();
}

fn allowed(bed: &Bed) -> String {
    let allowed = "jsonpath={.status.disruptionsAllowed}";
    bed.kubectl("kill", &["get", "pdb", "held", "-o", allowed]).unwrap()
}

/// Kills the server once in every step of the newest operation until that has succeeded; gives the
/// steps that were hit.
fn kill_in_every_step(bed: &mut Bed, cluster: &str) -> BTreeSet<String> {
    let count = bed.operations(cluster).len();
    let mut killed_in = BTreeSet::new();
    let ended = wait_for("the operation to end", DEADLINE, || {
        let mut operations = bed.operations(cluster);
        assert_eq!(operations.len(), count, "a restart begins no other operation: {operations:?}");
        let operation = operations.remove(0);
        if operation["state"] != "running" {
            return Ok(Some(operation));
        }
        if killed_in.insert(running_step(&operation)) {
            bed.world.kill_server();
            bed.start_server();
        }
        Ok(None)
    })
    .unwrap();
    assert_eq!(ended["state"], "succeeded", "killed in {killed_in:?}: {}", ended["error"]);
    killed_in
}

/// The step that runs, with its phase; or the phase alone, or what is before the first.
fn running_step(operation: &Value) -> String {
    let running = |list: &Value| {
        let found = list.as_array().unwrap().iter().find(|one| one["state"] == "running");
        found.cloned().unwrap_or_default()
    };
    let step = running(&operation["steps"]);
    format!("{}: {}", running(&operation["phases"])["name"], step["name"])
}

/// How often the cluster was announced.
fn created_events(bed: &Bed, cluster: &str) -> usize {
    let events = bed.world.local(&["events", "-o", "json"]).ok().stdout;
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|e| e["type"] == "cluster.created" && e["cluster"] == cluster).count()
}
