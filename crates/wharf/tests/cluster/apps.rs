//! An application that cannot run, what is said of it, and the change that mends it.

use serde_json::{Value, json};
use wharf_testbed::wait_for;

use crate::bed::{Bed, DEADLINE};

pub const NAMESPACE: &str = "eve-kube-app";
const APP: &str = "44444444-4e5f-4071-8293-a4b5c6d7e8f9";
/// Its name in the cluster.
const NAME: &str = "lost-44444";
/// Nobody listens there, so that it is never pulled.
const NOWHERE: &str = "127.0.0.1:1/lost:1";
const COLUMNS: [&str; 8] =
    ["NODE", "ITEM", "NAME", "THERE", "ACTIVE", "STATE", "CONTENT", "ERRORS"];
const STUCK: &str = "stuck at zedmanager-AppInstanceStatus-44444: container main: ImagePullBackOff";

/// Every node says what keeps the application from running. A change of it is carried into the cluster
/// and to the nodes: what it does not name any more is deleted, what it names otherwise is changed.
pub fn a_stuck_application_is_mended_by_a_change(bed: &Bed, cluster: &str, node: &str) {
    create(bed, cluster, &wish(node, node, NOWHERE, "before"));
    let table = wait_for_verdicts(bed, cluster, STUCK);
    assert_table(bed, cluster, node, &table);
    assert!(object(bed, cluster, "configmap/lost-44444-dropped").is_ok());
    wait_for_files(bed, cluster, "1", node, 65536);

    let other = bed.nodes(cluster)[0]["name"].as_str().unwrap().to_owned();
    assert_ne!(other, node);
    let image = bed.image("busybox");
    let mut better = wish(node, &other, &image, "after");
    better["config"]["FixedResources"]["Memory"] = json!(131_072);
    let documents = better["manifest"].as_str().unwrap().split("\n---\n");
    let kept: Vec<&str> = documents.filter(|document| !document.contains("dropped")).collect();
    better["manifest"] = json!(kept.join("\n---\n"));
    change(bed, cluster, "lost", &better);
    let dropped = object(bed, cluster, "configmap/lost-44444-dropped").unwrap_err();
    assert!(dropped.contains("NotFound"), "{dropped}");
    let changed = object(bed, cluster, "configmap/lost-44444-changed").unwrap();
    assert_eq!(changed["data"], json!({"word": "after"}));
    let deployment = object(bed, cluster, &format!("deployment/{NAME}")).unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], image, "{deployment}");
    wait_for_files(bed, cluster, "2", &other, 131_072);
    wait_for_verdicts(bed, cluster, "nothing keeps it from running");

    remove(bed, cluster, "lost");
    let gone = object(bed, cluster, "configmap/lost-44444-changed").unwrap_err();
    assert!(gone.contains("NotFound"), "{gone}");
}

