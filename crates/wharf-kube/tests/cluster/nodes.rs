//! Nodes: what they are, their marks, cordons with an owner.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;
use wharf_kube::{
    CORDON_BEFORE, CORDON_OWNER, Cordoned, KubeError, NodeMeta, NodeWatch, Resources, Taint,
    Uncordoned,
};

use crate::{DEADLINE, world};

#[tokio::test]
async fn a_node_is_observed_with_what_its_pods_ask_for() {
    let world = world();
    world.node("observed");
    world.pod("observed", "observed-a");
    world.pod("observed", "observed-b");
    let finished = world.pod("observed", "observed-finished");
    let status = r#"{"status":{"phase":"Succeeded"}}"#;
    world.kubectl(&["patch", "pod", &finished.name, "--subresource=status", "-p", status], "");
    let status = json!({ "status": {
        "capacity": { "cpu": "4", "memory": "8Gi", "pods": "110" },
        "allocatable": { "cpu": "3800m", "memory": "7Gi", "pods": "110" },
        "conditions": [{ "type": "Ready", "status": "False", "reason": "Asleep",
            "message": "it sleeps" }],
        "addresses": [{ "type": "InternalIP", "address": "10.0.0.7" }],
        "nodeInfo": {
            "architecture": "amd64", "bootID": "boot-1", "containerRuntimeVersion": "containerd://2",
            "kernelVersion": "6", "kubeProxyVersion": "", "kubeletVersion": "v1.36.3",
            "machineID": "m", "operatingSystem": "linux", "osImage": "Debian", "systemUUID": "s",
        },
    } })
    .to_string();
    world.kubectl(&["patch", "node", "observed", "--subresource=status", "-p", &status], "");

    let nodes = world.cluster().observe_nodes().await.unwrap();
    let node = nodes.iter().find(|node| node.name == "observed").unwrap();
    assert!(!node.ready);
    assert_eq!(node.reason, "it sleeps");
    assert_eq!(node.internal_ip.as_deref(), Some("10.0.0.7"));
    assert_eq!((node.os.as_str(), node.boot_id.as_str()), ("linux", "boot-1"));
    assert_eq!(node.kubelet_version, "v1.36.3");
    assert_eq!(node.capacity, Resources { cpu_millis: 4000, memory_bytes: 8 << 30, pods: 110 });
    assert_eq!(node.allocatable.cpu_millis, 3800);
    assert_eq!(node.requests, Resources { cpu_millis: 200, memory_bytes: 128 << 20, pods: 2 });
    assert_eq!(node.usage, None);
}

#[tokio::test]
async fn the_marks_of_a_node_are_set_once_and_foreign_ones_stay() {
    let world = world();
    world.node("marked");
    world.kubectl(&["label", "node", "marked", "rack=7", "old=1"], "");
    world.kubectl(&["taint", "node", "marked", "theirs=1:NoExecute"], "");
    let role = "node-role.kubernetes.io/control-plane".to_owned();
    let wanted = NodeMeta {
        labels: BTreeMap::from([(role.clone(), "true".to_owned())]),
        remove_labels: vec!["old".to_owned()],
        taints: vec![Taint {
            key: role.clone(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
        }],
        remove_taints: vec![],
        pod_cidr: Some("10.42.3.0/24".to_owned()),
    };
    let cluster = world.cluster();
    assert!(cluster.ensure_node_meta("marked", &wanted).await.unwrap());
    assert!(!cluster.ensure_node_meta("marked", &wanted).await.unwrap());

    let node = world.read(&["node", "marked"]);
    let labels = &node["metadata"]["labels"];
    assert_eq!((&labels[&role], &labels["rack"]), (&json!("true"), &json!("7")));
    assert_eq!(labels.get("old"), None);
    let taints: Vec<_> =
        node["spec"]["taints"].as_array().unwrap().iter().map(|taint| &taint["key"]).collect();
    assert!(taints.contains(&&json!("theirs")) && taints.contains(&&json!(role)), "{taints:?}");
    assert_eq!(node["spec"]["podCIDRs"], json!(["10.42.3.0/24"]));

    let worker = NodeMeta { remove_taints: vec![role], ..NodeMeta::default() };
    assert!(cluster.ensure_node_meta("marked", &worker).await.unwrap());
    assert!(!cluster.ensure_node_meta("marked", &worker).await.unwrap());

    let moved = NodeMeta { pod_cidr: Some("10.42.4.0/24".to_owned()), ..NodeMeta::default() };
    let error = cluster.ensure_node_meta("marked", &moved).await.unwrap_err();
    assert!(matches!(error, KubeError::PodCidr { .. }), "{error}");
}

#[tokio::test]
async fn nodes_that_do_not_become_ready_are_named() {
    let world = world();
    world.node("waits");
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    let cluster = world.cluster();
    let names = ["waits".to_owned(), "never-joined".to_owned()];
    let soon = Duration::from_millis(300);
    let error = cluster.wait_nodes_ready(&names, soon).await.unwrap_err().to_string();
    assert!(error.contains("node waits: its kubelet has not reported yet"), "{error}");
    assert!(error.contains("node never-joined has not joined"), "{error}");

    let ready = ready.to_string();
    world.kubectl(&["patch", "node", "waits", "--subresource=status", "-p", &ready], "");
    cluster.wait_nodes_ready(&names[..1], Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn a_node_is_deleted_once_and_a_second_time_nothing_is_there() {
    let world = world();
    world.node("doomed");
    let cluster = world.cluster();
    assert!(cluster.delete_node("doomed").await.unwrap());
    assert!(!cluster.delete_node("doomed").await.unwrap());
    assert_eq!(world.kubectl(&["get", "node", "doomed", "--ignore-not-found"], ""), "");
}

#[tokio::test]
async fn a_node_with_the_label_or_a_volume_is_a_storage_node() {
    let world = world();
    let cluster = world.cluster();
    world.node("empty");
    world.node("labelled");
    world.kubectl(&["label", "node", "labelled", "node-role.kubernetes.io/storage=true"], "");
    world.node("has-volume");
    let hostname = json!({
        "key": "kubernetes.io/hostname", "operator": "In", "values": ["has-volume"],
    });
    world.create(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "local-1" },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "local": { "path": "/data" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [
                { "matchExpressions": [hostname] },
            ] } },
        },
    }));
    assert_eq!(cluster.storage_on_node("empty").await.unwrap(), None);
    assert!(cluster.is_storage_node("labelled").await.unwrap());
    let why = cluster.storage_on_node("has-volume").await.unwrap().unwrap();
    assert!(why.contains("local-1"), "{why}");
}

