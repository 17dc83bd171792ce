//! What the agents of a real cluster do for the server: links, applications, operations on nodes.

use serde_json::{Value, json};
use wharf_testbed::wait_for;

use crate::{
    bed::{Bed, DEADLINE},
    cordoned, nodes_ready,
};

const APP: &str = "0b1a2c3d-4e5f-4071-8293-a4b5c6d7e8f9";

/// The cluster has three or more nodes, all linked. `node` is a worker.
pub fn serve(bed: &Bed, cluster: &str, node: &str) {
    applications(bed, cluster, node);
    reboot(bed, cluster, node);
}

/// An application is applied, told to every node, traced, and taken away.
fn applications(bed: &Bed, cluster: &str, node: &str) {
    let image = bed.image("busybox");
    let manifest = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "{{name}}"},
        "spec": {
            "selector": {"matchLabels": {"app": "{{name}}"}},
            "template": {
                "metadata": {"labels": {"app": "{{name}}"}},
                "spec": {
                    "nodeName": node, "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": image, "command": ["sleep", "3600"]}],
                },
            },
        },
    });
    let wish = json!({
        "name": "web", "designatedNode": node, "manifest": manifest.to_string(),
        "config": {"UUIDandVersion": {"UUID": APP}, "Activate": true,
            "FixedResources": {"VirtualizationMode": 4}},
    });
    let dir = bed.world.data_dir().display().to_string();
    let args = ["app", "create", cluster, "-f", "-", "--data-dir", &dir];
    let made = bed.world.run_with_input(&args, &wish.to_string()).ok().stdout;
    assert!(made.contains("web-0b1a2"), "{made}");
    let file = format!("/run/zedagent/AppInstanceConfig/{APP}.json");
    wait_for("the node to be told of it", DEADLINE, || {
        Ok(bed.host(node).run(&["cat", &file]).ok())
    })
    .unwrap();
    let pods = ["get", "pods", "-n", "eve-kube-app", "-o", "json"];
    wait_for("its pod to run", DEADLINE, || {
        let pods: Value = serde_json::from_str(&bed.kubectl(cluster, &pods).unwrap()).unwrap();
        let pods = pods["items"].as_array().unwrap();
        Ok(pods.iter().any(|pod| pod["status"]["phase"] == "Running").then_some(()))
    })
    .unwrap();
    let trace = bed.world.local(&["app", "trace", cluster, "web", "-o", "json"]).json();
    let told = trace["value"].as_array().unwrap();
    assert_eq!(told.len(), bed.nodes(cluster).len(), "every node answers: {trace}");
    assert!(told.iter().all(|node| node.get("errors").is_none()), "{trace}");
    bed.world.local(&["app", "delete", cluster, "web"]).ok();
    wait_for("it to be gone", DEADLINE, || {
        let list = bed.world.local(&["app", "list", cluster, "-o", "json"]).json();
        Ok(list.as_array().unwrap().is_empty().then_some(()))
    })
    .unwrap();
    assert!(bed.host(node).run(&["cat", &file]).is_err(), "the node was told");
}

/// A reboot from the server: drained, done once, back in service.
fn reboot(bed: &Bed, cluster: &str, node: &str) {
    let before = bed.host(node).boot_id().unwrap();
    let ran = bed.world.local(&["node", "reboot", cluster, node, "--wait"]).ok();
    assert!(ran.stderr.contains("is done"), "{ran:?}");
    assert!(!ran.stderr.contains("nothing is deferred"), "{ran:?}");
    let after = bed.host(node).boot_id().unwrap();
    assert_ne!(before, after, "it was rebooted");
    let nodes = bed.nodes(cluster).len();
    wait_for("the node to be back in service", DEADLINE, || {
        let back = nodes_ready(bed, cluster) == nodes && cordoned(bed, cluster).is_empty();
        Ok(back.then_some(()))
    })
    .unwrap();
    bed.wait_for_links(cluster, nodes);
    assert_eq!(bed.host(node).boot_id().unwrap(), after, "and only once");
    let last = bed.operations(cluster).remove(0);
    assert_eq!((&last["kind"], &last["state"]), (&json!("reboot"), &json!("succeeded")), "{last}");
}
