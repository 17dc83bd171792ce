//! Nodes that are drained and machines that are repaired, with real kubelets.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use serde_json::{Value, json};
use wharf_testbed::wait_for;

use crate::{
    CONTROL, WORKER,
    bed::{Bed, DEADLINE},
    cordoned, nodes_ready,
};

const NAME: &str = "upkeep";
const NODES: [(&str, &[&str]); 3] = [("node1", CONTROL), ("node2", WORKER), ("node3", WORKER)];

#[test]
fn nodes_are_drained_and_machines_are_repaired_without_breaking_what_runs_on_them() {
    let mut bed = Bed::start(NAME, 3);
    bed.send(&["create"], &bed.wish(NAME, &NODES)).ok();
    fill_node3(&bed);

    a_job_keeps_the_node_as_it_is(&bed);
    a_drain_moves_what_may_move(&bed);
    what_blocks_is_named_and_a_persons_cordon_survives(&bed);
    a_machine_is_power_cycled_and_comes_back(&bed);
    a_command_that_a_crash_cut_off_is_not_repeated(&mut bed);
    a_dead_machine_is_fenced_so_that_its_pods_start_elsewhere(&bed);
}

/// All that a drain may meet, begun on node3, with room on node2.
fn fill_node3(bed: &Bed) {
    bed.host("node3")
        .run(&[
            "sh",
            "-c",
            "mkdir -p /etc/static-pods && echo 'staticPodPath: /etc/static-pods' \
             >>/etc/wharf/kubelet/config.yaml && systemctl restart wharf-kubelet",
        ])
        .unwrap();
    let still = pod_spec(bed, "still");
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "still", "namespace": "default"}, "spec": still,
    });
    let file = bed.host("node3").root().join("etc/static-pods/still.json");
    fs::write(file, manifest.to_string()).unwrap();

    bed.kubectl(NAME, &["cordon", "node2"]).unwrap();
    let set = |kind: &str, name: &str, replicas: u32| {
        let labels = json!({"app": name});
        json!({
            "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "serviceName": name,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod_spec(bed, name)},
            },
        })
    };
    let mut web = set("Deployment", "web", 3);
    web["spec"].as_object_mut().unwrap().remove("serviceName");
    let mut slow = set("Deployment", "slow", 1);
    slow["spec"].as_object_mut().unwrap().remove("serviceName");
    let spec = &mut slow["spec"]["template"]["spec"];
    spec["terminationGracePeriodSeconds"] = json!(60);
    spec["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 8}}});
    let mut each = set("DaemonSet", "each", 1);
    for field in ["replicas", "serviceName"] {
        each["spec"].as_object_mut().unwrap().remove(field);
    }
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
    });
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "work", "image": bed.image("pause")}],
        }}},
    });
    bed.apply(NAME, &[web, slow, each, set("StatefulSet", "db", 1), budget, job]);
    wait_for("all to run on node3", DEADLINE, || {
        let here = pods_on(bed, "node3");
        let count = |app: &str| here.iter().filter(|pod| pod.name.starts_with(app)).count();
        let counts = ["web", "slow", "db-0", "each", "work", "still"].map(count);
        Ok((counts == [3, 1, 1, 1, 1, 1] && here.iter().all(|pod| pod.ready)).then_some(()))
    })
    .unwrap();
    bed.kubectl(NAME, &["uncordon", "node2"]).unwrap();
}

fn pod_spec(bed: &Bed, name: &str) -> Value {
    json!({
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": name, "image": bed.image("pause")}],
    })
}

/// A Job's pod is there: it is named, and nothing is moved.
fn a_job_keeps_the_node_as_it_is(bed: &Bed) {
    let before = pods_on(bed, "node3");
    let plan = bed.world.local(&["node", "drain", NAME, "node3", "--plan"]).ok();
    assert!(plan.stdout.contains("work-"), "{plan:?}");
    let refused = bed.world.local(&["node", "drain", NAME, "node3"]);
    assert_ne!(refused.exit, 0, "{refused:?}");
    assert!(refused.stderr.contains("default/work-"), "{refused:?}");
    assert_eq!(pods_on(bed, "node3"), before);
    assert_eq!(cordoned(bed, NAME), [""; 0]);
    bed.kubectl(NAME, &["delete", "job", "work"]).unwrap();
    wait_for("the Job's pod to go", DEADLINE, || {
        Ok((!pods_on(bed, "node3").iter().any(|pod| pod.name.starts_with("work"))).then_some(()))
    })
    .unwrap();
}

