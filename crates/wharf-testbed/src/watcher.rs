//! Somebody else who watches the pods of an application, and tells afterwards whether too many were
//! missing at any moment.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Deserializer, Value};

use crate::process::Process;
use crate::wait::wait_for;

const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Watcher {
    kubectl: Process,
    replicas: usize,
}

impl Watcher {
    /// Watches the pods that carry `app: APP` by this kubectl; returns when it has seen as many
    /// healthy ones as there are replicas.
    pub fn start(mut kubectl: Command, app: &str, replicas: usize) -> Result<Watcher> {
        kubectl.args(["get", "pods", "-l", &format!("app={app}"), "-o", "json"]);
        kubectl.args(["--watch", "--output-watch-events"]);
        let watcher = Watcher { kubectl: Process::spawn(kubectl)?, replicas };
        wait_for("the watcher to see all pods", DEADLINE, || {
            Ok((watcher.history()?.last() == Some(&replicas)).then_some(()))
        })?;
        Ok(watcher)
    }

    /// Fails if more than one was missing at any moment, or if not all were replaced.
    pub fn finish(self) -> Result<()> {
        let least = self.replicas - 1;
        let history = self.history()?;
        let complete = history.iter().position(|healthy| *healthy == self.replicas);
        let seen = history.get(complete.context("not all pods were seen")?..).unwrap_or_default();
        ensure!(seen.len() > self.replicas, "the watcher saw {} changes only", seen.len());
        let worst = seen.iter().min().copied().unwrap_or_default();
        ensure!(worst >= least, "the budget was broken: {worst} pods were healthy, not {least}");
        Ok(())
    }

    /// How many pods were healthy after each event.
    fn history(&self) -> Result<Vec<usize>> {
        let mut healthy = BTreeSet::new();
        let mut history = Vec::new();
        for event in Deserializer::from_str(&self.kubectl.output()).into_iter::<Value>() {
            // The last one may not be there in full.
            let Ok(event) = event else { break };
            let pod = event.get("object").context("an event without a pod")?;
            let uid = pod.pointer("/metadata/uid").and_then(Value::as_str).context("no UID")?;
            let deleted = event.get("type").and_then(Value::as_str) == Some("DELETED");
            if !deleted && is_healthy(pod) {
                healthy.insert(uid.to_owned());
            } else {
                healthy.remove(uid);
            }
            history.push(healthy.len());
        }
        Ok(history)
    }
}

/// As the disruption controller counts.
fn is_healthy(pod: &Value) -> bool {
    let ready = |condition: &Value| {
        let is = |key: &str, value: &str| condition.get(key).and_then(Value::as_str) == Some(value);
        is("type", "Ready") && is("status", "True")
    };
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    pod.pointer("/metadata/deletionTimestamp").is_none()
        && conditions.is_some_and(|conditions| conditions.iter().any(ready))
}
