//! Repairs of machines that are nodes, on a real Kubernetes API with the controller that keeps
//! budgets. There are no kubelets: the tests make Nodes and pods by hand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/apiserver.rs"]
mod world;
#[path = "common/yard.rs"]
mod yard;

use std::path::Path;

use common::{TestServer, eventually, json_of};
use serde_json::{Value, json};
use world::{World, labelled, owned_by, world};
use yard::{LOG, REPAIRS, Yard, reasons, step};

/// A server that has taken in the cluster as `demo`.
async fn import(world: &World, config: impl FnOnce(&Path) -> Value) -> Yard {
    let server = TestServer::start().await;
    let body = json!({"kubeConfig": world.server.kubeconfig()});
    let made = server.post("/clusters/demo?action=import", &server.admin, &body).await;
    assert_eq!(made.status(), 200, "{}", json_of(made).await);
    let yard = Yard { server };
    yard.configure(&config(yard.server.dir.path())).await;
    yard
}

/// A step that drains and then waits for a file before it heals.
fn patient(dir: &Path) -> Value {
    let heal = format!("{LOG}; until [ -e go ]; do sleep 0.1; done; echo true > healthy-$1");
    let more = json!({"need_drain": true, "command_timeout_seconds": 0});
    let mut config = yard::config(dir, &[step(dir, &heal, &more)], &json!({}));
    config["backoff_base_seconds"] = json!(3600);
    config["max_concurrent_repairs"] = json!(10);
    config
}

async fn restart(mut yard: Yard) -> Yard {
    yard.server.stop().await;
    let config = common::config(yard.server.dir.path());
    Yard { server: TestServer::start_in(yard.server.dir, config).await }
}

