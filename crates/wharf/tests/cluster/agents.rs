//! What the agents of a real cluster do for the server: links, applications, operations on nodes.

use serde_json::{Value, json};
use wharf_testbed::wait_for;

use crate::{
    bed::{Bed, DEADLINE},
    cordoned, nodes_ready,
};

const APP: &str = "0b1a2c3d-4e5f-4071-8293-a4b5c6d7e8f9";
const VOLUME: &str = "11111111-4e5f-4071-8293-a4b5c6d7e8f9";
const CONTENT: &str = "22222222-4e5f-4071-8293-a4b5c6d7e8f9";
/// Where the application's volume lies on its node.
const FOLDER: &str = "/var/lib/wharf-test-volume";

/// The cluster has three or more nodes, all linked. `node` is a worker.
pub fn serve(bed: &Bed, cluster: &str, node: &str) {
    applications(bed, cluster, node);
    reboot(bed, cluster, node);
}

/// An application is applied, told to every node, traced through everything that agents publish, and
/// taken away.
fn applications(bed: &Bed, cluster: &str, node: &str) {
    bed.host(node).run(&["mkdir", "-p", FOLDER]).unwrap();
    bed.apply(cluster, &[volume_on(node)]);
    let dir = bed.world.data_dir().display().to_string();
    let args = ["app", "create", cluster, "-f", "-", "--data-dir", &dir];
    let made = bed.world.run_with_input(&args, &wish(bed, node).to_string()).ok().stdout;
    assert!(made.contains("web-0b1a2"), "{made}");
    let told = format!("/run/zedagent/AppInstanceConfig/{APP}.json");
    wait_for("the node to be told of it", DEADLINE, || {
        Ok(bed.host(node).run(&["cat", &told]).ok())
    })
    .unwrap();
    traced(bed, cluster, node);

    bed.world.local(&["app", "delete", cluster, "web"]).ok();
    wait_for("it to be gone", DEADLINE, || {
        let list = bed.world.local(&["app", "list", cluster, "-o", "json"]).json();
        Ok(list.as_array().unwrap().is_empty().then_some(()))
    })
    .unwrap();
    assert!(bed.host(node).run(&["cat", &told]).is_err(), "the node was told");
    wait_for("nothing to be said of it any more", DEADLINE, || {
        let left = bed.host(node).run(&["find", "/run", "-name", &format!("*{APP}*")]).unwrap();
        Ok(left.trim().is_empty().then_some(()))
    })
    .unwrap();
    bed.kubectl(cluster, &["delete", "pv", "wharf-test"]).unwrap();
    bed.host(node).run(&["rm", "-r", FOLDER]).unwrap();
}

/// A volume that is a folder of the node. Of such a one, other than of a mere path, kubelet knows how
/// full it is.
fn volume_on(node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "wharf-test"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain", "local": {"path": FOLDER},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]},
            ]}]}},
        },
    })
}

fn wish(bed: &Bed, node: &str) -> Value {
    let image = bed.image("busybox");
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data-{{name}}", "labels": {"wharf.dev/volume": VOLUME}},
        "spec": {
            "storageClassName": "", "volumeName": "wharf-test", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "{{name}}"},
        "spec": {
            "selector": {"matchLabels": {"app": "{{name}}"}},
            "template": {
                "metadata": {"labels": {"app": "{{name}}"}},
                "spec": {
                    "nodeName": node, "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": "main", "image": image, "command": ["sleep", "3600"],
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }],
                    "volumes": [
                        {"name": "data", "persistentVolumeClaim": {"claimName": "data-{{name}}"}},
                    ],
                },
            },
        },
    });
    json!({
        "name": "web", "designatedNode": node, "manifest": format!("{claim}\n---\n{deployment}"),
        "config": {
            "UUIDandVersion": {"UUID": APP}, "Activate": true,
            "FixedResources": {"VirtualizationMode": 4, "Memory": 65536},
            "VolumeRefConfigList": [{"VolumeID": VOLUME, "GenerationCounter": 1}],
        },
        "volumes": [{
            "VolumeID": VOLUME, "ContentID": CONTENT, "DisplayName": "data", "GenerationCounter": 1,
        }],
    })
}

