//! Agents of imported clusters through the API, on a real Kubernetes API. There are no kubelets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/clusters.rs"]
mod paper;
#[path = "common/volumes.rs"]
mod storage;
#[path = "common/apiserver.rs"]
mod world;

use common::{TestServer, error_of, eventually, json_of};
use paper::{leave_alone, put_in_state, wish};
use serde_json::{Value, json};
use wharf_core::cluster::ClusterState;
use wharf_testbed::apiserver::{ApiServer, Options};
use world::World as Kubernetes;

const AGENT: &str = "/clusters/demo/agent";

async fn import(world: &Kubernetes) -> TestServer {
    let server = TestServer::start().await;
    let body = json!({"kubeConfig": world.server.kubeconfig()});
    let made = server.post("/clusters/demo?action=import", &server.admin, &body).await;
    assert_eq!(made.status(), 200, "{}", json_of(made).await);
    server
}

fn body() -> Value {
    json!({
        "image": "wharf.dev/agent:1",
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "only", "effect": "NoSchedule"}],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_are_applied_followed_and_removed() {
    let flags = vec!["--allow-privileged=true".to_owned()];
    let options = Options { flags, ..Options::default() };
    let world = Kubernetes::of(ApiServer::start_with(&options).unwrap());
    let server = import(&world).await;
    world.node("chosen", "192.0.2.10", "worker");
    assert_eq!(error_of(server.get(AGENT, &server.admin).await).await.0, 404);
    installers_agents_are_left_alone(&server, &world).await;

    // A dry run touches nothing.
    let mut dry = body();
    dry["dryRun"] = json!(true);
    let answer = json_of(server.post(AGENT, &server.admin, &dry).await).await;
    let manifests = answer["manifests"].as_str().unwrap();
    assert!(manifests.contains("kind: DaemonSet"), "{manifests}");
    assert!(!world.kubectl(&["get", "crd", "-o", "name"], "").contains("wharf.dev"));

    let installed = server.post(AGENT, &server.admin, &body()).await;
    let status = installed.status();
    let installed = json_of(installed).await;
    assert_eq!(status, 200, "{installed}");
    let changed = &installed["changed"];
    assert!(changed.to_string().contains("DaemonSet wharf-system/wharf-agent"), "{changed}");
    // Nobody makes pods of it here.
    let seen = json_of(server.get(AGENT, &server.admin).await).await;
    assert_eq!((&seen["image"], &seen["settled"]), (&json!("wharf.dev/agent:1"), &json!(false)));
    assert_eq!((&seen["done"], &seen["pods"]), (&json!(false), &json!([])), "{seen}");
    assert_eq!(seen["nodeSelector"], json!({"disk": "fast", "kubernetes.io/os": "linux"}));
    let again = json_of(server.post(AGENT, &server.admin, &body()).await).await;
    assert_eq!(again["changed"], json!([]), "the same again changes nothing");
    // What it printed is what it applied.
    world.kubectl(&["apply", "--dry-run=server", "-f", "-"], manifests);

    // The agents' identity may have a token of its own, and no other.
    let account = "--as=system:serviceaccount:wharf-system:wharf-agent";
    world.kubectl(&[account, "-n", "wharf-system", "create", "token", "wharf-agent"], "");
    let may = |verb: &str, group: &str, resource: &str, part: &str, name: &str| {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": "system:serviceaccount:wharf-system:wharf-agent",
                "resourceAttributes": {
                    "namespace": "wharf-system", "verb": verb, "group": group,
                    "resource": resource, "subresource": part, "name": name,
                },
            },
        });
        let create = ["create", "-f", "-", "-o", "jsonpath={.status.allowed}"];
        world.kubectl(&create, &review.to_string()) == "true"
    };
    assert!(may("create", "", "serviceaccounts", "token", "wharf-agent"));
    assert!(!may("create", "", "serviceaccounts", "token", "default"));
    assert!(!may("get", "", "secrets", "", "x"));
    assert!(may("patch", "coordination.k8s.io", "leases", "", "volumes-chosen"));
    assert!(!may("patch", "", "nodes", "status", "chosen"));

    // While volumes are in use nothing is removed; what is kept besides keeps its kinds.
    storage::storage(&world, "main", "loopfile");
    storage::volume(&world, "held", "main");
    storage::hold(&world, "held", &[storage::entry(&world, "chosen", "web-0", "uid")]);
    let (status, _, refused) = error_of(server.delete(AGENT, &server.admin).await).await;
    assert_eq!(status, 409, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("held on chosen"), "{refused}");
    // Nor are the rights of an agent that outlived a DaemonSet of which nobody asked us.
    world.kubectl(&["-n", "wharf-system", "delete", "daemonset", "wharf-agent"], "");
    let (status, _, refused) = error_of(server.delete(AGENT, &server.admin).await).await;
    assert_eq!(status, 409, "{refused}");
    assert!(may("create", "", "serviceaccounts", "token", "wharf-agent"));
    assert!(may("patch", "coordination.k8s.io", "leases", "", "volumes-chosen"));
    pods_that_still_end_are_waited_for(&server, &world).await;
    world.kubectl(&["delete", "attachments.wharf.dev", "held"], "");
    let mut removed = Value::Null;
    eventually(async || {
        removed = json_of(server.delete(AGENT, &server.admin).await).await;
        removed["done"] == true
    })
    .await;
    assert_eq!(removed["kept"], json!(["storage cluster main", "volume held"]));
    assert_eq!(error_of(server.get(AGENT, &server.admin).await).await.0, 404);
    assert!(world.kubectl(&["get", "crd", "-o", "name"], "").contains("storageclusters.wharf.dev"));
    let roles = world.kubectl(&["get", "clusterrole,clusterrolebinding", "-o", "name"], "");
    assert!(!roles.contains("wharf"), "{roles}");

    let audit = json_of(server.get("/audit?limit=20", &server.admin).await).await;
    let audit = audit.to_string();
    assert!(audit.contains("agent.install") && audit.contains("agent.remove"), "{audit}");
}

