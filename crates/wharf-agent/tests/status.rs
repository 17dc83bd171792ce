//! The node's place in its cluster and the status server, by the real agent: in network namespaces
//! with real interfaces and a real packet filter, and before a real API server. These tests need root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::{fs, io::Write, net::TcpStream, time::Duration};

use common::{Agent, CLUSTER_ID, Namespace, Reply, SOON, curl, kubectl, loopback, nft_rules};
use serde_json::{Value, json};
use wharf_agent::{
    config::Config,
    status::join::{self, Failure, JoinError, Patience},
};
use wharf_testbed::{apiserver::ApiServer, wait_for};

const PORT: u16 = 12346;

fn cluster_config(address: &str, label: &str) -> Value {
    json!({
        "ClusterName": "lab",
        "ClusterID": { "UUID": CLUSTER_ID, "Version": "1" },
        "ClusterInterface": label,
        // 255.255.255.240
        "ClusterIPPrefix": { "IP": address, "Mask": "////8A==" },
        "JoinServerIP": "10.244.244.3",
        "BootstrapNode": true,
    })
}

/// A device's ports: `lo` under a label, with addresses that every machine has.
fn device_ports(label: &str, addresses: &[&str]) -> Value {
    let addresses: Vec<Value> =
        addresses.iter().map(|address| json!({ "Addr": address })).collect();
    json!({ "Ports": [{ "IfName": "lo", "Logicallabel": label, "AddrInfoList": addresses }] })
}

fn status(agent: &Agent) -> Option<Value> {
    agent.read("zedkube/EdgeNodeClusterStatus/global.json")
}

#[test]
fn the_server_comes_and_goes_with_the_address_and_the_filter_is_opened_meanwhile() {
    let node = Namespace::new();
    let peer = Namespace::new();
    node.connect(&peer, "cl0", "cl1");
    node.ip(&["addr", "add", "192.0.2.2/24", "dev", "cl0"]);
    peer.ip(&["addr", "add", "10.244.244.3/28", "dev", "cl1"]);
    peer.ip(&["addr", "add", "192.0.2.3/24", "dev", "cl1"]);
    node.run("nft", &["add table inet filter; add chain inet filter input { type filter hook input priority 0; policy drop; }; add rule inet filter input ct state established accept"]);
    let filter = nft_rules(&node);
    let mut agent = Agent::start(Some(&node), "");
    agent.publish(
        "zedagent/EdgeNodeClusterConfig/global.json",
        &cluster_config("10.244.244.2", "cl0"),
    );

    let first = wait_for("the status", SOON, || Ok(status(&agent))).unwrap();
    assert_eq!(first["ClusterIPIsReady"], json!(false));
    assert_eq!(first["ClusterID"]["UUID"], json!(CLUSTER_ID));
    assert_eq!(first["ClusterInterface"], json!("cl0"));
    let fault = wait_for("the fault", SOON, || Ok(agent.fault("the cluster's address"))).unwrap();
    assert_eq!(fault, "port cl0 does not carry 10.244.244.2");
    assert_eq!(nft_rules(&node), filter, "nothing to open yet");

    node.ip(&["addr", "add", "10.244.244.2/28", "dev", "cl0"]);
    wait_for("the address to be seen", SOON, || {
        Ok(status(&agent).filter(|status| status["ClusterIPIsReady"] == json!(true)))
    })
    .unwrap();
    let ask = |arguments: &[&str]| curl(&peer, "http://10.244.244.2:12346", arguments);
    let reply = wait_for("an answer", SOON, || Ok(ask(&["/status"]).ok())).unwrap();
    assert_eq!((reply.code, reply.body.as_str()), (200, ""), "nobody says what the node is");
    assert_eq!(reply.header("x-cluster-id").as_deref(), Some(CLUSTER_ID));
    let reply = ask(&["/status", "-X", "POST"]).unwrap();
    assert_eq!((reply.code, reply.body.as_str()), (405, "405 - Method Not Allowed"));
    assert_eq!(ask(&["/nothing"]).unwrap().code, 404);
    assert_eq!(ask(&["/app/"]).unwrap().code, 200);
    // Through the same interface, from outside the cluster's network.
    let outside = |path| ask(&[path, "--interface", "192.0.2.3"]).unwrap().code;
    assert_eq!((outside("/status"), outside("/app/"), outside("/cluster-app/")), (200, 403, 403));
    let refused =
        "2 since the agent began; the last: from 192.0.2.3: only members of the cluster may ask";
    wait_for("the note", SOON, || {
        Ok((agent.note("refused requests").as_deref() == Some(refused)).then_some(()))
    })
    .unwrap();
    // The hole is for the cluster's address alone.
    assert!(curl(&peer, "http://192.0.2.2:12346", &["/status"]).is_err());
    let rule = nft_rules(&node);
    assert!(
        rule.contains("iifname \"cl0\" ip daddr 10.244.244.2 tcp dport 12346 accept"),
        "{rule}"
    );

    // An agent that was killed leaves the rule; the next one has it once.
    agent.restart();
    wait_for("the rule", SOON, || Ok((nft_rules(&node) == rule).then_some(()))).unwrap();
    wait_for("an answer", SOON, || Ok(ask(&["/status"]).ok())).unwrap();

    node.ip(&["addr", "del", "10.244.244.2/28", "dev", "cl0"]);
    wait_for("the address to be missed", SOON, || {
        Ok(status(&agent).filter(|status| status["ClusterIPIsReady"] == json!(false)))
    })
    .unwrap();
    wait_for("the filter to be closed", SOON, || Ok((nft_rules(&node) == filter).then_some(())))
        .unwrap();

    node.ip(&["addr", "add", "10.244.244.2/28", "dev", "cl0"]);
    wait_for("an answer", SOON, || Ok(ask(&["/status"]).ok())).unwrap();
    agent.unpublish("zedagent/EdgeNodeClusterConfig/global.json");
    wait_for("the status to go", SOON, || Ok(status(&agent).is_none().then_some(()))).unwrap();
    wait_for("the filter to be closed", SOON, || Ok((nft_rules(&node) == filter).then_some(())))
        .unwrap();
    let listens = || node.run("ss", &["-Hltn", "sport", "=", ":12346"]);
    wait_for("the server to end", SOON, || Ok(listens().is_empty().then_some(()))).unwrap();
    wait_for("health", SOON, || Ok(agent.is_healthy().then_some(()))).unwrap();
}