#[tokio::test]
async fn a_cordon_names_its_owner_on_the_node_and_leaves_nothing_behind() {
    let world = world();
    world.node("cordoned");
    let cluster = world.cluster();
    for _ in 0..2 {
        assert_eq!(cluster.cordon("cordoned", "update demo").await.unwrap(), Cordoned::Ours);
        let node = world.read(&["node", "cordoned"]);
        assert_eq!(node["spec"]["unschedulable"], json!(true));
        assert_eq!(node["metadata"]["annotations"][CORDON_OWNER], "update demo");
        assert_eq!(node["metadata"]["annotations"][CORDON_BEFORE], "false");
    }
    let other = cluster.cordon("cordoned", "repair 1").await.unwrap();
    assert_eq!(other, Cordoned::OwnedBy("update demo".to_owned()));
    assert_eq!(cluster.uncordon("cordoned", "repair 1").await.unwrap(), Uncordoned::NotOurs);
    assert!(world.is_unschedulable("cordoned"));

    let end = cluster.uncordon("cordoned", "update demo").await.unwrap();
    assert_eq!(end, Uncordoned::Schedulable);
    let node = world.read(&["node", "cordoned"]);
    assert!(!world.is_unschedulable("cordoned"));
    assert_eq!(node["metadata"]["annotations"].get(CORDON_OWNER), None);
    assert_eq!(node["metadata"]["annotations"].get(CORDON_BEFORE), None);
    let again = cluster.uncordon("cordoned", "update demo").await.unwrap();
    assert_eq!(again, Uncordoned::NotOurs);
}

#[tokio::test]
async fn a_persons_cordon_survives_ours() {
    let world = world();
    world.node("by-hand");
    world.kubectl(&["cordon", "by-hand"], "");
    let cluster = world.cluster();
    assert_eq!(cluster.cordon("by-hand", "update demo").await.unwrap(), Cordoned::Ours);
    let end = cluster.uncordon("by-hand", "update demo").await.unwrap();
    assert_eq!(end, Uncordoned::StillCordoned);
    assert!(world.is_unschedulable("by-hand"));
    let node = world.read(&["node", "by-hand"]);
    assert_eq!(node["metadata"].get("annotations").and_then(|all| all.get(CORDON_OWNER)), None);
}

#[tokio::test]
async fn an_agent_is_told_of_every_change_of_its_own_node_and_of_no_other() {
    let world = world();
    world.node("own");
    world.node("own-neighbour");
    let cluster = world.cluster();
    let mut watch = cluster.watch_node("own");
    let next = async |watch: &mut NodeWatch| {
        tokio::time::timeout(DEADLINE, watch.next()).await.unwrap().unwrap()
    };
    let first = next(&mut watch).await.unwrap();
    assert_eq!((first.facts.name.as_str(), first.facts.unschedulable), ("own", false));
    assert_eq!(first.boot_id, "", "no kubelet has spoken");
    world.kubectl(&["cordon", "own-neighbour"], "");
    cluster.cordon("own", "agent").await.unwrap();
    let cordoned = next(&mut watch).await.unwrap();
    assert_eq!(cordoned.facts.cordon.as_ref().unwrap().owner, "agent");
    assert_eq!(cluster.look_at_node("own").await.unwrap().unwrap(), cordoned);
    world.kubectl(&["delete", "node", "own"], "");
    assert_eq!(next(&mut watch).await, None);
    assert_eq!(cluster.look_at_node("own").await.unwrap(), None);
}
