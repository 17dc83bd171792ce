//! A server in the test's own process, on an embedded store in a temporary directory.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::{path::Path, time::Duration};

use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tempfile::TempDir;
use wharf_server::{Config, Running};

pub const PASSWORD: &str = "correct horse battery";
/// These machines are noisy; a test that waits this long has failed.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub struct TestServer {
    pub running: Option<Running>,
    pub dir: TempDir,
    pub base: String,
    pub http: reqwest::Client,
    pub admin: String,
}

pub fn config(dir: &Path) -> Config {
    let password_file = dir.join("admin-password");
    std::fs::write(&password_file, PASSWORD).unwrap();
    Config {
        data_dir: dir.join("data"),
        key_file: dir.join("data/seal.key"),
        listen: "127.0.0.1:0".parse().unwrap(),
        http: true,
        admin_password_file: password_file,
        bundles_dir: bundles(dir),
        ..Config::default()
    }
}

/// A directory with an empty bundle: enough to know which version can be installed.
fn bundles(dir: &Path) -> std::path::PathBuf {
    let bundles = dir.join("bundles");
    std::fs::create_dir_all(bundles.join("one")).unwrap();
    let manifest = json!({
        "format": 1, "arch": "amd64", "kubernetes": "1.36.3", "created": {"by": "a test"}, "files": [],
    });
    std::fs::write(bundles.join("one/bundle.json"), manifest.to_string()).unwrap();
    bundles
}

impl TestServer {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        change(&mut config);
        Self::start_in(dir, config).await
    }

    pub async fn start_in(dir: TempDir, config: Config) -> Self {
        let scheme = if config.http { "http" } else { "https" };
        let running = wharf_server::start(config).await.unwrap();
        let base = format!("{scheme}://127.0.0.1:{}", running.address.port());
        let mut http = reqwest::Client::builder().no_proxy().timeout(DEADLINE);
        if let Some(authority) = &running.authority {
            let pem = std::fs::read(&authority.file).unwrap();
            http = http.tls_certs_only([reqwest::Certificate::from_pem(&pem).unwrap()]);
        }
        let http = http.build().unwrap();
        let mut server = Self { running: Some(running), dir, base, http, admin: String::new() };
        server.admin = server.login("admin", PASSWORD).await;
        server
    }

    pub fn app(&self) -> &wharf_server::App {
        &self.running.as_ref().unwrap().app
    }

    pub async fn stop(&mut self) {
        self.running.take().unwrap().stop().await;
    }

    pub fn request(&self, method: Method, path: &str, token: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}/api/v1{path}", self.base));
        if token.is_empty() { request } else { request.bearer_auth(token) }
    }

    pub async fn get(&self, path: &str, token: &str) -> Response {
        self.request(Method::GET, path, token).send().await.unwrap()
    }

    pub async fn post(&self, path: &str, token: &str, body: &Value) -> Response {
        self.request(Method::POST, path, token).json(body).send().await.unwrap()
    }

    pub async fn put(&self, path: &str, token: &str, body: &Value) -> Response {
        self.request(Method::PUT, path, token).json(body).send().await.unwrap()
    }

    pub async fn delete(&self, path: &str, token: &str) -> Response {
        self.request(Method::DELETE, path, token).send().await.unwrap()
    }

    pub async fn login(&self, user: &str, password: &str) -> String {
        let path = format!("/users/{user}?action=login");
        let response = self.post(&path, "", &json!({ "password": password })).await;
        assert_eq!(response.status(), 200);
        json_of(response).await["token"].as_str().unwrap().to_owned()
    }

    /// Makes a user and a token for it.
    pub async fn user(&self, name: &str, role: &str, clusters: Option<&[&str]>) -> String {
        let mut body = json!({ "name": name, "role": role, "password": PASSWORD });
        if let Some(clusters) = clusters {
            body["clusters"] = json!(clusters);
        }
        assert_eq!(self.post("/users", &self.admin, &body).await.status(), 201);
        let path = format!("/users/{name}/tokens");
        let response = self.post(&path, &self.admin, &json!({})).await;
        assert_eq!(response.status(), 201);
        json_of(response).await["token"].as_str().unwrap().to_owned()
    }
}

pub async fn json_of(response: Response) -> Value {
    let status = response.status();
    let text = response.text().await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: not JSON: {text:?}"))
}

/// The status, code and message of an error answer, whose form is checked on the way.
pub async fn error_of(response: Response) -> (u16, String, Value) {
    let status = response.status().as_u16();
    let body = json_of(response).await;
    assert_eq!(body["type"], "error", "{body}");
    assert_eq!(body["status"], status, "{body}");
    assert!(!body["message"].as_str().unwrap().is_empty(), "{body}");
    (status, body["code"].as_str().unwrap().to_owned(), body)
}

/// A cluster's record as the store holds it.
pub fn cluster_record(name: &str) -> wharf_core::cluster::ClusterRecord {
    use std::net::{Ipv4Addr, SocketAddrV4};
    use wharf_core::cluster::{ClusterRecord, ClusterSpec, ClusterState, Origin};
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8443);
    let spec = ClusterSpec::new(name, address, "1.36.3");
    ClusterRecord::new(spec, ClusterState::Running, Origin::Imported, jiff::Timestamp::now())
}

pub async fn put_cluster(store: &wharf_store::Store, name: &str) {
    let txn = wharf_store::Txn::new()
        .create(name, &cluster_record(name), jiff::Timestamp::now())
        .unwrap();
    assert!(matches!(store.commit(txn).await.unwrap(), wharf_store::Outcome::Committed(_)));
}

/// Waits until a condition holds; a test that waits in vain fails.
pub async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    /// Short, because a condition that holds should not wait; the deadline is what counts.
    const LOOK_EVERY: Duration = Duration::from_millis(20);
    let wait = async {
        while !holds().await {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("the condition never held");
}
