//! Machines as their Nodes show them; fences, cordons of persons, events.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::sync::watch;
use wharf_kube::{
    CORDON_BEFORE, CORDON_OWNER, Cordoned, Uncordoned,
    machines::{self, MachineSeen},
};

use crate::{DEADLINE, World, world};

const OWNER: &str = "repair 7";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

fn annotation(world: &World, node: &str, key: &str) -> Option<String> {
    let node = world.read(&["node", node]);
    node["metadata"]["annotations"].get(key)?.as_str().map(str::to_owned)
}

#[tokio::test]
async fn a_persons_cordon_made_during_ours_outlives_it() {
    let (world, node) = (world(), "person-later");
    world.node(node);
    let cluster = world.cluster();
    assert_eq!(cluster.cordon(node, OWNER).await.unwrap(), Cordoned::Ours);
    assert_eq!(annotation(&world, node, CORDON_BEFORE).as_deref(), Some("false"));
    for _ in 0..2 {
        cluster.cordon_by_person(node).await.unwrap();
        assert_eq!(annotation(&world, node, CORDON_BEFORE).as_deref(), Some("true"));
    }
    assert_eq!(cluster.uncordon(node, OWNER).await.unwrap(), Uncordoned::StillCordoned);
    assert!(world.is_unschedulable(node) && annotation(&world, node, CORDON_OWNER).is_none());
    cluster.uncordon_by_person(node).await.unwrap();
    assert!(!world.is_unschedulable(node));
    cluster.cordon_by_person(node).await.unwrap();
    assert!(world.is_unschedulable(node) && annotation(&world, node, CORDON_OWNER).is_none());
    let missing = cluster.cordon_by_person("nowhere").await.unwrap_err();
    assert!(missing.is_not_found(), "{missing}");
}

#[tokio::test]
async fn a_cordon_that_is_kept_is_a_persons_from_then_on() {
    let (world, node) = (world(), "kept-cordon");
    world.node(node);
    let cluster = world.cluster();
    cluster.cordon(node, OWNER).await.unwrap();
    cluster.keep_cordon(node, "somebody else").await.unwrap();
    assert_eq!(annotation(&world, node, CORDON_OWNER).as_deref(), Some(OWNER));
    cluster.keep_cordon(node, OWNER).await.unwrap();
    assert!(world.is_unschedulable(node) && annotation(&world, node, CORDON_OWNER).is_none());
    assert_eq!(cluster.uncordon(node, OWNER).await.unwrap(), Uncordoned::NotOurs);
    cluster.keep_cordon("nowhere", OWNER).await.unwrap();
}

