//! Operations on nodes whose machines do not come back, or not as they went.

use serde_json::{Value, json};
use wharf_api::node_files::{
    DEVICE, DisruptionGuard, EdgeNodeInfo, NodeDrainStatus, NodeJob, NodeJobs, NodeWish,
};
use wharf_testbed::etcd::Etcd;

use crate::world::{Node, World, eventually};

const ONE_AT_A_TIME: &str = "only one may be at a time";

fn jobs(kind: &str, id: &str, phase: &str) -> NodeJobs {
    let [id, kind, phase] = [id, kind, phase].map(str::to_owned);
    NodeJobs { jobs: vec![NodeJob { id, kind, phase, ..NodeJob::default() }].into() }
}

/// Begins an operation, and waits until the node has heard of it.
async fn begin(world: &World, node: &Node, name: &str, action: &str) -> String {
    let (status, begun) = world.act(name, action, json!({})).await;
    assert_eq!((status, &begun["state"]), (200, &json!("running")), "{begun}");
    let id = begun["id"].as_str().unwrap().to_owned();
    node.wait_until_at("wharf", DEVICE, |wish: &NodeWish| wish.id == id && !wish.canceled).await;
    id
}

/// All machines here are controlplanes: this one waits for another, which it gets to hear only when
/// that is back or let go.
async fn wait_behind(world: &World, node: &Node, name: &str) {
    assert_eq!(world.act(name, "reboot", json!({})).await.0, 200);
    world.wait_for_reason(name, ONE_AT_A_TIME).await;
    assert!(node.read_at::<NodeWish>("wharf", DEVICE).is_none(), "it heard nothing of it");
}

async fn wait_until_let_in(node: &Node) {
    node.wait_until_at("wharf", DEVICE, |wish: &NodeWish| wish.kind == "reboot").await;
}

async fn cancel(world: &World, node: &str) -> (u16, Value) {
    world.act(node, "cancelOperation", json!({})).await
}

