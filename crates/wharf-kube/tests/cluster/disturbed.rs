//! Drains that meet something: budgets that never allow, people, pods that move or do not go, a
//! node that is deleted, an API server that goes away.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use wharf_core::drain::{Failure, PodRef};
use wharf_kube::{
    Cluster, Eviction,
    drain::{DrainError, Drained},
};
use wharf_testbed::apiserver::ApiServer;

use crate::{
    DEADLINE, World,
    drain::{has_our_mark, start},
    held, labelled, merge, owned_by, world,
};

fn second_budget(world: &World, app: &str) {
    world.create(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": format!("{app}-again") },
        "spec": { "minAvailable": 0, "selector": { "matchLabels": { "app": app } } },
    }));
}

#[tokio::test]
async fn a_budget_that_never_allows_is_named_so_and_nothing_is_disturbed() {
    let (world, node) = (world(), "never");
    world.node(node);
    let pods = [world.pod_with(node, "never-0", labelled("never")), world.pod(node, "never-free")];
    world.budget("never", 1, 1);
    let versions = || {
        let pods = pods.each_ref().map(|pod| world.version(&["pod", &pod.name]));
        (pods, world.version(&["node", node]))
    };
    let before = versions();
    let error = start(world.cluster(), node, Duration::from_secs(2)).end().await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("pod default/never-0 is protected by budget never, 0 allowed"), "{text}");
    assert!(text.contains("as budget never is set it never allows one"), "{text}");
    assert_eq!(versions(), before, "neither the node nor a pod was written");
}

#[tokio::test]
async fn two_budgets_on_one_pod_are_both_named_and_one_less_lets_it_go() {
    let (world, node) = (world(), "twice");
    world.node(node);
    let pod = world.pod_with(node, "twice-1", labelled("twice"));
    world.budget("twice", 0, 1);
    second_budget(&world, "twice");
    let answer = world.cluster().evict(&pod, None).await.unwrap_err();
    assert_eq!(answer.code(), Some(500), "{answer}");
    let drain = start(world.cluster(), node, DEADLINE);
    let both = "pod default/twice-1 is protected by several budgets (twice, twice-again)";
    drain.wait_until_it_says(both).await;
    assert!(!world.is_unschedulable(node));
    world.kubectl(&["delete", "pdb", "twice-again"], "");
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 1 });
}

#[tokio::test]
async fn a_pod_that_somebody_holds_is_waited_for() {
    let (world, node) = (world(), "held");
    world.node(node);
    let pod = world.pod_with(node, "held-0", held());
    let drain = start(world.cluster(), node, DEADLINE);
    drain.wait_until_it_says("pod default/held-0 is terminating").await;
    world.let_go(&pod);
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 1 });
}

#[tokio::test]
async fn a_pod_of_the_same_name_elsewhere_is_left_alone() {
    let (world, node) = (world(), "moving");
    world.node(node);
    world.node("moved-to");
    let first = world.pod_with(node, "moving-0", held());
    let drain = start(world.cluster(), node, DEADLINE);
    drain.wait_until_it_says("pod default/moving-0 is terminating").await;
    world.let_go(&first);
    let second = world.pod("moved-to", "moving-0");
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 1 });
    assert!(world.is_there(&second) && second.uid != first.uid);
    assert_eq!(world.cluster().evict(&first, None).await.unwrap(), Eviction::Gone);
    assert!(world.is_there(&second));
}

#[tokio::test]
async fn in_a_namespace_that_ends_pods_are_waited_for() {
    let (world, node) = (world(), "ending");
    world.node(node);
    world.kubectl(&["create", "namespace", "ending"], "");
    let pod = world.pod_with(node, "ending-0", json!({ "namespace": "ending" }));
    // There is no controller that would empty it.
    world.kubectl(&["delete", "namespace", "ending", "--wait=false"], "");
    let drain = start(world.cluster(), node, DEADLINE);
    drain.wait_until_it_says("pod ending/ending-0 cannot be evicted yet").await;
    assert!(world.is_there(&pod));
    world.kubectl(&["delete", "pod", "-n", "ending", "ending-0"], "");
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 0 });
}

#[tokio::test]
async fn a_node_that_is_deleted_meanwhile_is_drained() {
    let (world, node) = (world(), "leaving");
    world.node(node);
    let pod = world.pod_with(node, "leaving-0", held());
    let drain = start(world.cluster(), node, DEADLINE);
    drain.wait_until_it_says("pod default/leaving-0 is terminating").await;
    world.kubectl(&["delete", "node", node], "");
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 1 });
    world.let_go(&pod);
}

#[tokio::test]
async fn an_uncordon_through_us_stops_the_drain_too() {
    let (world, node) = (world(), "taken-back");
    world.node(node);
    let pod = world.pod_with(node, "taken-back-0", held());
    let drain = start(world.cluster(), node, DEADLINE);
    drain.wait_until_it_says("pod default/taken-back-0 is terminating").await;
    world.cluster().uncordon_by_person(node).await.unwrap();
    let error = drain.end().await.unwrap_err();
    let stopped = matches!(
        error,
        DrainError::Failed { failure: Failure::UncordonedByAPerson, uncordon: None, .. }
    );
    assert!(stopped, "{error}");
    assert!(!world.is_unschedulable(node) && !has_our_mark(&world, node));
    world.let_go(&pod);
}

