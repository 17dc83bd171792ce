//! Requests for clusters that are not good, and secrets that must not be seen.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/clusters.rs"]
mod paper;

use common::{TestServer, error_of, json_of};
use paper::{leave_alone, put_in_state, ssh_key, wish};
use reqwest::Method;
use serde_json::{Value, json};
use wharf_core::cluster::ClusterState;

/// The fields and codes of all faults.
fn faults(body: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let details = body["details"].as_array().unwrap();
    details.iter().map(|fault| (text(&fault["field"]), text(&fault["code"]))).collect()
}

async fn nothing_is_stored(server: &TestServer) {
    for kind in ["cluster/", "operation/", "vault/", "health/"] {
        let listing = server.app().store.list(kind, wharf_store::Page::ALL).await.unwrap();
        assert!(listing.entries.is_empty(), "{kind} was stored");
    }
}

#[tokio::test]
async fn all_faults_are_told_at_once_with_their_fields_and_codes() {
    let server = TestServer::start().await;
    let body = json!({
        "name": "Demo",
        "nodes": [
            {"name": "m1", "address": "192.0.2.11", "roles": ["controlplane", "worker"]},
            {"name": "m1", "address": "nowhere", "roles": ["boss"]},
            {"address": "192.0.2.11", "roles": ["edge"]},
        ],
        "singleCloudAddress": "192.0.2.11:8443",
        "sshPort": "99999",
        "clusterCidr": "10.42.0.1/16",
        "serviceCidr": "10.43.0.0/16",
        "clusterDNSServiceIP": "10.42.0.10",
        "network": {"plugin": "calico"},
        "kubernetesVersion": "1.2.3",
        "loadBalance": {"enable": true},
        "dockerSocket": "/var/run/docker.sock",
        "ignoreDockerVersion": false,
    });
    let (status, code, answer) =
        error_of(server.post("/clusters", &server.admin, &body).await).await;
    assert_eq!((status, code.as_str()), (422, "InvalidBodyContent"));
    let expected = [
        ("loadBalance", "InvalidOption"),
        ("dockerSocket", "InvalidOption"),
        ("ignoreDockerVersion", "InvalidOption"),
        ("name", "InvalidFormat"),
        ("nodes[0].roles", "InvalidOption"),
        ("nodes[1].address", "InvalidFormat"),
        ("nodes[1].roles[0]", "InvalidOption"),
        ("nodes[2].name", "MissingRequired"),
        ("nodes[2].roles", "InvalidOption"),
        ("nodes[1].name", "DuplicateResource"),
        ("nodes[2].address", "DuplicateResource"),
        ("clusterCidr", "InvalidFormat"),
        ("clusterDNSServiceIP", "InvalidOption"),
        ("network.plugin", "InvalidOption"),
        ("sshUser", "MissingRequired"),
        ("sshPort", "InvalidFormat"),
        ("kubernetesVersion", "InvalidOption"),
        ("sshKey", "MissingRequired"),
        ("nodes[0].address", "InvalidOption"),
        ("nodes[2].address", "InvalidOption"),
    ];
    let mut expected = expected.map(|(f, c)| (f.to_owned(), c.to_owned()));
    let mut found = faults(&answer);
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    nothing_is_stored(&server).await;
}

#[tokio::test]
async fn unknown_fields_wrong_types_and_huge_requests_are_refused_by_name() {
    let server = TestServer::start().await;
    let mut body = wish("demo");
    body["sshKye"] = json!("x");
    body["nodes"][1]["adress"] = json!("x");
    body["network"] = json!({"plugins": "routed"});
    let (status, _, answer) = error_of(server.post("/clusters", &server.admin, &body).await).await;
    let mut fields: Vec<String> = faults(&answer).into_iter().map(|(field, _)| field).collect();
    fields.sort();
    assert_eq!(
        (status, fields),
        (422, ["network.plugins", "nodes[1].adress", "sshKye"].map(String::from).to_vec())
    );
    let mut body = wish("demo");
    body["nodes"][1]["roles"] = json!("worker");
    let (status, _, answer) = error_of(server.post("/clusters", &server.admin, &body).await).await;
    assert_eq!((status, faults(&answer)[0].0.as_str()), (422, "nodes[1].roles"));
    for text in ["", "{", "[]", "null", "\"demo\""] {
        let request = server.request(Method::POST, "/clusters", &server.admin).body(text);
        let status = error_of(request.send().await.unwrap()).await.0;
        assert!(status == 400 || status == 422, "{text:?}: {status}");
    }
    let request = server.request(Method::POST, "/clusters", &server.admin);
    let huge = request.body(vec![b' '; 10 << 20]).send().await.unwrap();
    assert_eq!(error_of(huge).await.1, "BodyTooLarge");
    let node = |i: usize| json!({"name": format!("n{i}"), "address": format!("10.1.{}.{}", i / 250, i % 250 + 1), "roles": ["worker"]});
    let mut body = wish("demo");
    body["nodes"] = (0..5000).map(node).collect();
    let (status, _, answer) = error_of(server.post("/clusters", &server.admin, &body).await).await;
    assert_eq!(
        (status, faults(&answer)),
        (422, vec![("nodes".to_owned(), "MaxLengthExceeded".to_owned())])
    );
    nothing_is_stored(&server).await;
}

