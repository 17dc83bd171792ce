//! Volumes through the API, on a real Kubernetes API. There are no kubelets and no agents: the tests
//! write what agents write.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "common/browser.rs"]
mod browser;
mod common;
#[path = "common/volumes.rs"]
mod storage;
#[path = "common/apiserver.rs"]
mod world;
#[path = "common/yard.rs"]
mod yard;

use browser::Browser;
use common::{PASSWORD, TestServer, error_of, eventually, json_of};
use serde_json::{Value, json};
use storage::{entry, garbage, hold, install, lease, stuck, user, volume};
use world::{World as Kubernetes, world};
use yard::{LOG, Yard, reasons, step};

const VOLUMES: &str = "/clusters/demo/volumes";

/// A server that has taken in the cluster as `demo`.
async fn import(world: &Kubernetes) -> TestServer {
    let server = TestServer::start().await;
    let body = json!({"kubeConfig": world.server.kubeconfig()});
    let made = server.post("/clusters/demo?action=import", &server.admin, &body).await;
    assert_eq!(made.status(), 200, "{}", json_of(made).await);
    server
}

async fn get(server: &TestServer, path: &str) -> Value {
    let answer = server.get(&format!("{VOLUMES}{path}"), &server.admin).await;
    assert_eq!(answer.status(), 200);
    json_of(answer).await
}

async fn detach(server: &TestServer, name: &str, body: Value) -> reqwest::Response {
    server.post(&format!("{VOLUMES}/{name}/detach"), &server.admin, &body).await
}