#[test]
fn a_host_that_does_not_filter_is_left_alone_and_junk_takes_nothing_back() {
    let node = Namespace::new();
    node.ip(&["link", "add", "cl0", "type", "bridge"]);
    node.ip(&["link", "set", "cl0", "up"]);
    node.ip(&["addr", "add", "10.244.244.2/28", "dev", "cl0"]);
    // It drops single packets on purpose, as kube-proxy does, and lets everything else pass.
    node.run("nft", &["add table ip proxy; add chain ip proxy input { type filter hook input priority -110; }; add rule ip proxy input tcp dport 9 drop"]);
    let filter = nft_rules(&node);
    let mut agent = Agent::start(Some(&node), "");
    let path = "zedagent/EdgeNodeClusterConfig/global.json";
    agent.publish(path, &cluster_config("10.244.244.2", ""));
    let ask = || curl(&node, "http://10.244.244.2:12346", &["/status"]);
    wait_for("an answer", SOON, || Ok(ask().ok())).unwrap();
    fs::write(agent.path(path), "{\"ClusterName\": ").unwrap();
    let subject = agent.path(path).display().to_string();
    wait_for("the fault", SOON, || Ok(agent.fault(&subject))).unwrap();
    assert_eq!(ask().unwrap().code, 200, "what it said before still holds");
    assert_eq!(nft_rules(&node), filter);
    // Killed, the agent leaves its status behind; it is looked at anew.
    agent.restart();
    wait_for("an unknown configuration", SOON, || Ok(agent.fault(&subject))).unwrap();
    assert!(status(&agent).is_some(), "not taken back");
    agent.publish(path, &cluster_config("10.244.244.2", "cl0"));
    wait_for("an answer", SOON, || Ok(ask().ok())).unwrap();
}

#[test]
fn a_device_names_its_ports_and_an_invalid_one_is_not_used() {
    let address = loopback(1, 2);
    let agent = Agent::start(None, "");
    agent.publish("nim/DeviceNetworkStatus/global.json", &device_ports("shop", &[&address]));
    agent.publish("zedagent/EdgeNodeClusterConfig/global.json", &cluster_config(&address, "shop"));
    let ask = || Reply::get(&format!("http://{address}:12346/status"), &[]);
    wait_for("an answer", SOON, || Ok(ask().ok())).unwrap();
    let mut invalid = device_ports("shop", &[&address]);
    invalid["Ports"][0]["InvalidConfig"] = json!(true);
    agent.publish("nim/DeviceNetworkStatus/global.json", &invalid);
    let fault = wait_for("the fault", SOON, || Ok(agent.fault("the cluster's address"))).unwrap();
    assert_eq!(fault, "the configuration of port shop is not valid");
    wait_for("the server to end", SOON, || Ok(ask().is_err().then_some(()))).unwrap();
    // A token that only the device can open is an error beside the status, and keeps its time.
    let mut sealed = cluster_config(&address, "shop");
    sealed["CipherToken"] = json!({ "IsCipher": true });
    agent.publish("zedagent/EdgeNodeClusterConfig/global.json", &sealed);
    let error = || {
        let error = status(&agent)?["Error"].clone();
        (!error["Error"].as_str()?.is_empty()).then_some(error)
    };
    let first = wait_for("the error", SOON, || Ok(error())).unwrap();
    agent.publish("nim/DeviceNetworkStatus/global.json", &device_ports("shop", &[&address]));
    wait_for("an answer", SOON, || Ok(ask().ok())).unwrap();
    assert_eq!(error().unwrap(), first);
}

