//! What a policy changes, and what a plan says before.

use std::time::Duration;

use serde_json::json;
use wharf_core::{
    drain::{Class, Jobs, Ladder, Policy, Prospect, Sequence},
    selector::{Labels, Selector},
};
use wharf_kube::{
    Clock, Cluster,
    drain::{self, DrainError, Drained},
};

use crate::{
    DEADLINE, drain as drains,
    drain::{has_our_mark, policy, start_with},
    held, labelled, merge, owned_by, world,
};

const NOBODY: &str = "33333333-3333-3333-3333-333333333333";

#[tokio::test]
async fn a_job_blocks_at_once_or_is_deleted_as_the_policy_says() {
    let (world, node) = (world(), "jobs");
    world.node(node);
    let job = world.pod_with(node, "jobs-0", owned_by("Job", "jobs", NOBODY));
    let web = world.pod(node, "jobs-web");
    let blocking = Policy { jobs: Jobs::Block, ..policy(DEADLINE) };
    let error = start_with(world.cluster(), node, blocking).end().await.unwrap_err();
    let why = "pods of Jobs are on the node: pod default/jobs-0 belongs to a Job";
    assert!(error.to_string().contains(why), "{error}");
    assert!(world.is_there(&job) && world.is_there(&web));
    assert!(!world.is_unschedulable(node) && !has_our_mark(&world, node));

    let deleting = Policy { jobs: Jobs::Delete, ..policy(DEADLINE) };
    let drained = start_with(world.cluster(), node, deleting).end().await.unwrap();
    assert_eq!(drained, Drained { evicted: 2 });
    assert!(!world.is_there(&job) && !world.is_there(&web));
}

#[tokio::test]
async fn outside_the_protected_namespaces_a_refused_pod_is_deleted() {
    let world = world();
    world.node("unprotected");
    world.node("protecting");
    world.kubectl(&["create", "namespace", "precious"], "");
    world.kubectl(&["label", "namespace", "precious", "keep=yes"], "");
    let free = world.pod_with("unprotected", "unprotected-0", labelled("unprotected"));
    world.budget("unprotected", 1, 1);
    let mut inside = labelled("precious");
    merge(&mut inside, json!({ "namespace": "precious" }));
    let kept = world.pod_with("protecting", "precious-0", inside);
    world.create(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": "precious", "namespace": "precious" },
        "spec": { "minAvailable": 1, "selector": {} },
    }));
    let selector = Selector {
        match_labels: Labels::from([("keep".to_owned(), "yes".to_owned())]),
        ..Selector::default()
    };
    let within = |time| Policy { protected: Some(selector.clone()), ..policy(time) };
    let outside = start_with(world.cluster(), "unprotected", within(DEADLINE));
    assert_eq!(outside.end().await.unwrap(), Drained { evicted: 1 });
    assert!(!world.is_there(&free));
    let inside = start_with(world.cluster(), "protecting", within(Duration::from_secs(3)));
    let error = inside.end().await.unwrap_err().to_string();
    assert!(error.contains("pod precious/precious-0 is protected by budget precious"), "{error}");
    assert!(world.is_there(&kept));
}

#[tokio::test]
async fn pods_of_lower_priority_leave_first() {
    let (world, node) = (world(), "ranked");
    world.node(node);
    world.kubectl(&["create", "priorityclass", "ranked-high", "--value=1000"], "");
    let low = world.pod_with(node, "ranked-low", held());
    let class = json!({ "priorityClassName": "ranked-high" });
    let high = world.pod_of(node, "ranked-high", json!({}), class);
    let sequence = Sequence { by_priority: true, ..Sequence::default() };
    let drain = start_with(world.cluster(), node, Policy { sequence, ..policy(DEADLINE) });
    drain.wait_until_it_says("pod default/ranked-low is terminating").await;
    drain.wait_until_it_says("pod default/ranked-high has not been evicted yet").await;
    assert!(world.is_there(&high));
    world.let_go(&low);
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 2 });
    assert!(!world.is_there(&high));
}

#[tokio::test]
async fn a_pod_that_is_not_ready_is_deleted_after_its_time() {
    let (world, node) = (world(), "climbing");
    world.node(node);
    let pod = world.pod_with(node, "climbing-0", labelled("climbing"));
    world.budget("climbing", 1, 1);
    let unready = r#"{"status":{"conditions":[{"type":"Ready","status":"False"}]}}"#;
    world.kubectl(&["patch", "pod", "climbing-0", "--subresource=status", "-p", unready], "");
    let begun = jiff::Timestamp::now();
    let ladder = Ladder { begun, unready_after: Some(Duration::from_secs(2)), any_after: None };
    let climbing = Policy { ladder: Some(ladder), ..policy(DEADLINE) };
    let drain = start_with(world.cluster(), node, climbing);
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 1 });
    assert!(!world.is_there(&pod));
    let took = jiff::Timestamp::now().duration_since(begun);
    assert!(took.as_secs() >= 2, "its budget held it for {took}");
}

