//! Whole drains.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use serde_json::json;
use wharf_core::drain::{Policy, Waiting};
use wharf_kube::{
    CORDON_OWNER, Cluster, Uncordoned,
    drain::{self, DrainError, Drained},
};

use crate::{DEADLINE, World, labelled, owned_by, passage::Passage, world};

pub const OWNER: &str = "update demo";

/// A drain in the background, with everything that it said.
pub struct Running {
    task: tokio::task::JoinHandle<Result<Drained, DrainError>>,
    said: Arc<Mutex<Vec<String>>>,
}

pub fn policy(within: Duration) -> Policy {
    Policy::removal(OWNER, Timestamp::now() + within)
}

pub fn start(cluster: Cluster, node: &'static str, within: Duration) -> Running {
    start_with(cluster, node, policy(within))
}

pub fn start_with(cluster: Cluster, node: &'static str, policy: Policy) -> Running {
    let said = Arc::new(Mutex::new(Vec::new()));
    let log = said.clone();
    let task = tokio::spawn(async move {
        drain::run(&cluster, node, &policy, |report| {
            log.lock().unwrap().extend(report.waiting.iter().map(Waiting::to_string));
        })
        .await
    });
    Running { task, said }
}

impl Running {
    pub async fn end(self) -> Result<Drained, DrainError> {
        tokio::time::timeout(DEADLINE, self.task).await.unwrap().unwrap()
    }

    pub async fn wait_until_it_says(&self, sentence: &str) {
        let end = tokio::time::Instant::now() + DEADLINE;
        while !self.said.lock().unwrap().iter().any(|said| said.contains(sentence)) {
            let said = self.said.lock().unwrap().clone();
            assert!(!self.task.is_finished(), "it ended after saying {said:?}");
            assert!(tokio::time::Instant::now() < end, "it said {said:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub fn has_our_mark(world: &World, node: &str) -> bool {
    let node = world.read(&["node", node]);
    node["metadata"].get("annotations").is_some_and(|all| all.get(CORDON_OWNER).is_some())
}

#[tokio::test]
async fn a_drained_node_is_cordoned_and_keeps_only_what_belongs_to_it() {
    let world = world();
    world.node("full");
    let plain = world.pod("full", "full-plain");
    let set = world.create(&json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "full-set" },
        "spec": {
            "selector": { "matchLabels": { "app": "full-set" } },
            "template": {
                "metadata": { "labels": { "app": "full-set" } },
                "spec": { "containers": [{ "name": "main", "image": "none" }] },
            },
        },
    }));
    let uid = set["metadata"]["uid"].as_str().unwrap();
    let of_set = world.pod_with("full", "full-of-set", owned_by("DaemonSet", "full-set", uid));
    let gone = "11111111-1111-1111-1111-111111111111";
    let orphan = world.pod_with("full", "full-orphan", owned_by("DaemonSet", "full-set", gone));
    let mirror = world.pod_with(
        "full",
        "full-mirror",
        json!({ "annotations": { "kubernetes.io/config.mirror": "x" } }),
    );
    let finished = world.pod_with("full", "full-job", owned_by("Job", "done", gone));
    let status = r#"{"status":{"phase":"Failed"}}"#;
    world.kubectl(&["patch", "pod", &finished.name, "--subresource=status", "-p", status], "");

    let drained = start(world.cluster(), "full", DEADLINE).end().await.unwrap();
    assert_eq!(drained, Drained { evicted: 2 });
    assert!(world.is_unschedulable("full") && has_our_mark(&world, "full"));
    for (pod, stays) in
        [(plain, false), (orphan, false), (of_set, true), (mirror, true), (finished, true)]
    {
        assert_eq!(world.is_there(&pod), stays, "{pod}");
    }
    // Done is done: a second run finds nothing to do.
    let again = start(world.cluster(), "full", DEADLINE).end().await.unwrap();
    assert_eq!(again, Drained { evicted: 0 });
}

#[tokio::test]
async fn a_blocked_drain_touches_nothing_names_the_budget_and_goes_on_once_it_allows() {
    let world = world();
    world.node("blocked");
    world.node("spare");
    let database = world.pod_with("blocked", "db-0", labelled("db"));
    let plain = world.pod("blocked", "blocked-plain");
    world.budget("db", 1, 1);
    let drain = start(world.cluster(), "blocked", DEADLINE);
    drain.wait_until_it_says("pod default/db-0 is protected by budget db, 0 allowed").await;
    assert!(!world.is_unschedulable("blocked"));
    assert!(world.is_there(&plain));

    world.pod_with("spare", "db-1", labelled("db"));
    drain.end().await.unwrap();
    assert!(!world.is_there(&database) && !world.is_there(&plain));
    assert!(world.is_unschedulable("blocked"));
}

#[tokio::test]
async fn a_missed_deadline_names_the_pod_and_its_budget_and_uncordons() {
    let world = world();
    world.node("late");
    // One may go at a time, and nobody makes it anew: the second is refused after the cordon.
    let pods = [
        world.pod_with("late", "late-0", labelled("late")),
        world.pod_with("late", "late-1", labelled("late")),
    ];
    world.budget("late", 1, 2);
    let error = start(world.cluster(), "late", Duration::from_secs(4)).end().await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, DrainError::Failed { uncordon: None, .. }), "{text}");
    assert!(text.contains("is protected by budget late, 0 allowed"), "{text}");
    assert!(text.contains("node late was not drained: the deadline passed"), "{text}");
    assert!(!world.is_unschedulable("late") && !has_our_mark(&world, "late"));
    let left = pods.iter().filter(|pod| world.is_there(pod)).count();
    assert_eq!(left, 1, "the budget held");
}