fn sentences(why: &Value) -> String {
    let all = why["sentences"].as_array().unwrap().iter().map(|one| one.as_str().unwrap());
    all.collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_are_listed_and_explained_those_first_that_need_a_person() {
    let world = world();
    install(&world);
    storage::storage(&world, "look", "loopfile");
    world.node("look", "192.0.2.10", "worker");
    lease(&world, "look");
    volume(&world, "look-free", "look");
    volume(&world, "look-held", "look");
    let mut held = entry(&world, "look", "web-0", "uid-web");
    held["selfFence"] = json!(true);
    hold(&world, "look-held", &[held]);
    stuck(&world, "look-stuck", "look", "look");
    garbage(&world, "look-away", "look-free");
    let server = import(&world).await;

    let list = get(&server, "").await;
    let all = list["data"].as_array().unwrap();
    let place = |name: &str| all.iter().position(|one| one["name"] == name).unwrap();
    assert!(place("look-stuck") < place("look-held") && place("look-held") < place("look-free"));
    assert_eq!(all[place("look-free")]["state"], "free");

    let held = get(&server, "/look-held").await;
    assert_eq!(held["state"], "held", "{held}");
    let expected = json!({
        "claim": "default/look-held", "storageCluster": "look", "backend": "loopfile",
        "image": "look-held", "frontEnd": "flex", "size": "1Gi", "phase": "Bound",
        "accessModes": ["ReadWriteOnce"], "generation": 4, "waiting": [],
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(held[field], *value, "{field}");
    }
    let holder = &held["holders"][0];
    let expected = json!({
        "node": "look", "namespace": "default", "pod": "web-0", "podUID": "uid-web",
        "readOnly": false, "device": "/dev/loop7", "generation": 4, "phase": "Attached",
        "nodeStatus": "NotReady", "lease": "held",
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(holder[field], *value, "{field}");
    }
    assert!(holder["since"].is_string() && holder["leaseUntil"].is_string(), "{holder}");
    let why = get(&server, "/look-held/why").await;
    assert!(sentences(&why).contains("by right, its agent is alive"), "{why}");
    assert_eq!(why["next"], json!([]));

    let stuck = get(&server, "/look-stuck").await;
    assert_eq!((&stuck["state"], stuck["waiting"].as_array().unwrap().len()), (&json!("stuck"), 1));
    let holder = &stuck["holders"][0];
    assert_eq!((&holder["nodeStatus"], &holder["lease"]), (&json!("Gone"), &json!("missing")));
    let why = get(&server, "/look-stuck/why").await;
    let said = sentences(&why);
    for part in [
        "a client of loopfile cannot be shut out and this one does not cut itself off",
        "its node is gone, which alone proves nothing",
        "pod default/look-stuck-db-0 waits for it on node look: pod default/db-0 on node \
         look-stuck-gone holds the volume",
    ] {
        assert!(said.contains(part), "{part:?} is not said: {said}");
    }
    let next = why["next"][0].as_str().unwrap();
    assert!(next.contains("wharf volume detach demo look-stuck --node look-stuck-gone"), "{next}");
    let said = sentences(&get(&server, "/look-free/why").await);
    assert!(said.contains("nobody holds the volume"), "{said}");
    assert!(said.contains("node look-away has something left of generation 2: /dev/loop3"));

    let missing = server.get(&format!("{VOLUMES}/nothing"), &server.admin).await;
    assert_eq!(error_of(missing).await.0, 404);
    let viewer = server.user("eve", "viewer", Some(&["demo"])).await;
    assert_eq!(server.get(VOLUMES, &viewer).await.status(), 200);
    let path = format!("{VOLUMES}/look-stuck/detach");
    let refused = server.post(&path, &viewer, &json!({"force": true, "reason": "me"})).await;
    assert_eq!(error_of(refused).await.0, 403);
    let stranger = server.user("mallory", "viewer", Some(&["other"])).await;
    assert_eq!(server.get(VOLUMES, &stranger).await.status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_set_free_by_a_person_who_gives_a_reason_and_that_is_kept() {
    let world = world();
    install(&world);
    storage::storage(&world, "free", "loopfile");
    world.node("free", "192.0.2.11", "worker");
    lease(&world, "free");
    stuck(&world, "free-stuck", "free", "free");
    volume(&world, "free-two", "free");
    let two = [entry(&world, "free", "a-0", "uid-a"), entry(&world, "free-b", "b-0", "uid-b")];
    hold(&world, "free-two", &two);
    let server = import(&world).await;
    let phases = |name: &str| {
        let record = world.read(&["attachments.wharf.dev", name]);
        let entries = record["attachments"].as_array().unwrap().iter();
        entries.map(|one| one["phase"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };

    let plan = json_of(detach(&server, "free-stuck", json!({})).await).await;
    assert_eq!((&plan["done"], plan["holders"].as_array().unwrap().len()), (&json!(false), 1));
    let lost = plan["mayBeLost"].to_string();
    assert!(lost.contains("the file system is destroyed"), "{lost}");
    let (status, _, body) =
        error_of(detach(&server, "free-stuck", json!({"force": true})).await).await;
    assert_eq!((status, &body["details"][0]["field"]), (422, &json!("reason")), "{body}");
    assert_eq!(phases("free-stuck"), ["Attached"], "nothing was changed");

    // Several hold it, and one of them is alive.
    let (status, _, body) = error_of(detach(&server, "free-two", json!({})).await).await;
    assert_eq!((status, &body["details"][0]["field"]), (422, &json!("node")), "{body}");
    let elsewhere = detach(&server, "free-two", json!({"node": "other"})).await;
    assert_eq!(error_of(elsewhere).await.0, 404);
    let alive = detach(&server, "free-two", json!({"node": "free", "force": true})).await;
    let (status, _, body) = error_of(alive).await;
    assert_eq!(status, 409);
    assert!(body["message"].as_str().unwrap().contains("agent of node free is alive"), "{body}");
    assert_eq!(phases("free-two"), ["Attached", "Attached"]);

    let reason = "free-b lies on my desk";
    let body = json!({"node": "free-b", "pod": "default/b-0", "force": true, "reason": reason});
    let done = json_of(detach(&server, "free-two", body.clone()).await).await;
    assert_eq!(done["done"], true, "{done}");
    assert_eq!(phases("free-two"), ["Attached", "Released"], "only that one");
    let again = error_of(detach(&server, "free-two", body).await).await;
    assert_eq!(again.0, 404, "it does not hold it any more: {}", again.2);

    let audit = json_of(server.get("/audit?limit=20", &server.admin).await).await;
    let records = audit["data"].as_array().unwrap();
    let of_detach: Vec<_> = records.iter().filter(|one| one["action"] == "volume.detach").collect();
    assert_eq!(of_detach.len(), 1, "what was refused is not done: {audit}");
    let record = of_detach[0];
    assert_eq!(
        (&record["resource"], &record["cluster"]),
        (&json!("volume/demo/free-two"), &json!("demo"))
    );
    assert_eq!((&record["reason"], &record["user"]), (&json!(reason), &json!("admin")));
    let events = world.events("free-two");
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].starts_with("VolumeDetachForced: admin answers for it"), "{events:?}");
    let uid = world.read(&["pv", "free-two"])["metadata"]["uid"].clone();
    let all = world.read(&["events.events.k8s.io", "-n", "default"]);
    let regarding = |event: &&Value| event["regarding"]["name"] == "free-two";
    let event = all["items"].as_array().unwrap().iter().find(regarding).unwrap();
    assert_eq!(event["regarding"]["uid"], uid, "kubectl describe finds it by that");

    let body = json!({"force": true, "reason": "the machine is sold"});
    let done = json_of(detach(&server, "free-stuck", body.clone()).await).await;
    assert_eq!(
        (&done["done"], &done["holders"][0]["node"]),
        (&json!(true), &json!("free-stuck-gone"))
    );
    assert_eq!(phases("free-stuck"), ["Released"]);
    let after = get(&server, "/free-stuck").await;
    assert_eq!(after["state"], "waiting", "its pod can have it now");
    let (status, _, body) = error_of(detach(&server, "free-stuck", body).await).await;
    assert_eq!((status, &body["message"]), (409, &json!("nobody holds the volume")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_until_the_node_has_let_go_of_the_volumes_of_its_pods() {
    let world = world();
    install(&world);
    storage::storage(&world, "drain", "loopfile");
    world.node("drain", "192.0.2.12", "worker");
    for name in ["drain-data", "drain-other"] {
        volume(&world, name, "drain");
    }
    let uid = user(&world, "drain", "drain-db", "drain-data");
    hold(&world, "drain-data", &[entry(&world, "drain", "drain-db", &uid)]);
    // Of a pod that this drain has never seen.
    hold(&world, "drain-other", &[entry(&world, "drain", "old", "uid-old")]);
    let server = import(&world).await;
    let path = "/clusters/demo/nodes/drain";
    let begun = server.post(&format!("{path}?action=drain"), &server.admin, &json!({})).await;
    assert_eq!(begun.status(), 200);
    let look = async || json_of(server.get(&format!("{path}/drain"), &server.admin).await).await;
    let waits = "volumes of drained pods are attached: drain-data";
    eventually(async || look().await["reason"].as_str().is_some_and(|it| it.contains(waits))).await;
    assert!(!world.is_there("drain-db"), "the pod has left");
    assert_eq!(look().await["state"], "running");
    world.kubectl(&["delete", "attachments.wharf.dev", "drain-data"], "");
    eventually(async || look().await["state"] == "succeeded").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_takes_the_volumes_of_a_machine_from_it_before_its_command() {
    let world = world();
    install(&world);
    storage::storage(&world, "repair-rbd", "rbd");
    storage::storage(&world, "repair-file", "loopfile");
    world.node("repair", "192.0.2.13", "worker");
    for (name, storage) in [("repair-fast", "repair-rbd"), ("repair-slow", "repair-file")] {
        volume(&world, name, storage);
        hold(&world, name, &[entry(&world, "repair", name, &format!("uid-{name}"))]);
    }
    let yard = Yard { server: import(&world).await };
    let dir = yard.server.dir.path();
    let off = json!({"fence_volumes": true, "watch_seconds": 600});
    yard.configure(&yard::config(dir, &[step(dir, LOG, &off)], &json!({}))).await;
    yard.add("192.0.2.13").await;
    let taints = || world.read(&["node", "repair"])["spec"]["taints"].to_string();
    eventually(async || taints().contains("wharf.dev/fence-volumes")).await;
    eventually(async || {
        let wait = yard.entry(0).await["wait"].as_str().unwrap().to_owned();
        wait.starts_with("the node's volumes are taken from it")
    })
    .await;
    assert!(!taints().contains("out-of-service"), "the machine may still run");
    let held = get(&yard.server, "/repair-fast").await;
    assert_eq!(
        (&held["state"], &held["holders"][0]["nodeStatus"]),
        (&json!("leaving"), &json!("OutOfService"))
    );
    assert_eq!(yard.read("log-192.0.2.13"), "", "the command waits for it");

    // As an agent does that has shut the node out.
    world.kubectl(&["delete", "attachments.wharf.dev", "repair-fast"], "");
    eventually(async || yard.read("log-192.0.2.13") == "repair 0 1\n").await;
    eventually(async || taints().contains("out-of-service")).await;
    yard.write("healthy-192.0.2.13", "true");
    let ended = yard.ended(0).await;
    assert_eq!(ended["status"], "succeeded", "{ended}");
    let left = "the node still holds volumes: volume repair-slow of pod default/repair-slow: a \
                client of loopfile ends only with its machine";
    assert!(reasons(&ended).contains(&left), "{ended}");
    eventually(async || !taints().contains("wharf")).await;
    eventually(async || {
        world.events("repair").iter().any(|event| event.starts_with("RepairVolumesHeld: "))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_browser_one_sees_who_holds_what_and_why_and_it_stays_true() {
    let world = world();
    install(&world);
    storage::storage(&world, "page", "loopfile");
    world.node("page", "192.0.2.14", "worker");
    lease(&world, "page");
    volume(&world, "page-held", "page");
    let mut held = entry(&world, "page", "web-0", "uid-web");
    held["selfFence"] = json!(true);
    hold(&world, "page-held", &[held]);
    volume(&world, "page-free", "page");
    stuck(&world, "page-stuck", "page", "page");
    let server = import(&world).await;
    let mut browser = Browser::start().await;
    browser.resize(1300, 900).await;
    browser.open(&format!("{}/console/login?next=/console/clusters/demo", server.base)).await;
    browser.fill("user", "admin").await;
    browser.fill("password", PASSWORD).await;
    browser.click("form button").await;
    browser.until("document.querySelector('h1')?.innerText.includes('demo')").await;
    browser.click("a[href='/console/clusters/demo/volumes']").await;
    let badge = |name: &str| format!("document.querySelector('#volume-{name} .badge')?.innerText");
    browser.until(&format!("{} === 'stuck'", badge("page-stuck"))).await;
    browser.until(&format!("{} === 'held'", badge("page-held"))).await;
    let advice = "wharf volume detach demo page-stuck --node page-stuck-gone --force";
    browser.until(&format!("document.body.innerText.includes('{advice}')")).await;
    let order = "[...document.querySelectorAll('tbody tr')].map((row) => row.id)";
    let before = |one: &str, other: &str| {
        format!("{order}.indexOf('volume-{one}') < {order}.indexOf('volume-{other}')")
    };
    assert_eq!(browser.value(&before("page-stuck", "page-held")).await, true);
    browser.value("window.sameDocument = true").await;
    browser.picture("volumes").await;
    // Nobody tells the server of it; the page looks again by itself.
    world.kubectl(&["delete", "attachments.wharf.dev", "page-held"], "");
    browser.until(&format!("{} === 'free'", badge("page-held"))).await;
    assert_eq!(browser.value("window.sameDocument").await, true, "the page was loaded again");
    browser.assert_harmless().await;
    browser.resize(390, 844).await;
    browser.assert_fits().await;
}
