//! A real server and the link of real agents, over TLS on loopback. The cluster stands in the store
//! only: what its nodes are told and say does not depend on it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod operations;
mod renewal;
mod world;

use std::os::unix::fs::MetadataExt;

use serde_json::json;
use wharf_api::node_files::{
    AppInstanceConfig, DEVICE, DisruptionGuard, EdgeNodeClusterConfig, EdgeNodeInfo,
    NodeDrainStatus, NodeJob, NodeJobs, NodeWish, VolumeConfig, ZedAgentStatus,
};
use wharf_testbed::etcd::Etcd;

use world::{Node, World, eventually};

const APP: &str = "0b1a2c3d-4e5f-4071-8293-a4b5c6d7e8f9";

fn jobs(id: &str, phase: &str) -> NodeJobs {
    let [id, kind, phase] = [id, "reboot", phase].map(str::to_owned);
    NodeJobs { jobs: vec![NodeJob { id, kind, phase, ..NodeJob::default() }].into() }
}

fn drain(status: u8) -> NodeDrainStatus {
    let blocking = vec!["pod a/b is protected by budget b".to_owned()];
    NodeDrainStatus { status, requested_by: 2, reason: String::new(), blocking }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_linked_node_is_told_its_configuration_and_is_seen() {
    let world = World::start(3).await;
    let before = world.node("n1").await;
    assert_eq!(before["agent"]["link"], "no link", "{before}");
    assert_eq!(before["agent"]["health"], "unknown");

    let node = Node::start(&world, "n1").await;
    let info: EdgeNodeInfo = node.wait_for("zedagent", "global").await;
    assert_eq!((info.device_name.as_str(), info.project_name.as_str()), ("n1", "demo"));
    let cluster: EdgeNodeClusterConfig = node.wait_for("zedagent", "global").await;
    assert_eq!(cluster.cluster_ip_prefix.unwrap().to_string(), "127.0.0.11/29");
    assert!(cluster.bootstrap_node && !cluster.is_worker_node);
    node.wait_until(|status: &ZedAgentStatus| status.config_get_status == 1).await;
    let network = std::fs::read_to_string(node.network_file()).unwrap();
    let network: serde_json::Value = serde_json::from_str(&network).unwrap();
    assert_eq!(network["peers"].as_array().unwrap().len(), 2, "{network}");

    eventually(async || {
        let seen = world.node("n1").await;
        seen["agent"]["link"] == "linked" && seen["agent"]["health"] == "ok"
    })
    .await;
    node.health.task("gate").fault("the API", "is away");
    eventually(async || {
        let agent = world.node("n1").await["agent"].clone();
        agent["health"] == "faults" && agent["faults"] == json!(["gate: the API: is away"])
    })
    .await;
    let agent = world.node("n1").await["agent"].clone();
    assert_eq!(agent["version"], env!("CARGO_PKG_VERSION"));
    assert!(agent["lastContact"].is_string(), "{agent}");

    // It was given a certificate that is not the one in the vault, and was handed that.
    let identity = std::fs::read_to_string(node.identity_file()).unwrap();
    assert!(!identity.contains(&node.first_certificate), "it has a new one");
    // Which is the one that it shows from then on: it is handed no other.
    let file = |node: &Node| std::fs::metadata(node.identity_file()).unwrap().ino();
    let kept = file(&node);
    let node = node.restart_after_boot(&world).await;
    node.wait_until(|status: &ZedAgentStatus| status.config_get_status == 1).await;
    assert_eq!(file(&node), kept, "the file was not written again");
    node.stop().await;
    eventually(async || world.node("n1").await["agent"]["link"] == "no link").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_told_outlives_link_server_and_agent() {
    let mut world = World::start(3).await;
    let node = Node::start(&world, "n2").await;
    node.wait_until(|status: &ZedAgentStatus| status.config_get_status == 1).await;
    world.create_app(json!({ "name": "web", "config": { "Activate": true } })).await;
    node.wait_until_keys::<AppInstanceConfig>("zedagent", 1).await;

    // The server goes: the node keeps what it knows.
    world.stop_server().await;
    node.wait_until(|guard: &DisruptionGuard| !guard.linked).await;
    assert_eq!(node.keys::<AppInstanceConfig>("zedagent").len(), 1);
    // And the agent: its runtime files may be lost with a boot, what was saved is published again.
    let node = node.restart_after_boot(&world).await;
    node.wait_until(|status: &ZedAgentStatus| status.config_get_status == 4).await;
    node.wait_until_keys::<AppInstanceConfig>("zedagent", 1).await;
    let _: EdgeNodeInfo = node.wait_for("zedagent", "global").await;

    // Another server process on the same store and port is found again.
    world.start_server().await;
    node.wait_until(|status: &ZedAgentStatus| status.config_get_status == 1).await;
    eventually(async || world.node("n2").await["agent"]["link"] == "linked").await;
    node.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reboot_is_let_in_one_at_a_time_handed_on_and_followed_to_its_end() {
    let world = World::start(3).await;
    let refused = world.act("n1", "reboot", json!({})).await;
    assert_eq!(refused.0, 409, "{}", refused.1);
    assert!(refused.1["message"].as_str().unwrap().contains("no link"), "{}", refused.1);

    let (one, two) = (Node::start(&world, "n1").await, Node::start(&world, "n2").await);
    one.publish("zedkube", "global", &drain(2));
    two.publish("zedkube", "global", &drain(2));
    eventually(async || world.node("n1").await["agent"]["drainStatus"] == "NOTREQUESTED").await;
    let begun = world.act("n1", "reboot", json!({})).await;
    assert_eq!((begun.0, &begun.1["state"]), (200, &json!("running")), "{}", begun.1);
    let id = begun.1["id"].as_str().unwrap().to_owned();
    let joined = world.act("n1", "reboot", json!({})).await;
    assert_eq!(joined.1["id"], json!(id), "who asks again gets the one that runs");
    assert_eq!(world.act("n1", "shutdown", json!({})).await.0, 409);

    let wish = one.wait_until_at("wharf", DEVICE, |wish: &NodeWish| wish.id == id).await;
    assert_eq!((wish.kind.as_str(), wish.canceled), ("reboot", false));
    one.wait_until(|guard: &DisruptionGuard| guard.linked && guard.admitted).await;

    // Both are controlplane machines: the second waits for the first.
    let second = world.act("n2", "reboot", json!({})).await.1;
    let waiting = world.wait_for_reason("n2", "only one may be at a time").await;
    assert_eq!(waiting["state"], "running");
    assert!(two.read_at::<NodeWish>("wharf", DEVICE).is_none(), "it heard nothing of it");
    two.wait_until(|guard: &DisruptionGuard| guard.linked && !guard.admitted).await;

    // What the node's own agent tells is shown.
    one.publish("zedkube", "global", &drain(5));
    one.publish("wharf", "global", &jobs(&id, "deferred"));
    let deferred = world.wait_for_reason("n1", "CORDONED").await;
    assert_eq!(
        (&deferred["deferred"], &deferred["drainStatus"]),
        (&json!(true), &json!("CORDONED"))
    );
    assert_eq!(deferred["blocking"], json!(["pod a/b is protected by budget b"]));
    one.publish("wharf", "global", &jobs(&id, "leaving"));
    one.publish("wharf", "global", &jobs(&id, "done"));
    // It speaks again, but its cluster does not say that it is back: it stays out of service.
    let done = world.wait_for_reason("n1", "it was done, but the cluster does not answer").await;
    assert_eq!(done["state"], "running", "{done}");
    world.wait_for_reason("n2", "only one may be at a time").await;
    assert!(two.read_at::<NodeWish>("wharf", DEVICE).is_none(), "it heard nothing of it");
    assert_eq!(world.act("n1", "cancelOperation", json!({})).await.1["canceled"], true);
    assert_eq!(world.wait_for_end("n1").await["state"], "failed");
    let journal = world.operation(&id).await;
    assert_eq!((&journal["kind"], &journal["state"]), (&json!("reboot"), &json!("failed")));

    // Now the second is let in; it is canceled before its drain is over.
    let id = second["id"].as_str().unwrap();
    two.wait_until_at("wharf", DEVICE, |wish: &NodeWish| wish.id == id).await;
    two.publish("wharf", "global", &jobs(id, "deferred"));
    world.wait_for_reason("n2", "NOTREQUESTED").await;
    assert_eq!(world.act("n2", "cancelOperation", json!({})).await.1["canceled"], true);
    two.wait_until_at("wharf", DEVICE, |wish: &NodeWish| wish.canceled).await;
    two.publish("wharf", "global", &jobs(id, "canceled"));
    assert_eq!(world.wait_for_end("n2").await["state"], "canceled");
    one.stop().await;
    two.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_a_node_goes_down_is_heard_however_soon_it_is_gone() {
    let world = World::start(3).await;
    let node = Node::start(&world, "n1").await;
    node.publish("zedkube", "global", &drain(2));
    eventually(async || world.node("n1").await["agent"]["drainStatus"] == "NOTREQUESTED").await;
    let id = world.act("n1", "shutdown", json!({})).await.1["id"].as_str().unwrap().to_owned();
    node.wait_until_at("wharf", DEVICE, |wish: &NodeWish| wish.id == id).await;
    node.publish("wharf", "global", &jobs(&id, "leaving"));
    node.stop().await;
    let ended = world.wait_for_end("n1").await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
    assert_eq!(ended["reason"], "the machine was shut down", "{ended}");
    world.stop().await;
}

/// Two servers on one etcd: each has the link of one node, and both speak for both. When one ends, its
/// node goes to the other, and what was under way goes on there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_two_servers_are_of_one_cluster_and_move_when_one_of_them_ends() {
    let etcd = Etcd::start().unwrap();
    let store = etcd.endpoint().replace("http://", "etcd://");
    let mut first = World::start_on(&store, 3).await;
    let second = first.beside().await;
    let (one, two) = (Node::start(&first, "n1").await, Node::start(&second, "n2").await);
    for node in [&one, &two] {
        node.publish("zedkube", "global", &drain(2));
    }
    for (world, node) in [(&first, "n2"), (&second, "n1")] {
        let linked = async || world.node(node).await["agent"]["drainStatus"] == "NOTREQUESTED";
        eventually(linked).await;
    }

    let begun = second.act("n1", "reboot", json!({})).await;
    assert_eq!((begun.0, &begun.1["state"]), (200, &json!("running")), "{}", begun.1);
    let id = begun.1["id"].as_str().unwrap().to_owned();
    one.wait_until_at("wharf", DEVICE, |wish: &NodeWish| wish.id == id).await;
    one.publish("wharf", "global", &jobs(&id, "deferred"));
    assert_eq!(first.act("n2", "reboot", json!({})).await.0, 200);
    first.wait_for_reason("n2", "only one may be at a time").await;

    first.stop_server().await;
    eventually(async || second.node("n1").await["agent"]["link"] == "linked").await;
    let deferred = second.wait_for_reason("n1", "NOTREQUESTED").await;
    assert_eq!(deferred["state"], "running", "{deferred}");
    second.wait_for_reason("n2", "only one may be at a time").await;
    assert_eq!(second.act("n1", "cancelOperation", json!({})).await.1["canceled"], true);
    one.wait_until_at("wharf", DEVICE, |wish: &NodeWish| wish.canceled).await;
    one.publish("wharf", "global", &jobs(&id, "canceled"));
    assert_eq!(second.wait_for_end("n1").await["state"], "canceled");
    two.wait_until_at("wharf", DEVICE, |wish: &NodeWish| wish.kind == "reboot").await;
    one.stop().await;
    two.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_for_on_the_node_waits_for_the_guard_too() {
    let world = World::start(3).await;
    let node = Node::start(&world, "n3").await;
    node.wait_until(|guard: &DisruptionGuard| guard.linked && !guard.admitted).await;
    node.publish("wharf", "global", &jobs("local-1", "deferred"));
    node.wait_until(|guard: &DisruptionGuard| guard.admitted).await;
    let operation = world.operation_of("n3").await;
    assert_eq!(operation["requestedBy"], "the node itself", "{operation}");
    let (status, refused) = world.act("n3", "cancelOperation", json!({})).await;
    assert_eq!((status, &refused["hint"]), (409, &json!("cancel it there")), "{refused}");
    node.publish("wharf", "global", &jobs("local-1", "done"));
    world.wait_for_reason("n3", "it was done, but").await;
    assert_eq!(world.act("n3", "cancelOperation", json!({})).await.0, 200);
    assert_eq!(world.wait_for_end("n3").await["state"], "failed");
    node.wait_until(|guard: &DisruptionGuard| !guard.admitted).await;
    node.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_are_stored_told_to_every_node_and_taken_back() {
    let world = World::start(3).await;
    let (one, two) = (Node::start(&world, "n1").await, Node::start(&world, "n2").await);
    let volume = json!({ "VolumeID": APP, "GenerationCounter": 1, "DisplayName": "data" });
    let made = world
        .create_app(json!({
            "name": "web shop",
            "designatedNode": "n2",
            "config": {
                "UUIDandVersion": { "UUID": APP },
                "Activate": true,
                "FixedResources": { "VirtualizationMode": 4 },
                "VolumeRefConfigList": [{ "VolumeID": APP }],
            },
            "volumes": [volume],
            "manifest": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{name}}'}\n",
        }))
        .await;
    assert_eq!((&made["uuid"], &made["status"]), (&json!(APP), &json!("Pending")), "{made}");
    for (node, designated) in [(&one, false), (&two, true)] {
        let app = node.wait_until_at("zedagent", APP, |app: &AppInstanceConfig| app.activate).await;
        assert_eq!(app.is_designated_node_id, designated);
        assert_eq!(app.display_name, "web shop");
        assert_eq!(app.fixed_resources.virtualization_mode, 4);
        let key = format!("{APP}#1");
        node.wait_until_at("zedagent", &key, |volume: &VolumeConfig| !volume.volume_id.is_nil())
            .await;
    }
    // The body of a GET can be sent back, with a change.
    let path = format!("/clusters/demo/apps/{APP}");
    let mut body = world.get(&path).await.1;
    body["config"]["Activate"] = json!(false);
    assert_eq!(world.put(&path, &body).await.0, 200);
    one.wait_until_at("zedagent", APP, |app: &AppInstanceConfig| {
        !app.activate && app.uuid_and_version.version == "2"
    })
    .await;

    // It is gone from the nodes at once, from the store when its objects are, which nobody here has.
    assert_eq!(world.delete(&path).await, 202);
    one.wait_until_keys::<AppInstanceConfig>("zedagent", 0).await;
    two.wait_until_keys::<VolumeConfig>("zedagent", 0).await;
    assert_eq!(world.get(&path).await.1["status"], "Deleting");

    for (body, field) in [
        (json!({ "name": "" }), "name"),
        (json!({ "name": "a", "designatedNode": "nobody" }), "designatedNode"),
        (json!({ "name": "a", "manifest": "nonsense" }), "manifest"),
        (
            json!({ "name": "a", "manifest":
                "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: kube-system}\n" }),
            "manifest",
        ),
    ] {
        let (status, answer) = world.post("/clusters/demo/apps", &body).await;
        assert_eq!((status, &answer["details"][0]["field"]), (422, &json!(field)), "{answer}");
    }
    one.stop().await;
    two.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_is_traced_in_a_cluster_that_is_too_small_for_status_servers() {
    let world = World::start(2).await;
    world.create_app(json!({ "name": "web", "config": { "Activate": true } })).await;
    let (status, refused) = world.get("/clusters/demo/apps/web/trace").await;
    assert_eq!(status, 503, "{refused}");
    let hint = refused["hint"].as_str().unwrap();
    assert!(hint.contains("no server has a link"), "{refused}");
    world.link_elsewhere("n2").await;
    let hint = world.get("/clusters/demo/apps/web/trace").await.1["hint"].clone();
    assert_eq!(hint, "ask with `--server` who has their links: other-1 (192.0.2.7:8443)");

    let node = Node::start(&world, "n1").await;
    node.wait_until_keys::<AppInstanceConfig>("zedagent", 1).await;
    assert!(node.read_at::<EdgeNodeClusterConfig>("zedagent", "global").is_none());
    let mut trace = json!(null);
    eventually(async || {
        trace = world.get("/clusters/demo/apps/web/trace").await.1;
        trace["value"][0]["appInfo"].as_array().is_some_and(|items| items.len() > 5)
    })
    .await;
    let told = trace["value"].as_array().unwrap();
    let names: Vec<_> = told.iter().map(|node| node["hostname"].as_str().unwrap()).collect();
    assert_eq!(names, ["n1", "peers"], "{trace}");
    let reason = told[1]["errors"].as_str().unwrap();
    assert!(reason.contains("no kubeconfig"), "what could not be asked is told: {reason}");
    node.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_speaks_for_a_node_that_is_not_his() {
    let world = World::start(3).await;
    // Of another cluster of the same name, of a node that is not there, and of nobody's authority.
    let reason = world.refusal("n1", "another-identity").await;
    assert!(reason.contains("knows no node n1 of demo"), "{reason}");
    let reason = world.refusal("n9", &world.identity).await;
    assert!(reason.contains("knows no node n9 of demo"), "{reason}");
    let stranger = world.stranger("n1").await;
    assert!(stranger.contains("broke") || stranger.contains("closed"), "{stranger}");
    assert_eq!(world.node("n1").await["agent"]["link"], "no link");
    world.stop().await;
}
