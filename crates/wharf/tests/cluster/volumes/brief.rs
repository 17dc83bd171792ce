//! Pods that stamp a few lines and end, asked for and watched by several threads at once.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use wharf_testbed::{process::Process, wait_for};

use super::{NAME, Trial, stamps};
use crate::bed::DEADLINE;

/// How many lines each of these pods stamps.
const LINES: u64 = 12;

/// The API server, for any thread. The bed writes the same files anew for every call.
pub struct Api {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    /// What the pods run.
    image: String,
    /// The label of the pods.
    trial: &'static str,
}

impl Api {
    pub fn run(&self, args: &[&str]) -> String {
        self.try_run(args, "").unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    pub fn create(&self, objects: &[Value]) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        self.try_run(&["create", "-f", "-"], &list.to_string()).unwrap();
    }

    /// Whether there is such an object.
    pub fn has(&self, kind: &str, name: &str) -> bool {
        !self.run(&["get", kind, name, "--ignore-not-found", "-o", "name"]).is_empty()
    }

    fn try_run(&self, args: &[&str], input: &str) -> Result<String, String> {
        let mut command = self.command(args);
        command.arg("--request-timeout=20s").stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Prints a line of this form for every version of the objects, from the first on.
    pub fn watch(&self, what: &[&str], line: &str) -> Process {
        let form = format!("jsonpath={line}{{\"\\n\"}}");
        let mut command = self.command(&[&["get"], what, &["--watch", "-o", &form]].concat());
        command.stdin(Stdio::null());
        Process::spawn(command).unwrap()
    }

    /// A pod of that node that stamps some lines with its mark, and ends. It has nothing but the volume, so
    /// that it is quickly there and gone.
    pub fn brief(&self, name: &str, node: &str, claim: &str, mark: &str, ends: Ends) -> Value {
        let end = match ends {
            Ends::ByItself => "",
            Ends::WhenTold => "until [ \"$told\" ]; do sleep 0.1; done",
            Ends::AtGate => {
                "until [ \"$told\" ]; do sleep 0.1; done; touch /gate/ending; \
                 until [ -e /gate/go ]; do sleep 0.1; done"
            }
        };
        let script = format!(
            "trap 'told=1' TERM; i=0; while [ $i -lt {LINES} ]; do \
             echo \"{mark} $i\" >>/data/log && sync /data/log || exit 1; i=$((i+1)); done; {end}"
        );
        let mount = |name: &str| json!({ "name": name, "mountPath": format!("/{name}") });
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "labels": { "trial": self.trial } },
            "spec": {
                "nodeName": node, "hostNetwork": true, "restartPolicy": "Never",
                "automountServiceAccountToken": false, "enableServiceLinks": false,
                "terminationGracePeriodSeconds": GRACE_SECONDS,
                "containers": [{
                    "name": "writer", "image": self.image, "command": ["sh", "-c", script],
                    "volumeMounts": [mount("data"), mount("gate")],
                }],
                "volumes": [
                    { "name": "data", "persistentVolumeClaim": { "claimName": claim } },
                    { "name": "gate", "hostPath": { "path": GATE, "type": "DirectoryOrCreate" } },
                ],
            },
        })
    }

    /// The pods of the trial, as they change: name and phase.
    pub fn watch_pods(&self) -> Process {
        let label = format!("trial={}", self.trial);
        self.watch(&["pods", "-l", &label], "{.metadata.name} {.status.phase}")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args);
        command
    }
}

/// Waits until a watch of names and phases has told this phase of all these pods; none may fail.
pub fn wait_for_phase(pods: &Process, phase: &str, names: &[String]) {
    let missing = || {
        let told = pods.output();
        let is_there = |name: &str| told.lines().any(|line| line == format!("{name} {phase}"));
        let failed = told.lines().find(|line| line.ends_with(" Failed")).map(str::to_owned);
        (failed, names.iter().filter(|name| !is_there(name)).cloned().collect::<Vec<_>>())
    };
    wait_for(&format!("the pods to be {phase}"), DEADLINE, || {
        let (failed, missing) = missing();
        anyhow::ensure!(failed.is_none(), "a pod could not write: {failed:?}");
        Ok(missing.is_empty().then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:?}: {:?}", missing()));
}

/// The whole blocks of an image, by their marks and in their order: all lines of one pod together, and
/// none is missing.
pub fn blocks(image: &Path) -> Vec<String> {
    let lines = stamps::read(image);
    let blocks = lines.chunk_by(|(one, _), (other, _)| one == other);
    let whole: Vec<u64> = (0..LINES).collect();
    let marks = blocks.map(|block| {
        let counts: Vec<u64> = block.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, whole, "{:?}", block.first());
        block.first().unwrap().0.clone()
    });
    marks.collect()
}

/// When such a pod ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    ByItself,
    /// When it is told to.
    WhenTold,
    /// When it was told to and the file `go` is in [`GATE`]; until then it shows that by the file `ending`.
    AtGate,
}

/// A directory of the pod's machine.
pub const GATE: &str = "/srv/gate";
/// More than any wait of these tests: nobody kills a pod that waits.
const GRACE_SECONDS: u64 = 3_600;

impl Trial<'_> {
    /// For the pods of one trial.
    pub fn api(&self, trial: &'static str) -> Api {
        let kubeconfig = self.bed.world.path("threads.kubeconfig");
        std::fs::copy(self.bed.kubeconfig(NAME), &kubeconfig).unwrap();
        let kubectl = wharf_bundle::cache::find("kubectl").unwrap();
        Api { kubectl, kubeconfig, image: self.bed.image("busybox"), trial }
    }
}