/// Everything leaves that may, within its budget; what belongs to the node stays.
fn a_drain_moves_what_may_move(bed: &Bed) {
    // Its containers end, and with that it is no business of the node any more.
    let kept = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "kept", "finalizers": ["example.com/kept"]},
        "spec": {"nodeName": "node3", "terminationGracePeriodSeconds": 0,
                 "containers": pod_spec(bed, "kept")["containers"]},
    });
    bed.apply(NAME, &[kept]);
    bed.world.local(&["node", "drain", NAME, "node3", "--no-wait"]).ok();
    let fewest = wait_for_the_rest(bed, |left| left == ["kept"]);
    assert!(fewest >= 2, "the budget was broken: {fewest} were ready");
    bed.world.local(&["node", "drain", NAME, "node3"]).ok();

    // The one of the same name that runs elsewhere now is not this drain's business.
    let moved = pod(bed, "db-0");
    assert_eq!((moved.node.as_str(), moved.terminating), ("node2", false));
    let release = ["patch", "pod", "kept", "-p", r#"{"metadata":{"finalizers":null}}"#];
    bed.kubectl(NAME, &release).unwrap();
    let mut names: Vec<_> = pods_on(bed, "node3").into_iter().map(|pod| pod.name).collect();
    names.retain(|name| !name.starts_with("each-") && name != "kept");
    assert_eq!(names, ["still-node3"]);
    // It is the cordon of the person who asked for the drain: no mark of ours is on it.
    assert_eq!(cordoned(bed, NAME), ["node3"]);
    assert!(!is_marked(bed));
    bed.world.local(&["node", "uncordon", NAME, "node3"]).ok();
    assert_eq!(cordoned(bed, NAME), [""; 0]);
}

fn is_marked(bed: &Bed) -> bool {
    let node = bed.kubectl(NAME, &["get", "node", "node3", "-o", "json"]).unwrap();
    node.contains("wharf.dev/cordoned-by")
}

/// Waits until only these pods must still leave node3; the fewest pods of `web` that were ready at
/// any look.
fn wait_for_the_rest(bed: &Bed, enough: impl Fn(&[String]) -> bool) -> usize {
    let mut fewest = usize::MAX;
    wait_for("the others to leave node3", DEADLINE, || {
        let ready = all_pods(bed).iter().filter(|p| p.name.starts_with("web") && p.ready).count();
        fewest = fewest.min(ready);
        let mut left: Vec<_> = pods_on(bed, "node3").into_iter().map(|pod| pod.name).collect();
        left.retain(|name| !name.starts_with("each-") && name != "still-node3");
        Ok(enough(&left).then_some(()))
    })
    .unwrap();
    fewest
}

/// A budget that never lets go is named, and nothing is touched; a drain that is canceled leaves a
/// person's cordon.
fn what_blocks_is_named_and_a_persons_cordon_survives(bed: &Bed) {
    let held = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "held", "labels": {"app": "held"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "node3"},
            "terminationGracePeriodSeconds": 600,
            "containers": [{
                "name": "held", "image": bed.image("pause"),
                "lifecycle": {"preStop": {"sleep": {"seconds": 500}}},
            }],
        },
    });
    let never = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "never"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "held"}}},
    });
    bed.apply(NAME, &[held, never]);
    wait_for("the pod to run", DEADLINE, || Ok(pod(bed, "held").ready.then_some(()))).unwrap();
    bed.world.local(&["node", "drain", NAME, "node3", "--no-wait"]).ok();
    wait_for("the drain to name the budget", DEADLINE, || {
        let nodes = bed.world.local(&["node", "list", NAME, "-o", "json"]).json();
        let drain = &nodes[2]["drain"];
        let pod = &drain["pods"][0];
        let named = pod["reason"].as_str().is_some_and(|reason| reason.contains("budget never"));
        Ok((named && pod["name"] == "held" && drain["stage"] == "rehearsing").then_some(()))
    })
    .unwrap();
    assert_eq!(cordoned(bed, NAME), [""; 0], "a drain that cannot succeed disturbs nothing");

    bed.world.local(&["node", "cordon", NAME, "node3"]).ok();
    bed.kubectl(NAME, &["delete", "pdb", "never"]).unwrap();
    wait_for("the pod to be on its way", DEADLINE, || {
        Ok((pod(bed, "held").terminating && is_marked(bed)).then_some(()))
    })
    .unwrap();
    bed.world.local(&["node", "drain", NAME, "node3", "--cancel"]).ok();
    wait_for("the drain's mark to be gone", DEADLINE, || Ok((!is_marked(bed)).then_some(())))
        .unwrap();
    assert_eq!(cordoned(bed, NAME), ["node3"]);
    bed.kubectl(NAME, &["delete", "pod", "held", "--grace-period=0", "--force"]).unwrap();
    bed.world.local(&["node", "uncordon", NAME, "node3"]).ok();
}

