//! The gate, asked by others.

use std::time::Duration;

use serde_json::json;
use wharf_kube::CORDON_OWNER;
use wharf_testbed::process::free_port;

use crate::{
    agent::Agent,
    passage::Passage,
    world::{World, labelled, world},
};

fn owner_of_cordon(world: &World, node: &str) -> String {
    let node = world.read(&["node", node]);
    node["metadata"]["annotations"][CORDON_OWNER].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_drain_passes_through_its_states_names_what_blocks_it_and_is_given_back() {
    let (world, node) = (world(), "gate-blocked");
    world.node(node);
    let database = world.pod_with(node, "gate-db", labelled("gate-db"));
    let free = world.pod(node, "gate-free");
    let storage = world.pod_with(node, "gate-csi", labelled("csi-attacher"));
    world.budget("gate-db", 1, 1);
    let mut agent = Agent::prepare(&world, node);
    agent.start();
    agent.wait_for_status(2, 1).await;
    agent.request("zedagent", 2, "reboot");
    let sentence = "pod default/gate-db is protected by budget gate-db, 0 allowed";
    agent
        .wait_until("blocker by name", || {
            agent.said()["Blocking"][0].as_str().is_some_and(|said| said.contains(sentence))
        })
        .await;
    assert_eq!(agent.status(), (5, 2), "it is cordoned, and stays so");
    assert!(agent.said()["Reason"].as_str().unwrap().contains(sentence), "{}", agent.said());
    assert!(world.is_unschedulable(node) && owner_of_cordon(&world, node) == "agent");
    agent
        .wait_until("fault in the health", || {
            agent.faults().iter().any(|fault| fault.reason.contains(sentence))
        })
        .await;
    agent.wait_until("leaving of the other pod", || !world.is_there(&free)).await;
    assert!(world.is_there(&database));

    world.kubectl(&["delete", "pdb", "gate-db"], "");
    agent.wait_for_status(9, 2).await;
    assert!(!world.is_there(&database) && world.is_there(&storage));
    let expected =
        ["NOTREQUESTED", "REQUESTED", "STARTING", "CORDONED", "COMPLETE"].map(str::to_owned);
    assert_eq!(agent.history(), expected);
    let log = agent.log();
    for word in ["NodeDrainRequest", "cordonNode", "cordonAndDrainNode", "nodedrain-step"] {
        assert!(log.contains(word), "{word} is not in the log:\n{log}");
    }
    let line = log.lines().find_map(|line| line.split_once("completion_time_seconds:s"));
    let seconds: f64 = line.unwrap().1.parse().unwrap();
    let metric = std::fs::read_to_string(agent.dir.path().join("run/wharf/metrics.prom")).unwrap();
    let metric = metric.lines().last().unwrap();
    let expected = format!("kubevirt_node_drain_completion_time_seconds {seconds:.6}");
    assert_eq!(metric, expected);
    assert_eq!(agent.faults(), []);
    // A boot takes the run directory away before anybody has looked.
    agent.kill();
    std::fs::remove_file(agent.dir.path().join("run/wharf/metrics.prom")).unwrap();
    agent.start();
    agent.wait_until("metric", || agent.exists("run/wharf/metrics.prom")).await;
    let again = std::fs::read_to_string(agent.dir.path().join("run/wharf/metrics.prom")).unwrap();
    assert_eq!(again.lines().last().unwrap(), expected);

    agent.withdraw("zedagent");
    agent.wait_for_status(2, 1).await;
    agent.wait_until("end of our cordon", || !world.is_unschedulable(node)).await;
    assert_eq!(owner_of_cordon(&world, node), "");
}

#[tokio::test]
async fn two_requesters_share_a_drain_and_each_is_told_of_its_end() {
    let (world, node) = (world(), "gate-two");
    world.node(node);
    world.pod(node, "gate-two-0");
    let mut agent = Agent::prepare(&world, node);
    agent.request("zedagent", 2, "reboot");
    agent.request("baseosmgr", 3, "os-2");
    agent.start();
    agent.wait_for_status(9, 3).await;
    agent.wait_for_status(9, 2).await;
    assert_eq!(agent.log().matches("cordonAndDrainNode drains").count(), 1, "{}", agent.log());
    agent.withdraw("baseosmgr");
    agent.withdraw("zedagent");
    agent.wait_for_status(2, 1).await;
    agent.wait_until("end of our cordon", || !world.is_unschedulable(node)).await;
}

#[tokio::test]
async fn whenever_the_agent_is_killed_the_next_one_goes_on_with_the_drain() {
    let (world, node) = (world(), "gate-killed");
    world.node(node);
    let pod = world.pod_with(node, "gate-killed-0", labelled("gate-killed"));
    world.budget("gate-killed", 1, 1);
    let mut agent = Agent::prepare(&world, node);
    agent.request("zedagent", 2, "reboot");
    // At any moment on the way to the blocked drain, and in it.
    for milliseconds in [0, 5, 20, 40, 80, 160, 400, 1000] {
        agent.start();
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        agent.kill();
        assert!(world.is_there(&pod));
    }
    agent.start();
    agent.wait_for_status(5, 2).await;
    world.kubectl(&["delete", "pdb", "gate-killed"], "");
    agent.wait_for_status(9, 2).await;
    agent.kill();
    agent.start();
    agent.wait_for_status(9, 2).await;
    assert!(world.is_unschedulable(node) && !world.is_there(&pod));
    agent.withdraw("zedagent");
    agent.wait_until("end of our cordon", || !world.is_unschedulable(node)).await;
}

#[tokio::test]
async fn a_persons_cordon_is_neither_used_up_nor_taken_back() {
    let (world, node) = (world(), "gate-person");
    world.node(node);
    world.kubectl(&["cordon", node], "");
    let mut agent = Agent::prepare(&world, node);
    agent.start();
    agent.wait_for_status(2, 1).await;
    agent.request("zedagent", 2, "shutdown");
    agent.wait_for_status(9, 2).await;
    agent.withdraw("zedagent");
    agent.wait_for_status(2, 1).await;
    agent.wait_until("end of our mark", || owner_of_cordon(&world, node).is_empty()).await;
    assert!(world.is_unschedulable(node), "the person's cordon stays");
}

#[tokio::test]
async fn a_cluster_that_falls_silent_is_not_drained_after_the_skip_time() {
    let (world, node) = (world(), "gate-silent");
    world.node(node);
    let pod = world.pod(node, "gate-silent-0");
    let passage = Passage::to(world.server.port());
    let mut agent = Agent::prepare(&world, node);
    agent.config.api_skip_seconds = 12;
    let here = format!("https://127.0.0.1:{}", passage.port);
    let kubeconfig = world.server.kubeconfig().replace(&world.server.url(), &here);
    std::fs::write(agent.config.kubeconfig.as_ref().unwrap(), kubeconfig).unwrap();
    agent.start();
    agent.wait_for_status(2, 1).await;
    passage.freeze(true);
    agent.request("zedagent", 2, "reboot");
    agent
        .wait_until("wait for the cluster", || {
            let reason = agent.said()["Reason"].to_string();
            reason.contains("the cluster has not answered for")
        })
        .await;
    assert_eq!(agent.status(), (4, 2));
    agent.wait_for_status(9, 2).await;
    let reason = agent.said()["Reason"].to_string();
    assert!(reason.contains("the cluster does not answer, so the node is not drained"), "{reason}");
    passage.freeze(false);
    assert!(world.is_there(&pod) && !world.is_unschedulable(node), "nothing was touched");
}

/// As when the API server of this node alone is stopped.
#[tokio::test]
async fn a_cluster_that_refuses_connections_is_not_drained_after_the_skip_time() {
    let (world, node) = (world(), "gate-refused");
    world.node(node);
    let pod = world.pod(node, "gate-refused-0");
    let mut agent = Agent::prepare(&world, node);
    agent.config.api_skip_seconds = 12;
    // Nobody else gets this port, and nobody listens there.
    let nobody = format!("https://127.0.0.1:{}", free_port().unwrap());
    let kubeconfig = world.server.kubeconfig().replace(&world.server.url(), &nobody);
    std::fs::write(agent.config.kubeconfig.as_ref().unwrap(), kubeconfig).unwrap();
    agent.start();
    agent.wait_for_status(2, 1).await;
    agent.request("zedagent", 2, "reboot");
    agent.wait_for_status(4, 2).await;
    agent.wait_for_status(9, 2).await;
    let reason = agent.said()["Reason"].to_string();
    assert!(reason.contains("the cluster does not answer, so the node is not drained"), "{reason}");
    assert!(reason.contains("tcp connect error"), "{reason}");
    let expected = ["NOTREQUESTED", "REQUESTED", "STARTING", "COMPLETE"].map(str::to_owned);
    assert_eq!(agent.history(), expected, "it was not cordoned, nor did that fail");
    assert!(world.is_there(&pod) && !world.is_unschedulable(node), "nothing was touched");
}

#[tokio::test]
async fn the_force_file_gives_the_status_and_a_forced_end_counts_once() {
    let (world, node) = (world(), "gate-forced");
    world.node(node);
    let pod = world.pod_with(node, "gate-forced-0", labelled("gate-forced"));
    world.budget("gate-forced", 1, 1);
    let mut agent = Agent::prepare(&world, node);
    agent.start();
    agent.wait_for_status(2, 1).await;
    let second = "persist/kube-status/kubeforce-NodeDrainStatus-global.json";
    agent.write(second, &json!({ "Status": 1, "RequestedBy": 1 }));
    agent.wait_for_status(1, 1).await;
    agent.remove(second);
    agent.request("zedagent", 2, "reboot");
    agent.wait_for_status(5, 2).await;
    let first = "persist/kube-status/force-NodeDrainStatus-global.json";
    agent.write(first, &json!({ "Status": 9, "RequestedBy": 2 }));
    agent.wait_for_status(9, 2).await;
    agent.wait_until("end of the force file", || !agent.exists(first)).await;
    assert!(world.is_there(&pod), "it is forced past the pod, not through it");
    agent.withdraw("zedagent");
    agent.wait_for_status(2, 1).await;
    // Junk forces nothing, and is told of.
    agent.write(first, &json!([1, 2]));
    agent
        .wait_until("fault about the file", || {
            agent.faults().iter().any(|fault| fault.subject.ends_with(first))
        })
        .await;
    assert_eq!(agent.status(), (2, 1));
}

#[tokio::test]
async fn the_guard_is_waited_for_when_it_is_reached_and_only_then() {
    let (world, node) = (world(), "gate-guarded");
    world.node(node);
    let mut agent = Agent::prepare(&world, node);
    let guard = "run/wharf/DisruptionGuard/global.json";
    agent.write(guard, &json!({ "Linked": true, "Admitted": false, "Reason": "n2 is out" }));
    agent.start();
    agent.request("zedagent", 2, "reboot");
    agent
        .wait_until("wait for the guard", || {
            agent.said()["Reason"].to_string().contains("n2 is out")
        })
        .await;
    assert_eq!(agent.status(), (2, 1));
    assert!(!world.is_unschedulable(node));
    agent.write(guard, &json!({ "Linked": false, "Admitted": false, "Reason": "n2 is out" }));
    agent.wait_for_status(9, 2).await;
}

#[tokio::test]
async fn an_agent_that_has_a_server_waits_for_its_word_before_it_asks_for_anything() {
    let (world, node) = (world(), "gate-linked");
    world.node(node);
    let mut agent = Agent::prepare(&world, node);
    agent.config.server = Some("192.0.2.1:8444".to_owned());
    agent.request("zedagent", 2, "reboot");
    agent.start();
    let told = |word: &str| agent.said()["Reason"].to_string().contains(word);
    agent.wait_until("wait for the server", || told("the server is not reached")).await;
    let guard = "run/wharf/DisruptionGuard/global.json";
    agent.write(guard, &json!({ "Linked": true, "Admitted": false, "Reason": "n2 is out" }));
    agent.wait_until("wait for the guard", || told("n2 is out")).await;
    agent.write(guard, &json!({ "Linked": false }));
    agent.wait_until("wait for the server", || told("the server is not reached")).await;
    assert_eq!(agent.history(), ["NOTREQUESTED"]);
    assert!(!world.is_unschedulable(node));
    agent.write(guard, &json!({ "Linked": true, "Admitted": true }));
    agent.wait_for_status(9, 2).await;
}

#[tokio::test]
async fn a_request_that_comes_while_the_last_cordon_is_taken_back_waits_for_that() {
    let (world, node) = (world(), "gate-again");
    world.node(node);
    world.pod_with(node, "gate-again-0", labelled("gate-again"));
    world.budget("gate-again", 1, 1);
    let passage = Passage::to(world.server.port());
    let mut agent = Agent::prepare(&world, node);
    let here = format!("https://127.0.0.1:{}", passage.port);
    let kubeconfig = world.server.kubeconfig().replace(&world.server.url(), &here);
    std::fs::write(agent.config.kubeconfig.as_ref().unwrap(), kubeconfig).unwrap();
    agent.start();
    agent.wait_for_status(2, 1).await;
    agent.request("zedagent", 2, "reboot");
    agent.wait_for_status(5, 2).await;
    // The end of the cordon is on its way when the next one asks.
    passage.slow_down(Duration::from_millis(200));
    agent.withdraw("zedagent");
    agent.wait_for_status(2, 1).await;
    agent.request("zedagent", 2, "reboot");
    // Whether one is done is seen on the Node, sometimes before the try can say so.
    let cordons = || agent.log().matches("cordonNode begins").count();
    agent.wait_until("cordon of its own", || cordons() == 2 && agent.status() == (5, 2)).await;
    assert!(agent.log().contains("uncordonNode took our cordon back"), "{}", agent.log());
    let once = ["NOTREQUESTED", "REQUESTED", "STARTING", "CORDONED"];
    assert_eq!(agent.history(), [once, once].concat());
    passage.slow_down(Duration::ZERO);
}

#[tokio::test]
async fn a_node_that_cannot_be_cordoned_fails_and_is_tried_again_when_asked_anew() {
    // There is no such Node yet.
    let (world, node) = (world(), "gate-uncordonable");
    let mut agent = Agent::prepare(&world, node);
    agent.start();
    agent.wait_for_status(2, 1).await;
    agent.request("zedagent", 2, "reboot");
    agent.wait_for_status(6, 2).await;
    assert_eq!(agent.log().matches("cordonNode failed").count(), 10, "{}", agent.log());
    agent.withdraw("zedagent");
    world.node(node);
    agent.request("zedagent", 2, "reboot");
    agent.wait_for_status(9, 2).await;
}
