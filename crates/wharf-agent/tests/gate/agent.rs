//! An agent's tasks in this process, with files of their own.

use std::{
    io::Write,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tracing::subscriber::DefaultGuard;
use wharf_agent::{
    config::{Config, Role},
    drain::{self, Orders},
    files::Files,
    health::Health,
    kube::Keeper,
    tasks::{Context, Tasks},
};
use wharf_api::node_files::{AgentFault, NodeWish};

use crate::{DEADLINE, world::World};

pub struct Agent {
    pub dir: TempDir,
    pub config: Config,
    health: Option<Health>,
    tasks: Option<Tasks>,
    log: Log,
    _guard: DefaultGuard,
}

impl Agent {
    /// Its files, before it runs. Times are short.
    pub fn prepare(world: &World, node: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(&kubeconfig, world.server.kubeconfig()).unwrap();
        let config = Config {
            node_name: node.to_owned(),
            kubeconfig: Some(kubeconfig),
            run_dir: dir.path().join("run"),
            persist_dir: dir.path().join("persist"),
            cordon_retry_seconds: 1,
            drain_retry_seconds: 1,
            ..Config::default()
        };
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .with_writer(move || writer.clone())
            .finish();
        // The runtime of a test has one thread, so that this is the log of this agent alone.
        let guard = tracing::subscriber::set_default(subscriber);
        let agent = Self { dir, config, health: None, tasks: None, log, _guard: guard };
        agent.join_cluster();
        agent
    }

    /// One that also plays those who ask for drains.
    pub fn prepare_whole(world: &World, node: &str) -> Self {
        let mut agent = Self::prepare(world, node);
        agent.config.publish_as = vec![Role::Zedagent, Role::Nodeagent, Role::Baseosmgr];
        agent
    }

    pub fn start(&mut self) {
        let stop = CancellationToken::new();
        let config = Arc::new(self.config.clone());
        let health = Health::new(&config.node_name);
        let files = Files::open(&config.run_dir, &config.persist_dir, &health, stop.clone());
        let context = Context { config: config.clone(), files, health: health.clone(), stop };
        let mut tasks = Tasks::new(context);
        let keeper = Keeper::new(&config).unwrap();
        let order = |verb: &str| {
            let file = self.orders().display().to_string();
            vec!["sh".to_owned(), "-c".to_owned(), format!("echo {verb} >>{file}")]
        };
        let orders = Orders { reboot: order("reboot"), shutdown: order("shutdown") };
        drain::start(&mut tasks, &config, keeper.kube(), orders);
        tasks.start("kube", move |context, reporter| keeper.clone().run(context, reporter));
        (self.health, self.tasks) = (Some(health), Some(tasks));
    }

    /// Ends everything at once, wherever it is.
    pub fn kill(&mut self) {
        self.tasks = None;
        self.health = None;
    }

    fn orders(&self) -> PathBuf {
        self.dir.path().join("orders")
    }

    /// What would have taken the node down, one a line.
    pub fn ordered(&self) -> String {
        std::fs::read_to_string(self.orders()).unwrap_or_default()
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.0.lock().unwrap()).into_owned()
    }

    pub fn faults(&self) -> Vec<AgentFault> {
        let health = self.health.as_ref().unwrap().snapshot();
        health.tasks.iter().flat_map(|task| task.faults.iter().cloned()).collect()
    }

    /// Another agent's word.
    pub fn write(&self, path: &str, value: &Value) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = path.with_extension("new");
        std::fs::write(&new, value.to_string()).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    pub fn remove(&self, path: &str) {
        std::fs::remove_file(self.dir.path().join(path)).unwrap();
    }

    pub fn exists(&self, path: &str) -> bool {
        self.dir.path().join(path).exists()
    }

    pub fn read(&self, path: &str) -> Value {
        let text = std::fs::read_to_string(self.dir.path().join(path)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    pub fn join_cluster(&self) {
        self.write(
            "run/zedagent/EdgeNodeClusterConfig/global.json",
            &json!({ "ClusterName": "test" }),
        );
    }

    pub fn request(&self, agent: &str, by: u8, context: &str) {
        let path = format!("run/{agent}/NodeDrainRequest/global.json");
        let now = jiff::Timestamp::now().to_string();
        self.write(&path, &json!({ "RequestedAt": now, "RequestedBy": by, "Context": context }));
    }

    pub fn withdraw(&self, agent: &str) {
        self.remove(&format!("run/{agent}/NodeDrainRequest/global.json"));
    }

    pub fn wish(&self, kind: &str) -> NodeWish {
        let wish = NodeWish { kind: kind.to_owned(), ..NodeWish::default() };
        drain::wishes::hand_over(&self.config.persist_dir, wish).unwrap()
    }

    /// Status and requester, as they are published.
    pub fn status(&self) -> (u64, u64) {
        let status = self.read("run/zedkube/NodeDrainStatus/global.json");
        (status["Status"].as_u64().unwrap_or(99), status["RequestedBy"].as_u64().unwrap_or(99))
    }

    pub fn said(&self) -> Value {
        self.read("run/zedkube/NodeDrainStatus/global.json")
    }

    pub fn job(&self, kind: &str) -> Value {
        let jobs = self.read("run/wharf/NodeJobs/global.json");
        let found = jobs["Jobs"]
            .as_array()
            .and_then(|jobs| jobs.iter().find(|job| job["Kind"] == kind).cloned());
        found.unwrap_or_default()
    }

    pub async fn wait_for_status(&self, status: u64, by: u64) {
        self.wait_until(&format!("the status {status} for {by}"), || self.status() == (status, by))
            .await;
    }

    pub async fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let end = tokio::time::Instant::now() + DEADLINE;
        while !is_so() {
            let now = tokio::time::Instant::now();
            assert!(now < end, "no {what}; {}; the log:\n{}", self.said(), self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The statuses that were published, one after the other, without repetition.
    pub fn history(&self) -> Vec<String> {
        let mark = "NodeDrainStatus is ";
        let log = self.log();
        let names = log.lines().filter_map(|line| {
            let (_, name) = line.split_once(mark)?;
            Some(name.split([' ', ',']).next()?.to_owned())
        });
        let mut names: Vec<String> = names.collect();
        names.dedup();
        names
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