/// The command asks for the machine's power as it would a management controller; the test is that
/// controller. Healthy is what has booted since and is Ready.
fn a_machine_is_power_cycled_and_comes_back(bed: &Bed) {
    configure_repairs(bed);
    let host = bed.host("node3");
    let booted = host.boot_id().unwrap();
    fs::write(bed.world.path("booted"), booted.trim()).unwrap();
    let address = host.address().to_string();
    bed.world.local(&["repair", "add", "power-cycle", "bed", &address]).ok();
    wait_for("the command", DEADLINE, || Ok(bed.world.path("cycle").exists().then_some(())))
        .unwrap();
    // The node was emptied before.
    assert_eq!(cordoned(bed, NAME), ["node3"]);
    let mut left: Vec<_> = pods_on(bed, "node3").into_iter().map(|pod| pod.name).collect();
    left.retain(|name| !name.starts_with("each-") && name != "still-node3");
    assert_eq!(left, [""; 0]);
    host.power_cut().unwrap();
    host.start().unwrap();
    fs::write(bed.world.path("cycled"), "").unwrap();
    bed.world.local(&["repair-queue", "wait", "--timeout-seconds", "600"]).ok();
    let entry = only_entry(bed);
    assert_eq!(entry["status"], "succeeded", "{entry}");
    assert_eq!((&entry["nodename"], &entry["address"]), (&json!("node3"), &json!(address)));
    assert_ne!(host.boot_id().unwrap(), booted);
    assert_eq!((nodes_ready(bed, NAME), cordoned(bed, NAME)), (3, vec![]));
    bed.world.local(&["repair", "delete-finished"]).ok();
    wait_for("the entry to go", DEADLINE, || Ok(entries(bed).is_empty().then_some(()))).unwrap();
}

/// The server dies while the command runs: it ran once, the machine is watched, the node comes back
/// into service.
fn a_command_that_a_crash_cut_off_is_not_repeated(bed: &mut Bed) {
    for name in ["cycle", "cycled", "runs"] {
        let _ = fs::remove_file(bed.world.path(name));
    }
    let address = bed.host("node3").address().to_string();
    fs::write(bed.world.path("booted"), bed.host("node3").boot_id().unwrap().trim()).unwrap();
    bed.world.local(&["repair", "add", "power-cycle", "bed", &address]).ok();
    wait_for("the command", DEADLINE, || Ok(bed.world.path("cycle").exists().then_some(())))
        .unwrap();
    bed.world.kill_server();
    bed.start_server();
    bed.host("node3").reboot().unwrap();
    bed.world.local(&["repair-queue", "wait", "--timeout-seconds", "600"]).ok();
    let entry = only_entry(bed);
    assert_eq!(entry["status"], "succeeded", "{entry}");
    assert_eq!(fs::read_to_string(bed.world.path("runs")).unwrap(), "run\n", "{entry}");
    wait_for("the node to be in service", DEADLINE, || {
        Ok(cordoned(bed, NAME).is_empty().then_some(()))
    })
    .unwrap();
}

/// A machine that is off cannot end its pods, so Kubernetes keeps them; once a command has made sure
/// that it is off, they are taken from it.
fn a_dead_machine_is_fenced_so_that_its_pods_start_elsewhere(bed: &Bed) {
    for name in ["cycle", "cycled"] {
        let _ = fs::remove_file(bed.world.path(name));
    }
    bed.world.local(&["repair", "delete-finished"]).ok();
    let host = bed.host("node3");
    fs::write(bed.world.path("booted"), host.boot_id().unwrap().trim()).unwrap();
    bed.kubectl(NAME, &["cordon", "node2"]).unwrap();
    bed.kubectl(NAME, &["delete", "pod", "db-0"]).unwrap();
    wait_for("the pod to run on node3", DEADLINE, || {
        let db = all_pods(bed).into_iter().find(|pod| pod.name == "db-0" && pod.ready);
        Ok(db.filter(|db| db.node == "node3"))
    })
    .unwrap();
    bed.kubectl(NAME, &["uncordon", "node2"]).unwrap();

    host.power_cut().unwrap();
    wait_for("the node to be silent", DEADLINE, || Ok((nodes_ready(bed, NAME) == 2).then_some(())))
        .unwrap();
    let address = host.address().to_string();
    bed.world.local(&["repair", "add", "revive", "bed", &address]).ok();
    wait_for("the taint", DEADLINE, || Ok(is_fenced(bed).then_some(()))).unwrap();
    // It runs elsewhere while its machine is still off.
    wait_for("the pod to run on node2", DEADLINE, || {
        let db = all_pods(bed).into_iter().find(|pod| pod.name == "db-0" && pod.ready);
        Ok(db.filter(|db| db.node == "node2"))
    })
    .unwrap();
    // The next command may switch the machine on: it has no taint any more then.
    wait_for("the command", DEADLINE, || Ok(bed.world.path("cycle").exists().then_some(())))
        .unwrap();
    assert!(!is_fenced(bed));
    host.start().unwrap();
    fs::write(bed.world.path("cycled"), "").unwrap();
    bed.world.local(&["repair-queue", "wait", "--timeout-seconds", "600"]).ok();
    let entry = only_entry(bed);
    assert_eq!(entry["status"], "succeeded", "{entry}");
    wait_for("the node to be in service", DEADLINE, || {
        Ok((cordoned(bed, NAME).is_empty() && !is_fenced(bed)).then_some(()))
    })
    .unwrap();
}

