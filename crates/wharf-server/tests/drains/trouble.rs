//! Drains while something else goes wrong.

use serde_json::json;
use wharf_testbed::etcd::Etcd;

use super::{
    act,
    common::{TestServer, config, error_of, eventually, json_of},
    import, start, take_in, wait_for_end, wait_for_reason,
    world::{World, half_blocked, labelled, world},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drains_outlive_an_api_that_goes_away_and_one_begun_meanwhile_says_what_it_waits_for() {
    let mut world = World::start();
    for (node, address) in [("n1", "192.0.2.1"), ("n2", "192.0.2.2"), ("n3", "192.0.2.3")] {
        world.node(node, address, "worker");
    }
    half_blocked(&world, "n1");
    world.pod("n2", "n2-0", &json!({}));
    let server = import(&world).await;
    let begun = start(&server, "n1", json!({})).await;
    wait_for_reason(&server, "n1", "0 allowed").await;
    eventually(async || world.is_unschedulable("n1")).await;

    world.server.process().kill().unwrap();
    start(&server, "n2", json!({})).await;
    let drain = wait_for_reason(&server, "n2", "no API server of the cluster answers").await;
    assert_eq!((&drain["stage"], &drain["left"]), (&json!("waiting"), &json!(0)), "{drain}");
    start(&server, "n3", json!({"timeoutSeconds": 2})).await;
    let late = wait_for_end(&server, "n3").await;
    assert_eq!((&late["state"], &late["timedOut"]), (&json!("failed"), &json!(true)), "{late}");
    assert!(late["reason"].as_str().unwrap().starts_with("the deadline passed: "), "{late}");
    let (status, code, _) = error_of(act(&server, "n3", "cordon", json!({})).await).await;
    assert_eq!((status, code.as_str()), (503, "ClusterUnavailable"));
    let (status, _, _) = error_of(act(&server, "n3", "planDrain", json!({})).await).await;
    assert_eq!(status, 503);
    // Canceled while nobody answers: the node is given back later.
    let canceled = act(&server, "n1", "cancelDrain", json!({})).await;
    assert_eq!(json_of(canceled).await["id"], begun["id"]);
    let ended = wait_for_end(&server, "n1").await;
    assert_eq!((&ended["state"], &ended["cordonLeft"]), (&json!("canceled"), &json!(true)));

    world.server.restart().unwrap();
    assert_eq!(wait_for_end(&server, "n2").await["state"], "succeeded");
    assert!(!world.is_there("n2-0") && world.is_unschedulable("n2"));
    eventually(async || world.owner("n1").is_none() && !world.is_unschedulable("n1")).await;
    eventually(async || {
        let path = "/clusters/demo/nodes/n1/drain";
        json_of(server.get(path, &server.admin).await).await["cordonLeft"] == false
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubeconfig_that_expires_ends_the_drain_and_the_node_is_given_back_once_it_is_valid() {
    let mut world = World::start();
    let tokens = world.server.kubeconfig_file().with_file_name("tokens.csv");
    let lasting = std::fs::read_to_string(&tokens).unwrap();
    let both = format!("{lasting}passing-token,passing,passing,\"system:masters\"\n");
    std::fs::write(&tokens, &both).unwrap();
    world.server.restart().unwrap();
    world.node("n1", "192.0.2.1", "worker");
    half_blocked(&world, "n1");
    let kubeconfig = world.server.kubeconfig_with_token();
    let kubeconfig = kubeconfig.replace(world.server.token(), "passing-token");
    let server = TestServer::start().await;
    take_in(&server, kubeconfig).await;
    start(&server, "n1", json!({})).await;
    wait_for_reason(&server, "n1", "0 allowed").await;
    eventually(async || world.is_unschedulable("n1")).await;

    std::fs::write(&tokens, lasting).unwrap();
    world.server.restart().unwrap();
    let ended = wait_for_end(&server, "n1").await;
    assert_eq!((&ended["state"], &ended["cordonLeft"]), (&json!("failed"), &json!(true)));
    assert!(ended["reason"].as_str().unwrap().contains("Unauthorized"), "{ended}");

    std::fs::write(&tokens, &both).unwrap();
    world.server.restart().unwrap();
    eventually(async || world.owner("n1").is_none() && !world.is_unschedulable("n1")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_goes_on_with_the_drains_of_one_that_died() {
    let world = world();
    for (node, address) in [("far1", "192.0.2.41"), ("far2", "192.0.2.42")] {
        world.node(node, address, "control-plane");
    }
    world.node("far-spare", "192.0.2.43", "worker");
    half_blocked(&world, "far1");
    let etcd = Etcd::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("seal.key");
    let store = format!("etcd://{}", etcd.endpoint().trim_start_matches("http://"));
    let join = async || {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        config.store.clone_from(&store);
        config.key_file.clone_from(&key);
        TestServer::start_in(dir, config).await
    };
    let (one, two) = (join().await, join().await);
    take_in(&one, world.server.kubeconfig()).await;
    let begun = start(&two, "far1", json!({})).await;
    wait_for_reason(&two, "far1", "0 allowed").await;
    start(&one, "far2", json!({})).await;
    let turn = "the controlplane or etcd machine 192.0.2.41 is out of service (drain)";
    wait_for_reason(&one, "far2", turn).await;

    let cluster = json_of(one.get("/clusters/demo", &one.admin).await).await;
    let owner = cluster["owner"].as_str().unwrap();
    let (mut dead, alive) = if one.app().me.0 == owner { (one, two) } else { (two, one) };
    // Without a word to anybody: its lease ends by itself.
    drop(dead.running.take());
    eventually(async || {
        let cluster = json_of(alive.get("/clusters/demo", &alive.admin).await).await;
        cluster["owner"] == alive.app().me.0.as_str()
    })
    .await;
    assert_eq!(wait_for_reason(&alive, "far2", turn).await["stage"], "waiting");
    assert!(world.is_unschedulable("far1") && !world.is_unschedulable("far2"));
    world.pod("far-spare", "far1-2", &labelled("far1"));
    let ended = wait_for_end(&alive, "far1").await;
    assert_eq!((&ended["state"], &ended["id"]), (&json!("succeeded"), &begun["id"]), "{ended}");
    assert_eq!(wait_for_end(&alive, "far2").await["state"], "succeeded");
}
