//! What the agents of a real cluster do for the server: links, applications, operations on nodes.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use wharf_testbed::{Power, wait_for};

use crate::{
    apps,
    bed::{Bed, DEADLINE},
    cordoned, guests, nodes_ready, pids,
};

const APP: &str = "0b1a2c3d-4e5f-4071-8293-a4b5c6d7e8f9";
const VOLUME: &str = "11111111-4e5f-4071-8293-a4b5c6d7e8f9";
const CONTENT: &str = "22222222-4e5f-4071-8293-a4b5c6d7e8f9";
/// Where the application's volume lies on its node.
const FOLDER: &str = "/var/lib/wharf-test-volume";

/// The cluster has three or more nodes, all linked. `node` is a worker.
pub fn serve(bed: &Bed, cluster: &str, node: &str) {
    guests::define(bed, cluster);
    applications(bed, cluster, node);
    apps::a_stuck_application_is_mended_by_a_change(bed, cluster, node);
    guests::serve(bed, cluster, node);
    the_reporter_changes(bed, cluster);
    reboot(bed, cluster, node);
    shut_down(bed, cluster, node);
    update(bed, cluster, node);
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
    traced_past_silent_nodes(bed, cluster, node);

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

/// Two agents hang and one is gone. Whoever asks the others waits once for all of them, is told why
/// they say nothing, and gets what the rest know.
fn traced_past_silent_nodes(bed: &Bed, cluster: &str, node: &str) {
    // A peer has five seconds. If one were waited for after the other, it would be ten.
    const ONCE: Duration = Duration::from_secs(9);
    // The server leaves one that hangs after three seconds, and here it may come upon both.
    const BY_THE_SERVER: Duration = Duration::from_secs(20);
    let (hanging, gone, well) = (["node3", "node4"], "node2", ["node1", node]);
    hanging.iter().for_each(|node| signal_agent(bed, node, "STOP"));
    bed.host(gone).run(&["systemctl", "stop", "wharf-agent"]).unwrap();
    let begun = Instant::now();
    let at_the_node = trace_at(bed, node);
    let one = begun.elapsed();
    let at_the_server = bed.world.local(&["app", "trace", cluster, "web", "-o", "json"]);
    let other = begun.elapsed() - one;
    hanging.iter().for_each(|node| signal_agent(bed, node, "CONT"));
    bed.host(gone).run(&["systemctl", "start", "wharf-agent"]).unwrap();

    assert!(one < ONCE && other < BY_THE_SERVER, "{one:?}, {other:?}");
    for trace in [at_the_node, at_the_server.json()] {
        let told = trace["value"].as_array().unwrap();
        assert_eq!(told.len(), 5, "{trace:#}");
        let of = |name: &str| told.iter().find(|one| one["hostname"] == name).unwrap();
        for node in hanging {
            let silent = of(&bed.host(node).address().to_string());
            assert_eq!(silent["errors"], "it did not answer within 5s", "{silent}");
        }
        let silent = of(&bed.host(gone).address().to_string());
        let reason = "it cannot be reached: Connection refused (os error 111)";
        assert_eq!(silent["errors"], reason, "{silent}");
        for node in well {
            let state = &item(of(node), "zedmanager-AppInstanceStatus-0b1a2")["State"];
            assert_eq!(state, "Running", "{node}: {trace:#}");
        }
    }

    bed.wait_for_links(cluster, 5);
    let trace = bed.world.local(&["app", "trace", cluster, "web", "-o", "json"]).json();
    let told = trace["value"].as_array().unwrap();
    let whole = told.len() == 5 && told.iter().all(|node| node.get("errors").is_none());
    assert!(whole, "{trace:#}");
}

fn signal_agent(bed: &Bed, node: &str, signal: &str) {
    let kill = format!("kill -{signal} $(systemctl show wharf-agent -p MainPID --value)");
    bed.host(node).run(&["sh", "-c", &kill]).unwrap();
}

/// What the status server of a node says to whoever is on that node.
fn trace_at(bed: &Bed, node: &str) -> Value {
    let host = bed.host(node);
    let ask = format!(
        "printf 'POST /cluster-app/web HTTP/1.0\\r\\nAuthorization: Bearer %s\\r\\n\\r\\n' \
         \"$(cat /etc/wharf/pki/agent-token)\" | socat STDIO,ignoreeof TCP:{}:12346",
        host.address()
    );
    let answer = host.run(&["sh", "-c", &ask]).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{answer}");
    serde_json::from_str(body).unwrap()
}

/// The node that reports for all loses its way to the server, for longer than a moment: another one
/// reports, and the first has nothing to say any more.
fn the_reporter_changes(bed: &Bed, cluster: &str) {
    let holder = || {
        let lease = ["get", "lease", "eve-kube-stats-leader", "-n", "eve-kube-app"];
        let field = ["-o", "jsonpath={.spec.holderIdentity}"];
        bed.kubectl(cluster, &[&lease[..], &field].concat()).unwrap()
    };
    let reports = |node: &str| {
        let report = ["cat", "/run/zedkube/KubeClusterInfo/global.json"];
        bed.host(node).run(&report).ok().map(|text| serde_json::from_str::<Value>(&text).unwrap())
    };
    let first = wait_for("somebody to report", DEADLINE, || {
        let holder = holder();
        Ok((!holder.is_empty() && reports(&holder).is_some()).then_some(holder))
    })
    .unwrap();
    let all = bed.nodes(cluster).len();
    assert_eq!(reports(&first).unwrap()["Nodes"].as_array().map(Vec::len), Some(all));
    let port = bed.agents_port();
    let drop = format!("type filter hook output priority 0\ntcp dport {port} drop");
    let rules = format!("table inet cut {{\nchain out {{\n{drop}\n}}\n}}");
    bed.host(&first).run(&["nft", &rules]).unwrap();
    let second = wait_for("another one to report", DEADLINE, || {
        let holder = holder();
        let another = !holder.is_empty() && holder != first;
        Ok((another && reports(&holder).is_some()).then_some(holder))
    })
    .unwrap();
    assert_eq!(reports(&second).unwrap()["Nodes"].as_array().map(Vec::len), Some(all));
    wait_for("the first to fall silent", DEADLINE, || Ok(reports(&first).is_none().then_some(())))
        .unwrap();
    bed.host(&first).run(&["nft", "delete", "table", "inet", "cut"]).unwrap();
    bed.wait_for_links(cluster, all);
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
    assert_eq!(nodes_ready(bed, cluster), nodes, "it is over when the cluster has it back");
    wait_for_service(bed, cluster);
    assert_eq!(bed.host(node).boot_id().unwrap(), after, "and only once");
    assert_last(bed, cluster, "reboot");
}

/// In a cluster that is too small to drain to, nothing waits: not even for a budget that never allows
/// anything.
pub fn reboot_at_once(bed: &Bed, cluster: &str, node: &str) {
    bed.wait_for_links(cluster, bed.nodes(cluster).len());
    let labels = json!({"app": "held"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "held", "labels": labels},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "held", "image": bed.image("pause")}],
        },
    });
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "held"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": labels}},
    });
    bed.apply(cluster, &[budget, pod]);
    let uid = || bed.kubectl(cluster, &["get", "pod", "held", "-o", "jsonpath={.metadata.uid}"]);
    let (host, pod) = (bed.host(node), uid().unwrap());
    let status = ["cat", "/run/zedkube/NodeDrainStatus/global.json"];
    let status: Value = serde_json::from_str(&host.run(&status).unwrap()).unwrap();
    assert_eq!(status["Status"], 1, "NOTSUPPORTED");
    let before = host.boot_id().unwrap();
    let ran = bed.world.local(&["node", "reboot", cluster, node, "--wait"]).ok();
    assert!(ran.stderr.contains("too small to drain to: nothing is deferred"), "{ran:?}");
    assert_ne!(host.boot_id().unwrap(), before, "it was rebooted");
    assert_eq!(uid().unwrap(), pod, "nobody evicted it");
    assert_last(bed, cluster, "reboot");
    bed.kubectl(cluster, &["delete", "pod/held", "pdb/held"]).unwrap();
}

