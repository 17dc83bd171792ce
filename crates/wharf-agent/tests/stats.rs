//! What the elected node says of the cluster, by a real agent with the rights that the installer gives
//! it, before a real API server. It knows the kinds of KubeVirt and Longhorn as these define them, and has
//! no controllers for them: their objects are written here.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::{fs, time::Duration};

use common::{Agent, kubectl, machine};
use serde_json::{Value, json};
use tempfile::TempDir;
use wharf_core::install::manifests::render_rbac;
use wharf_testbed::{apiserver::ApiServer, kinds::Project, wait_for};

const NAMESPACE: &str = "eve-kube-app";
const LONGHORN: &str = "longhorn-system";
const STATS: &str = "zedkube/KubeClusterInfo/global.json";
/// A leader is elected, or a change of a busy cluster is told, after half a minute.
const DEADLINE: Duration = Duration::from_secs(150);
const SINCE: &str = "2026-01-02T03:04:05Z";
const NEVER: &str = "0001-01-01T00:00:00Z";

struct World {
    server: ApiServer,
    dir: TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self { server: ApiServer::start().unwrap(), dir: tempfile::tempdir().unwrap() };
        let rbac = world.dir.path().join("rbac.yaml");
        fs::write(&rbac, render_rbac()).unwrap();
        world.kubectl(&["apply", "-f", &rbac.display().to_string()]);
        world
    }

    fn kubectl(&self, words: &[&str]) -> String {
        kubectl(&self.server, words, &Value::Null)
    }

    fn create(&self, object: &Value) {
        kubectl(&self.server, &["create", "-f", "-"], object);
    }

    fn create_namespace(&self, name: &str) {
        let metadata = json!({ "name": name });
        self.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }));
    }

    /// Writes into an object's status. A field that its kind does not have is an error.
    fn set_status(&self, namespace: &str, object: &str, status: &Value) {
        let patch = json!({ "status": status }).to_string();
        let words = ["patch", "--warnings-as-errors", "-n", namespace, object];
        let how = ["--subresource=status", "--type=merge", "-p", &patch];
        self.kubectl(&[&words[..], &how].concat());
    }

    fn create_longhorn(&self, kind: &str, name: &str, spec: &Value, status: &Value) {
        self.create(&json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": kind,
            "metadata": { "name": name, "namespace": LONGHORN }, "spec": spec,
        }));
        self.set_longhorn(kind, name, status);
    }

    fn set_longhorn(&self, kind: &str, name: &str, status: &Value) {
        self.set_status(LONGHORN, &format!("{kind}.longhorn.io/{name}"), status);
    }

    fn create_pod(&self, namespace: &str, name: &str, node: &str, status: &Value) {
        let container = json!({ "name": "main", "image": "none" });
        self.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": namespace },
            "spec": { "nodeName": node, "containers": [container] },
        }));
        self.set_status(namespace, &format!("pod/{name}"), status);
    }

    fn created(&self, namespace: &str, object: &str) -> String {
        let path = "-o=jsonpath={.metadata.creationTimestamp}";
        self.kubectl(&["get", "-n", namespace, object, path])
    }

    /// An agent that may do what the installer's rules say and nothing else.
    fn agent(&self) -> Agent {
        self.kubectl(&["create", "serviceaccount", "agent"]);
        let account = "--serviceaccount=default:agent";
        self.kubectl(&["create", "clusterrolebinding", "t", "--clusterrole=wharf:agents", account]);
        let role = ["create", "rolebinding", "t", "-n", NAMESPACE, "--role=wharf:agents", account];
        self.kubectl(&role);
        let token = self.kubectl(&["create", "token", "agent", "--duration=3h"]);
        let kubeconfig = self.server.kubeconfig_with_token();
        let kubeconfig = kubeconfig.replace(self.server.token(), token.trim());
        let path = self.dir.path().join("kubeconfig");
        fs::write(&path, kubeconfig).unwrap();
        Agent::start(None, &format!("node_name = 'n1'\nkubeconfig = '{}'", path.display()))
    }
}

fn controller(agent: &Agent, status: u8) {
    let status = json!({ "Name": "zedagent", "ConfigGetStatus": status });
    agent.publish("zedagent/ZedAgentStatus/zedagent.json", &status);
}

/// Waits until a part of what is published is so.
fn expect(agent: &Agent, pointer: &str, expected: &Value) {
    let mut last = None;
    let came = wait_for("what is told", DEADLINE, || {
        last = agent.read(STATS).and_then(|stats| stats.pointer(pointer).cloned());
        Ok((last.as_ref() == Some(expected)).then_some(()))
    });
    let faults = agent.health();
    assert!(came.is_ok(), "{pointer} is {last:#?}, not {expected:#?}; {faults:?}");
}

fn count(name: &str, all: u8, running: u8, pending: u8, failed: u8, succeeded: u8) -> Value {
    json!({
        "Name": name, "PodCount": all, "PodRunningCount": running, "PodPendingCount": pending,
        "PodFailedCount": failed, "PodSucceededCount": succeeded,
    })
}