#[tokio::test]
async fn another_owners_cordon_is_waited_for() {
    let (world, node) = (world(), "others");
    world.node(node);
    let pod = world.pod(node, "others-0");
    let cluster = world.cluster();
    cluster.cordon(node, "repair 9").await.unwrap();
    let drain = start(world.cluster(), node, DEADLINE);
    drain.wait_until_it_says("the node is cordoned by repair 9").await;
    assert!(world.is_there(&pod));
    cluster.uncordon(node, "repair 9").await.unwrap();
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 1 });
}

/// Puts a pod on a node as the scheduler does.
fn bind(world: &World, pod: &str, node: &str) {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let path = format!("/api/v1/namespaces/default/pods/{pod}/binding");
    world.kubectl(&["create", "--raw", &path, "-f", "-"], &binding.to_string());
}

#[tokio::test]
async fn a_pod_that_is_pinned_to_the_node_comes_with_a_hint_and_a_scheduled_one_does_not() {
    let (world, node) = (world(), "pinning");
    world.node(node);
    world.budget("pinned", 0, 0);
    world.kubectl(&["create", "deployment", "pinned", "--image=none", "--replicas=0"], "");
    let deployment = world.read(&["deployment", "pinned"]);
    let uid = |object: &serde_json::Value| object["metadata"]["uid"].as_str().unwrap().to_owned();
    let template = deployment["spec"]["template"].clone();
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": "pinned-1" },
        "spec": { "replicas": 0, "selector": deployment["spec"]["selector"], "template": template },
    });
    merge(&mut set["metadata"], owned_by("Deployment", "pinned", &uid(&deployment)));
    let set = world.create(&set);
    let mut of_set = labelled("pinned");
    merge(&mut of_set, owned_by("ReplicaSet", "pinned-1", &uid(&set)));
    world.pod_with(node, "pinned-of-set", of_set);
    world.pod_with(node, "pinned-alone", labelled("pinned"));
    world.create(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "pinned-not", "labels": { "app": "pinned" } },
        "spec": { "containers": [{ "name": "main", "image": "none" }] },
    }));
    bind(&world, "pinned-not", node);
    let status =
        r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#;
    world.kubectl(&["patch", "pod", "pinned-not", "--subresource=status", "-p", status], "");
    let all = r#"{"spec":{"minAvailable":3}}"#;
    world.kubectl(&["patch", "pdb", "pinned", "--type=merge", "-p", all], "");

    let drain = start(world.cluster(), node, Duration::from_secs(4));
    let Err(DrainError::Failed { failure, .. }) = drain.end().await else { panic!("it ended") };
    let texts: Vec<String> = failure.waiting().iter().map(ToString::to_string).collect();
    let of = |name: &str| texts.iter().find(|text| text.contains(name)).unwrap();
    assert!(of("pinned-alone").ends_with("delete the pod to let the drain go on"), "{texts:?}");
    let deployment = "delete the Deployment to let the drain go on";
    assert!(of("pinned-of-set").ends_with(deployment), "{texts:?}");
    assert!(!of("pinned-not").contains("spec.nodeName"), "{texts:?}");
}

/// A server of its own, without controllers, since it is killed.
#[tokio::test]
async fn a_drain_outlives_the_api_server_and_an_expired_token_ends_it() {
    let mut server = ApiServer::start().unwrap();
    let tokens = server.kubeconfig_file().with_file_name("tokens.csv");
    let lasting = std::fs::read_to_string(&tokens).unwrap();
    let passing = "passing-token,passing,passing,\"system:masters\"\n";
    std::fs::write(&tokens, format!("{lasting}{passing}")).unwrap();
    server.restart().unwrap();
    let world = World::of(server);
    world.node("outliving");
    let pod = world.pod_with("outliving", "outliving-0", labelled("outliving"));
    world.create(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "unseen" },
        "spec": { "minAvailable": 0, "selector": { "matchLabels": { "app": "outliving" } } },
    }));
    // Nobody has looked at the budget, and nobody will.
    let answer = world.cluster().evict(&pod, None).await.unwrap();
    let ten = Some(Duration::from_secs(10));
    assert!(matches!(answer, Eviction::Later { after, .. } if after == ten), "{answer:?}");

    let lasting_drain = start(world.cluster(), "outliving", DEADLINE);
    lasting_drain.wait_until_it_says("is protected by budget unseen, 0 allowed").await;
    let kubeconfig = world.server.kubeconfig_with_token();
    let kubeconfig = kubeconfig.replace(world.server.token(), "passing-token");
    let passing = Cluster::from_kubeconfig(&kubeconfig).unwrap();
    world.node("passing");
    let other = world.pod_with("passing", "passing-0", held());
    let passing_drain = start(passing, "passing", DEADLINE);
    passing_drain.wait_until_it_says("pod default/passing-0 is terminating").await;

    let World { mut server, kubeconfig } = world;
    std::fs::write(&tokens, lasting).unwrap();
    server.process().kill().unwrap();
    lasting_drain.wait_until_it_says("the cluster does not answer").await;
    let begin = Instant::now();
    server.restart().unwrap();
    let error = passing_drain.end().await.unwrap_err();
    assert!(
        matches!(&error, DrainError::Kube { source, .. } if source.code() == Some(401)),
        "{error}"
    );
    assert!(error.to_string().contains("it may still be cordoned"), "{error}");
    assert!(begin.elapsed() < DEADLINE);

    let world = World { server, kubeconfig };
    world.kubectl(&["delete", "pdb", "unseen"], "");
    assert_eq!(lasting_drain.end().await.unwrap(), Drained { evicted: 1 });
    let there = |pod: &PodRef| world.is_there(pod);
    assert!(!there(&pod) && there(&other));
}
