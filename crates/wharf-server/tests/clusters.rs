//! The life of clusters through HTTP, without any machine: what is written down, and what is
//! refused in which state.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/clusters.rs"]
mod paper;

use common::{TestServer, error_of, json_of};
use paper::{leave_alone, put_in_state, record, ssh_key, wish};
use reqwest::Method;
use serde_json::{Value, json};
use wharf_core::cluster::{ClusterRecord, ClusterState, DeleteMode};
use wharf_store::Txn;

const STATES: [ClusterState; 6] = [
    ClusterState::Creating,
    ClusterState::CreateFailed,
    ClusterState::Running,
    ClusterState::Unreachable,
    ClusterState::Updating,
    ClusterState::Deleting,
];

/// A server with a cluster `demo` that nobody works on.
async fn with_demo() -> TestServer {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo"]).await;
    let response = server.post("/clusters", &server.admin, &wish("demo")).await;
    assert_eq!(response.status(), 201);
    server
}

async fn demo(server: &TestServer) -> Value {
    json_of(server.get("/clusters/demo", &server.admin).await).await
}

#[tokio::test]
async fn a_created_cluster_is_answered_listed_and_stored_with_its_operation() {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo"]).await;
    let response = server.post("/clusters", &server.admin, &wish("demo")).await;
    assert_eq!(response.status(), 201);
    let tag = response.headers()["etag"].to_str().unwrap().to_owned();
    let made = json_of(response).await;
    let got = server.get("/clusters/demo", &server.admin).await;
    assert_eq!(got.headers()["etag"].to_str().unwrap(), tag);
    assert_eq!(json_of(got).await, made);
    let list = json_of(server.get("/clusters", &server.admin).await).await;
    assert_eq!(list["data"], json!([made]));
    assert_eq!((&list["type"], &list["resourceType"]), (&json!("collection"), &json!("cluster")));

    let expected = json!({
        "id": "demo", "type": "cluster", "name": "demo", "status": "Creating",
        "network": {"plugin": "routed"}, "singleCloudAddress": "192.0.2.1:8443",
        "sshUser": "root", "sshPort": "22", "sshJumpHost": "nobody@127.0.0.1:1",
        "clusterCidr": "10.42.0.0/16", "serviceCidr": "10.43.0.0/16",
        "clusterDomain": "cluster.local", "clusterDNSServiceIP": "10.43.0.10",
        "clusterUpstreamDNS": ["223.5.5.5", "114.114.114.114"], "kubernetesVersion": "1.36.3",
        "disablePortCheck": false, "nodeCount": 3, "version": "", "cpu": 0, "cpuUsed": 0,
        "cpuUsedRatio": "0.00", "memoryUsedRatio": "0.00", "podUsedRatio": "0.00",
        "origin": "installed", "canceling": false, "warnings": [], "deletionTimestamp": null,
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&made[field], value, "{field}");
    }
    assert_eq!(made["nodes"], wish("demo")["nodes"]);
    for child in ["nodes", "kubeconfigs", "operations", "events"] {
        assert_eq!(made["links"][child], format!("/api/v1/clusters/demo/{child}"));
    }
    for own in ["self", "update", "remove"] {
        assert_eq!(made["links"][own], "/api/v1/clusters/demo");
    }
    assert!(made.get("sshKey").is_none() && made.get("sshKeyPassphrase").is_none(), "{made}");

    let operation = made["operation"].as_str().unwrap();
    for path in ["/operations", "/operations?cluster=demo", "/clusters/demo/operations"] {
        let list = json_of(server.get(path, &server.admin).await).await;
        assert_eq!(list["data"].as_array().unwrap().len(), 1, "{path}");
        assert_eq!(list["data"][0]["id"], operation, "{path}");
    }
    let shown = json_of(server.get(&format!("/operations/{operation}"), &server.admin).await).await;
    assert_eq!((&shown["kind"], &shown["state"]), (&json!("create"), &json!("running")));
    assert_eq!((&shown["cluster"], &shown["percent"]), (&json!("demo"), &json!(0)));
    assert_eq!((&shown["log"], &shown["endedAt"]), (&json!([]), &Value::Null));
    let audit = json_of(server.get("/audit?limit=1", &server.admin).await).await;
    assert_eq!(audit["data"][0]["action"], "cluster.create");
    assert_eq!(audit["data"][0]["cluster"], "demo");
}