#[test]
fn nodes_pods_and_virtual_machines_are_told_and_followed_while_the_node_leads() {
    let world = World::new();
    world.create(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n1", "labels": {
            "node-role.kubernetes.io/control-plane": "true", "node-role.kubernetes.io/etcd": "true",
            "node-uuid": "0b1a",
        } },
    }));
    let ready = |status: &str| {
        json!({ "conditions": [
        { "type": "Ready", "status": status, "lastTransitionTime": SINCE, "reason": "r", "message": "m" },
    ] })
    };
    let mut status = ready("True");
    status["addresses"] = json!([
        { "type": "InternalIP", "address": "10.0.0.1" }, { "type": "ExternalIP", "address": "1.2.3.4" },
    ]);
    world.set_status("", "node/n1", &status);
    let running = json!({
        "phase": "Running", "podIP": "10.42.0.7", "podIPs": [{ "ip": "10.42.0.7" }],
        "containerStatuses": [{
            "name": "main", "image": "none", "imageID": "", "ready": true, "restartCount": 3,
            "lastState": { "terminated": { "exitCode": 1, "finishedAt": SINCE } },
        }],
    });
    world.create_pod(NAMESPACE, "web", "n1", &running);
    world.create_pod(NAMESPACE, "virt-launcher-vm", "n1", &json!({ "phase": "Running" }));
    world.create_pod("default", "job", "n1", &json!({ "phase": "Succeeded" }));
    world.create_pod("default", "bad", "n1", &json!({ "phase": "Failed" }));
    let agent = world.agent();
    controller(&agent, 1);

    let node = |status: u8, schedulable: bool| {
        json!([{
            "Name": "n1", "Status": status, "IsMaster": true, "UsesEtcd": true,
            "CreationTime": world.created("", "node/n1"), "LastTransitionTime": SINCE,
            "KubeletVersion": "", "InternalIP": "10.0.0.1", "ExternalIP": "1.2.3.4",
            "Schedulable": schedulable, "Admission": 4, "NodeID": "0b1a",
        }])
    };
    expect(&agent, "/Nodes", &node(1, true));
    expect(
        &agent,
        "/AppPods",
        &json!([{
            "Name": "web", "Status": 2, "RestartCount": 3, "RestartTimestamp": SINCE,
            "CreationTimestamp": world.created(NAMESPACE, "pod/web"), "PodIP": "10.42.0.7",
            "NodeName": "n1",
        }]),
    );
    let app = count(NAMESPACE, 2, 2, 0, 0, 0);
    expect(&agent, "/PodNsInfo", &json!([count("default", 2, 0, 0, 1, 1), app]));
    expect(&agent, "/AppVMIs", &Value::Null);
    let none = json!({ "Health": 0, "TransitionTime": NEVER, "Volumes": null });
    expect(&agent, "/Storage", &none);
    assert!(agent.works("stats") && agent.works("leader"), "{:?}", agent.health());

    // Changes, and a kind that was not there when the agent began.
    world.set_status("", "node/n1", &ready("Unknown"));
    world.kubectl(&["cordon", "n1"]);
    world.kubectl(&["delete", "pod", "web", "-n", NAMESPACE, "--force", "--grace-period=0"]);
    world.set_status("default", "pod/bad", &json!({ "phase": "Pending" }));
    world.server.define(Project::KubeVirt).unwrap();
    let ready = |since: &Value| {
        json!([
            { "type": "LiveMigratable", "status": "False" },
            { "type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": since },
        ])
    };
    for (name, phase, since) in [("vm", "Running", json!(SINCE)), ("odd", "Odd", Value::Null)] {
        let status = json!({ "phase": phase, "nodeName": "n1", "conditions": ready(&since) });
        world.create(&machine(NAMESPACE, name, &status));
    }
    expect(&agent, "/Nodes", &node(3, false));
    expect(&agent, "/AppPods", &Value::Null);
    let app = count(NAMESPACE, 1, 1, 0, 0, 0);
    expect(&agent, "/PodNsInfo", &json!([count("default", 2, 0, 1, 0, 1), app]));
    let told = |name: &str, status: u8, since: &str| {
        json!({
            "Name": name, "Status": status, "IsReady": true, "NodeName": "n1",
            "CreationTime": world.created(NAMESPACE, &format!("virtualmachineinstance/{name}")),
            "LastTransitionTime": since,
        })
    };
    expect(&agent, "/AppVMIs", &json!([told("odd", 7, NEVER), told("vm", 4, SINCE)]));

    // Who does not lead says nothing.
    controller(&agent, 2);
    wait_for("the end of it", DEADLINE, || Ok((!agent.path(STATS).exists()).then_some(())))
        .unwrap();
    world.kubectl(&["uncordon", "n1"]);
    controller(&agent, 1);
    expect(&agent, "/Nodes", &node(3, true));
}

