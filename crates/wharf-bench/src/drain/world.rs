//! A cluster to drain, and what it saw of its clients.

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use wharf_testbed::{
    apiserver::{ApiServer, Options},
    kwok,
    process::Process,
    wait_for,
};

use crate::temp_dir;

const CONTROLLERS: [&str; 3] =
    ["deployment-controller", "replicaset-controller", "disruption-controller"];
const DEADLINE: Duration = Duration::from_secs(180);
/// Of so many pods each; of two groups one is under a budget.
const GROUP: usize = 10;
const AUDIT: &str = "apiVersion: audit.k8s.io/v1\n\
                     kind: Policy\n\
                     omitStages: [RequestReceived, ResponseStarted]\n\
                     rules: [{level: Metadata}]\n";

pub struct World {
    _kwok: Process,
    server: ApiServer,
    dir: TempDir,
}

impl World {
    pub fn start() -> Result<World> {
        let dir = temp_dir()?;
        let policy = dir.path().join("audit.yaml");
        fs::write(&policy, AUDIT)?;
        let flags = vec![
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", dir.path().join("audit.log").display()),
        ];
        let controllers = CONTROLLERS.map(str::to_owned).into();
        let server = ApiServer::start_with(&Options { controllers, scheduler: true, flags })?;
        let kwok = kwok::start(&server.kubeconfig_file())?;
        Ok(World { _kwok: kwok, server, dir })
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.server.kubeconfig_file()
    }

    pub fn kubectl(&self) -> Result<Command> {
        let program = wharf_bundle::cache::find("kubectl")
            .context("there is no kubectl: run `cargo xtask assets`")?;
        let mut command = Command::new(program);
        command.arg("--kubeconfig").arg(self.kubeconfig());
        Ok(command)
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let output = self.kubectl()?.args(words).stdin(Stdio::null()).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {words:?}: {error}");
        Ok(String::from_utf8(output.stdout)?)
    }

