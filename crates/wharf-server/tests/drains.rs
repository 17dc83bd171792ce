//! Cordons and drains through the API, on a real Kubernetes API with the controller that keeps
//! budgets. There are no kubelets: the tests make Nodes and pods by hand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "common/browser.rs"]
mod browser;
mod common;
#[path = "drains/console.rs"]
mod console;
#[path = "drains/trouble.rs"]
mod trouble;
#[path = "common/apiserver.rs"]
mod world;

use std::panic::AssertUnwindSafe;

use common::{TestServer, config, error_of, eventually, json_of};
use futures_util::FutureExt;
use serde_json::{Value, json};
use wharf_core::drain::DrainRecord;
use wharf_store::{Store, StoreLocation, StoreOptions, Txn};
use world::{World, half_blocked, labelled, owned_by, world};

/// A server that has taken in the cluster as `demo`. Its nodes are known that are there now.
async fn import(world: &World) -> TestServer {
    let server = TestServer::start().await;
    take_in(&server, world.server.kubeconfig()).await;
    server
}

async fn take_in(server: &TestServer, kubeconfig: String) {
    let body = json!({"kubeConfig": kubeconfig});
    let made = server.post("/clusters/demo?action=import", &server.admin, &body).await;
    assert_eq!(made.status(), 200, "{}", json_of(made).await);
}

async fn act(server: &TestServer, node: &str, action: &str, body: Value) -> reqwest::Response {
    let path = format!("/clusters/demo/nodes/{node}?action={action}");
    server.post(&path, &server.admin, &body).await
}

async fn start(server: &TestServer, node: &str, body: Value) -> Value {
    let answer = act(server, node, "drain", body).await;
    let status = answer.status();
    let drain = json_of(answer).await;
    assert_eq!(status, 200, "{drain}");
    drain
}

async fn get(server: &TestServer, node: &str) -> Value {
    json_of(server.get(&format!("/clusters/demo/nodes/{node}/drain"), &server.admin).await).await
}

/// Looks at the drain until it is as wanted; a test that waits in vain shows how it is instead.
async fn wait_until(server: &TestServer, node: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let look = eventually(async || {
        last = get(server, node).await;
        is_so(&last)
    });
    let seen = AssertUnwindSafe(look).catch_unwind().await;
    assert!(seen.is_ok(), "the drain stays so: {last}");
    last
}

async fn wait_for_reason(server: &TestServer, node: &str, text: &str) -> Value {
    wait_until(server, node, |drain| {
        assert_eq!(drain["state"], "running", "it ended before it said {text:?}: {drain}");
        drain["reason"].as_str().is_some_and(|reason| reason.contains(text))
    })
    .await
}

async fn wait_for_end(server: &TestServer, node: &str) -> Value {
    wait_until(server, node, |drain| drain["state"] != "running").await
}