#[test]
fn storage_is_told_from_claims_volumes_replicas_engines_and_daemons() {
    let world = World::new();
    world.create_namespace(LONGHORN);
    let agent = world.agent();
    controller(&agent, 4);
    expect(&agent, "/Storage/Volumes", &Value::Null);
    world.create(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "0b1a-pvc-0", "namespace": NAMESPACE },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeName": "pvc-1",
            "resources": { "requests": { "storage": "2Gi" } },
        },
    }));
    world.set_status(NAMESPACE, "pvc/0b1a-pvc-0", &json!({ "phase": "Bound" }));
    let labels = json!({ "app": "longhorn-manager" });
    world.create(&json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": "longhorn-manager", "namespace": LONGHORN },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "main", "image": "none" }] },
            },
        },
    }));
    let daemons = |ready: u8| {
        let status = json!({
            "desiredNumberScheduled": 3, "numberReady": ready, "currentNumberScheduled": 3,
            "numberMisscheduled": 0,
        });
        world.set_status(LONGHORN, "daemonset/longhorn-manager", &status);
    };
    daemons(3);
    // Longhorn is installed after the agent began.
    world.server.define(Project::Longhorn).unwrap();
    let degraded = json!({ "state": "attached", "robustness": "degraded", "actualSize": 4096 });
    world.create_longhorn("Volume", "pvc-1", &json!({ "size": "2147483648" }), &degraded);
    for (name, node, state) in
        [("r1", "n1", "running"), ("r2", "n2", "running"), ("r3", "n3", "stopped")]
    {
        let spec = json!({ "volumeName": "pvc-1", "nodeID": node });
        let status =
            json!({ "currentState": state, "ownerID": if state == "running" { node } else { "" } });
        world.create_longhorn("Replica", name, &spec, &status);
    }
    let engine = json!({
        "replicaModeMap": { "r1": "RW", "r2": "WO" },
        "currentReplicaAddressMap": { "r1": "10.0.0.1:10000", "r2": "10.0.0.2:10000" },
        "rebuildStatus": { "tcp://10.0.0.2:10000": { "progress": 40, "isRebuilding": true } },
    });
    world.create_longhorn("Engine", "pvc-1-e-0", &json!({ "volumeName": "pvc-1" }), &engine);
    // Longhorn writes an empty time for what was unknown from the beginning.
    let disk = |schedulable: &str| {
        let condition = |type_: &str, status: &str, since: &str| {
            json!({
                "type": type_, "status": status, "lastProbeTime": "", "lastTransitionTime": since,
            })
        };
        let conditions =
            [condition("Ready", "Unknown", ""), condition("Schedulable", schedulable, SINCE)];
        json!({ "diskStatus": { "d": { "conditions": conditions, "storageMaximum": 1 } } })
    };
    world.create_longhorn("Node", "n1", &json!({ "name": "n1" }), &disk("True"));

    let replica = |name: &str, node: &str, progress: u8, status: u8| {
        json!({
            "Name": name, "OwnerNode": node, "RebuildProgressPercentage": progress, "Status": status,
        })
    };
    let volume = |robustness: u8, substate: u8, allocated: u64, second: Value| {
        json!([{
            "Name": "0b1a-pvc-0", "State": 2, "Robustness": robustness,
            "CreatedAt": world.created(NAMESPACE, "pvc/0b1a-pvc-0"),
            "ProvisionedBytes": 2_147_483_648_u64, "AllocatedBytes": allocated, "PvcStatus": 1,
            "Replicas": [replica("r1", "n1", 100, 2), second, replica("r3", "n3", 0, 4)],
            "RobustnessSubstate": substate, "VolumeID": "0b1a",
        }])
    };
    expect(&agent, "/Storage/Volumes", &volume(2, 4, 4096, replica("r2", "n2", 40, 1)));
    expect(&agent, "/Storage/Health", &json!(3));

    // The copy is whole, a disk is full, a daemon is missing.
    let whole = json!({ "replicaModeMap": { "r2": "RW" }, "rebuildStatus": null });
    world.set_longhorn("Engine", "pvc-1-e-0", &whole);
    let healthy = json!({ "robustness": "healthy", "actualSize": 8192 });
    world.set_longhorn("Volume", "pvc-1", &healthy);
    world.set_longhorn("Node", "n1", &disk("False"));
    expect(&agent, "/Storage/Volumes", &volume(1, 1, 8192, replica("r2", "n2", 100, 2)));
    expect(&agent, "/Storage/Health", &json!(2));
    daemons(0);
    expect(&agent, "/Storage/Health", &json!(1));
    let since = agent.read(STATS).unwrap()["Storage"]["TransitionTime"].clone();
    assert_ne!(since, NEVER);
    assert!(agent.works("stats"), "{:?}", agent.health());

    // Without its kinds there is no storage.
    world.kubectl(&["delete", "crd", "volumes.longhorn.io"]);
    expect(&agent, "/Storage/Health", &json!(0));
    expect(&agent, "/Storage/Volumes", &Value::Null);
}
