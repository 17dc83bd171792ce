//! Clusters on real machines: made, changed, broken and deleted through the command line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod agents;
mod apps;
mod bed;
#[path = "../../../wharf-server/tests/common/browser.rs"]
mod browser;
mod cancel;
mod console;
mod far;
mod foreign;
mod gate;
mod growth;
mod guests;
mod held;
mod import;
mod join;
mod kills;
mod machines;
mod services;
mod upkeep;
mod volumes;
#[path = "../cli/world.rs"]
#[allow(dead_code)]
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};
use wharf_testbed::wait_for;

use bed::{Bed, DEADLINE, assert_as_before, inventory, stamps};

const CONTROL: &[&str] = &["controlplane", "etcd"];
const WORKER: &[&str] = &["worker"];

/// The main processes of our units on a host.
fn pids(bed: &Bed, host: &str) -> BTreeMap<String, String> {
    let command = "systemctl show 'wharf-*' -p MainPID -p Id --value | paste -d' ' - - - | sort";
    let text = bed.host(host).run(&["sh", "-c", command]).unwrap();
    let pids = text.lines().filter_map(|line| line.trim().split_once(' '));
    pids.map(|(pid, unit)| (unit.to_owned(), pid.to_owned())).collect()
}

/// None while the API server that is asked is not back yet.
fn nodes_ready(bed: &Bed, cluster: &str) -> usize {
    let Ok(list) = bed.kubectl(cluster, &["get", "nodes", "-o", "json"]) else { return 0 };
    let list: Value = serde_json::from_str(&list).unwrap();
    let ready = |node: &&Value| {
        let conditions = node["status"]["conditions"].as_array().unwrap();
        conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    list["items"].as_array().unwrap().iter().filter(ready).count()
}

/// The nodes that take no new pods.
fn cordoned(bed: &Bed, cluster: &str) -> Vec<String> {
    let list = bed.kubectl(cluster, &["get", "nodes", "-o", "json"]).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let cordoned = list["items"].as_array().unwrap().iter();
    let cordoned = cordoned.filter(|node| node["spec"]["unschedulable"] == true);
    cordoned.map(|node| node["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_cluster_is_made_survives_a_machine_grows_shrinks_and_leaves_nothing() {
    let mut bed = Bed::start("life", 6);
    let hosts = ["node1", "node2", "node3", "node4", "node5", "node6"];
    let before: BTreeMap<_, _> = hosts.iter().map(|h| (*h, inventory(bed.host(h)))).collect();
    let nodes = [
        ("node1", CONTROL),
        ("node2", CONTROL),
        ("node3", CONTROL),
        ("node4", WORKER),
        ("node5", WORKER),
    ];
    let wish = bed.wish("life", &nodes);
    bed.send(&["create"], &wish).ok();
    assert_eq!(bed.status("life"), "Running");
    assert_eq!(nodes_ready(&bed, "life"), 5);
    for context in ["life", "life-node1", "life-node2", "life-node3"] {
        let version = bed.kubectl("life", &["--context", context, "version"]);
        assert!(version.is_ok(), "{context}: {version:?}");
    }

    bed.wait_for_links("life", 5);
    services::are_reached_from_hosts(&bed, "life", &hosts[..5]);

    // Each kubelet was started for the same cluster, which has an id.
    let mark = ["cat", "/persist/kube-status/joined-cluster"];
    let joined: BTreeSet<String> =
        hosts[..5].iter().map(|host| bed.host(host).run(&mark).unwrap()).collect();
    assert_eq!(joined.len(), 1, "{joined:?}");
    let id: String = joined.into_iter().collect();
    assert!(id.trim().len() == 36 && !id.starts_with("00000000-"), "{id}");

    // The same wish again: nothing is written, no process is another one.
    let state = |host: &&str| (pids(&bed, host), stamps(bed.host(host)));
    let before_again: Vec<_> = hosts[..5].iter().map(state).collect();
    bed.send(&["update", "life"], &wish).ok();
    let last = bed.operations("life").remove(0);
    assert_eq!(last["kind"], "update", "{last}");
    for (host, before) in hosts.iter().zip(before_again) {
        let after = state(host);
        assert_eq!(after.0, before.0, "{host}");
        let written = after.1.iter().filter(|line| !before.1.contains(line)).collect::<Vec<_>>();
        assert!(written.is_empty() && after.1.len() == before.1.len(), "{host}: {written:#?}");
        assert!(before.1.len() > 50, "{host}: {before:?}");
    }

    agents::serve(&bed, "life", "node5");

    // One controlplane machine goes: every worker still reaches the API, the state stays.
    bed.host("node1").power_cut().unwrap();
    for worker in ["node4", "node5"] {
        wait_for("the API through the balancer", DEADLINE, || {
            Ok(bed.kubectl_through(worker, "life", &["get", "nodes"]).ok().map(|_| ()))
        })
        .unwrap();
    }
    let probes = Duration::from_secs(60);
    let begun = std::time::Instant::now();
    wait_for("a minute of probes", probes * 2, || {
        assert_eq!(bed.status("life"), "Running");
        Ok((begun.elapsed() > probes).then_some(()))
    })
    .unwrap();
    bed.host("node1").start().unwrap();
    wait_for("all nodes to be ready again", DEADLINE, || {
        Ok((nodes_ready(&bed, "life") == 5).then_some(()))
    })
    .unwrap();

    // A worker comes; those that are there keep their processes.
    let running: BTreeMap<_, _> = hosts[1..5].iter().map(|h| (*h, pids(&bed, h))).collect();
    let grown = bed.wish("life", &[&nodes[..], &[("node6", WORKER)]].concat());
    bed.send(&["update", "life"], &grown).ok();
    assert_eq!(nodes_ready(&bed, "life"), 6);
    let again: BTreeMap<_, _> = hosts[1..5].iter().map(|h| (*h, pids(&bed, h))).collect();
    assert_eq!(running, again);

    // While data lies on it, it stays; nothing was begun.
    let begun = bed.operations("life").len();
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "data"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "local": {"path": "/mnt"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node6"]},
            ]}]}},
        },
    });
    bed.apply("life", &[volume]);
    let refused = bed.send(&["update", "life"], &wish).exits(1);
    assert!(refused.stderr.contains("node node6 used by storage"), "{refused:?}");
    bed.kubectl("life", &["delete", "pv", "data"]).unwrap();
    let storage = "node-role.kubernetes.io/storage";
    bed.kubectl("life", &["label", "node", "node6", &format!("{storage}=true")]).unwrap();
    let refused = bed.send(&["update", "life"], &wish).exits(1);
    assert!(refused.stderr.contains("node node6 used by storage"), "{refused:?}");
    bed.kubectl("life", &["label", "node", "node6", &format!("{storage}-")]).unwrap();
    assert_eq!(bed.operations("life").len(), begun);

    // And goes; its machine is as it was.
    bed.send(&["update", "life"], &wish).ok();
    assert_eq!(nodes_ready(&bed, "life"), 5);
    assert_as_before(bed.host("node6"), &before["node6"]);

    agents::upgrade(&mut bed, "life", &wish);

    // A controlplane node is not removed.
    let fewer = bed.wish("life", &nodes[1..]);
    let refused = bed.send(&["update", "life"], &fewer).exits(1);
    assert!(refused.stderr.contains("controlplane node only can add"), "{refused:?}");

    bed.world.local(&["cluster", "delete", "life", "--yes"]).ok();
    for host in hosts {
        assert_as_before(bed.host(host), &before[host]);
    }
    let last = bed.operations("life").remove(0);
    assert_eq!((&last["kind"], &last["state"]), (&"delete".into(), &"succeeded".into()), "{last}");
}
