//! What is gone for good holds nothing up.

use serde_json::{Value, json};
use wharf_testbed::process::Signal;

use crate::{
    common::{create, kubectl},
    proxy::BlockServer,
    world::{World, is_mounted},
};

/// The block server's machine and a node burn down together. One storage cluster is deleted as it should be, of
/// the other somebody has taken the finalizer.
#[test]
fn a_storage_cluster_goes_though_its_storage_and_a_node_are_gone() {
    let world = World::with("scan_seconds = 1");
    let mut second = world.second("n1");
    let mut server = BlockServer::start(&world);
    world.storage_of("torn", "proxy", &json!({ "server": server.address }));
    server.volume(&world, "pv-net", "one");
    server.image("two", 64);
    world.volume_of("torn", "pv-torn", "two");
    let pods = ["a", "b"].map(|name| world.pod_on("n1", &second, name));
    assert_eq!(world.mount_of("net", &pods[0], "pv-net", "one"), Ok(()));
    assert_eq!(world.mount_of("torn", &pods[1], "pv-torn", "two"), Ok(()));

    second.agent.process().kill().unwrap();
    // One that hangs is worse than one that refuses.
    server.process.signal(Signal::STOP).unwrap();
    for storage in ["net", "torn"] {
        kubectl(
            &world.server,
            &["delete", "storagecluster", storage, "--wait=false"],
            &Value::Null,
        );
    }
    world.delete("storagecluster", "torn");
    world.wait_until("what is left to be told", |world| {
        let report = world.find(&["storagecluster", "net"])["status"]["report"].to_string();
        report.contains("pv-net is still on node n1")
    });
    world.wait_until("the storage cluster to go", |world| {
        world.release();
        world.find(&["storagecluster", "net"]).is_null()
    });
    world.wait_until("all records to go", |world| {
        world.record("pv-net").is_none() && world.record("pv-torn").is_none()
    });
    let mut left: Vec<String> = world
        .garbage("n1")
        .iter()
        .map(|entry| entry["volume"].as_str().unwrap().to_owned())
        .collect();
    left.sort();
    assert_eq!(left, ["pv-net", "pv-torn"], "its agent finds what it has to take away");
    assert!(is_mounted(&world.dir_of(&pods[0], "pv-net")), "nobody could reach the node");
}

/// An entry of a node that promised to cut itself off and whose lease nobody knows: no proof comes by itself.
#[test]
fn a_deletion_that_waits_for_a_person_says_what_for() {
    let world = World::with("scan_seconds = 1");
    world.storage("files", &world.path("images"));
    world.volume_of("files", "pv-1", "one");
    world.wait_until("the storage to be held", |world| {
        world.read(&["storagecluster", "files"])["metadata"]["finalizers"].is_array()
    });
    world.entry_of("pv-1", "files", "lost", true);
    kubectl(&world.server, &["delete", "storagecluster", "files", "--wait=false"], &Value::Null);
    let sentence =
        "volume pv-1 is still on node lost (whether its agent is alive is not known)".to_owned();
    world.wait_until("what it waits for to be told", |world| {
        world.read(&["storagecluster", "files"])["status"]["report"] == json!([sentence])
    });
    // As `wharf volume detach --force` does.
    let mut record = world.record("pv-1").unwrap();
    record["attachments"][0]["phase"] = json!("Released");
    let released = json!({ "attachments": record["attachments"] });
    world.patch("attachments.wharf.dev", "pv-1", &released);
    world.wait_until("the storage cluster to go", |world| {
        world.release();
        world.find(&["storagecluster", "files"]).is_null()
    });
    assert_eq!(world.record("pv-1"), None);
}

/// Of a node that is long gone nothing is kept, but what something still refers to.
#[test]
fn leases_and_garbage_lists_of_nodes_that_are_long_gone_are_taken_away() {
    let mut world = World::new();
    let now = jiff::Timestamp::now();
    let names = ["old", "named", "recent"];
    for node in names {
        let since =
            if node == "recent" { now.to_string() } else { "2020-01-01T00:00:00Z".to_owned() };
        world.lease_of(node);
        let entry = json!({ "volume": "pv", "generation": 1, "bootID": "b", "mountDir": "/p",
                            "since": since, "reason": "its node is gone" });
        let list = json!({ "apiVersion": "wharf.dev/v1", "kind": "NodeGarbage",
                           "metadata": { "name": node }, "entries": [entry] });
        create(&world.server, &list);
    }
    world.entry_of("pv-1", "nowhere", "named", true);
    // It looks at its election, and seldom after that.
    world.agent.process().kill().unwrap();
    world.agent.restart();
    world.wait_until("the old one to be forgotten", |world| {
        world.garbage("old").is_empty() && world.has_lease("old").is_none()
    });
    for node in ["named", "recent"] {
        assert!(world.has_lease(node).is_some(), "{node}");
        assert!(!world.garbage(node).is_empty(), "{node}");
    }
    assert!(world.has_lease("n0").is_some(), "the agent's own");
}

impl World {
    /// A record with an entry of another node.
    fn entry_of(&self, volume: &str, storage: &str, node: &str, self_fence: bool) {
        let entry = json!({
            "node": node, "podNamespace": "default", "pod": "p", "mountDir": "/p", "podUID": "u",
            "nodeUID": "n", "bootID": "b", "generation": 1, "phase": "Attached",
            "storageCluster": storage, "image": "one", "selfFence": self_fence, "tenure": 1,
        });
        let record = json!({ "apiVersion": "wharf.dev/v1", "kind": "Attachment",
                             "metadata": { "name": volume }, "attachments": [entry] });
        create(&self.server, &record);
    }

    fn lease_of(&self, node: &str) {
        let spec = json!({ "holderIdentity": node, "leaseDurationSeconds": 20,
                           "renewTime": "2020-01-01T00:00:00.000000Z", "leaseTransitions": 1 });
        let metadata = json!({ "namespace": "wharf-system", "name": format!("volumes-{node}") });
        let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                            "metadata": metadata, "spec": spec });
        create(&self.server, &lease);
    }

    fn has_lease(&self, node: &str) -> Option<Value> {
        let name = format!("volumes-{node}");
        Some(self.find(&["lease", "-n", "wharf-system", &name])).filter(|lease| !lease.is_null())
    }
}
