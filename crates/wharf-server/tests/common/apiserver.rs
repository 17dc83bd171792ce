//! A real Kubernetes API that all tests of a program share. Each test uses names of its own in it.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::{
    io::Write,
    process::{Command, Stdio},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use wharf_testbed::{
    apiserver::{ApiServer, Options},
    wait_for,
};

/// Test machines are noisy; whatever takes this long has failed.
const DEADLINE: Duration = Duration::from_secs(60);

pub struct World {
    pub server: ApiServer,
    kubeconfig: NamedTempFile,
}

/// Started by the first test that needs it, ended by the last.
pub fn world() -> Arc<World> {
    static SHARED: Mutex<Weak<World>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(world) = shared.upgrade() {
        return world;
    }
    let world = Arc::new(World::start());
    *shared = Arc::downgrade(&world);
    world
}

impl World {
    /// One that nobody shares.
    pub fn start() -> Self {
        let controllers = vec!["disruption-controller".to_owned()];
        Self::of(ApiServer::start_with(&Options { controllers, ..Options::default() }).unwrap())
    }

    /// One with controllers of the test's own choice.
    pub fn of(server: ApiServer) -> Self {
        let mut kubeconfig = NamedTempFile::new().unwrap();
        kubeconfig.write_all(server.kubeconfig().as_bytes()).unwrap();
        Self { server, kubeconfig }
    }

    pub fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let mut child = Command::new(wharf_bundle::cache::find("kubectl").unwrap())
            .arg("--kubeconfig")
            .arg(self.kubeconfig.path())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn create(&self, object: &Value) {
        self.kubectl(&["create", "-f", "-"], &object.to_string());
    }

    pub fn read(&self, arguments: &[&str]) -> Value {
        let arguments = [&["get", "-o", "json"], arguments].concat();
        serde_json::from_str(&self.kubectl(&arguments, "")).unwrap()
    }

    pub fn node(&self, name: &str, address: &str, role: &str) {
        let role = format!("node-role.kubernetes.io/{role}");
        self.create(&json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { role: "true" } },
        }));
        let status = json!({ "status": {
            "addresses": [{ "type": "InternalIP", "address": address }],
        } });
        let status = status.to_string();
        self.kubectl(&["patch", "node", name, "--subresource=status", "-p", &status], "");
    }

    /// A pod that is bound to a node, runs and is ready.
    pub fn pod(&self, node: &str, name: &str, metadata: &Value) {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {
                "nodeName": node,
                // Nobody would end it: with no grace it goes at once.
                "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "main", "image": "none" }],
            },
        });
        pod["metadata"]["name"] = json!(name);
        self.create(&pod);
        let status = json!({ "status": {
            "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        let status = status.to_string();
        self.kubectl(&["patch", "pod", name, "--subresource=status", "-p", &status], "");
    }

    /// A budget over the pods that carry `app: NAME`; it knows so many of them when this returns.
    pub fn budget(&self, name: &str, min_available: u32, pods: u32) {
        self.create(&json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": name },
            "spec": { "minAvailable": min_available, "selector": { "matchLabels": { "app": name } } },
        }));
        wait_for("the budget to know its pods", DEADLINE, || {
            let budget = self.read(&["pdb", name]);
            let status = &budget["status"];
            let is_known = status["observedGeneration"] == budget["metadata"]["generation"];
            let is_so = status["disruptionsAllowed"] == json!(pods - min_available);
            Ok((is_known && is_so).then_some(()))
        })
        .unwrap();
    }

    pub fn is_there(&self, pod: &str) -> bool {
        !self.kubectl(&["get", "pod", pod, "--ignore-not-found", "-o", "name"], "").is_empty()
    }

    /// Waits until the first of the two pods of a node that is half blocked has left. A server that
    /// stops before may cut its eviction off: the pod then ends for ever, as no kubelet is here to
    /// see to it.
    pub fn wait_until_half_empty(&self, node: &str) {
        wait_for("the first pod to leave", DEADLINE, || {
            let there = ["0", "1"].map(|number| self.is_there(&format!("{node}-{number}")));
            Ok((there[0] != there[1]).then_some(()))
        })
        .unwrap();
    }

    pub fn is_unschedulable(&self, node: &str) -> bool {
        self.read(&["node", node])["spec"]["unschedulable"] == json!(true)
    }

    /// Who of us has cordoned a node.
    pub fn owner(&self, node: &str) -> Option<String> {
        let node = self.read(&["node", node]);
        let owner = node["metadata"].get("annotations")?.get("wharf.dev/cordoned-by")?;
        Some(owner.as_str().unwrap().to_owned())
    }

    /// The events on a node: their reason and their note.
    pub fn events(&self, node: &str) -> Vec<String> {
        let all = self.read(&["events.events.k8s.io", "-n", "default"]);
        let events = all["items"].as_array().unwrap().iter();
        let of_node = events.filter(|event| event["regarding"]["name"] == node);
        let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        of_node
            .map(|event| format!("{}: {}", text(&event["reason"]), text(&event["note"])))
            .collect()
    }
}

/// Two pods, of which one may be missing at a time and nobody makes a second: a drain cordons,
/// evicts one, and waits for the other.
pub fn half_blocked(world: &World, node: &str) {
    world.pod(node, &format!("{node}-0"), &labelled(node));
    world.pod(node, &format!("{node}-1"), &labelled(node));
    world.budget(node, 1, 2);
}

pub fn labelled(app: &str) -> Value {
    json!({ "labels": { "app": app } })
}

/// The owner reference by which a controller claims a pod.
pub fn owned_by(kind: &str, name: &str, uid: &str) -> Value {
    let group = if kind == "Job" { "batch/v1" } else { "apps/v1" };
    json!({ "ownerReferences": [{
        "apiVersion": group, "kind": kind, "name": name, "uid": uid, "controller": true,
    }] })
}