#[tokio::test]
async fn where_refusals_are_counted_our_own_evictions_are_no_refusals() {
    let (world, node) = (world(), "counted");
    world.node(node);
    world.node("counted-elsewhere");
    let pods =
        ["counted-0", "counted-1"].map(|name| world.pod_with(node, name, labelled("counted")));
    world.budget("counted", 1, 2);
    let once = Policy { attempts: Some(1), ..policy(DEADLINE) };
    let drain = start_with(world.cluster(), node, once.clone());
    drain.wait_until_it_says("is protected by budget counted, 0 allowed").await;
    assert_eq!(pods.iter().filter(|pod| world.is_there(pod)).count(), 1);
    world.pod_with("counted-elsewhere", "counted-2", labelled("counted"));
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 2 });

    // What the budget refuses before anything left is one.
    let error = start_with(world.cluster(), "counted-elsewhere", once).end().await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("evictions were refused too often: pod default/counted-2"), "{text}");
    assert!(!world.is_unschedulable("counted-elsewhere"));
}

/// What an attacher and a kubelet would write is written by hand.
#[tokio::test]
async fn volumes_of_drained_pods_are_waited_for() {
    let (world, node) = (world(), "attached");
    world.node(node);
    world.create(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "attached-pv" },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "csi": { "driver": "test.wharf.dev", "volumeHandle": "handle-1" },
        },
    }));
    world.create(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "attached-claim" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeName": "attached-pv", "storageClassName": "",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    }));
    world.create(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": { "name": "attached-it" },
        "spec": {
            "attacher": "test.wharf.dev", "nodeName": node,
            "source": { "persistentVolumeName": "attached-pv" },
        },
    }));
    let in_use = |names: serde_json::Value| {
        let status = json!({ "status": { "volumesInUse": names } }).to_string();
        let patch = ["patch", "node", node, "--subresource=status", "--type=merge", "-p", &status];
        world.kubectl(&patch, "");
    };
    in_use(json!(["kubernetes.io/csi/test.wharf.dev^handle-1"]));
    let claim = json!({ "claimName": "attached-claim" });
    let spec = json!({ "volumes": [{ "name": "data", "persistentVolumeClaim": claim }] });
    let pod = world.pod_of(node, "attached-0", json!({}), spec);
    let waiting = Policy { volumes: Some(DEADLINE), ..policy(DEADLINE) };
    let drain = start_with(world.cluster(), node, waiting);
    drain.wait_until_it_says("volumes of drained pods are attached: attached-pv").await;
    assert!(!world.is_there(&pod));
    world.kubectl(&["delete", "volumeattachment", "attached-it"], "");
    in_use(json!([]));
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 1 });
}

#[tokio::test]
async fn a_plan_says_what_becomes_of_each_pod_and_changes_nothing() {
    let (world, node) = (world(), "planned");
    world.node(node);
    world.pod_with(node, "planned-db", labelled("planned"));
    world.pod(node, "planned-web");
    world.pod_with(node, "planned-job", owned_by("Job", "sums", NOBODY));
    let mirror = json!({ "annotations": { "kubernetes.io/config.mirror": "x" } });
    world.pod_with(node, "planned-static", mirror);
    world.budget("planned", 1, 1);
    let before = world.version(&["node", node]);
    let cluster = world.cluster();
    let plan = drain::plan(&cluster, node, &drains::policy(DEADLINE)).await.unwrap();
    let class = |name: &str| plan.pods.iter().find(|pod| pod.pod.name == name).unwrap().class;
    assert_eq!(class("planned-db"), Class::Evict);
    assert_eq!(class("planned-web"), Class::Evict);
    assert_eq!(class("planned-job"), Class::JobWaits);
    assert_eq!(class("planned-static"), Class::Mirror);
    assert_eq!((plan.pods.len(), plan.prospect), (4, Prospect::Never));
    assert_eq!(world.version(&["node", node]), before);
    let missing = drain::plan(&cluster, "nowhere", &drains::policy(DEADLINE)).await.unwrap_err();
    assert!(missing.is_not_found(), "{missing}");
}

/// Who reads is not known to the cluster; who acts is.
#[tokio::test]
async fn a_drain_that_the_cluster_refuses_keeps_its_cordon_where_the_policy_says_so() {
    let (world, node) = (world(), "refused");
    world.node(node);
    let hand = world.cluster();
    let nobody = world.server.kubeconfig_with_token().replace(world.server.token(), "nobody");
    let eyes = Cluster::from_kubeconfig(&nobody).unwrap();
    for (keep_cordon, stays) in [(true, true), (false, false)] {
        hand.cordon(node, drains::OWNER).await.unwrap();
        let policy = Policy { keep_cordon, ..policy(DEADLINE) };
        let drained = drain::run_as(&eyes, &hand, node, &policy, Clock::start(), |_| {}).await;
        let error = drained.unwrap_err();
        assert!(matches!(error, DrainError::Kube { uncordon: None, .. }), "{error}");
        assert_eq!(world.is_unschedulable(node), stays, "keep_cordon = {keep_cordon}");
        assert_eq!(has_our_mark(&world, node), stays);
    }
}
