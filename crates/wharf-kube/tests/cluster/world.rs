//! A cluster without kubelets, and what tests do to it by hand.

use std::{
    io::Write,
    process::{Command, Stdio},
    sync::{Arc, Mutex, Weak},
};

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use wharf_core::drain::PodRef;
use wharf_kube::Cluster;
use wharf_testbed::{
    apiserver::{ApiServer, Options},
    wait_for,
};

use crate::DEADLINE;

/// A cluster that all tests of this program share. Each test uses names of its own in it.
pub struct World {
    pub server: ApiServer,
    pub kubeconfig: NamedTempFile,
}

/// Started by the first test that needs it, ended by the last.
pub fn world() -> Arc<World> {
    static SHARED: Mutex<Weak<World>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(world) = shared.upgrade() {
        return world;
    }
    let controllers = vec!["disruption-controller".to_owned()];
    let server = ApiServer::start_with(&Options { controllers, ..Options::default() }).unwrap();
    let world = Arc::new(World::of(server));
    *shared = Arc::downgrade(&world);
    world
}

impl World {
    pub fn of(server: ApiServer) -> Self {
        let mut kubeconfig = NamedTempFile::new().unwrap();
        kubeconfig.write_all(server.kubeconfig().as_bytes()).unwrap();
        Self { server, kubeconfig }
    }

    pub fn cluster(&self) -> Cluster {
        Cluster::from_kubeconfig(&self.server.kubeconfig()).unwrap()
    }

    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new(wharf_bundle::cache::find("kubectl").unwrap());
        command.arg("--kubeconfig").arg(self.kubeconfig.path());
        command
    }

    pub fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let mut child = self
            .kubectl_command()
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

    pub fn create(&self, object: &Value) -> Value {
        let made = self.kubectl(&["create", "-f", "-", "-o", "json"], &object.to_string());
        serde_json::from_str(&made).unwrap()
    }

    pub fn read(&self, arguments: &[&str]) -> Value {
        let arguments = [&["get", "-o", "json"], arguments].concat();
        serde_json::from_str(&self.kubectl(&arguments, "")).unwrap()
    }

    pub fn node(&self, name: &str) {
        self.create(&json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        }));
    }

    /// A pod that is bound to a node, runs and is ready.
    pub fn pod(&self, node: &str, name: &str) -> PodRef {
        self.pod_with(node, name, json!({}))
    }

    pub fn pod_with(&self, node: &str, name: &str, metadata: Value) -> PodRef {
        self.pod_of(node, name, metadata, json!({}))
    }

    pub fn pod_of(&self, node: &str, name: &str, metadata: Value, spec: Value) -> PodRef {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "nodeName": node,
                // Nobody would end it: with no grace it goes at once.
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "image": "none",
                    "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
                }],
            },
        });
        merge(&mut pod["metadata"], metadata);
        merge(&mut pod["spec"], spec);
        let made = self.create(&pod);
        let status = json!({ "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        let status = status.to_string();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let namespace = text(&made["metadata"]["namespace"]);
        let patch = ["patch", "pod", name, "-n", &namespace, "--subresource=status", "-p", &status];
        self.kubectl(&patch, "");
        PodRef { uid: text(&made["metadata"]["uid"]), name: name.to_owned(), namespace }
    }

    /// The version of an object, by which a change of any kind shows.
    pub fn version(&self, arguments: &[&str]) -> String {
        self.read(arguments)["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    }

    pub fn let_go(&self, pod: &PodRef) {
        let none = r#"{"metadata":{"finalizers":null}}"#;
        self.kubectl(&["patch", "pod", &pod.name, "-n", &pod.namespace, "-p", none], "");
    }

    /// A budget over the pods that carry `app: NAME`; it knows so many of them when this returns.
    pub fn budget(&self, name: &str, min_available: u32, pods: u32) {
        self.create(&json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": name },
            "spec": { "minAvailable": min_available, "selector": { "matchLabels": { "app": name } } },
        }));
        self.wait_until_budget_allows(name, pods - min_available);
    }

    pub fn wait_until_budget_allows(&self, name: &str, allowed: u32) {
        wait_for("the budget to allow as many", DEADLINE, || {
            let budget = self.read(&["pdb", name]);
            let status = &budget["status"];
            let is_known = status["observedGeneration"] == budget["metadata"]["generation"];
            Ok((is_known && status["disruptionsAllowed"] == json!(allowed)).then_some(()))
        })
        .unwrap();
    }

    pub fn is_there(&self, pod: &PodRef) -> bool {
        let found = self.kubectl(
            &[
                &["get", "pod", &pod.name, "-n", &pod.namespace],
                &["--ignore-not-found", "-o", "jsonpath={.metadata.uid}"][..],
            ]
            .concat(),
            "",
        );
        found == pod.uid
    }

    pub fn is_unschedulable(&self, node: &str) -> bool {
        self.read(&["node", node])["spec"]["unschedulable"] == json!(true)
    }
}

/// Adds the fields of one object to another.
pub fn merge(object: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("{more} is no object") };
    object.as_object_mut().unwrap().extend(more);
}

pub fn labelled(app: &str) -> Value {
    json!({ "labels": { "app": app } })
}

/// Somebody holds the pod: it does not go before he lets it.
pub fn held() -> Value {
    json!({ "finalizers": ["test.wharf.dev/held"] })
}

/// The owner reference by which a controller claims a pod.
pub fn owned_by(kind: &str, name: &str, uid: &str) -> Value {
    let group = if kind == "Job" { "batch/v1" } else { "apps/v1" };
    json!({ "ownerReferences": [{
        "apiVersion": group, "kind": kind, "name": name, "uid": uid, "controller": true,
    }] })
}