fn is_fenced(bed: &Bed) -> bool {
    let node = bed.kubectl(NAME, &["get", "node", "node3", "-o", "json"]).unwrap();
    node.contains("node.kubernetes.io/out-of-service")
}

fn configure_repairs(bed: &Bed) {
    let dir = bed.world.home.path().display().to_string();
    let kubectl = wharf_bundle::cache::find("kubectl").unwrap().display().to_string();
    let kubeconfig = bed.kubeconfig(NAME).display().to_string();
    let cycle = script(
        bed,
        "power-cycle",
        &format!(
            "echo run >>{dir}/runs; touch {dir}/cycle; while [ ! -e {dir}/cycled ]; do sleep 0.1; done"
        ),
    );
    let health = script(
        bed,
        "health",
        &format!(
            "set -- $({kubectl} --kubeconfig {kubeconfig} --request-timeout 5s get node node3 -o \
             'jsonpath={{.status.nodeInfo.bootID}} {{.status.conditions[?(@.type==\"Ready\")].status}}')\n\
             [ \"$2\" = True ] && [ \"$1\" != \"$(cat {dir}/booted)\" ] && echo true || echo false"
        ),
    );
    let operation = |name: &str, steps: Value| {
        json!({
            "operation": name,
            "health_check_command": [health],
            "health_check_interval_seconds": 1,
            "repair_steps": steps,
        })
    };
    let power_cycle = json!({
        "need_drain": true,
        "repair_command": [cycle],
        "command_timeout_seconds": 300,
        "watch_seconds": 600,
    });
    let make_sure_it_is_off = json!({
        "need_drain": true, "repair_command": ["true"], "fence_volumes": true, "watch_seconds": 30,
    });
    let mut power_on = power_cycle.clone();
    power_on["need_drain"] = json!(false);
    let config = json!({
        "unreachable_seconds": 1,
        "repair_procedures": [{
            "machine_types": ["bed"],
            "repair_operations": [
                operation("power-cycle", json!([power_cycle])),
                operation("revive", json!([make_sure_it_is_off, power_on])),
            ],
        }],
    });
    let file = bed.world.path("repair.json");
    fs::write(&file, config.to_string()).unwrap();
    let file = file.display().to_string();
    bed.world.local(&["repair-queue", "config", "set", "-f", &file]).ok();
}

fn script(bed: &Bed, name: &str, body: &str) -> PathBuf {
    let file = bed.world.path(name);
    fs::write(&file, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    file
}

fn entries(bed: &Bed) -> Vec<Value> {
    let list = bed.world.local(&["repair-queue", "list", "-o", "json"]).json();
    list.as_array().unwrap().clone()
}

fn only_entry(bed: &Bed) -> Value {
    let mut entries = entries(bed);
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pod {
    name: String,
    uid: String,
    node: String,
    ready: bool,
    terminating: bool,
}

/// The pods of the default namespace.
fn all_pods(bed: &Bed) -> Vec<Pod> {
    let list = bed.kubectl(NAME, &["get", "pods", "-o", "json"]).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pod = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Pod {
            name: text(&pod["metadata"]["name"]),
            uid: text(&pod["metadata"]["uid"]),
            node: text(&pod["spec"]["nodeName"]),
            ready: conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"),
            terminating: pod["metadata"]["deletionTimestamp"].is_string(),
        }
    };
    list["items"].as_array().unwrap().iter().map(pod).collect()
}

fn pods_on(bed: &Bed, node: &str) -> Vec<Pod> {
    all_pods(bed).into_iter().filter(|pod| pod.node == node).collect()
}

fn pod(bed: &Bed, name: &str) -> Pod {
    all_pods(bed).into_iter().find(|pod| pod.name == name).unwrap()
}