#[tokio::test]
async fn a_persons_cordon_survives_a_drain_that_fails() {
    let world = world();
    world.node("kept");
    world.kubectl(&["cordon", "kept"], "");
    world.pod_with("kept", "kept-0", labelled("kept"));
    world.pod_with("kept", "kept-1", labelled("kept"));
    world.budget("kept", 1, 2);
    let error = start(world.cluster(), "kept", Duration::from_secs(3)).end().await.unwrap_err();
    assert!(matches!(error, DrainError::Failed { uncordon: None, .. }), "{error}");
    assert!(world.is_unschedulable("kept"), "the person's cordon stays");
    assert!(!has_our_mark(&world, "kept"));
}

#[tokio::test]
async fn a_running_job_blocks_the_drain_before_anything_is_touched() {
    let world = world();
    world.node("busy");
    let gone = "22222222-2222-2222-2222-222222222222";
    let job = world.pod_with("busy", "busy-job", owned_by("Job", "sums", gone));
    let drain = start(world.cluster(), "busy", DEADLINE);
    drain.wait_until_it_says("pod default/busy-job belongs to a Job that has not finished").await;
    assert!(!world.is_unschedulable("busy"));
    let status = r#"{"status":{"phase":"Succeeded"}}"#;
    world.kubectl(&["patch", "pod", &job.name, "--subresource=status", "-p", status], "");
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 0 });
    assert!(world.is_there(&job), "a finished pod is no burden");
}

#[tokio::test]
async fn a_drain_waits_for_a_pod_that_ends_slowly_and_the_cordon_of_a_dropped_one_is_taken_back() {
    let world = world();
    world.node("slow");
    // With a grace period it stays until its kubelet ends it, and there is none.
    let made = world.create(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "slow-0" },
        "spec": { "nodeName": "slow", "containers": [{ "name": "main", "image": "none" }] },
    }));
    let drain = start(world.cluster(), "slow", DEADLINE);
    drain.wait_until_it_says("pod default/slow-0 is terminating").await;
    assert!(world.is_unschedulable("slow"));
    drain.task.abort();
    assert!(drain.task.await.unwrap_err().is_cancelled());
    assert_eq!(world.cluster().uncordon("slow", OWNER).await.unwrap(), Uncordoned::Schedulable);
    assert!(!world.is_unschedulable("slow") && !has_our_mark(&world, "slow"));

    // The pod's end is seen by its UID: another of its name, elsewhere, does not matter.
    let drain = start(world.cluster(), "slow", DEADLINE);
    drain.wait_until_it_says("pod default/slow-0 is terminating").await;
    world.kubectl(&["delete", "pod", "slow-0", "--force", "--grace-period=0"], "");
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 0 });
    assert!(made["metadata"]["uid"].is_string());
}

#[tokio::test]
async fn a_dead_node_is_drained_although_nobody_ends_its_pods() {
    let world = world();
    world.node("dead");
    world.create(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "dead-0" },
        "spec": { "nodeName": "dead", "containers": [{ "name": "main", "image": "none" }] },
    }));
    let since = Timestamp::now() - Duration::from_secs(60);
    let since = since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown",
        "reason": "NodeStatusUnknown", "lastTransitionTime": since,
        "lastHeartbeatTime": since }] } });
    let patch = status.to_string();
    world.kubectl(&["patch", "node", "dead", "--subresource=status", "-p", &patch], "");
    let drained = start(world.cluster(), "dead", DEADLINE).end().await.unwrap();
    assert_eq!(drained, Drained { evicted: 1 });
    assert!(world.is_unschedulable("dead"));
}

#[tokio::test]
async fn a_person_who_uncordons_ends_the_drain_and_stays_the_master() {
    let world = world();
    world.node("fought");
    world.pod_with("fought", "fought-0", labelled("fought"));
    world.pod_with("fought", "fought-1", labelled("fought"));
    world.budget("fought", 1, 2);
    let drain = start(world.cluster(), "fought", DEADLINE);
    drain.wait_until_it_says("is protected by budget fought, 0 allowed").await;
    world.kubectl(&["uncordon", "fought"], "");
    let error = drain.end().await.unwrap_err().to_string();
    assert!(error.contains("somebody made the node schedulable again"), "{error}");
    assert!(!world.is_unschedulable("fought") && !has_our_mark(&world, "fought"));
}

#[tokio::test]
async fn a_drain_outlives_a_time_without_the_api_server() {
    let world = world();
    world.node("cut-off");
    let pod = world.pod_with("cut-off", "cut-off-0", labelled("cut-off"));
    world.budget("cut-off", 1, 1);
    let passage = Passage::to(world.server.port());
    let server = format!("https://127.0.0.1:{}", passage.port).parse().unwrap();
    let cluster = world.cluster().with_servers(&[server]).unwrap();
    let drain = start(cluster.with_timeout(Duration::from_secs(1)), "cut-off", DEADLINE);
    drain.wait_until_it_says("is protected by budget cut-off, 0 allowed").await;

    passage.freeze(true);
    world.pod_with("cut-off", "cut-off-1", labelled("other"));
    world.kubectl(&["delete", "pdb", "cut-off"], "");
    // Two requests went nowhere: the drain has met the silence and goes on trying.
    let lost = async {
        while passage.swallowed() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, lost).await.unwrap();
    assert!(world.is_there(&pod));
    passage.freeze(false);
    assert_eq!(drain.end().await.unwrap(), Drained { evicted: 2 });
    assert!(!world.is_there(&pod));
}

#[tokio::test]
async fn a_node_that_is_not_there_is_drained() {
    let world = world();
    let drained = start(world.cluster(), "nowhere", DEADLINE).end().await.unwrap();
    assert_eq!(drained, Drained { evicted: 0 });
}