fn is_ours(world: &World, node: &str, address: &str) -> bool {
    world.owner(node).is_some_and(|owner| {
        owner.starts_with("repair ") && owner.ends_with(&format!(" {address}"))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_drained_before_the_command_and_given_back_after_it() {
    let world = world();
    world.node("plain", "192.0.2.101", "worker");
    world.pod("plain", "plain-pod", &json!({}));
    let yard = import(&world, patient).await;
    yard.add("192.0.2.101").await;
    assert_eq!(yard.entry(0).await["nodename"], "plain");
    eventually(async || !yard.read("log-192.0.2.101").is_empty()).await;
    assert!(world.is_unschedulable("plain") && !world.is_there("plain-pod"));
    assert!(is_ours(&world, "plain", "192.0.2.101"), "{:?}", world.owner("plain"));
    yard.write("go", "");
    let entry = yard.ended(0).await;
    assert_eq!((&entry["status"], &entry["nodename"]), (&json!("succeeded"), &json!("plain")));
    let told = ["step 0 begins with a drain", "the node is drained"];
    assert!(told.iter().all(|line| reasons(&entry).contains(line)), "{entry}");
    eventually(async || !world.is_unschedulable("plain") && world.owner("plain").is_none()).await;
    eventually(async || {
        let events = world.events("plain");
        ["RepairDrainStarted", "RepairCommandStarted", "RepairCommandSucceeded"]
            .iter()
            .all(|wanted| events.iter().any(|event| event.starts_with(wanted)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_or_a_job_keeps_the_command_away_by_name_until_the_backoff_is_reset() {
    let world = world();
    world.node("held", "192.0.2.102", "worker");
    world.pod("held", "held-pod", &labelled("held"));
    world.budget("held", 1, 1);
    world.node("busy", "192.0.2.103", "worker");
    world.pod("busy", "busy-job", &owned_by("Job", "nightly", "1111-1111"));
    let yard = import(&world, patient).await;
    yard.write("go", "");
    yard.add("192.0.2.102").await;
    yard.add("192.0.2.103").await;
    for index in [0, 1] {
        eventually(async || yard.entry(index).await["drain_backoff_count"] == 1).await;
    }
    let held = yard.entry(0).await;
    assert_eq!((&held["status"], &held["step_status"]), (&json!("processing"), &json!("waiting")));
    let pod = &held["blocking_pods"][0];
    assert_eq!((&pod["name"], &pod["budgets"]), (&json!("held-pod"), &json!(["held"])), "{held}");
    assert!(held["reason"].as_str().unwrap().contains("protected by budget held"), "{held}");
    assert!(held["wait"].as_str().unwrap().starts_with("the next drain is tried at 20"), "{held}");
    assert_ne!(held["drain_backoff_expire"], "0001-01-01T00:00:00Z");
    let busy = yard.entry(1).await;
    assert!(busy["reason"].as_str().unwrap().contains("busy-job belongs to a Job"), "{busy}");
    for (node, pod) in [("held", "held-pod"), ("busy", "busy-job")] {
        assert!(!world.is_unschedulable(node) && world.is_there(pod), "{node}");
    }
    world.kubectl(&["delete", "pdb", "held"], "");
    world.kubectl(&["delete", "pod", "busy-job", "--force", "--grace-period=0"], "");
    yard.act("resetBackoff").await;
    for index in [0, 1] {
        assert_eq!(yard.ended(index).await["status"], "succeeded");
    }
    for node in ["held", "busy"] {
        eventually(async || !world.is_unschedulable(node)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controlplane_machines_are_repaired_one_at_a_time_also_beside_other_disruptions() {
    let world = world();
    for (node, address) in [("cp-a", "192.0.2.111"), ("cp-b", "192.0.2.112")] {
        world.node(node, address, "control-plane");
    }
    world.node("cp-worker", "192.0.2.113", "worker");
    let yard = import(&world, patient).await;
    for address in ["192.0.2.111", "192.0.2.112", "192.0.2.113"] {
        yard.add(address).await;
    }
    eventually(async || {
        ["192.0.2.111", "192.0.2.113"]
            .iter()
            .all(|one| !yard.read(&format!("log-{one}")).is_empty())
    })
    .await;
    let wait = yard.entry(1).await["wait"].as_str().unwrap().to_owned();
    assert!(
        wait.starts_with("the controlplane or etcd machine 192.0.2.111 is out of service (repair)")
    );
    let path = "/clusters/demo/nodes/cp-b?action=drain";
    let drain = yard.server.post(path, &yard.server.admin, &json!({})).await;
    let drain = json_of(drain).await;
    assert!(!world.is_unschedulable("cp-b"), "{drain}");
    let path = "/clusters/demo/nodes/cp-b?action=cancelDrain";
    yard.server.post(path, &yard.server.admin, &json!({})).await;
    yard.write("go", "");
    for index in 0..3 {
        assert_eq!(yard.ended(index).await["status"], "succeeded");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disabled_queue_abandons_its_drains_and_goes_on_when_it_is_enabled() {
    let world = world();
    world.node("off", "192.0.2.121", "worker");
    // One of two may go: the node is cordoned, and the drain waits.
    world.pod("off", "off-0", &labelled("off"));
    world.pod("off", "off-1", &labelled("off"));
    world.budget("off", 1, 2);
    let yard = import(&world, |dir| {
        let mut config = patient(dir);
        config["evict_retries"] = json!(1_000_000);
        config
    })
    .await;
    yard.add("192.0.2.121").await;
    eventually(async || is_ours(&world, "off", "192.0.2.121")).await;
    eventually(async || {
        let wait = yard.entry(0).await["wait"].as_str().unwrap().to_owned();
        wait.contains("protected by budget off")
            && wait.starts_with("the node is being drained, 1 pods left")
    })
    .await;
    yard.act("disable").await;
    eventually(async || !world.is_unschedulable("off") && world.owner("off").is_none()).await;
    let entry = yard.entry(0).await;
    assert_eq!(
        (&entry["status"], &entry["step_status"]),
        (&json!("processing"), &json!("waiting"))
    );
    world.kubectl(&["delete", "pdb", "off"], "");
    yard.write("go", "");
    yard.act("enable").await;
    assert_eq!(yard.ended(0).await["status"], "succeeded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_goes_on_after_a_restart_and_a_person_s_cordon_survives_it_all() {
    let world = world();
    world.node("kept", "192.0.2.131", "worker");
    world.kubectl(&["cordon", "kept"], "");
    world.pod("kept", "kept-0", &labelled("kept"));
    world.pod("kept", "kept-1", &labelled("kept"));
    world.budget("kept", 1, 2);
    let yard = import(&world, |dir| {
        let mut config = patient(dir);
        config["evict_retries"] = json!(1_000_000);
        config
    })
    .await;
    yard.add("192.0.2.131").await;
    eventually(async || is_ours(&world, "kept", "192.0.2.131")).await;
    world.wait_until_half_empty("kept");
    let yard = restart(yard).await;
    eventually(async || {
        yard.entry(0).await["wait"].as_str().unwrap().contains("protected by budget kept")
    })
    .await;
    world.kubectl(&["delete", "pdb", "kept"], "");
    yard.write("go", "");
    assert_eq!(yard.ended(0).await["status"], "succeeded");
    eventually(async || world.owner("kept").is_none()).await;
    assert!(world.is_unschedulable("kept"), "a person cordoned it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_crash_left_on_a_node_is_taken_back_and_others_marks_are_not() {
    let world = world();
    world.node("left", "192.0.2.141", "worker");
    world.node("theirs", "192.0.2.142", "worker");
    let yard = import(&world, patient).await;
    yard.add("192.0.2.141").await;
    eventually(async || is_ours(&world, "left", "192.0.2.141")).await;
    let owner = world.owner("left").unwrap();
    yard.write("go", "");
    yard.ended(0).await;
    yard.act("deleteFinished").await;
    eventually(async || yard.entries().await.is_empty() && world.owner("left").is_none()).await;
    // As if the server had died before it could uncordon.
    let mut yard = yard;
    yard.server.stop().await;
    for (node, owner) in [("left", owner.as_str()), ("theirs", "repair other 192.0.2.142")] {
        world.kubectl(&["cordon", node], "");
        let marks = [
            format!("wharf.dev/cordoned-by={owner}"),
            "wharf.dev/cordoned-before=false".to_owned(),
        ];
        world.kubectl(&["annotate", "node", node, &marks[0], &marks[1]], "");
    }
    let config = common::config(yard.server.dir.path());
    let yard = Yard { server: TestServer::start_in(yard.server.dir, config).await };
    eventually(async || world.owner("left").is_none() && !world.is_unschedulable("left")).await;
    assert!(world.owner("theirs").is_some(), "it is of another installation");
    drop(yard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_is_deleted_during_its_drain_gives_the_node_back() {
    let world = world();
    world.node("gone", "192.0.2.151", "worker");
    world.pod("gone", "gone-0", &labelled("gone"));
    world.pod("gone", "gone-1", &labelled("gone"));
    world.budget("gone", 1, 2);
    let yard = import(&world, |dir| {
        let mut config = patient(dir);
        config["evict_retries"] = json!(1_000_000);
        config
    })
    .await;
    yard.add("192.0.2.151").await;
    eventually(async || is_ours(&world, "gone", "192.0.2.151")).await;
    let path = format!("{REPAIRS}/0");
    assert_eq!(yard.server.delete(&path, &yard.server.admin).await.status(), 204);
    eventually(async || yard.entries().await.is_empty()).await;
    eventually(async || !world.is_unschedulable("gone") && world.owner("gone").is_none()).await;
    assert_eq!(yard.read("log-192.0.2.151"), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_proved_to_be_off_is_fenced_until_its_next_command() {
    let world = world();
    world.node("fence", "192.0.2.161", "worker");
    let yard = import(&world, |dir| {
        let off = json!({"fence_volumes": true, "watch_seconds": 600});
        let steps = [step(dir, LOG, &off)];
        yard::config(dir, &steps, &json!({}))
    })
    .await;
    yard.add("192.0.2.161").await;
    let taint = || {
        let node = world.read(&["node", "fence"]);
        node["spec"]["taints"].to_string().contains("node.kubernetes.io/out-of-service")
    };
    eventually(async || taint()).await;
    yard.write("healthy-192.0.2.161", "true");
    assert_eq!(yard.ended(0).await["status"], "succeeded");
    eventually(async || !taint()).await;
}