#[tokio::test]
async fn a_name_is_taken_once_whoever_is_first() {
    let server = with_demo().await;
    let mut other = wish("demo");
    other["nodes"] = json!([]);
    let (status, code, body) =
        error_of(server.post("/clusters", &server.admin, &other).await).await;
    assert_eq!((status, code.as_str()), (422, "DuplicateResource"), "{body}");
    let import = json!({"kubeConfig": "nonsense"});
    let (status, code, _) =
        error_of(server.post("/clusters/demo?action=import", &server.admin, &import).await).await;
    assert_eq!((status, code.as_str()), (422, "DuplicateResource"));
}

#[tokio::test]
async fn machines_get_into_one_cluster_however_many_ask_at_once() {
    let server = TestServer::start().await;
    let names: Vec<String> = (0..8).map(|i| format!("c{i}")).collect();
    leave_alone(&server, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let asked = names.iter().map(|name| {
        let body = wish(name);
        let server = &server;
        async move { server.post("/clusters", &server.admin, &body).await }
    });
    let mut made = 0;
    for response in futures_util::future::join_all(asked).await {
        match response.status().as_u16() {
            201 => made += 1,
            // Somebody else was first; a client that lost all its tries may try again.
            422 | 409 => {}
            other => panic!("{other}: {}", response.text().await.unwrap()),
        }
    }
    assert_eq!(made, 1);
    let (status, _, body) =
        error_of(server.post("/clusters", &server.admin, &wish("late")).await).await;
    assert_eq!((status, body["details"].as_array().unwrap().len()), (422, 3), "{body}");
    assert_eq!(body["details"][0]["field"], "nodes[0].address");
    assert_eq!(body["details"][0]["code"], "DuplicateResource");
}

#[tokio::test]
async fn every_verb_in_every_state_does_what_the_state_allows_and_stores_nothing_otherwise() {
    let server = with_demo().await;
    let key = ssh_key();
    for state in STATES {
        let name = state.name();
        for verb in ["update", "delete", "cancel"] {
            put_in_state(&server, "demo", state).await;
            let before = record(&server, "demo").await;
            let mut body = wish("demo");
            body["sshKey"] = json!(key);
            body["sshUser"] = json!(format!("user-{verb}"));
            let response = match verb {
                "update" => server.put("/clusters/demo", &server.admin, &body).await,
                "delete" => server.delete("/clusters/demo", &server.admin).await,
                _ => {
                    let path = "/clusters/demo?action=cancel";
                    server.request(Method::POST, path, &server.admin).send().await.unwrap()
                }
            };
            use ClusterState::*;
            let (status, next, refusal) = match (verb, state) {
                ("update", Running) => (200, Updating, None),
                ("update", CreateFailed) => (200, Creating, None),
                ("update", _) => {
                    (403, state, Some(format!("cluster demo can't update on {name} status")))
                }
                ("delete", Running | Unreachable | CreateFailed) => (202, Deleting, None),
                ("delete", _) => {
                    (403, state, Some(format!("cluster demo can't delete when on {name} status")))
                }
                (_, Creating | Updating) => (200, state, None),
                _ => (403, state, Some(format!("can't cancel cluster demo on {name} status"))),
            };
            assert_eq!(response.status(), status, "{verb} in {name}");
            let after = record(&server, "demo").await;
            assert_eq!(after.state, next, "{verb} in {name}");
            match refusal {
                Some(text) => {
                    let body = error_of(response).await.2;
                    assert_eq!(body["message"], text);
                    assert_eq!(after, before, "{verb} in {name} stored something");
                }
                None if verb == "cancel" => {
                    assert_eq!(response.text().await.unwrap(), "");
                    assert!(after.work.unwrap().canceled);
                }
                None if verb == "delete" => {
                    assert_eq!(response.text().await.unwrap(), "");
                    let work = after.work.unwrap();
                    assert_eq!((work.canceled, work.delete), (false, Some(DeleteMode::Clean)));
                    assert!(after.deleted_at.is_some());
                }
                None => {
                    let answer = json_of(response).await;
                    assert_eq!(answer["status"], next.name());
                    assert_eq!(after.spec.ssh.user, "user-update");
                    let id = after.work.unwrap().operation;
                    let path = format!("/clusters/demo/operations/{id}");
                    let operation = json_of(server.get(&path, &server.admin).await).await;
                    let kind = if state == Running { "update" } else { "create" };
                    assert_eq!(operation["kind"], kind);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_second_cancel_says_that_the_first_is_on_its_way() {
    let server = with_demo().await;
    let cancel = async |name: &str| {
        let path = format!("/clusters/{name}?action=cancel");
        server.request(Method::POST, &path, &server.admin).send().await.unwrap()
    };
    assert_eq!(cancel("demo").await.status(), 200);
    assert_eq!(demo(&server).await["canceling"], true);
    let (status, _, body) = error_of(cancel("demo").await).await;
    assert_eq!((status, &body["message"]), (403, &json!("cluster demo is canceling")));
    assert_eq!(cancel("absent").await.status(), 404);
    let fly = server.post("/clusters/demo?action=fly", &server.admin, &json!({})).await;
    let (status, code, _) = error_of(fly).await;
    assert_eq!((status, code.as_str()), (404, "InvalidAction"));
}

#[tokio::test]
async fn what_was_read_can_be_sent_back() {
    let server = with_demo().await;
    put_in_state(&server, "demo", ClusterState::Running).await;
    let before = record(&server, "demo").await;
    let body = demo(&server).await;
    let vault = wharf_server::vault::read(server.app(), "demo").await.unwrap();
    let response = server.put("/clusters/demo", &server.admin, &body).await;
    let status = response.status();
    assert_eq!(status, 200, "{}", response.text().await.unwrap());
    let after = record(&server, "demo").await;
    assert_eq!(after.spec, before.spec);
    assert_eq!(after.state, ClusterState::Updating);
    assert_eq!(wharf_server::vault::read(server.app(), "demo").await.unwrap(), vault);
    // Also with what a client knows of the nodes, and with what is ignored.
    put_in_state(&server, "demo", ClusterState::Running).await;
    let mut body = body;
    let nodes = json_of(server.get("/clusters/demo/nodes", &server.admin).await).await;
    body["nodes"] = nodes["data"].clone();
    body["network"] = json!({"plugin": "calico"});
    body["clusterUpstreamDNS"] = json!(["nonsense"]);
    let response = server.put("/clusters/demo", &server.admin, &body).await;
    let status = response.status();
    assert_eq!(status, 200, "{}", response.text().await.unwrap());
    assert_eq!(record(&server, "demo").await.spec, before.spec);
}

#[tokio::test]
async fn a_new_key_replaces_the_old_and_an_empty_one_keeps_it() {
    let server = with_demo().await;
    let key =
        async || wharf_server::vault::read(server.app(), "demo").await.unwrap().secrets.ssh_key;
    let first = key().await;
    for (given, kept) in [(json!(""), true), (Value::Null, true), (json!(ssh_key()), false)] {
        put_in_state(&server, "demo", ClusterState::Running).await;
        let mut body = wish("demo");
        body["sshKey"] = given;
        assert_eq!(server.put("/clusters/demo", &server.admin, &body).await.status(), 200);
        assert_eq!(key().await == first, kept);
    }
}

#[tokio::test]
async fn a_change_based_on_an_old_revision_is_refused() {
    let server = with_demo().await;
    put_in_state(&server, "demo", ClusterState::Running).await;
    let send = async |method: Method, tag: &str| {
        let request = server.request(method, "/clusters/demo", &server.admin);
        request.header("if-match", tag).json(&wish("demo")).send().await.unwrap().status()
    };
    assert_eq!(send(Method::PUT, "\"1\"").await, 412);
    assert_eq!(send(Method::DELETE, "\"1\"").await, 412);
    let response = server.get("/clusters/demo", &server.admin).await;
    let tag = response.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(send(Method::PUT, &tag).await, 200);
    assert_eq!(send(Method::PUT, &tag).await, 412);
}

#[tokio::test]
async fn an_update_that_breaks_a_rule_names_all_of_them_and_stores_nothing() {
    let server = with_demo().await;
    put_in_state(&server, "demo", ClusterState::Running).await;
    let before = record(&server, "demo").await;
    let mut body = wish("demo");
    body["name"] = json!("other");
    body["clusterCidr"] = json!("10.44.0.0/16");
    body["nodes"] = json!([
        {"name": "w1", "address": "192.0.2.21", "roles": ["worker", "edge"]},
        {"name": "m2", "address": "192.0.2.12", "roles": ["controlplane"]},
    ]);
    let (status, _, answer) =
        error_of(server.put("/clusters/demo", &server.admin, &body).await).await;
    assert_eq!(status, 422);
    let fields: Vec<&str> = answer["details"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["field"].as_str().unwrap())
        .collect();
    assert_eq!(fields, ["name", "clusterCidr", "nodes", "nodes[0].roles"], "{answer}");
    assert_eq!(answer["message"], answer["details"][0]["message"]);
    assert_eq!(record(&server, "demo").await, before);
    assert_eq!(server.put("/clusters/absent", &server.admin, &wish("absent")).await.status(), 404);
}

#[tokio::test]
async fn a_node_is_not_removed_when_nobody_can_say_whether_it_holds_storage() {
    let server = with_demo().await;
    put_in_state(&server, "demo", ClusterState::Running).await;
    let mut body = wish("demo");
    body["nodes"].as_array_mut().unwrap().pop();
    let (status, code, answer) =
        error_of(server.put("/clusters/demo", &server.admin, &body).await).await;
    assert_eq!((status, code.as_str()), (503, "ClusterUnavailable"), "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("w2"), "{answer}");
    assert_eq!(record(&server, "demo").await.state, ClusterState::Running);
    // A cluster that never ran has no storage.
    put_in_state(&server, "demo", ClusterState::CreateFailed).await;
    assert_eq!(server.put("/clusters/demo", &server.admin, &body).await.status(), 200);
    assert_eq!(record(&server, "demo").await.spec.nodes.len(), 2);
}

#[tokio::test]
async fn nodes_that_differ_from_the_wish_are_named() {
    let server = with_demo().await;
    put_in_state(&server, "demo", ClusterState::Running).await;
    assert_eq!(demo(&server).await["pending"], json!([]));
    let store = &server.app().store;
    let old = store.read::<ClusterRecord>("demo").await.unwrap().unwrap();
    let mut value = old.value.clone();
    value.nodes.get_mut("w1").unwrap().installed = false;
    value.spec.nodes.retain(|node| node.name != "w2");
    paper::commit(store, Txn::new().replace(&old, &value, jiff::Timestamp::now()).unwrap()).await;
    let pending = demo(&server).await["pending"].clone();
    assert_eq!(
        pending,
        json!([
            {"name": "w1", "address": "192.0.2.21", "change": "add"},
            {"name": "w2", "address": "192.0.2.22", "change": "remove"},
        ])
    );
}

#[tokio::test]
async fn only_ready_clusters_are_listed_when_asked() {
    let server = with_demo().await;
    for state in STATES {
        put_in_state(&server, "demo", state).await;
        let list = json_of(server.get("/clusters?onlyready=true", &server.admin).await).await;
        let shown = !list["data"].as_array().unwrap().is_empty();
        assert_eq!(shown, state.is_ready(), "{}", state.name());
    }
}

#[tokio::test]
async fn a_delete_takes_its_mode_and_what_cannot_be_read_can_only_be_forgotten() {
    let server = with_demo().await;
    for (query, mode) in [
        ("", DeleteMode::Clean),
        ("?mode=clean", DeleteMode::Clean),
        ("?mode=force", DeleteMode::Force),
        ("?mode=forget", DeleteMode::Forget),
    ] {
        put_in_state(&server, "demo", ClusterState::Running).await;
        let path = format!("/clusters/demo{query}");
        assert_eq!(server.delete(&path, &server.admin).await.status(), 202);
        assert_eq!(record(&server, "demo").await.work.unwrap().delete, Some(mode), "{query}");
    }
    let (status, code, _) =
        error_of(server.delete("/clusters/demo?mode=burn", &server.admin).await).await;
    assert_eq!((status, code.as_str()), (422, "InvalidOption"));

    paper::commit(&server.app().store, Txn::new().put("cluster/bad", *b"not json")).await;
    for query in ["", "?mode=force"] {
        let path = format!("/clusters/bad{query}");
        let (status, _, body) = error_of(server.delete(&path, &server.admin).await).await;
        assert_eq!(status, 403);
        assert!(body["hint"].as_str().unwrap().contains("mode=forget"), "{body}");
    }
    for (method, path) in
        [(Method::PUT, "/clusters/bad"), (Method::POST, "/clusters/bad?action=cancel")]
    {
        let request = server.request(method, path, &server.admin).json(&wish("bad"));
        assert_eq!(request.send().await.unwrap().status(), 403, "{path}");
    }
    assert_eq!(server.delete("/clusters/bad?mode=forget", &server.admin).await.status(), 202);
    assert_eq!(server.get("/clusters/bad", &server.admin).await.status(), 404);
}

#[tokio::test]
async fn a_deletion_is_published_once_and_only_of_a_cluster_that_ran() {
    let server = with_demo().await;
    let types = async |state: ClusterState| {
        put_in_state(&server, "demo", state).await;
        let mut events = server.app().hub.subscribe(None).await.unwrap();
        assert_eq!(server.delete("/clusters/demo", &server.admin).await.status(), 202);
        let mut types = Vec::new();
        while types.len() < 2 {
            let next = tokio::time::timeout(common::DEADLINE, events.next());
            match next.await.unwrap().unwrap().unwrap() {
                wharf_server::events::Delivery::Event(event)
                    if event.event.cluster.as_deref() == Some("demo") =>
                {
                    types.push(event.event.type_.clone());
                }
                _ => {}
            }
        }
        types.sort();
        types
    };
    assert_eq!(types(ClusterState::Running).await, ["cluster.deleted", "operation.created"]);
    assert_eq!(types(ClusterState::CreateFailed).await, ["cluster.updated", "operation.created"]);
}

#[tokio::test]
async fn viewers_see_their_clusters_and_operations_and_change_nothing() {
    let server = with_demo().await;
    let vera = server.user("vera", "viewer", Some(&["demo"])).await;
    let otto = server.user("otto", "viewer", Some(&["other"])).await;
    let id = demo(&server).await["operation"].as_str().unwrap().to_owned();
    for path in ["/clusters/demo", "/clusters/demo/operations", &format!("/operations/{id}")] {
        assert_eq!(server.get(path, &vera).await.status(), 200, "{path}");
        assert_eq!(server.get(path, &otto).await.status(), 404, "{path}");
    }
    let list = json_of(server.get("/operations", &vera).await).await;
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    let list = json_of(server.get("/operations", &otto).await).await;
    assert_eq!(list["data"], json!([]));
    assert_eq!(server.post("/clusters", &vera, &wish("x")).await.status(), 403);
    assert_eq!(server.put("/clusters/demo", &vera, &wish("demo")).await.status(), 403);
    assert_eq!(server.delete("/clusters/demo", &vera).await.status(), 403);
    for path in ["/clusters/demo?action=cancel", "/clusters/new?action=import"] {
        assert_eq!(server.post(path, &vera, &json!({})).await.status(), 403, "{path}");
    }
    assert_eq!(server.get("/clusters/demo/kubeconfigs", &vera).await.status(), 403);
    assert_eq!(record(&server, "demo").await.state, ClusterState::Creating);
}

#[tokio::test]
async fn operations_stay_after_their_cluster_and_come_in_pages() {
    let server = with_demo().await;
    let first = demo(&server).await["operation"].as_str().unwrap().to_owned();
    put_in_state(&server, "demo", ClusterState::Running).await;
    let response = server.delete("/clusters/demo?mode=forget", &server.admin).await;
    assert_eq!(response.status(), 202);
    let second = record(&server, "demo").await.work.unwrap().operation;
    let store = &server.app().store;
    let stored = store.read::<ClusterRecord>("demo").await.unwrap().unwrap();
    paper::commit(store, wharf_server::clusters::forget(Txn::new(), &stored)).await;
    assert_eq!(server.get("/clusters/demo", &server.admin).await.status(), 404);
    assert_eq!(server.get("/clusters/demo/operations", &server.admin).await.status(), 404);
    assert_eq!(server.get(&format!("/operations/{first}"), &server.admin).await.status(), 200);
    let path = "/operations?cluster=demo&limit=1";
    let page = json_of(server.get(path, &server.admin).await).await;
    assert_eq!(page["data"][0]["id"], second);
    let next = page["links"]["next"].as_str().unwrap().strip_prefix("/api/v1").unwrap();
    let page = json_of(server.get(next, &server.admin).await).await;
    assert_eq!((&page["data"][0]["id"], &page["links"]["next"]), (&json!(first), &Value::Null));
    // Nothing secret is left, and the name is free.
    assert!(store.get("vault/demo").await.unwrap().is_none());
    assert_eq!(server.post("/clusters", &server.admin, &wish("demo")).await.status(), 201);
}

#[tokio::test]
async fn children_answer_while_the_cluster_is_served_and_operations_always() {
    let server = with_demo().await;
    for state in STATES {
        put_in_state(&server, "demo", state).await;
        let status = async |path: &str| server.get(path, &server.admin).await.status().as_u16();
        let served = if state.is_served() { 200 } else { 404 };
        assert_eq!(status("/clusters/demo/nodes").await, served, "{}", state.name());
        assert_eq!(status("/clusters/demo/nodes/w1").await, served, "{}", state.name());
        assert_eq!(status("/clusters/demo/nodes/absent").await, 404, "{}", state.name());
        // There are no certificates on paper.
        assert_eq!(status("/clusters/demo/kubeconfigs").await, 404, "{}", state.name());
        assert_eq!(status("/clusters/demo/operations").await, 200, "{}", state.name());
        assert_eq!(status("/clusters/demo/events").await, 200, "{}", state.name());
    }
    assert_eq!(server.get("/clusters/absent/events", &server.admin).await.status(), 404);
}

#[tokio::test]
async fn a_rehearsal_checks_like_the_real_thing_and_stores_nothing() {
    let server = with_demo().await;
    let act = async |name: &str, action: &str, body: &Value| {
        server.post(&format!("/clusters/{name}?action={action}"), &server.admin, body).await
    };
    let mut fresh = wish("fresh");
    for (i, node) in fresh["nodes"].as_array_mut().unwrap().iter_mut().enumerate() {
        node["address"] = json!(format!("198.51.100.{}", i + 1));
    }
    for action in ["plan", "preflight"] {
        let (status, _, body) = error_of(act("fresh", action, &wish("fresh")).await).await;
        assert_eq!((status, &body["details"][0]["code"]), (422, &json!("DuplicateResource")));
        let (status, _, body) = error_of(act("other", action, &fresh).await).await;
        assert_eq!((status, &body["details"][0]["field"]), (422, &json!("name")), "{body}");
        let mut changed = wish("demo");
        changed["clusterDomain"] = json!("other.local");
        let (status, _, body) = error_of(act("demo", action, &changed).await).await;
        assert_eq!((status, &body["details"][0]["field"]), (422, &json!("clusterDomain")));
        let path = format!("/clusters/absent?action={action}");
        let empty = server.request(Method::POST, &path, &server.admin).send().await.unwrap();
        assert_eq!(empty.status(), 404);
    }
    // The machines cannot be reached, and that is what is found out.
    for (name, body) in [("fresh", &fresh), ("demo", &wish("demo"))] {
        let found = json_of(act(name, "preflight", body).await).await;
        assert_eq!(found["ok"], false, "{found}");
        let hosts: Vec<&Value> =
            found["findings"].as_array().unwrap().iter().map(|finding| &finding["host"]).collect();
        assert_eq!(hosts, ["m1", "w1", "w2"], "{found}");
    }
    assert_eq!(server.get("/clusters/fresh", &server.admin).await.status(), 404);
    assert_eq!(record(&server, "demo").await.state, ClusterState::Creating);
}

#[tokio::test]
async fn the_events_of_a_cluster_are_its_own() {
    use futures_util::StreamExt;
    let server = with_demo().await;
    leave_alone(&server, &["demo", "other"]).await;
    let mut stream = server.get("/clusters/demo/events", &server.admin).await.bytes_stream();
    let store = &server.app().store;
    common::put_cluster(store, "other").await;
    put_in_state(&server, "demo", ClusterState::Running).await;
    let mut text = String::new();
    while !text.contains("data:") {
        let chunk = tokio::time::timeout(common::DEADLINE, stream.next()).await.unwrap();
        text.push_str(&String::from_utf8_lossy(&chunk.unwrap().unwrap()));
    }
    assert!(text.contains("cluster/demo") && !text.contains("cluster/other"), "{text}");
}