    pub fn get(&self, words: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.ask(&[&["get", "-o", "json"], words].concat())?)?)
    }

    /// Makes all these objects, each list by a process of its own.
    fn create(&self, lists: Vec<Vec<Value>>) -> Result<()> {
        let mut children = Vec::new();
        for items in lists {
            let mut command = self.kubectl()?;
            command.args(["create", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
            let mut child = command.spawn()?;
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
            let mut input = child.stdin.take().context("it has no input")?;
            input.write_all(list.to_string().as_bytes())?;
            drop(input);
            children.push(child);
        }
        for mut child in children {
            ensure!(child.wait()?.success(), "kubectl create failed");
        }
        Ok(())
    }

    pub fn make_nodes(&self, names: &[String]) -> Result<()> {
        let node = |name: &String| {
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": { "name": name, "annotations": { kwok::FAKE: "fake" } },
            })
        };
        self.create(vec![names.iter().map(node).collect()])?;
        let nodes: Vec<String> = names.iter().map(|name| format!("node/{name}")).collect();
        let wait = ["wait", "--for=condition=Ready", "--timeout=120s"];
        let words: Vec<&str> = wait.into_iter().chain(nodes.iter().map(String::as_str)).collect();
        self.ask(&words).map(drop)
    }

    fn for_all(&self, verb: &str, nodes: &[String]) -> Result<()> {
        let nodes = nodes.iter().map(String::as_str);
        let words: Vec<&str> = std::iter::once(verb).chain(nodes).collect();
        self.ask(&words).map(drop)
    }

    /// Makes nodes schedulable and puts so many pods on each. With `budgets` half of them are under
    /// budgets that allow all of them to go.
    pub fn fill(&self, nodes: &[String], pods: usize, budgets: bool) -> Result<()> {
        self.for_all("uncordon", nodes)?;
        self.ask(&["delete", "pdb", "--all"])?;
        let groups = if budgets { pods.div_ceil(GROUP) } else { 0 };
        let mut budgets = Vec::new();
        let mut lists = Vec::new();
        for node in nodes {
            for group in (0..groups).step_by(2) {
                budgets.push(budget(&format!("{node}-{group}"), &json!({ "minAvailable": 0 })));
            }
            lists.push((0..pods).map(|number| pod(node, number)).collect());
        }
        let expected = budgets.len();
        lists.push(budgets);
        lists.retain(|list: &Vec<Value>| !list.is_empty());
        self.create(lists)?;
        wait_for("the pods to run", DEADLINE, || {
            let others = "--field-selector=status.phase!=Running";
            let waiting = self.ask(&["get", "pods", others, "-o", "name"])?;
            Ok(waiting.is_empty().then_some(()))
        })?;
        self.wait_for_budgets(expected, GROUP as u64)
    }

    /// All pods of a Deployment on one node, and budget for one; the others are free then.
    pub fn deploy(
        &self,
        name: &str,
        replicas: usize,
        here: &String,
        others: &[String],
    ) -> Result<()> {
        // One after the other: no controller here deletes what belongs to a thing that is gone.
        self.ask(&["delete", "deployment,replicaset,pdb,pods", "--all"])?;
        self.for_all("uncordon", std::slice::from_ref(here))?;
        self.for_all("cordon", others)?;
        let labels = json!({ "app": name });
        let spec = json!({
            "containers": [{ "name": "main", "image": "none" }],
            // A new Node is tainted so, and no controller here takes it away.
            "tolerations": [{ "key": "node.kubernetes.io/not-ready", "operator": "Exists" }],
        });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": spec },
            },
        });
        let nodes = self.get(&["nodes"])?;
        let other = |node: &&Value| node.pointer("/metadata/name") != Some(&json!(here));
        let elsewhere = nodes.get("items").and_then(Value::as_array).context("no nodes")?;
        let elsewhere = elsewhere.iter().filter(other);
        let free = elsewhere.filter(|node| node.pointer("/spec/unschedulable").is_none()).count();
        ensure!(free == 0, "{free} other nodes would take pods");
        self.create(vec![vec![deployment, budget(name, &json!({ "maxUnavailable": 1 }))]])?;
        let deployment = format!("deployment/{name}");
        self.ask(&["wait", "--for=condition=Available", &deployment, "--timeout=120s"])?;
        self.wait_for_budgets(1, 1)?;
        self.for_all("uncordon", others)
    }

    /// Waits until so many budgets allow so much, or as much as there are pods.
    fn wait_for_budgets(&self, count: usize, allowed: u64) -> Result<()> {
        wait_for("the budgets to be known", DEADLINE, || {
            let budgets = self.get(&["pdb"])?;
            let is_known = |budget: &&Value| {
                let status = |key: &str| budget.pointer(&format!("/status/{key}"))?.as_u64();
                let most = status("expectedPods").unwrap_or_default().min(allowed);
                most > 0 && status("disruptionsAllowed") == Some(most)
            };
            let known = budgets.get("items").and_then(Value::as_array).context("no budgets")?;
            Ok((known.iter().filter(is_known).count() == count).then_some(()))
        })
    }

    /// Whether these nodes are cordoned and empty, without a mark of ours.
    pub fn check_drained(&self, names: &[String]) -> Result<()> {
        let pods = self.get(&["pods"])?;
        let pods = pods.get("items").and_then(Value::as_array).context("no pods")?;
        let here = |pod: &&Value| {
            let node = pod.pointer("/spec/nodeName").and_then(Value::as_str);
            node.is_some_and(|node| names.iter().any(|name| name == node))
        };
        let left = pods.iter().filter(here).count();
        ensure!(left == 0, "{left} pods are left on the drained nodes");
        for name in names {
            let node = self.get(&["node", name])?;
            let cordoned = node.pointer("/spec/unschedulable") == Some(&json!(true));
            ensure!(cordoned, "node {name} is not cordoned");
        }
        Ok(())
    }

    /// How many writes and lists the API server has noted of the client that calls itself so.
    pub fn requests(&self, agent: &str) -> Result<(usize, usize)> {
        let (mut writes, mut lists) = (0, 0);
        for line in fs::read_to_string(self.dir.path().join("audit.log"))?.lines() {
            let entry: Entry = serde_json::from_str(line)?;
            if entry.user_agent.as_deref() != Some(agent) {
                continue;
            }
            match entry.verb.as_str() {
                "create" | "update" | "patch" | "delete" => writes += 1,
                "list" => lists += 1,
                _ => {}
            }
        }
        Ok((writes, lists))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    verb: String,
    user_agent: Option<String>,
}

/// It ends at once: kwok ends two thousand pods more slowly than the kubelets of 20 nodes do, and
/// would be measured instead.
fn pod(node: &str, number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("{node}-{number}"),
            "labels": { "app": format!("{node}-{}", number / GROUP) },
        },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": "none" }],
        },
    })
}

fn budget(app: &str, limit: &Value) -> Value {
    let mut spec = json!({ "selector": { "matchLabels": { "app": app } } });
    if let (Some(spec), Some(limit)) = (spec.as_object_mut(), limit.as_object()) {
        spec.extend(limit.clone());
    }
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": app }, "spec": spec,
    })
}