#[tokio::test]
async fn a_key_must_be_one_and_an_encrypted_one_needs_its_passphrase() {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo"]).await;
    for bad in [
        "nonsense",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n",
    ] {
        let mut body = wish("demo");
        body["sshKey"] = json!(bad);
        let (status, _, answer) =
            error_of(server.post("/clusters", &server.admin, &body).await).await;
        assert_eq!(
            (status, faults(&answer)),
            (422, vec![("sshKey".to_owned(), "InvalidFormat".to_owned())])
        );
        assert!(!answer.to_string().contains("AAAA"), "{answer}");
    }
    nothing_is_stored(&server).await;
    let mut body = wish("demo");
    body["sshPort"] = json!(2222);
    let made = json_of(server.post("/clusters", &server.admin, &body).await).await;
    assert_eq!(made["sshPort"], "2222");
}

#[tokio::test]
async fn roles_are_shown_as_they_were_given() {
    let server = TestServer::start().await;
    leave_alone(&server, &["implied", "explicit"]).await;
    let made = json_of(server.post("/clusters", &server.admin, &wish("implied")).await).await;
    assert_eq!(made["nodes"][0]["roles"], json!(["controlplane"]));
    let mut body = wish("explicit");
    for (i, node) in body["nodes"].as_array_mut().unwrap().iter_mut().enumerate() {
        node["address"] = json!(format!("198.51.100.{}", i + 1));
    }
    body["nodes"][0]["roles"] = json!(["etcd", "controlplane"]);
    body["nodes"][1]["roles"] = json!(["worker", "etcd"]);
    let made = json_of(server.post("/clusters", &server.admin, &body).await).await;
    assert_eq!(made["nodes"][0]["roles"], json!(["controlplane", "etcd"]));
    assert_eq!(made["nodes"][1]["roles"], json!(["etcd", "worker"]));
    assert!(made["warnings"][0].as_str().unwrap().contains("2 etcd members"), "{made}");
}

#[tokio::test]
async fn secrets_are_in_no_answer_event_audit_record_or_plain_record() {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo"]).await;
    let start = server.app().store.revision().await.unwrap();
    let mut body = wish("demo");
    let key = body["sshKey"].as_str().unwrap().to_owned();
    body["sshKeyPassphrase"] = json!("canary-passphrase");
    body["privateRegistrys"] = json!([{
        "url": "registry.example:5000", "user": "me", "password": "canary-password",
    }]);
    let canaries = [key.lines().nth(1).unwrap(), "canary-passphrase", "canary-password"];
    let mut texts = Vec::new();
    let mut keep = async |what: &str, response: reqwest::Response| {
        texts.push((what.to_owned(), response.text().await.unwrap()));
    };
    keep("create", server.post("/clusters", &server.admin, &body).await).await;
    keep("duplicate", server.post("/clusters", &server.admin, &body).await).await;
    keep("update refused", server.put("/clusters/demo", &server.admin, &body).await).await;
    put_in_state(&server, "demo", ClusterState::Running).await;
    keep("update", server.put("/clusters/demo", &server.admin, &body).await).await;
    let mut wrong = body.clone();
    wrong["name"] = json!("X");
    wrong["unknown"] = json!(1);
    keep("unknown field", server.post("/clusters", &server.admin, &wrong).await).await;
    wrong.as_object_mut().unwrap().remove("unknown");
    keep("invalid", server.post("/clusters", &server.admin, &wrong).await).await;
    wrong["sshKey"] = json!({ "pem": key });
    keep("wrong type", server.post("/clusters", &server.admin, &wrong).await).await;
    for path in [
        "/clusters",
        "/clusters/demo",
        "/operations",
        "/audit",
        "/clusters/demo/operations",
        "/openapi.json",
    ] {
        keep(path, server.get(path, &server.admin).await).await;
    }
    put_in_state(&server, "demo", ClusterState::Running).await;
    keep("nodes", server.get("/clusters/demo/nodes", &server.admin).await).await;
    keep("delete", server.delete("/clusters/demo", &server.admin).await).await;
    let mut events = server.app().hub.subscribe(Some(start)).await.unwrap();
    let now = server.app().store.revision().await.unwrap();
    let mut seen = Vec::new();
    loop {
        let next = tokio::time::timeout(common::DEADLINE, events.next()).await.unwrap();
        match next.unwrap().unwrap() {
            wharf_server::events::Delivery::Event(event) => {
                seen.push(event.event.resource.clone());
                texts.push((format!("event {}", event.event.type_), event.json.clone()));
                if event.complete >= now || event.event.type_ == "cluster.deleted" {
                    break;
                }
            }
            lost => panic!("{lost:?}"),
        }
    }
    assert!(!seen.iter().any(|resource| resource.starts_with("vault/")), "{seen:?}");
    let listing = server.app().store.list("", wharf_store::Page::ALL).await.unwrap();
    for entry in listing.entries {
        texts.push((entry.key, String::from_utf8_lossy(&entry.value).into_owned()));
    }
    assert!(texts.iter().any(|(key, _)| key == "vault/demo"));
    for (what, text) in &texts {
        for canary in canaries {
            assert!(!text.contains(canary), "{what} shows a secret");
        }
    }
    // The check would see them if they were there.
    let vault = wharf_server::vault::read(server.app(), "demo").await.unwrap();
    assert_eq!(vault.secrets.ssh_key, key);
    assert!(!format!("{vault:?}").contains(canaries[0]));
    assert_ne!(key, ssh_key());
}