/// A shutdown from the server: drained, switched off, and back in service once somebody starts it.
fn shut_down(bed: &Bed, cluster: &str, node: &str) {
    let ran = bed.world.local(&["node", "shutdown", cluster, node, "--wait"]).ok();
    assert!(ran.stderr.contains("is done"), "{ran:?}");
    wait_for("the machine to be off", DEADLINE, || {
        Ok((bed.host(node).power()? == Power::Off).then_some(()))
    })
    .unwrap();
    assert_last(bed, cluster, "shutdown");
    assert_eq!(cordoned(bed, cluster), [node]);
    bed.host(node).start().unwrap();
    wait_for_service(bed, cluster);
}

/// An update from the server: the image is checked on the node, put in place once by its owner's
/// program, and the node is rebooted. One with another checksum does nothing.
fn update(bed: &Bed, cluster: &str, node: &str) {
    let host = bed.host(node);
    let program = host.root().join("usr/local/sbin/wharf-node-update");
    fs::write(&program, "#!/bin/sh\ncat \"$1\" >>/etc/updated\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(host.root().join("var/tmp/image"), "the new system\n").unwrap();
    let sum = host.run(&["sha256sum", "/var/tmp/image"]).unwrap();
    let sum = sum.split_whitespace().next().unwrap();
    let before = host.boot_id().unwrap();
    let update = |sum: &str| {
        let image = ["--image", "/var/tmp/image", "--sha256", sum, "--wait"];
        bed.world.local(&[&["node", "update", cluster, node][..], &image].concat())
    };
    let refused = update(&"0".repeat(64));
    assert!(refused.exit != 0 && refused.stderr.contains("checksum"), "{refused:?}");
    assert_eq!((host.boot_id().unwrap(), cordoned(bed, cluster).len()), (before.clone(), 0));

    let ran = update(sum).ok();
    assert!(ran.stderr.contains("is done"), "{ran:?}");
    assert_ne!(host.boot_id().unwrap(), before, "it was rebooted");
    assert_eq!(
        host.run(&["cat", "/etc/updated"]).unwrap(),
        "the new system",
        "and once put in place"
    );
    wait_for_service(bed, cluster);
    assert_last(bed, cluster, "nodeupdate");
    fs::remove_file(program).unwrap();
    host.run(&["rm", "/etc/updated", "/var/tmp/image"]).unwrap();
}

/// The installer brings another program: every agent is started anew from it and linked again, and
/// nothing else on its host is.
pub fn upgrade(bed: &mut Bed, cluster: &str, wish: &Value) {
    let (now, next) = (Path::new(env!("CARGO_BIN_EXE_wharf")), bed.world.path("next"));
    fs::create_dir(&next).unwrap();
    for name in ["wharf", "wharf-flex", "wharf-block"] {
        fs::copy(now.with_file_name(name), next.join(name)).unwrap();
    }
    let program = next.join("wharf");
    File::options().append(true).open(&program).unwrap().write_all(b"next").unwrap();
    let names: Vec<String> =
        bed.nodes(cluster).iter().map(|node| node["name"].as_str().unwrap().to_owned()).collect();
    let before: Vec<_> = names.iter().map(|node| pids(bed, node)).collect();
    bed.world.kill_server();
    bed.start_server_with(&format!("agent_program = {:?}", program.display().to_string()));
    bed.send(&["update", cluster], wish).ok();
    bed.wait_for_links(cluster, names.len());
    for (node, before) in names.iter().zip(before) {
        let program = bed.host(node).run(&["tail", "-c", "4", "/opt/wharf/bin/wharf"]);
        assert_eq!(program.unwrap(), "next", "{node}");
        let after = pids(bed, node);
        let others = before.iter().filter(|(unit, pid)| after.get(*unit) != Some(*pid));
        let others: Vec<&str> = others.map(|(unit, _)| unit.as_str()).collect();
        assert_eq!(others, ["wharf-agent.service"], "{node}");
    }
}

/// All nodes are ready, may be used, and linked.
fn wait_for_service(bed: &Bed, cluster: &str) {
    let nodes = bed.nodes(cluster).len();
    wait_for("the node to be back in service", DEADLINE, || {
        let back = nodes_ready(bed, cluster) == nodes && cordoned(bed, cluster).is_empty();
        Ok(back.then_some(()))
    })
    .unwrap();
    bed.wait_for_links(cluster, nodes);
}

fn assert_last(bed: &Bed, cluster: &str, kind: &str) {
    let last = bed.operations(cluster).remove(0);
    assert_eq!((&last["kind"], &last["state"]), (&json!(kind), &json!("succeeded")), "{last}");
}
