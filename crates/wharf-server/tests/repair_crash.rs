//! Servers that die in the middle of a repair: nothing is lost, and nothing is done twice.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/yard.rs"]
mod yard;

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use common::{PASSWORD, TestServer, eventually, put_cluster};
use serde_json::{Value, json};
use tempfile::TempDir;
use wharf_core::cluster::{ServerId, ownership::rendezvous};
use wharf_store::{Store, StoreLocation, StoreOptions};
use wharf_testbed::{etcd::Etcd, process::example};
use yard::{LOG, REPAIRS, Yard, reasons, step};

/// A server in a process of its own.
struct Victim {
    child: Child,
    base: String,
    id: String,
    http: reqwest::Client,
    token: String,
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Victim {
    /// Starts a server on the configuration of a test, to die after so many writes about entries.
    async fn start(config: &wharf_server::Config, writes: usize) -> Self {
        let path = |path: &Path| path.display().to_string();
        let mut child = Command::new(example("crashing_server").unwrap())
            .args([path(&config.data_dir), config.store.clone(), path(&config.key_file)])
            .args([path(&config.admin_password_file), writes.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut words = line.split_whitespace().skip(1);
        let mut next = || words.next().unwrap().to_owned();
        let (base, id) = (format!("http://{}/api/v1", next()), next());
        let http = reqwest::Client::builder().no_proxy().timeout(common::DEADLINE);
        let http = http.build().unwrap();
        let mut victim = Self { child, base, id, http, token: String::new() };
        let login = json!({ "password": PASSWORD });
        let login = victim.post("/users/admin?action=login", &login).await.unwrap();
        let login: Value = login.json().await.unwrap();
        victim.token = login["token"].as_str().unwrap().to_owned();
        victim
    }

    async fn post(&self, path: &str, body: &Value) -> reqwest::Result<reqwest::Response> {
        let request = self.http.post(format!("{}{path}", self.base)).bearer_auth(&self.token);
        request.json(body).send().await
    }

    async fn configure(&self, cluster: &str, config: &Value) {
        let path = format!("{}/clusters/{cluster}/repairconfig", self.base);
        let put = self.http.put(path).bearer_auth(&self.token).json(config).send().await.unwrap();
        assert_eq!(put.status(), 200);
    }

    fn is_dead(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

fn wish() -> Value {
    json!({"operation": "fix", "machine_type": "plain", "address": "10.0.0.1"})
}

/// Two steps with a retry, of which the second heals, and a success command.
fn repair(dir: &Path, on_restart: &str) -> Value {
    let more = json!({"on_restart": on_restart, "command_retries": 1});
    let once = format!("{LOG}; [ $WHARF_REPAIR_ATTEMPT = 2 ]");
    let heal = format!("{LOG}; echo true > healthy-$1");
    let steps = [step(dir, &once, &more), step(dir, &heal, &more)];
    yard::config(dir, &steps, &json!({ "success_command": yard::script(dir, LOG) }))
}

async fn prepare(dir: &TempDir) -> wharf_server::Config {
    let config = common::config(dir.path());
    let location = StoreLocation::Embedded { data_dir: config.data_dir.clone() };
    let store = Store::open(&StoreOptions { location }).await.unwrap();
    put_cluster(&store, "demo").await;
    store.close().await;
    config
}

/// Lets a server die after so many writes, and another one go on to the end of the repair.
async fn die_after(writes: usize, on_restart: &str) -> (Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let config = prepare(&dir).await;
    let mut victim = Victim::start(&config, writes).await;
    victim.configure("demo", &repair(dir.path(), on_restart)).await;
    // It may die before it has answered.
    let _ = victim.post(REPAIRS, &wish()).await;
    eventually(async || victim.is_dead()).await;
    let yard = Yard { server: TestServer::start_in(dir, config).await };
    let entry = yard.ended(0).await;
    (entry, yard.read("log-10.0.0.1"))
}

/// How many writes about its entry a repair takes that nothing disturbs.
async fn writes_of_a_repair() -> usize {
    let yard = Yard::new(|dir| repair(dir, "watch")).await;
    let store = &yard.server.app().store;
    let start = store.revision().await.unwrap();
    yard.add("10.0.0.1").await;
    assert_eq!(yard.ended(0).await["status"], "succeeded");
    let mut watch = store.watch("repair/demo/entries/", start).await.unwrap();
    let mut writes = 0;
    let more = std::time::Duration::from_millis(300);
    while let Ok(changes) = tokio::time::timeout(more, watch.next()).await {
        writes += changes.unwrap().len();
    }
    writes
}

#[tokio::test]
async fn after_a_crash_at_any_write_a_repair_comes_to_its_end_and_repeats_nothing() {
    let writes = writes_of_a_repair().await;
    assert!(writes >= 8, "{writes}");
    for number in 1..=writes {
        let (entry, log) = die_after(number, "watch").await;
        println!("dead after write {number} of {writes}: {} {log:?}", entry["reason"]);
        let lines: Vec<&str> = log.lines().collect();
        let mut once = lines.clone();
        once.dedup();
        assert_eq!(lines, once, "a command ran twice after write {number}: {entry}");
        let known = ["repair 0 1", "repair 0 2", "repair 1 1", "success 1 1", "success 0 1"];
        assert!(lines.iter().all(|line| known.contains(line)), "{log}");
        match entry["status"].as_str().unwrap() {
            "succeeded" => {}
            "failed" => {
                // Nobody claims that what was cut off was done.
                let cut =
                    reasons(&entry).iter().any(|reason| reason.contains("it is not repeated"));
                assert!(cut, "{number}: {entry}");
            }
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_command_that_may_be_repeated_is_repeated_after_a_crash() {
    // The second write is the beginning of the first command.
    let (entry, log) = die_after(2, "rerun").await;
    assert_eq!(entry["status"], "succeeded", "{entry}");
    let first = log.lines().filter(|line| *line == "repair 0 1").count();
    assert!((1..=2).contains(&first), "{log}");
    let skipped = reasons(&entry).iter().any(|reason| reason.contains("it is not repeated"));
    assert!(!skipped, "{entry}");
}

#[tokio::test]
async fn another_server_goes_on_when_the_owner_dies_in_the_middle_of_a_command() {
    let etcd = Etcd::start().unwrap();
    let store = format!("etcd://{}", etcd.address());
    let dir = tempfile::tempdir().unwrap();
    let mut config = common::config(dir.path());
    config.store = store;
    std::fs::create_dir_all(&config.data_dir).unwrap();
    let other = wharf_server::Config { data_dir: dir.path().join("other"), ..config.clone() };
    let victim = Victim::start(&config, 0).await;
    let survivor = TestServer::start_in(tempfile::tempdir().unwrap(), other).await;
    let members = [ServerId(victim.id.clone()), survivor.app().me.clone()];
    let name = (0..).map(|n| format!("demo{n}"));
    let name = name.into_iter().find(|name| rendezvous(&members, name) == members.first()).unwrap();
    put_cluster(&survivor.app().store, &name).await;

    let wait = format!("{LOG}; until [ -e go ]; do sleep 0.1; done");
    let slow = json!({"command_timeout_seconds": 0, "watch_seconds": 50});
    let steps = [step(dir.path(), &wait, &slow), step(dir.path(), LOG, &json!({}))];
    victim.configure(&name, &yard::config(dir.path(), &steps, &json!({}))).await;
    let repairs = format!("/clusters/{name}/repairs");
    assert_eq!(victim.post(&repairs, &wish()).await.unwrap().status(), 201);
    let log = || std::fs::read_to_string(dir.path().join("log-10.0.0.1")).unwrap_or_default();
    eventually(async || !log().is_empty()).await;

    drop(victim);
    let entry = async || {
        let queue = common::json_of(survivor.get(&repairs, &survivor.admin).await).await;
        queue["data"][0].clone()
    };
    eventually(async || {
        let text = "the server stopped while the command ran; it is not repeated, and the machine is \
                    watched";
        entry().await["reason"] == text
    })
    .await;
    std::fs::write(dir.path().join("healthy-10.0.0.1"), "true").unwrap();
    eventually(async || entry().await["status"] == "succeeded").await;
    // What the dead server left behind ends by itself.
    std::fs::write(dir.path().join("go"), "").unwrap();
    assert_eq!(log(), "repair 0 1\n");
}