async fn restart(mut server: TestServer) -> TestServer {
    server.stop().await;
    let config = config(server.dir.path());
    TestServer::start_in(server.dir, config).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_says_what_becomes_of_each_pod_and_touches_nothing() {
    let world = world();
    world.node("plan", "192.0.2.1", "worker");
    world.pod("plan", "plan-free", &json!({}));
    world.pod("plan", "plan-held", &labelled("plan-held"));
    world.budget("plan-held", 1, 1);
    let gone = "11111111-1111-1111-1111-111111111111";
    world.pod("plan", "plan-job", &owned_by("Job", "nightly", gone));
    let server = import(&world).await;

    let plan = json_of(act(&server, "plan", "planDrain", json!({})).await).await;
    assert_eq!((&plan["type"], &plan["verdict"]), (&json!("drainPlan"), &json!("never")), "{plan}");
    let row = |name: &str| {
        let pods = plan["pods"].as_array().unwrap();
        pods.iter().find(|pod| pod["name"] == name).unwrap_or_else(|| panic!("{plan}")).clone()
    };
    let class = |name: &str| (row(name)["class"].clone(), row(name)["action"].clone());
    assert_eq!(class("plan-free"), (json!("pod"), json!("evict")));
    assert_eq!(class("plan-job"), (json!("job"), json!("block")));
    let budget = json!({"name": "plan-held", "allowed": 0, "outlook": "never"});
    assert_eq!(row("plan-held")["budgets"], json!([budget]), "{plan}");
    assert!(row("plan-held")["hint"].as_str().unwrap().contains("never allows one"), "{plan}");

    let waiting = json_of(act(&server, "plan", "planDrain", json!({"jobs": "delete"})).await).await;
    let job = waiting["pods"].as_array().unwrap().iter().find(|pod| pod["name"] == "plan-job");
    assert_eq!(job.unwrap()["action"], "delete");

    assert!(!world.is_unschedulable("plan") && world.is_there("plan-free"));
    let none = server.get("/clusters/demo/nodes/plan/drain", &server.admin).await;
    assert_eq!(none.status(), 404, "a plan is no drain");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_drain_names_its_budget_is_joined_by_others_and_goes_on_once_it_may() {
    let world = world();
    world.node("budget", "192.0.2.2", "worker");
    world.node("budget-spare", "192.0.2.3", "worker");
    world.pod("budget", "budget-0", &labelled("budget"));
    world.pod("budget", "budget-plain", &json!({}));
    world.budget("budget", 1, 1);
    let server = import(&world).await;

    let begun = start(&server, "budget", json!({})).await;
    assert_eq!(begun["requestedBy"], "admin");
    assert_eq!(begun["options"]["timeoutSeconds"], 3600);
    let reason = "pod default/budget-0 is protected by budget budget, 0 allowed";
    let drain = wait_for_reason(&server, "budget", reason).await;
    let pod = &drain["pods"][0];
    assert_eq!((&pod["name"], &pod["blocks"]), (&json!("budget-0"), &json!(true)), "{drain}");
    assert!(pod["reason"].as_str().unwrap().starts_with("is protected by budget budget"), "{pod}");
    assert_eq!((&drain["stage"], &drain["left"]), (&json!("rehearsing"), &json!(2)));
    assert!(!world.is_unschedulable("budget"), "what cannot succeed disturbs nothing");
    assert!(world.is_there("budget-plain"));

    // Whoever asks again gets the same one, and everybody sees it.
    assert_eq!(start(&server, "budget", json!({"timeoutSeconds": 5})).await["id"], begun["id"]);
    let node = json_of(server.get("/clusters/demo/nodes/budget", &server.admin).await).await;
    assert_eq!(node["drain"]["id"], begun["id"], "{node}");
    let list = json_of(server.get("/clusters/demo/drains", &server.admin).await).await;
    assert_eq!(list["data"][0]["id"], begun["id"], "{list}");
    let metrics = server.http.get(format!("{}/metrics", server.base)).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    assert!(metrics.contains("wharf_drains_running 1\n"), "{metrics}");
    assert!(metrics.contains("wharf_drain_pods_waiting 2\n"), "{metrics}");

    world.pod("budget-spare", "budget-1", &labelled("budget"));
    let ended = wait_for_end(&server, "budget").await;
    assert_eq!((&ended["state"], &ended["left"]), (&json!("succeeded"), &json!(0)), "{ended}");
    assert_eq!((&ended["reason"], &ended["total"]), (&json!(null), &json!(2)), "{ended}");
    assert!(!world.is_there("budget-0") && !world.is_there("budget-plain"));
    assert!(world.is_unschedulable("budget") && world.owner("budget").is_none(), "a person's now");
    eventually(async || {
        let reasons = world.events("budget");
        ["DrainStarted", "DrainBlocked", "DrainSucceeded"]
            .iter()
            .all(|wanted| reasons.iter().any(|reason| reason.starts_with(wanted)))
    })
    .await;
    assert!(world.events("budget").iter().any(|event| event.contains(reason)));
    let node = json_of(server.get("/clusters/demo/nodes/budget", &server.admin).await).await;
    assert!(node["drain"].is_null(), "it is over: {node}");
    let audit = json_of(server.get("/audit?limit=5", &server.admin).await).await;
    let drains = audit["data"].as_array().unwrap().iter();
    let drains: Vec<_> = drains.filter(|line| line["action"] == "node.drain").collect();
    assert_eq!((drains.len(), &drains[0]["resource"]), (1, &json!("node/demo/budget")));

    // Back into service.
    let node = json_of(act(&server, "budget", "uncordon", json!({})).await).await;
    assert_eq!(node["status"], "NotReady", "there is no kubelet: {node}");
    assert!(!world.is_unschedulable("budget"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canceled_drain_gives_the_node_back() {
    let world = world();
    world.node("cancel", "192.0.2.4", "worker");
    half_blocked(&world, "cancel");
    let server = import(&world).await;
    let nothing = act(&server, "cancel", "cancelDrain", json!({})).await;
    assert_eq!(error_of(nothing).await.0, 409);
    start(&server, "cancel", json!({})).await;
    wait_for_reason(&server, "cancel", "is protected by budget cancel, 0 allowed").await;
    eventually(async || world.is_unschedulable("cancel")).await;
    assert_eq!(world.owner("cancel").as_deref(), Some("a drain"));

    let canceled = json_of(act(&server, "cancel", "cancelDrain", json!({})).await).await;
    assert_eq!(canceled["canceled"], true);
    let ended = wait_for_end(&server, "cancel").await;
    assert_eq!((&ended["state"], &ended["cordonLeft"]), (&json!("canceled"), &json!(false)));
    assert!(!world.is_unschedulable("cancel") && world.owner("cancel").is_none());
    let left = ["cancel-0", "cancel-1"].iter().filter(|pod| world.is_there(pod)).count();
    assert_eq!(left, 1);
    // The next one is a new one.
    let again = start(&server, "cancel", json!({"deleteAfterSeconds": 0})).await;
    assert_ne!(again["id"], ended["id"]);
    assert_eq!(wait_for_end(&server, "cancel").await["state"], "succeeded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_persons_cordon_survives_a_drain_that_fails() {
    let world = world();
    world.node("person", "192.0.2.5", "worker");
    half_blocked(&world, "person");
    let server = import(&world).await;
    for _ in 0..2 {
        let node = json_of(act(&server, "person", "cordon", json!({})).await).await;
        assert_eq!(node["name"], "person", "a repeated cordon is no fault: {node}");
    }
    assert!(world.is_unschedulable("person") && world.owner("person").is_none());
    start(&server, "person", json!({"timeoutSeconds": 4})).await;
    let ended = wait_for_end(&server, "person").await;
    assert_eq!((&ended["state"], &ended["timedOut"]), (&json!("failed"), &json!(true)), "{ended}");
    let reason = ended["reason"].as_str().unwrap();
    assert!(reason.contains("the deadline passed: pod default/person-"), "{reason}");
    assert!(reason.contains("budget person, 0 allowed"), "{reason}");
    assert!(world.is_unschedulable("person") && world.owner("person").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_who_uncordons_ends_the_drain_by_the_api_and_by_kubectl() {
    let world = world();
    for (node, address) in [("back-api", "192.0.2.6"), ("back-kubectl", "192.0.2.7")] {
        world.node(node, address, "worker");
        half_blocked(&world, node);
    }
    let server = import(&world).await;
    for node in ["back-api", "back-kubectl"] {
        start(&server, node, json!({})).await;
    }
    for node in ["back-api", "back-kubectl"] {
        wait_for_reason(&server, node, "0 allowed").await;
        eventually(async || world.is_unschedulable(node)).await;
    }
    assert_eq!(act(&server, "back-api", "uncordon", json!({})).await.status(), 200);
    assert_eq!(wait_for_end(&server, "back-api").await["state"], "canceled");
    world.kubectl(&["uncordon", "back-kubectl"], "");
    let ended = wait_for_end(&server, "back-kubectl").await;
    assert_eq!((&ended["state"], &ended["timedOut"]), (&json!("failed"), &json!(false)));
    assert_eq!(ended["reason"], "somebody made the node schedulable again");
    for node in ["back-api", "back-kubectl"] {
        assert!(!world.is_unschedulable(node) && world.owner(node).is_none(), "{node}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_goes_on_after_a_restart_and_a_canceled_one_gives_the_node_back() {
    let world = world();
    for (node, address) in [("again", "192.0.2.8"), ("never", "192.0.2.9")] {
        world.node(node, address, "worker");
        half_blocked(&world, node);
    }
    world.node("again-spare", "192.0.2.10", "worker");
    let mut server = import(&world).await;
    let begun = start(&server, "again", json!({})).await;
    start(&server, "never", json!({})).await;
    for node in ["again", "never"] {
        wait_for_reason(&server, node, "0 allowed").await;
        eventually(async || world.is_unschedulable(node)).await;
        world.wait_until_half_empty(node);
    }
    server.stop().await;
    assert!(world.is_unschedulable("again") && world.is_unschedulable("never"));
    // As if the server had died right after somebody canceled.
    let config = config(server.dir.path());
    let location = StoreLocation::Embedded { data_dir: config.data_dir.clone() };
    let store = Store::open(&StoreOptions { location }).await.unwrap();
    let old = store.read::<DrainRecord>("demo/never").await.unwrap().unwrap();
    assert!(old.value.admitted);
    let value = DrainRecord { canceled: true, ..old.value.clone() };
    let txn = Txn::new().replace(&old, &value, jiff::Timestamp::now()).unwrap();
    assert!(matches!(store.commit(txn).await.unwrap(), wharf_store::Outcome::Committed(_)));
    store.close().await;

    let server = TestServer::start_in(server.dir, config).await;
    assert_eq!(wait_for_end(&server, "never").await["state"], "canceled");
    assert!(!world.is_unschedulable("never") && world.owner("never").is_none());
    let drain = wait_for_reason(&server, "again", "0 allowed").await;
    assert_eq!(drain["id"], begun["id"]);
    world.pod("again-spare", "again-2", &labelled("again"));
    let ended = wait_for_end(&server, "again").await;
    assert_eq!((&ended["state"], &ended["id"]), (&json!("succeeded"), &begun["id"]), "{ended}");
    assert!(world.is_unschedulable("again") && world.owner("again").is_none());
    assert!(!world.is_there("again-0") && !world.is_there("again-1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_controlplane_nodes_the_second_waits_for_the_first_after_a_restart_too() {
    let world = world();
    world.node("cp1", "192.0.2.11", "control-plane");
    world.node("cp2", "192.0.2.12", "control-plane");
    world.node("cp-worker", "192.0.2.13", "worker");
    half_blocked(&world, "cp1");
    let server = import(&world).await;
    start(&server, "cp1", json!({})).await;
    wait_for_reason(&server, "cp1", "0 allowed").await;
    start(&server, "cp2", json!({})).await;
    let reason = "the controlplane or etcd machine 192.0.2.11 is out of service (drain)";
    let waiting = wait_for_reason(&server, "cp2", reason).await;
    assert_eq!(waiting["stage"], "waiting");
    start(&server, "cp-worker", json!({})).await;
    assert_eq!(wait_for_end(&server, "cp-worker").await["state"], "succeeded");

    let server = restart(server).await;
    wait_for_reason(&server, "cp2", reason).await;
    assert!(!world.is_unschedulable("cp2"));
    assert_eq!(act(&server, "cp1", "cancelDrain", json!({})).await.status(), 200);
    assert_eq!(wait_for_end(&server, "cp1").await["state"], "canceled");
    let ended = wait_for_end(&server, "cp2").await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
    assert!(world.is_unschedulable("cp2") && !world.is_unschedulable("cp1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_block_before_anything_is_touched_unless_told_otherwise() {
    let world = world();
    world.node("jobs", "192.0.2.14", "worker");
    let gone = "22222222-2222-2222-2222-222222222222";
    world.pod("jobs", "jobs-0", &owned_by("Job", "nightly", gone));
    world.pod("jobs", "jobs-plain", &json!({}));
    let server = import(&world).await;
    start(&server, "jobs", json!({})).await;
    let ended = wait_for_end(&server, "jobs").await;
    assert_eq!((&ended["state"], &ended["timedOut"]), (&json!("failed"), &json!(false)));
    assert!(ended["reason"].as_str().unwrap().contains("pod default/jobs-0 belongs to a Job"));
    assert!(!world.is_unschedulable("jobs") && world.is_there("jobs-plain"));

    start(&server, "jobs", json!({"jobs": "wait"})).await;
    wait_for_reason(&server, "jobs", "pod default/jobs-0 belongs to a Job").await;
    let status = r#"{"status":{"phase":"Succeeded"}}"#;
    world.kubectl(&["patch", "pod", "jobs-0", "--subresource=status", "-p", status], "");
    assert_eq!(wait_for_end(&server, "jobs").await["state"], "succeeded");
    assert!(world.is_there("jobs-0"), "what has finished disturbs nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_deleted_in_the_middle_is_drained() {
    let world = world();
    world.node("deleted", "192.0.2.15", "worker");
    half_blocked(&world, "deleted");
    let server = import(&world).await;
    start(&server, "deleted", json!({})).await;
    wait_for_reason(&server, "deleted", "0 allowed").await;
    world.kubectl(&["delete", "node", "deleted"], "");
    let ended = wait_for_end(&server, "deleted").await;
    assert_eq!((&ended["state"], &ended["stage"]), (&json!("succeeded"), &json!("gone")));
    assert_eq!(ended["reason"], "there is no such node any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cordon_of_ours_that_nobody_answers_for_is_taken_back_and_others_marks_are_not() {
    let world = world();
    for (node, address) in
        [("left", "192.0.2.16"), ("left-before", "192.0.2.17"), ("left-other", "192.0.2.18")]
    {
        world.node(node, address, "worker");
    }
    let server = import(&world).await;
    for node in ["left", "left-before"] {
        start(&server, node, json!({})).await;
        assert_eq!(wait_for_end(&server, node).await["state"], "succeeded");
    }
    let mark = |node: &str, before: bool| {
        world.kubectl(&["cordon", node], "");
        let marks =
            ["wharf.dev/cordoned-by=a drain", &format!("wharf.dev/cordoned-before={before}")];
        world.kubectl(&["annotate", "node", node, marks[0], marks[1]], "");
    };
    mark("left", false);
    mark("left-before", true);
    mark("left-other", false);
    let seen = async |server: &TestServer, node: &str| {
        let path = format!("/clusters/demo/nodes/{node}");
        let node = json_of(server.get(&path, &server.admin).await).await;
        node["annotations"].get(wharf_kube::CORDON_OWNER).is_some()
    };
    server.app().nudge("demo");
    eventually(async || seen(&server, "left-other").await && seen(&server, "left").await).await;

    let server = restart(server).await;
    eventually(async || world.owner("left").is_none()).await;
    eventually(async || world.owner("left-before").is_none()).await;
    assert!(!world.is_unschedulable("left"));
    assert!(world.is_unschedulable("left-before"), "it was cordoned before");
    assert!(world.owner("left-other").is_some(), "no drain of this server was ever there");
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_forgotten_gets_its_node_back_and_leaves_no_drains() {
    let world = world();
    world.node("forgotten", "192.0.2.20", "worker");
    half_blocked(&world, "forgotten");
    let server = import(&world).await;
    start(&server, "forgotten", json!({})).await;
    wait_for_reason(&server, "forgotten", "0 allowed").await;
    eventually(async || world.is_unschedulable("forgotten")).await;
    assert_eq!(server.delete("/clusters/demo", &server.admin).await.status(), 202);
    eventually(async || server.get("/clusters/demo", &server.admin).await.status() == 404).await;
    assert!(!world.is_unschedulable("forgotten") && world.owner("forgotten").is_none());
    let left = server.app().store.list("drain/", wharf_store::Page::ALL).await.unwrap();
    assert!(left.entries.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_and_what_is_not_there_is_refused() {
    let world = world();
    world.node("refused", "192.0.2.19", "worker");
    let server = import(&world).await;
    let viewer = server.user("eve", "viewer", None).await;
    let stranger = server.user("sue", "viewer", Some(&["other"])).await;
    for action in ["cordon", "uncordon", "drain", "cancelDrain", "planDrain"] {
        let path = format!("/clusters/demo/nodes/refused?action={action}");
        let refused = server.post(&path, &viewer, &json!({})).await;
        assert_eq!(error_of(refused).await.0, 403, "{action}");
        let path = format!("/clusters/demo/nodes/nobody?action={action}");
        let (status, _, body) = error_of(server.post(&path, &server.admin, &json!({})).await).await;
        let wanted = if action == "cancelDrain" { 409 } else { 404 };
        assert_eq!(status, wanted, "{action}: {body}");
        let path = format!("/clusters/nowhere/nodes/refused?action={action}");
        let missing = server.post(&path, &server.admin, &json!({})).await;
        assert_eq!(error_of(missing).await.0, 404, "{action}");
    }
    let list = server.get("/clusters/demo/drains", &viewer).await;
    assert_eq!(list.status(), 200);
    assert_eq!(server.get("/clusters/demo/drains", &stranger).await.status(), 404);
    let other = act(&server, "refused", "explode", json!({})).await;
    assert_eq!(error_of(other).await.1, "InvalidAction");

    let nonsense = json!({
        "timeoutSeconds": 0, "jobs": "maybe", "gracePeriodSeconds": -1,
        "deleteUnreadyAfterSeconds": 9_999_999, "deleteAfterSeconds": -5, "waitVolumesSeconds": -1,
    });
    for action in ["drain", "planDrain"] {
        let (status, _, body) =
            error_of(act(&server, "refused", action, nonsense.clone()).await).await;
        let fields: Vec<_> = body["details"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d["field"].as_str().unwrap())
            .collect();
        assert_eq!(status, 422);
        assert_eq!(
            fields,
            [
                "timeoutSeconds",
                "gracePeriodSeconds",
                "deleteUnreadyAfterSeconds",
                "deleteAfterSeconds",
                "waitVolumesSeconds",
                "jobs"
            ]
        );
        let unknown = json!({"timeout": 5, "force": true});
        let (status, _, body) = error_of(act(&server, "refused", action, unknown).await).await;
        assert_eq!((status, body["details"].as_array().unwrap().len()), (422, 2), "{body}");
    }
    let path = "/clusters/demo/nodes/refused/drain";
    assert_eq!(server.get(path, &server.admin).await.status(), 404, "nothing was stored");
}
