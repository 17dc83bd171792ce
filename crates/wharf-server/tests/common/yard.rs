//! Machines on paper for repairs with real commands: a machine is healthy when `healthy-<address>`
//! in the directory says `true`, and commands write into `log-<address>`.

#![allow(dead_code)]

use std::{panic::AssertUnwindSafe, path::Path};

use futures_util::FutureExt;
use serde_json::{Value, json};

use super::common::{TestServer, eventually, json_of, put_cluster};

pub const REPAIRS: &str = "/clusters/demo/repairs";
/// A script that tells what runs.
pub const LOG: &str =
    "echo $WHARF_REPAIR_COMMAND $WHARF_REPAIR_STEP $WHARF_REPAIR_ATTEMPT >> log-$1";

/// A command that runs a script in the directory, with the address as `$1`.
pub fn script(dir: &Path, text: &str) -> Value {
    json!(["sh", "-c", format!("cd {} && {{ {text}\n}}", dir.display()), "script"])
}

pub fn step(dir: &Path, text: &str, change: &Value) -> Value {
    let mut step = json!({"repair_command": script(dir, text)});
    step.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    step
}

/// A configuration of one operation, `fix`, for machines of type `plain`.
pub fn config(dir: &Path, steps: &[Value], change: &Value) -> Value {
    let mut operation = json!({
        "operation": "fix", "repair_steps": steps, "health_check_interval_seconds": 1,
        "health_check_command": script(dir, "cat healthy-$1"),
    });
    operation.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    json!({
        "max_concurrent_repairs": 2,
        "repair_procedures": [{"machine_types": ["plain"], "repair_operations": [operation]}],
    })
}

/// A server with a cluster that has no API.
pub struct Yard {
    pub server: TestServer,
}

impl Yard {
    pub async fn new(config: impl FnOnce(&Path) -> Value) -> Self {
        let yard = Yard { server: TestServer::start().await };
        put_cluster(&yard.server.app().store, "demo").await;
        yard.configure(&config(yard.server.dir.path())).await;
        yard
    }

    pub async fn configure(&self, config: &Value) {
        let path = "/clusters/demo/repairconfig";
        let put = self.server.put(path, &self.server.admin, config).await;
        assert_eq!(put.status(), 200, "{:?}", put.text().await);
    }

    pub fn path(&self, name: &str) -> String {
        self.server.dir.path().join(name).display().to_string()
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub async fn add(&self, address: &str) {
        let body = json!({"operation": "fix", "machine_type": "plain", "address": address});
        let added = self.server.post(REPAIRS, &self.server.admin, &body).await;
        assert_eq!(added.status(), 201);
    }

    pub async fn act(&self, action: &str) {
        let path = format!("{REPAIRS}?action={action}");
        let done = self.server.post(&path, &self.server.admin, &json!({})).await;
        assert_eq!(done.status(), 200);
    }

    pub async fn entries(&self) -> Vec<Value> {
        let queue = json_of(self.server.get(REPAIRS, &self.server.admin).await).await;
        queue["data"].as_array().unwrap().clone()
    }

    pub async fn entry(&self, index: usize) -> Value {
        self.entries().await.into_iter().nth(index).unwrap()
    }

    /// Waits until an entry has ended, and returns it; one that does not end is shown.
    pub async fn ended(&self, index: usize) -> Value {
        let mut last = Value::Null;
        let look = eventually(async || {
            last = self.entry(index).await;
            matches!(last["status"].as_str().unwrap(), "succeeded" | "failed")
        });
        let seen = AssertUnwindSafe(look).catch_unwind().await;
        assert!(seen.is_ok(), "it does not end: {last}");
        last
    }
}

/// The reasons in an entry's history.
pub fn reasons(entry: &Value) -> Vec<&str> {
    let lines = entry["history"].as_array().unwrap().iter();
    lines.map(|line| line["reason"].as_str().unwrap()).collect()
}
