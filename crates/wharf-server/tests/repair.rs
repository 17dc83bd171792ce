//! The repair queue over HTTP: what people can do to it, and what they are told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/clusters.rs"]
mod paper;

use common::{TestServer, error_of, eventually, json_of, put_cluster};
use paper::leave_alone;
use serde_json::{Value, json};
use wharf_store::Page;

const REPAIRS: &str = "/clusters/demo/repairs";
const CONFIG: &str = "/clusters/demo/repairconfig";

fn simple() -> Value {
    json!({ "repair_procedures": [{
        "machine_types": ["plain"],
        "repair_operations": [{
            "operation": "fix",
            "health_check_command": ["false"],
            "repair_steps": [{ "repair_command": ["true"] }],
        }],
    }] })
}

/// A server with a cluster that nobody works on.
async fn quiet() -> TestServer {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo"]).await;
    put_cluster(&server.app().store, "demo").await;
    assert_eq!(server.put(CONFIG, &server.admin, &simple()).await.status(), 200);
    server
}

fn wish(address: &str) -> Value {
    json!({"operation": "fix", "machine_type": "plain", "address": address})
}

async fn act(server: &TestServer, action: &str) -> Value {
    let path = format!("{REPAIRS}?action={action}");
    let response = server.post(&path, &server.admin, &json!({})).await;
    assert_eq!(response.status(), 200, "{action}");
    json_of(response).await
}

async fn listed(server: &TestServer) -> Value {
    json_of(server.get(REPAIRS, &server.admin).await).await
}

#[tokio::test]
async fn an_entry_has_exactly_the_fields_of_the_schema_and_the_documented_ones() {
    let server = quiet().await;
    let mut body = wish("10.0.0.7");
    body["serial"] = json!("S-1");
    let response = server.post(REPAIRS, &server.admin, &body).await;
    assert_eq!(response.status(), 201);
    let added = json_of(response).await;
    let now = added["last_transition_time"].as_str().unwrap().to_owned();
    assert_eq!(now.len(), "2026-01-01T00:00:00Z".len(), "whole seconds: {now}");
    assert_eq!(
        added,
        json!({
            "index": "0", "address": "10.0.0.7", "nodename": "", "machine_type": "plain",
            "operation": "fix", "status": "queued", "step": 0, "step_status": "waiting",
            "last_transition_time": now, "drain_backoff_count": 0,
            "drain_backoff_expire": "0001-01-01T00:00:00Z",
            "serial": "S-1", "deleted": false, "reason": "added", "wait": "",
            "history": [{"time": now, "status": "queued", "step": 0, "step_status": "waiting",
                         "reason": "added"}],
            "last_exit_code": null, "stdout_tail": "", "stderr_tail": "", "blocking_pods": [],
        })
    );
    let queue = listed(&server).await;
    assert_eq!(
        queue,
        json!({
            "type": "collection", "resourceType": "repair", "enabled": true,
            "links": {"self": "/api/v1/clusters/demo/repairs"}, "data": [added],
        })
    );
}

#[tokio::test]
async fn what_cannot_be_repaired_is_refused_by_field_and_nothing_is_stored() {
    let server = quiet().await;
    for (change, field) in [
        (json!({"machine_type": "other"}), "machine_type"),
        (json!({"operation": "other"}), "operation"),
        (json!({"address": "host-1"}), "address"),
        (json!({"serial": "two words"}), "serial"),
        (json!({"adress": "10.0.0.1"}), "adress"),
    ] {
        let mut body = wish("10.0.0.1");
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let (status, _, error) = error_of(server.post(REPAIRS, &server.admin, &body).await).await;
        assert_eq!((status, &error["details"][0]["field"]), (422, &json!(field)), "{error}");
    }
    assert_eq!(listed(&server).await["data"], json!([]));
    for (path, code) in [
        ("/clusters/nobody/repairs", "NotFound"),
        ("/clusters/demo/repairs?action=nothing", "InvalidAction"),
    ] {
        let (status, found, _) =
            error_of(server.post(path, &server.admin, &wish("::1")).await).await;
        assert_eq!((status, found.as_str()), (404, code), "{path}");
    }
    for index in ["0", "-1", "x", "01", "99999999999999999999999"] {
        let path = format!("{REPAIRS}/{index}");
        assert_eq!(server.delete(&path, &server.admin).await.status(), 404, "{index}");
    }
}