#[test]
fn only_a_controlplane_node_with_etcd_at_hand_says_cluster_and_says_so_by_watch() {
    let address = loopback(2, 2);
    let mut server = ApiServer::start().unwrap();
    kubectl(
        &server,
        &["create", "-f", "-"],
        &json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" },
        }),
    );
    // The way to the cluster is not there from the beginning, and then it is none.
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let subject = kubeconfig.display().to_string();
    let agent = Agent::start(None, &format!("node_name = 'n1'\nkubeconfig = '{subject}'"));
    let fault = |text: &str| {
        let fault = || agent.fault(&subject).filter(|fault| fault.contains(text));
        wait_for(text, SOON, || Ok(fault())).unwrap();
    };
    fault("it cannot be read: No such file");
    fs::write(&kubeconfig, "clusters: 7").unwrap();
    fault("the kubeconfig cannot be used: it is not a kubeconfig");
    fs::write(&kubeconfig, server.kubeconfig()).unwrap();
    agent.publish("nim/DeviceNetworkStatus/global.json", &device_ports("shop", &[&address]));
    agent.publish("zedagent/EdgeNodeClusterConfig/global.json", &cluster_config(&address, "shop"));
    let status = || Reply::get(&format!("http://{address}:12346/status"), &[]);
    let expect = |text: &str| {
        wait_for(&format!("the status {text:?}"), SOON, || {
            Ok(status().ok().filter(|reply| reply.body == text).map(drop))
        })
        .unwrap();
    };
    let label = |labels: &[&str]| {
        kubectl(&server, &[&["label", "--overwrite", "node", "n1"], labels].concat(), &Value::Null);
    };
    expect("");
    label(&["node-role.kubernetes.io/etcd=true"]);
    label(&["node-role.kubernetes.io/control-plane=true"]);
    expect("cluster");
    // Its data may be elsewhere, if it is reached.
    label(&["node-role.kubernetes.io/etcd-"]);
    expect("cluster");
    label(&["node-role.kubernetes.io/control-plane-"]);
    expect("");
    label(&["node-role.kubernetes.io/control-plane=true", "node-role.kubernetes.io/etcd=true"]);
    expect("cluster");
    server.process().kill().unwrap();
    expect("");
    wait_for("the fault", SOON, || Ok(agent.fault("the own Node"))).unwrap();
}

#[test]
fn whatever_comes_to_its_port_the_server_answers_the_next_one() {
    let address = loopback(4, 2);
    let agent = Agent::start(None, "open_trace = false");
    agent.publish("nim/DeviceNetworkStatus/global.json", &device_ports("shop", &[&address]));
    agent.publish("zedagent/EdgeNodeClusterConfig/global.json", &cluster_config(&address, "shop"));
    let ask = |path: &str| {
        let arguments = ["--interface", address.as_str()];
        Reply::get(&format!("http://{address}:12346{path}"), &arguments)
    };
    wait_for("an answer", SOON, || Ok(ask("/status").ok())).unwrap();
    assert_eq!(ask("/app/").unwrap().code, 401, "there is no token that anybody could know");

    let connect = || TcpStream::connect((address.as_str(), PORT)).unwrap();
    let head = [b"GET /status HTTP/1.1\r\nX-Long: ".as_slice(), &b"x".repeat(1 << 20)].concat();
    let path = [b"GET /app/".as_slice(), &b"%2e".repeat(20_000), b" HTTP/1.1\r\n\r\n"].concat();
    for bytes in [b"\x00\xff\r\n\r\n".as_slice(), &head, &path, b"GET /status HTTP/1.1\r\nHo"] {
        // It may be cut off in the middle.
        let _ = connect().write_all(bytes);
    }
    // More than are served at a time, and none of them says a word.
    let silent: Vec<TcpStream> = (0..100).map(|_| connect()).collect();
    wait_for("an answer", SOON, || Ok(ask("/status").ok())).unwrap();
    drop(silent);
    assert_eq!(ask("/status").unwrap().code, 200);
    assert!(agent.is_healthy());
}