/// The machine is shut down, and the server knows.
async fn shut_down(world: &World, node: Node, name: &str) {
    let id = begin(world, &node, name, "shutdown").await;
    node.publish("wharf", "global", &jobs("shutdown", &id, "leaving"));
    node.stop().await;
    let ended = world.wait_for_end(name).await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_was_shut_down_and_stays_off_is_let_go_by_a_cancel() {
    let world = World::start(3).await;
    let (one, two) = (Node::start(&world, "n1").await, Node::start(&world, "n2").await);
    shut_down(&world, one, "n1").await;
    wait_behind(&world, &two, "n2").await;
    let (status, let_go) = cancel(&world, "n1").await;
    assert_eq!((status, &let_go["state"]), (200, &json!("succeeded")), "{let_go}");
    wait_until_let_in(&two).await;
    let (status, refused) = cancel(&world, "n1").await;
    assert_eq!(
        (status, &refused["hint"]),
        (409, &json!("there is nothing to cancel")),
        "{refused}"
    );
    two.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_is_not_handed_to_a_node_that_has_forgotten_it() {
    let world = World::start(3).await;
    let node = Node::start(&world, "n1").await;
    shut_down(&world, node, "n1").await;
    // Another disk: nothing is known there of what was done.
    let node = Node::start(&world, "n1").await;
    let _: EdgeNodeInfo = node.wait_for("zedagent", "global").await;
    assert!(node.read_at::<NodeWish>("wharf", DEVICE).is_none(), "it would go down again");

    // Nor is it left on a node that did it, for an agent that loses its journal later.
    let id = begin(&world, &node, "n1", "reboot").await;
    node.publish("wharf", "global", &jobs("reboot", &id, "failed"));
    assert_eq!(world.wait_for_end("n1").await["state"], "failed");
    eventually(async || node.read_at::<NodeWish>("wharf", DEVICE).is_none()).await;
    node.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_was_shut_down_and_is_not_back_in_service_can_be_rebooted() {
    let world = World::start(3).await;
    let (one, two) = (Node::start(&world, "n1").await, Node::start(&world, "n2").await);
    shut_down(&world, two, "n2").await;
    wait_behind(&world, &one, "n1").await;
    // It runs again, but its cluster does not say that it is back. The other one, which is looked at
    // first, must not take its place.
    let two = Node::start(&world, "n2").await;
    let id = begin(&world, &two, "n2", "reboot").await;
    let waiting = world.operation_of("n1").await;
    assert!(waiting["reason"].as_str().unwrap().contains(ONE_AT_A_TIME), "{waiting}");
    assert!(one.read_at::<NodeWish>("wharf", DEVICE).is_none(), "one of the two is out");
    two.publish("wharf", "global", &jobs("reboot", &id, "canceled"));
    let ended = world.wait_for_end("n2").await;
    let reason = "it was called off on the node itself";
    assert_eq!((&ended["state"], &ended["reason"]), (&json!("canceled"), &json!(reason)));
    wait_until_let_in(&one).await;
    one.stop().await;
    two.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_died_before_its_reboot_is_let_go_by_a_cancel_and_told_when_it_is_back() {
    let world = World::start(3).await;
    let (one, two) = (Node::start(&world, "n1").await, Node::start(&world, "n2").await);
    let id = begin(&world, &one, "n1", "reboot").await;
    one.publish("wharf", "global", &jobs("reboot", &id, "deferred"));
    world.wait_for_reason("n1", "the drain is at").await;
    wait_behind(&world, &two, "n2").await;
    one.stop().await;
    world.wait_for_reason("n1", "no link").await;
    let (status, canceled) = cancel(&world, "n1").await;
    assert_eq!((status, &canceled["canceled"]), (200, &json!(true)), "{canceled}");
    let ended = world.wait_for_end("n1").await;
    let reason = ended["reason"].as_str().unwrap();
    assert_eq!(ended["state"], "failed", "{ended}");
    assert!(reason.ends_with("nobody waits for that any more"), "{reason}");
    assert_eq!(world.operation(&id).await["error"], json!(reason));
    wait_until_let_in(&two).await;

    // A node that was only cut off must not go down after all.
    let one = Node::start(&world, "n1").await;
    one.wait_until_at("wharf", DEVICE, |wish: &NodeWish| wish.id == id && wish.canceled).await;
    // What it says of it until it has heard that is no wish of its own, for which the server would forget
    // to tell it.
    for (phase, status, name) in [("deferred", 5, "CORDONED"), ("canceled", 2, "NOTREQUESTED")] {
        one.publish("wharf", "global", &jobs("reboot", &id, phase));
        let status = NodeDrainStatus { status, ..NodeDrainStatus::default() };
        one.publish("zedkube", "global", &status);
        eventually(async || world.node("n1").await["agent"]["drainStatus"] == name).await;
    }
    assert_eq!(world.operation_of("n1").await["id"], json!(id), "nothing took its place");
    one.stop().await;
    two.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_for_on_a_machine_that_died_is_let_go_by_a_cancel() {
    let world = World::start(3).await;
    let node = Node::start(&world, "n3").await;
    node.publish("wharf", "global", &jobs("reboot", "local-1", "deferred"));
    node.wait_until(|guard: &DisruptionGuard| guard.admitted).await;
    node.stop().await;
    world.wait_for_reason("n3", "no link").await;
    let (status, canceled) = cancel(&world, "n3").await;
    assert_eq!((status, &canceled["canceled"]), (200, &json!(true)), "{canceled}");
    assert_eq!(world.wait_for_end("n3").await["state"], "failed");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_for_on_the_node_ends_on_the_server_as_it_ended_there() {
    let world = World::start(3).await;
    let (one, two) = (Node::start(&world, "n1").await, Node::start(&world, "n2").await);
    two.publish("wharf", "global", &jobs("update", "local-1", "deferred"));
    two.wait_until(|guard: &DisruptionGuard| guard.admitted).await;
    // The other one waits for the guard, and is called off before it is let in.
    one.publish("wharf", "global", &jobs("reboot", "local-2", "deferred"));
    world.wait_for_reason("n1", ONE_AT_A_TIME).await;
    one.publish("wharf", "global", &jobs("reboot", "local-2", "canceled"));
    assert_eq!(world.wait_for_end("n1").await["state"], "canceled");

    let mut failed = jobs("update", "local-1", "failed");
    failed.jobs.0[0].reason = "the update's command ended with 1".to_owned();
    two.publish("wharf", "global", &failed);
    let ended = world.wait_for_end("n2").await;
    let told = (&ended["state"], &ended["reason"]);
    assert_eq!(told, (&json!("failed"), &json!("the update's command ended with 1")));
    one.stop().await;
    two.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_an_operation_waits_for_no_drain_is_told_where_the_node_has_said_so() {
    let world = World::start(3).await;
    let node = Node::start(&world, "n1").await;
    begin(&world, &node, "n1", "reboot").await;
    let told = async || {
        let operation = world.operation_of("n1").await;
        (operation["deferred"].clone(), operation["notDeferred"].clone())
    };
    assert_eq!(told().await, (json!(false), Value::Null), "it has not spoken");
    let says = |status, reason: &str| {
        let (reason, blocking) = (reason.to_owned(), Vec::new());
        let status = NodeDrainStatus { status, requested_by: 1, reason, blocking };
        node.publish("zedkube", "global", &status);
    };
    says(1, "");
    let small = (json!(false), json!("the cluster is too small to drain to"));
    eventually(async || told().await == small).await;
    says(1, "the status is given by the force file");
    let forced = "of drains the node says NOTSUPPORTED: the status is given by the force file";
    eventually(async || told().await == (json!(false), json!(forced))).await;
    says(2, "");
    eventually(async || told().await == (json!(true), Value::Null)).await;
    node.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_lost_while_the_store_is_away_counts_as_lost_when_that_is_back() {
    let mut etcd = Etcd::start().unwrap();
    let store = etcd.endpoint().replace("http://", "etcd://");
    let world = World::start_on(&store, 3).await;
    let node = Node::start(&world, "n1").await;
    begin(&world, &node, "n1", "reboot").await;
    etcd.pause().unwrap();
    node.stop().await;
    // Long enough for whoever notes the loss to have failed.
    for _ in 0..2 {
        eventually(async || !world.store_answers().await).await;
    }
    etcd.resume().unwrap();
    eventually(async || world.store_answers().await).await;
    eventually(async || world.node("n1").await["agent"]["link"] == "no link").await;
    // So that its machine can be let go.
    assert_eq!(cancel(&world, "n1").await.0, 200);
    assert_eq!(world.wait_for_end("n1").await["state"], "failed");
    world.stop().await;
}