#[tokio::test]
async fn indexes_are_given_once_also_to_those_who_add_at_once() {
    let server = quiet().await;
    let adds = (0..40).map(|n| {
        let (server, body) = (&server, wish(&format!("10.0.0.{n}")));
        async move { json_of(server.post(REPAIRS, &server.admin, &body).await).await }
    });
    let mut indexes: Vec<u64> = futures_util::future::join_all(adds)
        .await
        .iter()
        .map(|entry| entry["index"].as_str().unwrap().parse().unwrap())
        .collect();
    indexes.sort_unstable();
    assert_eq!(indexes, (0..40).collect::<Vec<u64>>());
    let listed = listed(&server).await;
    let order: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|e| e["index"].as_str().unwrap()).collect();
    assert_eq!(order, (0..40).map(|n: u64| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_queue_is_switched_emptied_and_reset_with_an_audit_record_of_each() {
    let server = quiet().await;
    for n in 0..3 {
        server.post(REPAIRS, &server.admin, &wish(&format!("10.0.0.{n}"))).await;
    }
    assert_eq!(act(&server, "disable").await, json!({"indexes": []}));
    assert_eq!(listed(&server).await["enabled"], false);
    act(&server, "enable").await;
    assert_eq!(listed(&server).await["enabled"], true);
    assert_eq!(act(&server, "resetBackoff").await, json!({"indexes": ["0", "1", "2"]}));
    assert_eq!(
        act(&server, "resetBackoff").await,
        json!({"indexes": []}),
        "nothing is left to reset"
    );
    assert_eq!(act(&server, "deleteFinished").await, json!({"indexes": []}));
    for _ in 0..2 {
        assert_eq!(server.delete(&format!("{REPAIRS}/1"), &server.admin).await.status(), 204);
    }
    assert_eq!(listed(&server).await["data"][1]["deleted"], true);
    assert_eq!(act(&server, "deleteUnfinished").await, json!({"indexes": ["0", "2"]}));
    let audit = json_of(server.get("/audit?limit=9", &server.admin).await).await;
    let audit: Vec<(&str, &str)> = audit["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| (r["action"].as_str().unwrap(), r["cluster"].as_str().unwrap_or_default()))
        .collect();
    let actions = [
        "repair.deleteUnfinished",
        "repair.delete",
        "repair.resetBackoff",
        "repair.enable",
        "repair.disable",
        "repair.add",
        "repair.add",
        "repair.add",
        "repair.config",
    ];
    assert_eq!(audit, actions.map(|action| (action, "demo")));
}

#[tokio::test]
async fn a_configuration_is_read_strictly_in_json_and_yaml() {
    let server = quiet().await;
    let shown = json_of(server.get(CONFIG, &server.admin).await).await;
    assert_eq!(
        (&shown["max_concurrent_repairs"], &shown["eviction_timeout_seconds"]),
        (&json!(1), &json!(600))
    );
    let step = &shown["repair_procedures"][0]["repair_operations"][0]["repair_steps"][0];
    assert_eq!(
        (&step["command_timeout_seconds"], &step["on_restart"]),
        (&json!(30), &json!("watch"))
    );
    let response = server.put(CONFIG, &server.admin, &shown).await;
    assert_eq!(
        (response.status().as_u16(), json_of(response).await),
        (200, shown),
        "a GET can be sent back"
    );

    let mut bad = simple();
    bad["max_concurrent_repair"] = json!(3);
    bad["evict_retries"] = json!(-1);
    let operation = &mut bad["repair_procedures"][0]["repair_operations"][0];
    operation["success_timeout_seconds"] = json!(300);
    operation["repair_steps"][0]["repair_command"] = json!([]);
    let (status, _, error) = error_of(server.put(CONFIG, &server.admin, &bad).await).await;
    let mut fields: Vec<&str> =
        error["details"].as_array().unwrap().iter().map(|d| d["field"].as_str().unwrap()).collect();
    fields.sort_unstable();
    let operation = "repair_procedures[0].repair_operations[0]";
    let expected = [
        "evict_retries".to_owned(),
        "max_concurrent_repair".to_owned(),
        format!("{operation}.repair_steps[0].repair_command"),
        format!("{operation}.success_timeout_seconds"),
    ];
    assert_eq!((status, fields), (422, expected.iter().map(String::as_str).collect()), "{error}");

    let yaml = "max_concurrent_repairs: 7\nprotected_namespaces:\n  matchLabels: {team: db}\n";
    let send = |media: &'static str, text: &str| {
        let request = server.request(reqwest::Method::PUT, CONFIG, &server.admin);
        request.header("content-type", media).body(text.to_owned()).send()
    };
    let taken = send("application/yaml", yaml).await.unwrap();
    assert_eq!(taken.status(), 200);
    let taken = json_of(taken).await;
    assert_eq!(taken["max_concurrent_repairs"], 7);
    assert_eq!(taken["protected_namespaces"], json!({"matchLabels": {"team": "db"}}));
    for (media, text, status) in [
        ("application/yaml", "a: [", 400),
        ("application/yaml", "max_concurrent_repairs: 1\nmax_concurrent_repairs: 2\n", 400),
        ("application/yaml", "- a\n", 422),
        ("text/plain", yaml, 415),
        ("application/json", yaml, 400),
    ] {
        assert_eq!(send(media, text).await.unwrap().status(), status, "{media} {text}");
    }
    let now = json_of(server.get(CONFIG, &server.admin).await).await;
    assert_eq!(now, taken, "what was refused changed nothing");
}

#[tokio::test]
async fn a_queue_goes_with_its_cluster_and_takes_nothing_while_that_is_deleted() {
    let server = TestServer::start().await;
    put_cluster(&server.app().store, "demo").await;
    assert_eq!(server.put(CONFIG, &server.admin, &simple()).await.status(), 200);
    act(&server, "disable").await;
    for n in 0..150 {
        server.post(REPAIRS, &server.admin, &wish(&format!("10.0.0.{n}"))).await;
    }
    assert_eq!(server.delete("/clusters/demo?mode=forget", &server.admin).await.status(), 202);
    let late = server.post(REPAIRS, &server.admin, &wish("10.0.1.1")).await.status().as_u16();
    assert!(late == 403 || late == 404, "{late}");
    eventually(async || server.get("/clusters/demo", &server.admin).await.status() == 404).await;
    let left = server.app().store.list("repair/", Page::ALL).await.unwrap().entries;
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn changes_of_a_queue_are_events_of_its_cluster() {
    let server = quiet().await;
    let start = server.app().store.revision().await.unwrap();
    server.post(REPAIRS, &server.admin, &wish("10.0.0.1")).await;
    server.delete(&format!("{REPAIRS}/0"), &server.admin).await;
    let mut events = server.app().hub.subscribe(Some(start)).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let next = tokio::time::timeout(common::DEADLINE, events.next()).await.unwrap();
        if let wharf_server::events::Delivery::Event(event) = next.unwrap().unwrap() {
            let event = &event.event;
            assert_eq!(event.cluster.as_deref(), Some("demo"));
            seen.push((event.type_.clone(), event.resource.clone()));
        }
    }
    let entry = "repair/demo/entries/0000000000000000";
    seen.sort();
    let expected = [
        ("repair.created", entry),
        ("repair.created", "repair/demo/head"),
        ("repair.updated", entry),
    ];
    assert_eq!(seen, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[tokio::test]
async fn the_example_of_the_guide_is_a_configuration() {
    let server = quiet().await;
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/REPAIR.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let example = guide.split("```yaml").nth(1).unwrap().split("```").next().unwrap();
    let request = server.request(reqwest::Method::PUT, CONFIG, &server.admin);
    let request = request.header("content-type", "application/yaml").body(example.to_owned());
    let answer = request.send().await.unwrap();
    let status = answer.status();
    assert_eq!(status, 200, "{}", json_of(answer).await);
}