/// Every node answers, and says of everything that is published here how the application is.
fn traced(bed: &Bed, cluster: &str, node: &str) {
    let trace = || bed.world.local(&["app", "trace", cluster, "web", "-o", "json"]).json();
    let of_node = |trace: &Value| -> Value {
        let mut nodes = trace["value"].as_array().unwrap().iter();
        nodes.find(|one| one["hostname"] == node).cloned().unwrap_or_default()
    };
    // Kubelet looks at volumes once a minute.
    let mut last = Value::Null;
    let whole = wait_for("everything to be published", DEADLINE, || {
        last = trace();
        let seen = of_node(&last);
        let disk = item(&seen, "volumemgr-AppDiskMetric-11111");
        let metric = item(&seen, "domainmgr-DomainMetric-0b1a2");
        Ok((disk["Exist"] == true && metric["Exist"] == true).then(|| last.clone()))
    });
    let trace = whole.unwrap_or_else(|error| panic!("{error}: {last:#}"));
    let told = trace["value"].as_array().unwrap();
    assert_eq!(told.len(), bed.nodes(cluster).len(), "every node answers: {trace}");
    assert!(told.iter().all(|node| node.get("errors").is_none()), "{trace}");
    assert!(told.iter().all(|node| node.get("stuck").is_none()), "{trace}");

    let here = of_node(&trace);
    let expected = [
        ("zedkube-KubeLeaseInfo", "Activated", "enabled"),
        (
            "zedkube-ENClusterAppStatus-0b1a2",
            "Content",
            "scheduled on this node true, running true",
        ),
        ("zedkube-ENClusterAppStatus-0b1a2", "DNidNode", "enabled"),
        ("zedagent-VolumeConfig-11111", "Name", "data"),
        ("volumemgr-VolumeStatus-11111", "State", "CreatedVolume"),
        (
            "volumemgr-VolumeStatus-11111",
            "Content",
            "replicated false, 1073741824 of 1073741824 bytes",
        ),
        ("zedmanager-AppInstanceStatus-0b1a2", "State", "Running"),
        ("zedmanager-AppInstanceStatus-0b1a2", "Activated", "enabled"),
        ("domainmgr-DomainStatus-0b1a2", "State", "Running"),
        ("domainmgr-DomainStatus-0b1a2", "Content", &format!("node {node}")),
        ("volumemgr-AppDiskMetric-11111", "Name", "data-web-0b1a2"),
        // Nobody here makes networks, fetches images or hands domains to another agent.
        ("zedmanager-AppNetworkConfig-0b1a2", "Errors", NO_PUBLISHER),
        ("zedrouter-AppNetworkStatus-0b1a2", "Errors", NO_PUBLISHER),
        ("volumemgr-ContentTreeStatus-22222", "Errors", NO_PUBLISHER),
        ("zedmanager-DomainConfig-0b1a2", "Errors", NO_PUBLISHER),
    ];
    for (key, field, value) in expected {
        assert_eq!(item(&here, key)[field], value, "{key}: {here:#}");
    }
    let memory = item(&here, "domainmgr-DomainMetric-0b1a2")["Content"].as_str().unwrap();
    assert!(memory.contains(" of 64 MB used, last heard 20"), "{memory}");
    let disk = item(&here, "volumemgr-AppDiskMetric-11111")["Content"].as_str().unwrap();
    assert!(disk.starts_with("PVC, ") && !disk.contains(" of 0 bytes"), "{disk}");

    for other in told.iter().filter(|one| one["hostname"] != node) {
        let seen = item(other, "zedkube-ENClusterAppStatus-0b1a2");
        assert_eq!(seen["Content"], "scheduled on this node false, running true", "{other:#}");
        let domain = item(other, "domainmgr-DomainStatus-0b1a2");
        assert_eq!(
            (&domain["Content"], &domain["Activated"]),
            (&json!(format!("node {node}")), &json!("disabled"))
        );
        let metric = item(other, "domainmgr-DomainMetric-0b1a2");
        assert_eq!(metric["Errors"], "it is not published on this node", "{other:#}");
    }
}

const NO_PUBLISHER: &str = "no agent on this node publishes it";

fn item<'a>(trace: &'a Value, key: &str) -> &'a Value {
    let items = trace["appInfo"].as_array().into_iter().flatten();
    let mut named = items.filter(|item| item["key"] == key);
    named.next().map_or(&Value::Null, |item| &item["value"])
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
