//! Clusters that exist already, and what is seen of clusters that run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/kubernetes.rs"]
mod kubernetes;
#[path = "common/clusters.rs"]
mod paper;

use common::{TestServer, error_of, json_of};
use kubernetes::Fake;
use paper::{leave_alone, put_in_state, record, ssh_key, wish};
use serde_json::{Value, json};
use wharf_core::cluster::{
    ClusterState, DeleteMode, Origin,
    health::{Amounts, HealthRecord, NodeHealth},
};
use wharf_store::Txn;

async fn import(server: &TestServer, name: &str, body: &Value) -> reqwest::Response {
    server.post(&format!("/clusters/{name}?action=import"), &server.admin, body).await
}

#[tokio::test]
async fn a_cluster_that_answers_is_imported_by_its_kubeconfig() {
    let server = TestServer::start().await;
    leave_alone(&server, &["theirs"]).await;
    let fake = Fake::start().await;
    let start = server.app().store.revision().await.unwrap();
    let response = import(&server, "theirs", &json!({"kubeConfig": fake.kubeconfig()})).await;
    let status = response.status();
    let made = json_of(response).await;
    assert_eq!(status, 200, "{made}");
    for (field, value) in [
        ("status", json!("Running")),
        ("origin", json!("imported")),
        ("zcloudVersion", json!("imported")),
        ("version", json!("v1.36.3")),
        ("kubernetesVersion", json!("1.36.3")),
        ("nodeCount", json!(2)),
        ("readyNodeCount", json!(1)),
        ("cpu", json!(4000)),
        ("cpuUsed", json!(500)),
        ("cpuUsedRatio", json!("0.12")),
        ("singleCloudAddress", json!("")),
        ("pending", json!([])),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    let stored = record(&server, "theirs").await;
    assert_eq!((stored.origin, stored.created), (Origin::Imported, true));
    let mut events = server.app().hub.subscribe(Some(start)).await.unwrap();
    let mut created = 0;
    while created == 0 {
        let next = tokio::time::timeout(common::DEADLINE, events.next()).await.unwrap();
        if let wharf_server::events::Delivery::Event(event) = next.unwrap().unwrap() {
            created += u32::from(event.event.type_ == "cluster.created");
        }
    }

    let list = json_of(server.get("/clusters/theirs/kubeconfigs", &server.admin).await).await;
    assert_eq!(list["data"][0]["user"], "kube-admin");
    let path = "/clusters/theirs/kubeconfigs/kube-admin";
    let one = json_of(server.get(path, &server.admin).await).await;
    assert_eq!(one, list["data"][0]);
    assert_eq!((&one["type"], &one["id"]), (&json!("kubeconfig"), &json!("kube-admin")));
    assert_eq!(one["kubeConfig"], fake.kubeconfig());
    let unknown = server.get("/clusters/theirs/kubeconfigs/somebody", &server.admin).await;
    assert_eq!(unknown.status(), 404);
    let audit = json_of(server.get("/audit?limit=1", &server.admin).await).await;
    assert_eq!(audit["data"][0]["action"], "kubeconfig.read");
    assert!(!audit.to_string().contains("BEGIN"));

    let nodes = json_of(server.get("/clusters/theirs/nodes", &server.admin).await).await;
    let node = &nodes["data"][1];
    assert_eq!((&node["name"], &node["status"]), (&json!("w1"), &json!("NotReady")));
    assert_eq!((&node["roles"], &node["address"]), (&json!(["worker"]), &json!("192.0.2.21")));
    assert_eq!(nodes["data"][0]["roles"], json!(["controlplane"]));

    // Its nodes are not ours to change; without a key nothing can be cleaned.
    let mut change = json!({"name": "theirs", "nodes": wish("x")["nodes"]});
    let (status, _, body) =
        error_of(server.put("/clusters/theirs", &server.admin, &change).await).await;
    assert_eq!((status, &body["details"][0]["field"]), (422, &json!("nodes")), "{body}");
    change["nodes"] = json!([]);
    change["singleCloudAddress"] = json!("192.0.2.9:8443");
    let changed = json_of(server.put("/clusters/theirs", &server.admin, &change).await).await;
    assert_eq!(
        (&changed["status"], &changed["singleCloudAddress"]),
        (&json!("Running"), &json!("192.0.2.9:8443"))
    );
    assert_eq!(server.delete("/clusters/theirs", &server.admin).await.status(), 202);
    assert_eq!(record(&server, "theirs").await.work.unwrap().delete, Some(DeleteMode::Forget));
}

#[tokio::test]
async fn what_cannot_be_imported_leaves_nothing() {
    let server = TestServer::start().await;
    let fake = Fake::start().await;
    let good = fake.kubeconfig();
    let exec = good.replace("token: secret-token", "exec: {command: sh}");
    let file = good.replace("certificate-authority-data: ", "certificate-authority: ");
    let wrong_token = good.replace("secret-token", "wrong-token");
    let nowhere = good.replace(&fake.address(), "127.0.0.1:1");
    for (what, text) in [
        ("nonsense", "nonsense"),
        ("a program", &exec),
        ("a file", &file),
        ("a wrong token", &wrong_token),
        ("nobody there", &nowhere),
    ] {
        let (status, code, body) =
            error_of(import(&server, "theirs", &json!({"kubeConfig": text})).await).await;
        assert_eq!((status, code.as_str()), (422, "InvalidBodyContent"), "{what}: {body}");
        assert!(!body.to_string().contains("-token"), "{what} shows a secret: {body}");
    }
    for (body, field) in [
        (json!({}), "kubeConfig"),
        (json!({"kubeConfig": good, "currentState": {"zkeConfig": {}}}), "kubeConfig"),
        (json!({"kubeconfig": good}), "kubeconfig"),
        (json!({"currentState": {"zkeConfig": 1}}), "currentState.zkeConfig"),
        (
            json!({"currentState": {"zkeConfig": {}}}),
            "currentState.certificatesBundle.kube-admin.config",
        ),
    ] {
        let (status, _, answer) = error_of(import(&server, "theirs", &body).await).await;
        assert_eq!((status, &answer["details"][0]["field"]), (422, &json!(field)), "{answer}");
    }
    let bad_name = import(&server, "Theirs", &json!({"kubeConfig": good})).await;
    assert_eq!(error_of(bad_name).await.0, 422);
    for kind in ["cluster/", "vault/", "health/", "nodehealth/"] {
        let listing = server.app().store.list(kind, wharf_store::Page::ALL).await.unwrap();
        assert!(listing.entries.is_empty(), "{kind} was stored");
    }
}

#[tokio::test]
async fn a_cluster_is_imported_by_the_state_document_with_its_key_and_nodes() {
    let server = TestServer::start().await;
    leave_alone(&server, &["theirs", "again"]).await;
    let fake = Fake::start().await;
    let key = ssh_key();
    let state = json!({
        "zkeConfig": {
            "clusterName": "theirs", "singleCloudAddress": "192.0.2.1:80", "somethingElse": 1,
            "option": {
                "sshUser": "zcloud", "sshKey": key, "sshPort": "2222",
                "clusterCidr": "10.52.0.0/16", "serviceCidr": "10.53.0.0/16",
                "clusterDomain": "their.local", "clusterDNSServiceIP": "10.53.0.10",
                "upStreamNameServers": ["192.0.2.53"],
            },
            "network": {"plugin": "flannel", "iface": "eth1"},
            "nodes": [
                {"name": "m1", "address": "192.0.2.11", "roles": ["controlplane", "etcd"]},
                {"name": "w1", "address": "192.0.2.21", "roles": ["worker", "storage"]},
            ],
        },
        "certificatesBundle": {"kube-admin": {"certificatePEM": "x", "config": fake.kubeconfig()}},
    });
    let body = json!({"currentState": state, "desiredState": {"zkeConfig": {}}});
    let wrong = import(&server, "other", &body).await;
    assert_eq!(
        error_of(wrong).await.2["details"][0]["field"],
        "currentState.zkeConfig.clusterName"
    );
    let response = import(&server, "theirs", &body).await;
    let status = response.status();
    let made = json_of(response).await;
    assert_eq!(status, 200, "{made}");
    for (field, value) in [
        ("sshUser", json!("zcloud")),
        ("sshPort", json!("2222")),
        ("clusterCidr", json!("10.52.0.0/16")),
        ("clusterDNSServiceIP", json!("10.53.0.10")),
        ("clusterUpstreamDNS", json!(["192.0.2.53"])),
        ("singleCloudAddress", json!("192.0.2.1:80")),
        ("clusterDomain", json!("their.local")),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    assert_eq!(made["nodes"][1]["roles"], json!(["worker"]));
    assert!(!made.to_string().contains(key.lines().nth(1).unwrap()));
    let vault = wharf_server::vault::read(server.app(), "theirs").await.unwrap();
    assert_eq!(vault.secrets.ssh_key, key);
    let mut again = body.clone();
    again["currentState"]["zkeConfig"]["clusterName"] = json!("again");
    let (status, _, answer) = error_of(import(&server, "again", &again).await).await;
    assert_eq!(
        (status, &answer["details"][0]["code"]),
        (422, &json!("DuplicateResource")),
        "{answer}"
    );
}

#[tokio::test]
async fn what_was_seen_of_a_cluster_is_shown() {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo"]).await;
    assert_eq!(server.post("/clusters", &server.admin, &wish("demo")).await.status(), 201);
    put_in_state(&server, "demo", ClusterState::Running).await;
    let node = |name: &str, role: &str, ready, cordoned| NodeHealth {
        name: name.to_owned(),
        ready,
        cordoned,
        reason: (!ready).then(|| "KubeletNotReady".to_owned()),
        labels: [(format!("node-role.kubernetes.io/{role}"), "true".to_owned())].into(),
        container_runtime: "containerd://2.2.9".to_owned(),
        capacity: Amounts { cpu_milli: 2000, memory_bytes: 1 << 30, pods: 110 },
        used: Amounts { cpu_milli: 500, memory_bytes: 1 << 28, pods: 11 },
        ..NodeHealth::default()
    };
    let nodes = vec![
        node("m1", "control-plane", true, false),
        node("w1", "worker", true, true),
        node("w2", "worker", false, false),
    ];
    let health = HealthRecord::new("demo", Some("v1.36.3".to_owned()), nodes, true);
    let now = jiff::Timestamp::now();
    let txn = wharf_server::clusters::put_health(Txn::new(), &health, now).unwrap();
    paper::commit(&server.app().store, txn).await;
    let one = json_of(server.get("/clusters/demo", &server.admin).await).await;
    for (field, value) in [
        ("cpu", json!(4000)),
        ("cpuUsed", json!(1000)),
        ("cpuUsedRatio", json!("0.25")),
        ("memory", json!(2_u64 << 30)),
        ("memoryUsedRatio", json!("0.25")),
        ("pod", json!(220)),
        ("podUsed", json!(22)),
        ("podUsedRatio", json!("0.10")),
        ("version", json!("v1.36.3")),
        ("readyNodeCount", json!(2)),
        ("usageMeasured", json!(true)),
    ] {
        assert_eq!(one[field], value, "{field}");
    }
    let list = json_of(server.get("/clusters", &server.admin).await).await;
    assert_eq!(list["data"][0], one);
    let nodes = json_of(server.get("/clusters/demo/nodes", &server.admin).await).await;
    let status = |i: usize| nodes["data"][i]["status"].as_str().unwrap().to_owned();
    assert_eq!([status(0), status(1), status(2)], ["Ready", "Cordoned", "NotReady"]);
    let w2 = json_of(server.get("/clusters/demo/nodes/w2", &server.admin).await).await;
    assert_eq!(w2, nodes["data"][2]);
    assert_eq!(
        (&w2["reason"], &w2["dockerVersion"]),
        (&json!("KubeletNotReady"), &json!("containerd://2.2.9"))
    );
    assert_eq!((&w2["podCidr"], &w2["cpuUsedRatio"]), (&json!("10.42.2.0/24"), &json!("0.25")));
    assert_eq!(w2["links"]["self"], "/api/v1/clusters/demo/nodes/w2");
}

#[tokio::test]
async fn the_kubeconfig_of_an_installed_cluster_is_made_from_its_certificates() {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo"]).await;
    assert_eq!(server.post("/clusters", &server.admin, &wish("demo")).await.status(), 201);
    put_in_state(&server, "demo", ClusterState::Running).await;
    let now = jiff::Timestamp::now();
    let mut pki = wharf_pki::ClusterPki::new(now).unwrap();
    pki.ensure(&record(&server, "demo").await.spec, now).unwrap();
    let app = server.app();
    let (mut vault, old) = wharf_server::vault::find(app, "demo").await.unwrap().unwrap();
    vault.pki = Some(pki);
    let txn = wharf_server::vault::put(Txn::new(), app, "demo", Some(&old), &vault, now).unwrap();
    paper::commit(&app.store, txn).await;
    let path = "/clusters/demo/kubeconfigs/kube-admin";
    let one = json_of(server.get(path, &server.admin).await).await;
    let text = one["kubeConfig"].as_str().unwrap();
    assert!(text.contains("https://192.0.2.11:6443"), "{text}");
    assert_eq!(server.get("/clusters/demo/kubeconfigs/root", &server.admin).await.status(), 404);
}