/// As on a cluster that Wharf installed, forgot and took in again.
async fn installers_agents_are_left_alone(server: &TestServer, world: &Kubernetes) {
    let create = ["create", "clusterrolebinding", "wharf:agents", "--clusterrole=view"];
    world.kubectl(&[&create[..], &["--group=wharf:agents"]].concat(), "");
    let install = error_of(server.post(AGENT, &server.admin, &body()).await).await;
    let remove = error_of(server.delete(AGENT, &server.admin).await).await;
    for (status, _, refused) in [install, remove] {
        assert_eq!(status, 409, "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("of an installer"), "{refused}");
    }
    let group = ["get", "clusterrolebinding", "wharf:agents", "-o", "jsonpath={.subjects[*].name}"];
    assert_eq!(world.kubectl(&group, ""), "wharf:agents");
    world.kubectl(&["delete", "clusterrolebinding", "wharf:agents"], "");
}

/// The DaemonSet is gone, and one of its pods is not.
async fn pods_that_still_end_are_waited_for(server: &TestServer, world: &Kubernetes) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "late", "namespace": "wharf-system", "labels": { "app": "wharf-agent" },
        },
        "spec": {
            "nodeName": "chosen", "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "agent", "image": "none" }],
        },
    });
    world.create(&pod);
    let (status, _, refused) = error_of(server.post(AGENT, &server.admin, &body()).await).await;
    assert_eq!(status, 409, "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("still being removed on chosen"), "{refused}");
    world.kubectl(&["-n", "wharf-system", "delete", "pod", "late"], "");
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_field_and_installed_clusters_by_a_sentence() {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo"]).await;
    let made = server.post("/clusters", &server.admin, &wish("demo")).await;
    assert_eq!(made.status(), 201);
    put_in_state(&server, "demo", ClusterState::Running).await;
    for dry_run in [false, true] {
        let mut body = body();
        body["dryRun"] = json!(dry_run);
        let (status, code, answer) = error_of(server.post(AGENT, &server.admin, &body).await).await;
        assert_eq!((status, code.as_str()), (403, "PermissionDenied"), "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("was installed by Wharf"), "{answer}");
    }
    assert_eq!(error_of(server.delete(AGENT, &server.admin).await).await.0, 403);
    let viewer = server.user("eve", "viewer", None).await;
    assert_eq!(server.post(AGENT, &viewer, &body()).await.status(), 403);
    assert_eq!(server.delete(AGENT, &viewer).await.status(), 403);
}
