//! Volumes of ours in a real Kubernetes API, written as agents write them.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Kubernetes;

/// Lets the API know our kinds. Several tests of a program may do so at once.
pub fn install(world: &Kubernetes) {
    let manifests = wharf_core::install::manifests::render_volumes();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    world.kubectl(&apply, &manifests);
    let kinds = ["attachments", "storageclusters", "nodegarbages"];
    let kinds = kinds.map(|kind| format!("crd/{kind}.wharf.dev"));
    let wait = ["wait", "--for=condition=Established", "--timeout=60s"];
    world.kubectl(&[&wait[..], &kinds.each_ref().map(String::as_str)].concat(), "");
}

pub fn storage(world: &Kubernetes, name: &str, backend: &str) {
    world.create(&json!({
        "apiVersion": "wharf.dev/v1", "kind": "StorageCluster", "metadata": { "name": name },
        "spec": { "backend": backend },
    }));
}

/// A volume and the claim of the same name that it is bound to.
pub fn volume(world: &Kubernetes, name: &str, storage: &str) {
    let modes = json!(["ReadWriteOnce"]);
    world.create(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": { "name": name, "annotations": { "wharf.dev/generation": "4" } },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": modes,
            "claimRef": { "namespace": "default", "name": name },
            "flexVolume": {
                "driver": "wharf.dev/volume", "fsType": "ext4",
                "options": { "storageCluster": storage, "image": name },
            },
        },
    }));
    let status = json!({ "status": { "phase": "Bound" } }).to_string();
    world.kubectl(&["patch", "pv", name, "--subresource=status", "-p", &status], "");
    world.create(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": {
            "accessModes": modes, "volumeName": name, "storageClassName": "",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    }));
}

/// An entry of a record: a pod of this UID on this node. A node that is not there has a UID of its
/// own.
pub fn entry(world: &Kubernetes, node: &str, pod: &str, pod_uid: &str) -> Value {
    let uid = world.kubectl(
        &["get", "node", node, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}"],
        "",
    );
    json!({
        "node": node, "podNamespace": "default", "pod": pod, "podUID": pod_uid,
        "mountDir": format!("/pods/{pod_uid}/volumes/wharf.dev~volume/v"), "device": "/dev/loop7",
        "nodeUID": if uid.is_empty() { "gone".to_owned() } else { uid }, "bootID": "boot-1",
        "generation": 4, "phase": "Attached", "tenure": 3,
    })
}

pub fn hold(world: &Kubernetes, volume: &str, entries: &[Value]) {
    world.create(&json!({
        "apiVersion": "wharf.dev/v1", "kind": "Attachment", "metadata": { "name": volume },
        "attachments": entries,
    }));
}

/// The lease of an agent that is alive and is not heard of again in this test.
pub fn lease(world: &Kubernetes, node: &str) {
    let now = Timestamp::now();
    world.create(&json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": format!("volumes-{node}"), "namespace": "wharf-system" },
        "spec": {
            "holderIdentity": node, "leaseDurationSeconds": 3600, "leaseTransitions": 3,
            "renewTime": format!("{now:.6}"),
        },
    }));
}

pub fn garbage(world: &Kubernetes, node: &str, volume: &str) {
    world.create(&json!({
        "apiVersion": "wharf.dev/v1", "kind": "NodeGarbage", "metadata": { "name": node },
        "entries": [{
            "volume": volume, "generation": 2, "bootID": "boot-0", "device": "/dev/loop3",
            "mountDir": "/pods/old", "since": "2026-01-02T03:04:05Z", "reason": "its node is gone",
        }],
    }));
}

/// A pod that is bound to a node and uses the claim; it waits there. Gives its UID.
pub fn user(world: &Kubernetes, node: &str, name: &str, claim: &str) -> String {
    world.create(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": "none" }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }],
        },
    }));
    world.kubectl(&["get", "pod", name, "-o", "jsonpath={.metadata.uid}"], "")
}

/// A volume whose holder nothing proves to be gone, with a pod that waits for it on the node.
pub fn stuck(world: &Kubernetes, name: &str, storage: &str, waits_on: &str) {
    volume(world, name, storage);
    hold(world, name, &[entry(world, &format!("{name}-gone"), "db-0", "uid-old")]);
    user(world, waits_on, &format!("{name}-db-0"), name);
}