#[tokio::test]
async fn a_fence_is_put_up_once_and_only_ours_is_taken_down() {
    let (world, node) = (world(), "fenced");
    world.node(node);
    world.kubectl(&["taint", "node", node, "theirs=1:NoSchedule"], "");
    let cluster = world.cluster();
    // The API server taints a new Node by itself.
    let taints = || {
        let mut taints = world.read(&["node", node])["spec"]["taints"].clone();
        let is_ours_to_see = |taint: &Value| taint["key"] != json!("node.kubernetes.io/not-ready");
        taints.as_array_mut().unwrap().retain(is_ours_to_see);
        taints
    };
    let theirs = json!({ "key": "theirs", "value": "1", "effect": "NoSchedule" });
    let ours = json!({ "key": OUT_OF_SERVICE, "value": "wharf", "effect": "NoExecute" });
    for _ in 0..2 {
        cluster.fence(node).await.unwrap();
        assert_eq!(taints(), json!([theirs, ours]));
    }
    for _ in 0..2 {
        cluster.unfence(node).await.unwrap();
        assert_eq!(taints(), json!([theirs]));
    }
    world
        .kubectl(&["taint", "node", node, &format!("{OUT_OF_SERVICE}=nodeshutdown:NoExecute")], "");
    let foreign = taints();
    cluster.fence(node).await.unwrap();
    cluster.unfence(node).await.unwrap();
    assert_eq!(taints(), foreign);
    cluster.unfence("nowhere").await.unwrap();
    assert!(cluster.fence("nowhere").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn an_event_is_found_with_its_node() {
    let (world, node) = (world(), "eventful");
    world.node(node);
    let cluster = world.cluster();
    cluster.emit(node, true, "DrainBlocked", &"budget db allows none; ".repeat(99)).await.unwrap();
    cluster.emit(node, false, "Drained", "all pods have left").await.unwrap();
    let told = world.kubectl(&["describe", "node", node], "");
    assert!(told.contains("Warning") && told.contains("DrainBlocked"), "{told}");
    assert!(told.contains("all pods have left") && told.contains("wharf"), "{told}");
}

#[tokio::test]
async fn every_api_server_is_asked_about_its_etcd() {
    let world = world();
    let good = world.cluster().etcd_health().await;
    assert_eq!(good.into_iter().collect::<Vec<_>>(), [("127.0.0.1".to_owned(), true)]);
    let nobody = "https://127.0.0.2:1".parse().unwrap();
    let servers = [world.server.url().parse().unwrap(), nobody];
    let both = world.cluster().with_servers(&servers).unwrap().etcd_health().await;
    let expected = [("127.0.0.1".to_owned(), true), ("127.0.0.2".to_owned(), false)];
    assert_eq!(both.into_iter().collect::<Vec<_>>(), expected);
}

type Seen = watch::Receiver<Option<Arc<Vec<MachineSeen>>>>;

async fn wait_until(seen: &mut Seen, name: &str, is: impl Fn(Option<&MachineSeen>) -> bool) {
    let wait = seen.wait_for(|all| {
        let all = all.as_ref();
        all.is_some_and(|all| is(all.iter().find(|machine| machine.name == name)))
    });
    tokio::time::timeout(DEADLINE, wait).await.expect("in time").unwrap();
}

#[tokio::test]
async fn machines_are_followed_from_their_joining_to_their_leaving() {
    let (world, node) = (world(), "followed");
    let (sender, mut seen) = watch::channel(None);
    let follow = tokio::spawn(machines::follow(world.cluster(), sender));
    wait_until(&mut seen, node, |machine| machine.is_none()).await;
    world.node(node);
    wait_until(&mut seen, node, |machine| machine.is_some_and(|it| !it.ready)).await;
    let status = json!({ "status": {
        "conditions": [{ "type": "Ready", "status": "True" }],
        "addresses": [{ "type": "InternalIP", "address": "10.9.9.9" }],
    } });
    let status = status.to_string();
    world.kubectl(&["patch", "node", node, "--subresource=status", "-p", &status], "");
    wait_until(&mut seen, node, |machine| {
        machine.is_some_and(|it| it.ready && it.address == "10.9.9.9")
    })
    .await;
    let cluster = world.cluster();
    cluster.cordon(node, OWNER).await.unwrap();
    cluster.fence(node).await.unwrap();
    let label = format!("{}=false", machines::REPAIR);
    let roles = ["node-role.kubernetes.io/etcd=true", "node-role.kubernetes.io/controlplane=true"];
    world.kubectl(&["label", "node", node, &label, roles[0], roles[1]], "");
    wait_until(&mut seen, node, |machine| {
        machine.is_some_and(|it| {
            it.cordoned_by.as_deref() == Some(OWNER)
                && (it.unschedulable && it.fenced && it.opted_out && it.etcd && it.controlplane)
        })
    })
    .await;
    world.kubectl(&["delete", "node", node], "");
    wait_until(&mut seen, node, |machine| machine.is_none()).await;
    follow.abort();
}

#[tokio::test]
async fn who_may_not_see_nodes_is_told_so() {
    let world = world();
    let stranger = world.server.kubeconfig_with_token().replace(world.server.token(), "a-stranger");
    let stranger = wharf_kube::Cluster::from_kubeconfig(&stranger).unwrap();
    let (sender, _seen) = watch::channel(None);
    let end = tokio::time::timeout(Duration::from_secs(30), machines::follow(stranger, sender));
    assert_eq!(end.await.unwrap().unwrap_err().code(), Some(401));
}