fn wish(node: &str, designated: &str, image: &str, word: &str) -> Value {
    let map = |name: &str, word: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("{{{{name}}}}-{name}")}, "data": {"word": word},
        })
    };
    let deployment = json!({
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
    let objects = [map("dropped", "same"), map("changed", word), deployment];
    json!({
        "name": "lost", "designatedNode": designated,
        "manifest": objects.map(|object| object.to_string()).join("\n---\n"),
        "config": {
            "UUIDandVersion": {"UUID": APP}, "Activate": true,
            "FixedResources": {"VirtualizationMode": 4, "Memory": 65536},
        },
    })
}

/// Waits until the table ends with this word on every node, and gives the table.
fn wait_for_verdicts(bed: &Bed, cluster: &str, word: &str) -> String {
    let nodes = bed.nodes(cluster);
    let names = nodes.iter().map(|node| node["name"].as_str().unwrap());
    let mut wanted: Vec<String> = names.map(|name| format!("{name}: {word}")).collect();
    wanted.sort();
    let mut last = String::new();
    let came = wait_for("what every node says of it", DEADLINE, || {
        last = bed.world.local(&["app", "trace", cluster, "lost"]).ok().stdout;
        let (_, verdicts) = last.split_once("\n\n").unwrap();
        let mut told: Vec<&str> = verdicts.lines().filter(|line| !line.is_empty()).collect();
        told.sort_unstable();
        // While kubelet tries once more, one file of a node may be ahead of the other.
        Ok((told == wanted && !last.contains("ErrImagePull")).then_some(()))
    });
    came.unwrap_or_else(|error| panic!("{error}: {last}"));
    last
}

/// The lines of each node, cell by cell.
fn assert_table(bed: &Bed, cluster: &str, node: &str, table: &str) {
    let lines: Vec<Vec<String>> = {
        let mut lines = table.lines().take_while(|line| !line.is_empty());
        let head = lines.next().unwrap();
        let starts = COLUMNS.map(|column| head.find(column).unwrap());
        assert_eq!(head.split_whitespace().collect::<Vec<_>>(), COLUMNS);
        lines.map(|line| cells(&starts, line)).collect()
    };
    let pod = lines.iter().find(|cells| cells[1] == "domainmgr-DomainStatus-44444").unwrap();
    let pod = pod[2].clone();
    assert!(pod.starts_with("lost-44444-"), "{table}");
    let (here, why) = (format!("node {node}"), "container main: ImagePullBackOff");
    let empty = "0 volumes, 0 networks";
    let (nobody, project) =
        ("no agent on this node publishes it", format!("enterprise , project {cluster}"));
    for told in bed.nodes(cluster) {
        let told = told["name"].as_str().unwrap();
        let of_node: Vec<&[String]> =
            lines.iter().filter(|cells| cells[0] == told).map(|cells| &cells[1..]).collect();
        assert_eq!(of_node.len(), 13, "{table}");
        let scheduled = format!("scheduled on this node {}, running false", told == node);
        let expected = [
            ["zedagent-EdgeNodeInfo", told, "yes", "none", "", &project, ""],
            ["zedagent-AppInstanceConfig-44444", "lost", "yes", "enabled", "", empty, ""],
            ["zedkube-ENClusterAppStatus-44444", NAME, "yes", "none", "", &scheduled, ""],
            ["zedrouter-AppNetworkStatus-44444", "", "no", "none", "", "", nobody],
            ["zedmanager-AppInstanceStatus-44444", &pod, "yes", "disabled", "Pending", "", why],
            ["domainmgr-DomainStatus-44444", &pod, "yes", "disabled", "Pending", &here, why],
        ];
        for row in expected {
            let row = row.map(str::to_owned);
            assert!(of_node.contains(&row.as_slice()), "{told}: {row:?}\n{table}");
        }
    }
}

/// What stands below each column.
fn cells(starts: &[usize], line: &str) -> Vec<String> {
    let ends = starts.iter().skip(1).copied().chain([usize::MAX]);
    let cell = |(start, end): (&usize, usize)| {
        let letters = line.chars().skip(*start).take(end - start);
        letters.collect::<String>().trim().to_owned()
    };
    starts.iter().zip(ends).map(cell).collect()
}

/// Waits until the files on all nodes are of this version, and say what it says.
fn wait_for_files(bed: &Bed, cluster: &str, version: &str, designated: &str, memory: u64) {
    let file = format!("/run/zedagent/AppInstanceConfig/{APP}.json");
    for node in bed.nodes(cluster) {
        let node = node["name"].as_str().unwrap();
        let told = wait_for("the node to be told", DEADLINE, || {
            let text = bed.host(node).run(&["cat", &file]).unwrap_or_default();
            let told: Value = serde_json::from_str(&text).unwrap_or_default();
            Ok((told["UUIDandVersion"]["Version"] == version).then_some(told))
        })
        .unwrap();
        assert_eq!(told["IsDesignatedNodeID"], node == designated, "{node}: {told}");
        assert_eq!(told["FixedResources"]["Memory"], memory, "{node}: {told}");
    }
}

/// An object of the applications' namespace, or why there is none.
pub fn object(bed: &Bed, cluster: &str, object: &str) -> Result<Value, String> {
    let text = bed.kubectl(cluster, &["get", "-n", NAMESPACE, object, "-o", "json"])?;
    Ok(serde_json::from_str(&text).unwrap())
}

pub fn create(bed: &Bed, cluster: &str, wish: &Value) {
    let dir = bed.world.data_dir().display().to_string();
    let args = ["app", "create", cluster, "-f", "-", "--data-dir", &dir];
    bed.world.run_with_input(&args, &wish.to_string()).ok();
    wait_until_applied(bed, cluster, wish["name"].as_str().unwrap());
}

/// Puts another wish in the place of an application's.
pub fn change(bed: &Bed, cluster: &str, name: &str, wish: &Value) {
    let dir = bed.world.data_dir().display().to_string();
    let args = ["app", "update", cluster, name, "-f", "-", "--data-dir", &dir];
    bed.world.run_with_input(&args, &wish.to_string()).ok();
    wait_until_applied(bed, cluster, name);
}

fn wait_until_applied(bed: &Bed, cluster: &str, name: &str) {
    let mut last = Value::Null;
    let applied = wait_for("the application to be applied", DEADLINE, || {
        last = find(bed, cluster, name);
        Ok((last["status"] == "Applied").then_some(()))
    });
    applied.unwrap_or_else(|error| panic!("{error}: {last}"));
}

/// Deletes an application, and waits until it is gone with its objects.
pub fn remove(bed: &Bed, cluster: &str, name: &str) {
    bed.world.local(&["app", "delete", cluster, name]).ok();
    wait_for("the application to go", DEADLINE, || {
        Ok(find(bed, cluster, name).is_null().then_some(()))
    })
    .unwrap();
}

fn find(bed: &Bed, cluster: &str, name: &str) -> Value {
    let list = bed.world.local(&["app", "list", cluster, "-o", "json"]).json();
    let found = list.as_array().unwrap().iter().find(|app| app["name"] == name);
    found.cloned().unwrap_or_default()
}
