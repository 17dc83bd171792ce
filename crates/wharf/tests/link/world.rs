//! A server with a cluster in its store, and nodes that have nothing but the link's task.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wharf_agent::{
    config::{Config as AgentConfig, Role},
    files::Files,
    health::Health,
    link,
    tasks::{Context, Tasks},
    tracker::Tracker,
};
use wharf_api::node_files::NodeFile;
use wharf_core::{
    agents::AgentRecord,
    cluster::{
        ClusterRecord, ClusterSpec, ClusterState, NodeRecord, NodeRole, NodeSpec, Origin, ServerId,
    },
};
use wharf_pki::{Agent, AgentAuthority, CertKey, ClusterPki};
use wharf_server::{
    Config, Running,
    engine::Member,
    vault::{self, Vault},
};
use wharf_store::{Outcome, Txn};
use wharf_testbed::process::free_port;

const PASSWORD: &str = "correct horse battery";
/// These machines are noisy; a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(180);

pub struct World {
    dir: TempDir,
    store: String,
    key_file: PathBuf,
    running: Option<Running>,
    base: String,
    http: reqwest::Client,
    token: String,
    link: String,
    pub identity: String,
    renew_seconds: u64,
}

/// Waits until a condition holds; a test that waits in vain fails.
pub async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    const LOOK_EVERY: Duration = Duration::from_millis(20);
    let wait = async {
        while !holds().await {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("the condition never held");
}

impl World {
    pub async fn start(nodes: u8) -> Self {
        Self::start_on("embedded", nodes).await
    }

    /// With its records in a store of this address.
    pub async fn start_on(store: &str, nodes: u8) -> Self {
        Self::empty(store, None).started(nodes).await
    }

    /// The same, and certificates of linked agents are looked at every second.
    pub async fn start_renewing(store: &str, nodes: u8) -> Self {
        let world = Self { renew_seconds: 1, ..Self::empty(store, None) };
        world.started(nodes).await
    }

    async fn started(mut self, nodes: u8) -> Self {
        self.start_server().await;
        self.put_cluster(nodes).await;
        self
    }

    /// Another server on the same store.
    pub async fn beside(&self) -> Self {
        let mut world = Self::empty(&self.store, Some(&self.key_file));
        world.identity.clone_from(&self.identity);
        world.start_server().await;
        world
    }

    fn empty(store: &str, key_file: Option<&Path>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let own_key = dir.path().join("data/seal.key");
        Self {
            dir,
            store: store.to_owned(),
            key_file: key_file.map_or(own_key, Path::to_owned),
            running: None,
            base: String::new(),
            http: reqwest::Client::builder().no_proxy().timeout(DEADLINE).build().unwrap(),
            token: String::new(),
            link: format!("127.0.0.1:{}", free_port().unwrap()),
            identity: String::new(),
            renew_seconds: Config::default().agents.renew_seconds,
        }
    }

    pub async fn start_server(&mut self) {
        let dir = self.dir.path();
        let password_file = dir.join("password");
        std::fs::write(&password_file, PASSWORD).unwrap();
        let mut config = Config {
            data_dir: dir.join("data"),
            store: self.store.clone(),
            key_file: self.key_file.clone(),
            listen: "127.0.0.1:0".parse().unwrap(),
            http: true,
            admin_password_file: password_file,
            ..Config::default()
        };
        // A server that is started again is found at the same place.
        config.agents.listen = self.link.clone();
        config.agents.addresses = vec![self.link.clone()];
        config.agents.renew_seconds = self.renew_seconds;
        let running = wharf_server::start(config).await.unwrap();
        self.base = format!("http://127.0.0.1:{}", running.address.port());
        self.running = Some(running);
        let login = json!({ "password": PASSWORD });
        let (status, body) = self.post("/users/admin?action=login", &login).await;
        assert_eq!(status, 200, "{body}");
        self.token = body["token"].as_str().unwrap().to_owned();
    }

    pub async fn stop_server(&mut self) {
        self.running.take().unwrap().stop().await;
    }

    pub async fn stop(mut self) {
        self.stop_server().await;
    }

    /// A cluster that runs, of controlplane nodes that are nowhere but on loopback.
    async fn put_cluster(&mut self, nodes: u8) {
        let app = self.running.as_ref().unwrap().app.clone();
        let now = Timestamp::now();
        let mut spec = ClusterSpec::new("demo", self.link.parse().unwrap(), "1.36.3");
        spec.nodes = (1..=nodes)
            .map(|number| NodeSpec {
                name: format!("n{number}"),
                address: Ipv4Addr::new(127, 0, 0, 10 + number),
                roles: vec![NodeRole::Controlplane, NodeRole::Etcd],
                host_key: None,
            })
            .collect();
        let mut pki = ClusterPki::new(now).unwrap();
        pki.ensure(&spec, now).unwrap();
        self.identity.clone_from(&pki.etcd_token);
        let mut record = ClusterRecord::new(spec, ClusterState::Running, Origin::Installed, now);
        for (number, node) in record.spec.nodes.iter().enumerate() {
            let known = NodeRecord {
                spec: node.clone(),
                pod_cidr: format!("10.42.{number}.0/24").parse().unwrap(),
                host_key: None,
                etcd: None,
                installed: true,
            };
            record.nodes.insert(node.name.clone(), known);
        }
        let vault = Vault { pki: Some(pki), ..Vault::default() };
        let txn = Txn::new().create("demo", &record, now).unwrap();
        let txn = vault::put(txn, &app, "demo", None, &vault, now).unwrap();
        assert!(matches!(app.store.commit(txn).await.unwrap(), Outcome::Committed(_)));
    }

    async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let mut request = self.http.request(method, format!("{}/api/v1{path}", self.base));
        if !self.token.is_empty() {
            request = request.bearer_auth(&self.token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.request(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.request(Method::POST, path, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        self.request(Method::PUT, path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> u16 {
        self.request(Method::DELETE, path, None).await.0
    }

    pub async fn node(&self, name: &str) -> Value {
        self.get(&format!("/clusters/demo/nodes/{name}")).await.1
    }

    pub async fn act(&self, node: &str, action: &str, body: Value) -> (u16, Value) {
        self.post(&format!("/clusters/demo/nodes/{node}?action={action}"), &body).await
    }

    pub async fn operation_of(&self, node: &str) -> Value {
        self.get(&format!("/clusters/demo/nodes/{node}/operation")).await.1
    }

    pub async fn operation(&self, id: &str) -> Value {
        self.get(&format!("/operations/{id}")).await.1
    }

    pub async fn wait_for_reason(&self, node: &str, text: &str) -> Value {
        let mut last = Value::Null;
        eventually(async || {
            last = self.operation_of(node).await;
            last["reason"].as_str().is_some_and(|reason| reason.contains(text))
        })
        .await;
        last
    }

    pub async fn wait_for_end(&self, node: &str) -> Value {
        let mut last = Value::Null;
        eventually(async || {
            last = self.operation_of(node).await;
            last["state"] != "running"
        })
        .await;
        last
    }

    pub async fn create_app(&self, body: Value) -> Value {
        let (status, made) = self.post("/clusters/demo/apps", &body).await;
        assert_eq!(status, 201, "{made}");
        made
    }

    /// As if another server held the link of a node.
    pub async fn link_elsewhere(&self, node: &str) {
        let (now, id) = (Timestamp::now(), ServerId("other-1".to_owned()));
        let agent = AgentRecord {
            cluster: "demo".to_owned(),
            node: node.to_owned(),
            server: Some(id.clone()),
            ..AgentRecord::default()
        };
        let member = Member {
            id,
            address: "192.0.2.7:8443".to_owned(),
            agents: Vec::new(),
            version: String::new(),
            started_at: now,
        };
        let txn = Txn::new().write(&AgentRecord::key("demo", node), &agent, now, None).unwrap();
        let txn = txn.write("other-1", &member, now, None).unwrap();
        let store = &self.running.as_ref().unwrap().app.store;
        assert!(matches!(store.commit(txn).await.unwrap(), Outcome::Committed(_)));
    }

    fn issue(&self, node: &str, identity: &str) -> CertKey {
        self.issue_at(node, identity, Timestamp::now())
    }

    fn issue_at(&self, node: &str, identity: &str, at: Timestamp) -> CertKey {
        let [cluster, identity, node] = ["demo", identity, node].map(str::to_owned);
        let authority = &self.running.as_ref().unwrap().app.agents.authority;
        authority.issue(&Agent { cluster, identity, node }, at).unwrap()
    }

    /// The number of a node's link; another one for each connection.
    pub async fn link_of(&self, node: &str) -> u64 {
        let store = &self.running.as_ref().unwrap().app.store;
        let record = store.read::<AgentRecord>(&AgentRecord::key("demo", node)).await.unwrap();
        record.unwrap().value.link
    }

    pub async fn store_answers(&self) -> bool {
        self.running.as_ref().unwrap().app.store.revision().await.is_ok()
    }

    /// The certificate that a node's agent should have.
    pub async fn certificate(&self, node: &str) -> String {
        let app = &self.running.as_ref().unwrap().app;
        vault::read(app, "demo").await.unwrap().agents[node].cert_pem.clone()
    }

    /// Puts one in its place that has less than a third of its life left.
    pub async fn age_certificate(&self, node: &str) -> String {
        const AGE: Duration = Duration::from_secs(300 * 24 * 3600);
        let app = &self.running.as_ref().unwrap().app;
        let now = Timestamp::now();
        let old = self.issue_at(node, &self.identity, now - AGE);
        let (mut vault, stored) = vault::find(app, "demo").await.unwrap().unwrap();
        vault.agents.insert(node.to_owned(), old.clone());
        let txn = vault::put(Txn::new(), app, "demo", Some(&stored), &vault, now).unwrap();
        assert!(matches!(app.store.commit(txn).await.unwrap(), Outcome::Committed(_)));
        old.cert_pem
    }

    /// How often it could not be found out whether an agent needs a new certificate.
    pub async fn failed_renewals(&self) -> u64 {
        let answer = self.http.get(format!("{}/metrics", self.base)).send().await.unwrap();
        let text = answer.text().await.unwrap();
        let name = "wharf_agent_renewals_failed_total ";
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
    }

    fn authority(&self) -> String {
        let authority = &self.running.as_ref().unwrap().app.agents.authority;
        authority.certificate_pem().to_owned()
    }

    /// What an agent with such a certificate says of its link.
    pub async fn refusal(&self, node: &str, identity: &str) -> String {
        self.trouble(node, &self.issue(node, identity)).await
    }

    /// The same with a certificate that another authority signed.
    pub async fn stranger(&self, node: &str) -> String {
        let authority = AgentAuthority::new(Timestamp::now()).unwrap();
        let [cluster, identity, name] = ["demo", &self.identity, node].map(str::to_owned);
        let agent = Agent { cluster, identity, node: name };
        self.trouble(node, &authority.issue(&agent, Timestamp::now()).unwrap()).await
    }

    async fn trouble(&self, node: &str, pair: &CertKey) -> String {
        let node = Node::start_with(self, node, pair, &self.authority()).await;
        let mut reason = String::new();
        eventually(async || {
            reason = node.fault("the link");
            !reason.is_empty()
        })
        .await;
        node.stop().await;
        reason
    }
}

pub struct Node {
    dir: TempDir,
    name: String,
    files: Files,
    pub health: Health,
    pub first_certificate: String,
    stop: CancellationToken,
    tasks: Tasks,
}

impl Node {
    pub async fn start(world: &World, name: &str) -> Self {
        let pair = world.issue(name, &world.identity);
        let node = Self::start_with(world, name, &pair, &world.authority()).await;
        eventually(async || world.node(name).await["agent"]["link"] == "linked").await;
        node
    }

    pub async fn start_with(world: &World, name: &str, pair: &CertKey, authority: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let identity = format!("{}{}", pair.cert_pem, pair.key_pem.expose());
        std::fs::write(dir.path().join("identity.pem"), identity).unwrap();
        std::fs::write(dir.path().join("authority.crt"), authority).unwrap();
        Self::start_in(dir, world, name, pair.cert_pem.clone())
    }

    fn start_in(dir: TempDir, world: &World, name: &str, first_certificate: String) -> Self {
        let at = |file: &str| dir.path().join(file);
        let config = AgentConfig {
            node_name: name.to_owned(),
            network_file: at("network.json"),
            run_dir: at("run"),
            persist_dir: at("persist"),
            publish_as: vec![Role::Zedagent],
            server: Some(world.link.clone()),
            link_identity: at("identity.pem"),
            link_authority: at("authority.crt"),
            ..AgentConfig::default()
        };
        let (health, stop) = (Health::new(name), CancellationToken::new());
        let files = Files::open(&config.run_dir, &config.persist_dir, &health, stop.clone());
        let context = Context {
            config: Arc::new(config),
            files: files.clone(),
            health: health.clone(),
            stop: stop.clone(),
        };
        // A host whose kubeconfig is not there yet.
        let kubeconfig = Some(watch::Sender::new(None).subscribe());
        let tracker = Tracker::new(context.config.clone(), files.clone(), kubeconfig);
        let mut tasks = Tasks::new(context);
        tasks.start("link", move |context, reporter| link::run(context, reporter, tracker.clone()));
        let name = name.to_owned();
        Self { dir, name, files, health, first_certificate, stop, tasks }
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.ended().await;
    }

    /// The agent ends and starts again after a boot, which has emptied its runtime directory.
    pub async fn restart_after_boot(self, world: &World) -> Self {
        self.stop.cancel();
        self.tasks.ended().await;
        std::fs::remove_dir_all(self.dir.path().join("run")).unwrap();
        Self::start_in(self.dir, world, &self.name, self.first_certificate)
    }

    pub fn network_file(&self) -> PathBuf {
        self.dir.path().join("network.json")
    }

    pub fn identity_file(&self) -> PathBuf {
        self.dir.path().join("identity.pem")
    }

    /// Whether the agent shows this certificate at its next connection.
    pub fn keeps(&self, certificate: &str) -> bool {
        let kept = std::fs::read_to_string(self.identity_file());
        kept.is_ok_and(|kept| kept.starts_with(certificate))
    }

    /// What the agent says is wrong with a thing; empty if nothing is.
    pub fn fault(&self, subject: &str) -> String {
        let tasks = self.health.snapshot().tasks;
        let mut faults = tasks.iter().flat_map(|task| task.faults.iter());
        let fault = faults.find(|fault| fault.subject == subject);
        fault.map(|fault| fault.reason.clone()).unwrap_or_default()
    }

    pub fn publish<T: NodeFile>(&self, agent: &str, key: &str, value: &T) {
        self.files.publish(agent, key, value).unwrap();
    }

    pub fn read_at<T: NodeFile>(&self, agent: &str, key: &str) -> Option<T> {
        self.files.read(agent, key).unwrap()
    }

    pub fn keys<T: NodeFile>(&self, agent: &str) -> Vec<String> {
        let folder = self.dir.path().join("run").join(agent).join(T::TYPE);
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".json")).collect()
    }

    pub async fn wait_until_keys<T: NodeFile>(&self, agent: &str, count: usize) {
        eventually(async || self.keys::<T>(agent).len() == count).await;
    }

    pub async fn wait_for<T: NodeFile>(&self, agent: &str, key: &str) -> T {
        self.wait_until_at(agent, key, |_| true).await
    }

    pub async fn wait_until_at<T: NodeFile>(
        &self,
        agent: &str,
        key: &str,
        is_so: impl Fn(&T) -> bool,
    ) -> T {
        let mut last = None;
        eventually(async || {
            last = self.read_at::<T>(agent, key).filter(&is_so);
            last.is_some()
        })
        .await;
        last.unwrap()
    }

    /// Of the file that there is one of.
    pub async fn wait_until<T: NodeFile>(&self, is_so: impl Fn(&T) -> bool) -> T {
        let (agent, key) = match T::TYPE {
            "ZedAgentStatus" => ("zedagent", "zedagent"),
            _ => ("wharf", "global"),
        };
        self.wait_until_at(agent, key, is_so).await
    }
}
