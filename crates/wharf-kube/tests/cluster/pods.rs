//! Evictions, and pods that run to their end.

use std::time::Duration;

use wharf_core::drain::PodRef;
use wharf_kube::Eviction;

use crate::{labelled, world};

#[tokio::test]
async fn an_eviction_that_a_budget_refuses_names_it_and_succeeds_once_it_allows() {
    let world = world();
    world.node("guarded");
    let first = world.pod_with("guarded", "guarded-1", labelled("guard"));
    world.budget("guard", 1, 1);
    let cluster = world.cluster();
    let answers = [cluster.rehearse_eviction(&first).await, cluster.evict(&first, None).await];
    for answer in answers {
        let Ok(Eviction::Refused { message }) = answer else { panic!("{answer:?}") };
        assert!(message.contains("The disruption budget guard needs 1 healthy pods"), "{message}");
        assert!(world.is_there(&first));
    }
    let second = world.pod_with("guarded", "guarded-2", labelled("guard"));
    world.wait_until_budget_allows("guard", 1);
    assert_eq!(cluster.rehearse_eviction(&first).await.unwrap(), Eviction::Accepted);
    assert!(world.is_there(&first), "a rehearsal evicts nobody");
    assert_eq!(cluster.evict(&first, None).await.unwrap(), Eviction::Accepted);
    assert!(!world.is_there(&first));
    assert!(world.is_there(&second));
}

#[tokio::test]
async fn a_pod_with_another_uid_is_left_alone() {
    let world = world();
    world.node("reborn");
    let pod = world.pod("reborn", "reborn-1");
    let earlier = PodRef { uid: "00000000-0000-0000-0000-000000000000".to_owned(), ..pod.clone() };
    let cluster = world.cluster();
    assert_eq!(cluster.evict(&earlier, None).await.unwrap(), Eviction::Gone);
    assert!(world.is_there(&pod));
    let never = PodRef { name: "never-was".to_owned(), ..pod.clone() };
    assert_eq!(cluster.evict(&never, None).await.unwrap(), Eviction::Gone);
    assert_eq!(cluster.evict(&pod, None).await.unwrap(), Eviction::Accepted);
    assert!(!world.is_there(&pod));
}

/// There is no kubelet, so what one would say is written by hand.
#[tokio::test]
async fn a_container_that_does_not_end_is_explained_until_it_does() {
    let world = world();
    world.kubectl(&["run", "check", "--image=none"], "");
    let cluster = world.cluster();
    let soon = Duration::from_millis(500);
    let wait = cluster.wait_container_end("default", "check", "check", soon).await;
    let error = wait.unwrap_err().to_string();
    assert!(error.contains("check") && error.contains("Pending"), "{error}");
    let wait = cluster.wait_container_end("default", "none", "check", soon).await;
    assert!(wait.unwrap_err().to_string().contains("there is none"));
}

#[tokio::test]
async fn a_deployment_without_pods_is_not_ready_and_says_so() {
    let world = world();
    let cluster = world.cluster();
    let soon = Duration::from_millis(300);
    let error = cluster.wait_deployment_ready("default", "none", soon).await.unwrap_err();
    assert!(error.to_string().contains("there is none"), "{error}");
    world.kubectl(&["create", "deployment", "idle", "--image=none"], "");
    let error = cluster.wait_deployment_ready("default", "idle", soon).await.unwrap_err();
    assert!(error.to_string().contains("has not looked at it"), "{error}");
    let status = r#"{"status":{"observedGeneration":1,"replicas":1,"updatedReplicas":1,
        "readyReplicas":1,"availableReplicas":1}}"#;
    world.kubectl(&["patch", "deployment", "idle", "--subresource=status", "-p", status], "");
    cluster.wait_deployment_ready("default", "idle", Duration::from_secs(10)).await.unwrap();
}