/// What a node that joins reads, without an agent.
fn joining(dir: &std::path::Path, server: &str, id: &str) -> Config {
    let mut wish = cluster_config(&loopback(3, 9), "shop");
    wish["JoinServerIP"] = json!(server);
    wish["BootstrapNode"] = json!(false);
    wish["ClusterID"]["UUID"] = json!(id);
    let mut status = wish.clone();
    status["ClusterIPIsReady"] = json!(true);
    for (path, value) in [
        ("run/zedagent/EdgeNodeClusterConfig/global.json", &wish),
        ("run/zedkube/EdgeNodeClusterStatus/global.json", &status),
    ] {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, value.to_string()).unwrap();
    }
    Config {
        run_dir: dir.join("run"),
        persist_dir: dir.join("persist"),
        status_port: PORT,
        ..Config::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_to_join_ends_when_the_configuration_is_withdrawn_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let address = loopback(5, 2);
    let ours = joining(dir.path(), &address, CLUSTER_ID);
    let server = tokio::net::TcpListener::bind((address.as_str(), PORT)).await.unwrap();
    let patient = Patience { limit: Some(Duration::from_secs(120)), ..Patience::default() };
    let waiting = tokio::spawn(async move { join::wait(&ours, patient).await });
    // It asks, and gets no answer.
    drop(server.accept().await.unwrap());
    fs::remove_file(dir.path().join("run/zedagent/EdgeNodeClusterConfig/global.json")).unwrap();
    let ended = waiting.await.unwrap();
    assert!(matches!(ended, Err(JoinError::Ended(Failure::Withdrawn))), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_joins_waits_for_this_cluster_and_does_not_wait_again() {
    let server = ApiServer::start().unwrap();
    kubectl(
        &server,
        &["create", "-f", "-"],
        &json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1", "labels": {
                "node-role.kubernetes.io/control-plane": "true", "node-role.kubernetes.io/etcd": "true",
            } },
        }),
    );
    let dir = tempfile::tempdir().unwrap();
    let address = loopback(3, 2);
    let ours = joining(dir.path(), &address, CLUSTER_ID);
    // Nobody listens yet.
    let soon = Patience { limit: Some(Duration::from_secs(1)), ..Patience::default() };
    let Err(JoinError::TimedOut { reason, .. }) = join::wait(&ours, soon).await else { panic!() };
    assert!(reason.contains(&format!("{address}:12346: it cannot be reached")), "{reason}");

    // Its own agent tells it of the cluster a moment later.
    let path = dir.path().join("run/zedagent/EdgeNodeClusterConfig/global.json");
    let aside = dir.path().join("aside");
    fs::rename(&path, &aside).unwrap();
    let minutes = Duration::from_secs(120);
    let patient = Patience { config: minutes, limit: Some(minutes), ..Patience::default() };
    let waiting = tokio::spawn({
        let ours = ours.clone();
        async move { join::wait(&ours, patient).await }
    });
    let kubeconfig = server.kubeconfig_file();
    let agent =
        Agent::start(None, &format!("node_name = 'n1'\nkubeconfig = '{}'", kubeconfig.display()));
    agent.publish("nim/DeviceNetworkStatus/global.json", &device_ports("shop", &[&address]));
    agent.publish("zedagent/EdgeNodeClusterConfig/global.json", &cluster_config(&address, "shop"));
    assert!(!waiting.is_finished());
    fs::rename(&aside, &path).unwrap();
    waiting.await.unwrap().unwrap();

    let other = tempfile::tempdir().unwrap();
    let id = "ffffffff-4e5f-6071-8293-a4b5c6d7e8f9";
    let foreign = joining(other.path(), &address, id);
    let Err(JoinError::TimedOut { reason, .. }) = join::wait(&foreign, soon).await else {
        panic!()
    };
    assert_eq!(reason, format!("the server belongs to another cluster, {CLUSTER_ID}"));

    // It has joined: whether the server is there does not matter any more.
    drop(agent);
    join::wait(&ours, soon).await.unwrap();
    fs::remove_file(&path).unwrap();
    let withdrawn = join::wait(&ours, soon).await;
    assert!(matches!(withdrawn, Err(JoinError::Ended(Failure::Withdrawn))), "{withdrawn:?}");
    join::wait(&ours, Patience { if_configured: true, ..soon }).await.unwrap();
}
