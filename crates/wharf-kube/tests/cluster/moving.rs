//! Applications that move: real controllers and a real scheduler make the pods anew elsewhere, and
//! kwok says what kubelets would.

use serde_json::{Value, json};
use wharf_kube::drain::Drained;
use wharf_testbed::{
    apiserver::{ApiServer, Options},
    kwok, wait_for,
    watcher::Watcher,
};

use crate::{DEADLINE, World, drain::start};

const CONTROLLERS: [&str; 4] = [
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "disruption-controller",
];
const REPLICAS: usize = 6;

/// A Deployment or StatefulSet with a budget of one.
fn deploy(world: &World, kind: &str, name: &str) {
    let labels = json!({ "app": name });
    let spec = json!({
        "containers": [{ "name": "main", "image": "none" }],
        // A new Node is tainted so, and no controller here takes it away.
        "tolerations": [{ "key": "node.kubernetes.io/not-ready", "operator": "Exists" }],
    });
    world.create(&json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": name },
        "spec": {
            "replicas": REPLICAS, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": spec },
        },
    }));
    world.create(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": name },
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": labels } },
    }));
    world.wait_until_budget_allows(name, 1);
}

fn nodes_of(world: &World) -> Vec<Value> {
    let pods = world.read(&["pods"]);
    let pods = pods["items"].as_array().unwrap();
    pods.iter().map(|pod| pod["spec"]["nodeName"].clone()).collect()
}

#[tokio::test]
async fn a_deployment_and_a_stateful_set_move_one_by_one_and_their_budgets_hold() {
    let controllers = CONTROLLERS.map(str::to_owned).into();
    let options = Options { controllers, scheduler: true, ..Options::default() };
    let server = ApiServer::start_with(&options).unwrap();
    let _kwok = kwok::start(&server.kubeconfig_file()).unwrap();
    let world = World::of(server);
    let fake = json!({ "annotations": { kwok::FAKE: "fake" } });
    let node = |name: &str| {
        let mut metadata = fake.clone();
        metadata["name"] = json!(name);
        world.create(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }));
    };
    node("here");
    deploy(&world, "Deployment", "web");
    deploy(&world, "StatefulSet", "db");
    node("there");
    let watch = |app: &str| Watcher::start(world.kubectl_command(), app, REPLICAS).unwrap();
    let watchers = [watch("web"), watch("db")];

    let drained = start(world.cluster(), "here", DEADLINE).end().await.unwrap();
    assert_eq!(drained, Drained { evicted: 2 * REPLICAS });
    wait_for("all pods to be elsewhere", DEADLINE, || {
        let nodes = nodes_of(&world);
        let there = nodes.iter().filter(|node| **node == json!("there")).count();
        Ok((there == 2 * REPLICAS && nodes.len() == there).then_some(()))
    })
    .unwrap();
    for watcher in watchers {
        watcher.finish().unwrap();
    }
}
