//! The console through HTTP, and in a real browser.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "common/browser.rs"]
mod browser;
mod common;
#[path = "common/clusters.rs"]
mod paper;

use browser::Browser;
use common::{PASSWORD, TestServer, json_of};
use jiff::Timestamp;
use paper::{leave_alone, put_in_state, record, ssh_key, wish};
use reqwest::{Method, RequestBuilder, Response};
use wharf_core::{
    access::Need,
    cluster::{
        ClusterState, DeleteMode,
        health::{Amounts, HealthRecord, NodeHealth},
    },
    operation::{Leftover, OperationRecord, OperationState, Phase, Progress, Step},
};
use wharf_server::{clusters::put_health, http::session::form_token};
use wharf_store::Txn;

/// Asks for a page as a browser does that follows nothing.
struct Visitor<'a> {
    server: &'a TestServer,
    http: reqwest::Client,
    token: String,
}

impl<'a> Visitor<'a> {
    fn new(server: &'a TestServer, token: &str) -> Self {
        let http = reqwest::Client::builder().no_proxy();
        let http = http.redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Self { server, http, token: token.to_owned() }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.server.base));
        match self.token.is_empty() {
            true => request,
            false => request.header("cookie", format!("wharf={}", self.token)),
        }
    }

    async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    async fn page(&self, path: &str) -> String {
        let response = self.get(path).await;
        assert_eq!(response.status(), 200, "{path}");
        response.text().await.unwrap()
    }

    /// Sends a form of this session from a page of the server.
    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Response {
        let token = form_token(&self.token);
        let mut all = vec![("form_token", token.as_str())];
        all.extend(fields);
        let request = self.request(Method::POST, path).header("origin", &self.server.base);
        form(request, &all).send().await.unwrap()
    }
}

/// A form as browsers encode it.
fn form(request: RequestBuilder, fields: &[(&str, &str)]) -> RequestBuilder {
    let escape = |text: &str| text.bytes().map(|b| format!("%{b:02X}")).collect::<String>();
    let pairs = fields.iter().map(|(name, value)| format!("{}={}", escape(name), escape(value)));
    let body = pairs.collect::<Vec<_>>().join("&");
    request.header("content-type", "application/x-www-form-urlencoded").body(body)
}

fn location(response: &Response) -> &str {
    response.headers()["location"].to_str().unwrap()
}

/// A server with a cluster `demo` that is being created, and nobody works on it.
async fn with_demo() -> (TestServer, String) {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo", "other"]).await;
    assert_eq!(server.post("/clusters", &server.admin, &wish("demo")).await.status(), 201);
    let operation = record(&server, "demo").await.work.unwrap().operation;
    (server, operation)
}

async fn change(server: &TestServer, id: &str, edit: impl FnOnce(&mut OperationRecord)) {
    let store = &server.app().store;
    let old = store.read::<OperationRecord>(id).await.unwrap().unwrap();
    let mut value = old.value.clone();
    edit(&mut value);
    paper::commit(store, Txn::new().replace(&old, &value, Timestamp::now()).unwrap()).await;
}

#[tokio::test]
async fn logging_in_gives_a_cookie_that_scripts_cannot_read_and_logging_out_ends_it() {
    let server = TestServer::start().await;
    let nobody = Visitor::new(&server, "");
    assert_eq!(location(&nobody.get("/").await), "/console/clusters");
    let sent_away = nobody.get("/console/clusters/demo?x=1").await;
    let login = location(&sent_away).to_owned();
    assert_eq!(login, "/console/login?next=/console/clusters/demo%3Fx%3D1");
    let page = nobody.page(&login).await;
    assert!(page.contains(r#"name="next" value="/console/clusters/demo?x=1""#), "{page}");

    let fields = [("user", "admin"), ("password", PASSWORD), ("next", "/console/operations")];
    let response = nobody.post("/console/login", &fields).await;
    assert_eq!((response.status().as_u16(), location(&response)), (303, "/console/operations"));
    let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    let (pair, rest) = cookie.split_once("; ").unwrap();
    assert!(rest.contains("HttpOnly") && rest.contains("SameSite=Strict"), "{cookie}");
    let admin = Visitor::new(&server, pair.strip_prefix("wharf=").unwrap());
    assert!(admin.page("/console/clusters").await.contains("No clusters yet"));

    let response = admin.post("/console/logout", &[]).await;
    assert_eq!(location(&response), "/console/login");
    assert!(response.headers()["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(server.get("/whoami", &admin.token).await.status(), 401);
    assert_eq!(admin.get("/console/clusters").await.status(), 303);
}

#[tokio::test]
async fn a_wrong_password_is_told_and_too_many_are_stopped() {
    let server = TestServer::start().await;
    let nobody = Visitor::new(&server, "");
    let fields = [("user", "admin"), ("password", "wrong wrong"), ("next", "//evil.example")];
    let response = nobody.post("/console/login", &fields).await;
    assert_eq!(response.status(), 401);
    let page = response.text().await.unwrap();
    assert!(page.contains("the name or the password is wrong") && !page.contains("wrong wrong"));
    assert!(page.contains(r#"value="admin""#) && !page.contains("evil.example"), "{page}");
    let mut last = nobody.post("/console/login", &fields).await;
    for _ in 0..20 {
        if last.status() == 429 {
            break;
        }
        last = nobody.post("/console/login", &fields).await;
    }
    assert_eq!(last.status(), 429);
    assert!(last.headers().contains_key("retry-after"));
    assert!(last.text().await.unwrap().contains("too many login attempts"));
}

#[tokio::test]
async fn every_page_asks_for_the_role_that_the_table_says() {
    let server = TestServer::start().await;
    let vera = server.user("vera", "viewer", None).await;
    let rows = wharf_server::http::routes::console_rows(server.app());
    assert!(rows.len() > 10, "the table is empty");
    for row in rows {
        let path = row.path.replace("{name}", "no-such").replace("{id}", "none");
        let route = format!("{} {path}", row.method);
        let call = async |token: &str| {
            let visitor = Visitor::new(&server, token);
            match row.method {
                Method::POST => visitor.post(&path, &[]).await,
                _ => visitor.get(&path).await,
            }
        };
        if row.need == Need::Nobody {
            assert_ne!(call("").await.status(), 403, "{route}");
            continue;
        }
        if row.path == "/console/logout" {
            continue;
        }
        for bad in ["", "nonsense", "wharf.admin.x.y"] {
            let response = call(bad).await;
            assert_eq!(response.status(), 303, "{route} with {bad:?}");
            assert!(location(&response).starts_with("/console/login"), "{route}");
        }
        let viewer = call(&vera).await.status().as_u16();
        assert_eq!(viewer == 403, row.need == Need::Admin, "{route}: a viewer got {viewer}");
        let admin = call(&server.admin).await.status().as_u16();
        assert!(admin != 403 && admin != 303 && admin < 500, "{route}: an admin got {admin}");
        if row.method == Method::POST {
            forged(&server, &path).await;
        }
    }
}

/// A form from elsewhere, or without the session's text, does nothing.
async fn forged(server: &TestServer, path: &str) {
    let admin = Visitor::new(server, &server.admin);
    let (right, wrong) = (form_token(&server.admin), form_token("another session"));
    let own = server.base.as_str();
    for (name, value, token) in [
        ("origin", "https://evil.example", &right),
        ("sec-fetch-site", "cross-site", &right),
        ("x-none", "", &right),
        ("origin", own, &wrong),
    ] {
        let request = admin.request(Method::POST, path).header(name, value);
        let response = form(request, &[("form_token", token)]).send().await.unwrap();
        assert_eq!(response.status(), 403, "{path} with {name}: {value}");
        let text = response.text().await.unwrap();
        assert!(text.contains("was not sent from a page of this server"), "{text}");
    }
    // A token in the header opens no page: the console knows its cookie alone.
    let url = format!("{}/console/clusters", server.base);
    let response = admin.http.get(url).bearer_auth(&server.admin).send().await.unwrap();
    assert_eq!(response.status(), 303);
}

#[tokio::test]
async fn pages_may_load_nothing_from_elsewhere_and_assets_are_kept() {
    let (server, _) = with_demo().await;
    let admin = Visitor::new(&server, &server.admin);
    let mut asset = String::new();
    for path in ["/console/login", "/console/clusters", "/console/clusters/demo", "/console/none"] {
        let response = admin.get(path).await;
        let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.contains("default-src 'none'"), "{path}: {policy}");
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{path}: {policy}");
        assert_eq!(response.headers()["cache-control"], "no-store");
        let page = response.text().await.unwrap();
        for inline in ["<style", " style=", " onclick=", "<script>", "javascript:"] {
            assert!(!page.contains(inline), "{path} has {inline}");
        }
        let start = page.find("/console/assets/console.css").unwrap();
        asset = page[start..].split('"').next().unwrap().to_owned();
    }
    let response = admin.get(&asset).await;
    assert_eq!(response.status(), 200);
    assert!(response.headers()["cache-control"].to_str().unwrap().contains("immutable"));
    let tag = response.headers()["etag"].clone();
    let again = admin.request(Method::GET, &asset).header("if-none-match", tag).send().await;
    assert_eq!(again.unwrap().status(), 304);
    assert_eq!(admin.get("/console/assets/none").await.status(), 404);
}

#[tokio::test]
async fn viewers_see_their_clusters_and_no_buttons() {
    let (server, id) = with_demo().await;
    let mut other = wish("other");
    for (i, node) in other["nodes"].as_array_mut().unwrap().iter_mut().enumerate() {
        node["address"] = format!("192.0.2.{}", 100 + i).into();
    }
    assert_eq!(server.post("/clusters", &server.admin, &other).await.status(), 201);
    let vera = server.user("vera", "viewer", Some(&["demo"])).await;
    let vera = Visitor::new(&server, &vera);
    let list = vera.page("/console/clusters").await;
    assert!(list.contains("demo") && !list.contains("other") && !list.contains("New cluster"));
    let page = vera.page("/console/clusters/demo").await;
    assert!(page.contains("192.0.2.21") && page.contains("Creating"), "{page}");
    assert!(!page.contains("/cancel") && !page.contains("/delete"), "{page}");
    for path in ["/console/clusters/other", "/console/clusters/other/live"] {
        let hidden = vera.get(path).await;
        assert_eq!(hidden.status(), 404);
        let absent = vera.get(&path.replace("other", "absent")).await;
        let (hidden, absent) = (hidden.text().await.unwrap(), absent.text().await.unwrap());
        assert_eq!(hidden.replace("other", "absent"), absent);
    }
    vera.page(&format!("/console/operations/{id}")).await;
    let foreign = record(&server, "other").await.work.unwrap().operation;
    assert_eq!(vera.get(&format!("/console/operations/{foreign}")).await.status(), 404);
    let admin = Visitor::new(&server, &server.admin);
    let page = admin.page("/console/clusters/demo").await;
    assert!(page.contains("/demo/cancel") && !page.contains("/demo/kubeconfig"), "{page}");
    assert!(admin.page("/console/clusters").await.contains("other"));
}

#[tokio::test]
async fn a_form_with_faults_comes_back_with_all_of_them_and_without_the_key() {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo"]).await;
    let admin = Visitor::new(&server, &server.admin);
    assert!(admin.page("/console/new-cluster").await.contains("1.36.3"));
    let key =
        "-----BEGIN OPENSSH PRIVATE KEY-----\nbm90IGEga2V5\n-----END OPENSSH PRIVATE KEY-----";
    let mut fields = vec![
        ("name", "Demo <b>"),
        ("singleCloudAddress", "192.0.2.1:8443"),
        ("sshUser", "root"),
        ("sshKey", key),
        ("sshKeyPassphrase", "open sesame"),
        ("clusterCidr", "10.0.0.0/99"),
        ("nodes[0].roles", "controlplane"),
        ("nodes[1].roles", "worker"),
        ("nodes[4].name", "m1"),
        ("nodes[4].address", "192.0.2.999"),
        ("nodes[4].roles", "controlplane"),
    ];
    let response = admin.post("/console/new-cluster", &fields).await;
    assert_eq!(response.status(), 422);
    let page = response.text().await.unwrap();
    for id in ["f-name", "f-nodes-0--address", "f-clusterCidr", "f-sshKey"] {
        assert!(page.contains(&format!(r##"href="#{id}""##)), "no link to {id}: {page}");
        assert!(page.contains(&format!(r#"id="{id}-fault""#)), "no fault at {id}: {page}");
    }
    assert!(page.contains(r#"value="192.0.2.999""#) && page.contains(r#"value="10.0.0.0/99""#));
    assert!(!page.contains("<b>"), "what was typed is not escaped");
    for secret in ["bm90IGEga2V5", "open sesame"] {
        assert!(!page.contains(secret), "a secret comes back");
    }
    let list = json_of(server.get("/clusters", &server.admin).await).await;
    assert_eq!(list["data"].as_array().unwrap().len(), 0);

    let key = ssh_key().replace('\n', "\r\n");
    fields.retain(|(name, _)| {
        !matches!(
            *name,
            "name" | "sshKey" | "sshKeyPassphrase" | "clusterCidr" | "nodes[4].address"
        )
    });
    fields.extend([("name", "demo"), ("sshKey", &key), ("nodes[4].address", "192.0.2.11")]);
    fields.push(("sshJumpHost", "nobody@127.0.0.1:1"));
    fields.extend([("nodes[7].name", "w1"), ("nodes[7].address", "192.0.2.21")]);
    fields.push(("nodes[7].roles", "worker"));
    let response = admin.post("/console/new-cluster", &fields).await;
    assert_eq!((response.status().as_u16(), location(&response)), (303, "/console/clusters/demo"));
    let made = record(&server, "demo").await;
    assert_eq!((made.state, made.spec.nodes.len()), (ClusterState::Creating, 2));
    // The same once more: the name is taken, and the form says so at the name.
    let response = admin.post("/console/new-cluster", &fields).await;
    assert_eq!(response.status(), 422);
    let page = response.text().await.unwrap();
    assert!(page.contains(r#"id="f-name-fault""#) && page.contains("duplicate cluster demo"));
}

#[tokio::test]
async fn deleting_needs_the_typed_name_and_what_is_left_is_reported_after_the_cluster_is_gone() {
    let (server, _) = with_demo().await;
    put_in_state(&server, "demo", ClusterState::Running).await;
    let admin = Visitor::new(&server, &server.admin);
    assert!(admin.page("/console/clusters/demo/delete").await.contains("192.0.2.22"));
    let path = "/console/clusters/demo/delete";
    for fields in [
        vec![("mode", "clean")],
        vec![("mode", "clean"), ("confirm", "dem")],
        vec![("mode", "all"), ("confirm", "demo")],
        vec![("confirm", "demo")],
    ] {
        let response = admin.post(path, &fields).await;
        assert_eq!(response.status(), 422, "{fields:?}");
        assert!(response.text().await.unwrap().contains("Nothing was deleted"));
        assert_eq!(record(&server, "demo").await.state, ClusterState::Running);
    }
    let response = admin.post(path, &[("mode", "force"), ("confirm", " demo ")]).await;
    assert_eq!(location(&response), "/console/clusters/demo");
    let deleting = record(&server, "demo").await;
    let work = deleting.work.unwrap();
    assert_eq!(work.delete, Some(DeleteMode::Force));
    change(&server, &work.operation, |operation| {
        operation.state = OperationState::Succeeded;
        let items = vec!["/var/lib/wharf".to_owned()];
        let (host, reason) = ("w1".to_owned(), "it does not answer".to_owned());
        operation.leftovers.push(Leftover { host, reason, items });
    })
    .await;
    let store = &server.app().store;
    paper::commit(store, Txn::new().delete("cluster/demo".to_owned())).await;
    let gone = admin.get("/console/clusters/demo").await;
    assert_eq!(location(&gone), format!("/console/operations/{}", work.operation));
    let page = admin.page(location(&gone)).await;
    assert!(page.contains("/var/lib/wharf") && page.contains("it does not answer"), "{page}");
    assert!(admin.page("/console/operations").await.contains("leftovers on 1"));
    assert_eq!(admin.get("/console/clusters/demo/live").await.status(), 404);
}

#[tokio::test]
async fn cancel_retry_and_the_kubeconfig_go_the_way_of_the_api() {
    let (server, _) = with_demo().await;
    let admin = Visitor::new(&server, &server.admin);
    let response = admin.post("/console/clusters/demo/cancel", &[]).await;
    assert_eq!(location(&response), "/console/clusters/demo");
    assert!(record(&server, "demo").await.work.unwrap().canceled);
    assert!(admin.page("/console/clusters/demo").await.contains("Canceling"));
    let again = admin.post("/console/clusters/demo/cancel", &[]).await;
    assert_eq!(again.status(), 403);
    assert!(again.text().await.unwrap().contains("cluster demo is canceling"));

    put_in_state(&server, "demo", ClusterState::CreateFailed).await;
    let page = admin.page("/console/clusters/demo").await;
    assert!(page.contains("Continue creating"), "{page}");
    let before = record(&server, "demo").await;
    let response = admin.post("/console/clusters/demo/retry", &[]).await;
    assert_eq!(location(&response), "/console/clusters/demo");
    let after = record(&server, "demo").await;
    assert_eq!((after.state, after.spec), (ClusterState::Creating, before.spec));

    assert_eq!(admin.get("/console/clusters/demo/kubeconfig").await.status(), 404);
    put_in_state(&server, "demo", ClusterState::Running).await;
    give_kubeconfig(&server).await;
    let response = admin.get("/console/clusters/demo/kubeconfig").await;
    assert_eq!(response.status(), 200);
    let file = response.headers()["content-disposition"].to_str().unwrap();
    assert_eq!(file, "attachment; filename=\"demo.kubeconfig\"");
    assert_eq!(response.text().await.unwrap(), "the kubeconfig");
    let audit = json_of(server.get("/audit?limit=1", &server.admin).await).await;
    assert_eq!(audit["data"][0]["action"], "kubeconfig.read");
    assert_eq!(audit["data"][0]["user"], "admin");
}

/// As if the cluster had been taken in with it.
async fn give_kubeconfig(server: &TestServer) {
    use wharf_server::vault;
    let app = server.app();
    let (mut secrets, old) = vault::find(app, "demo").await.unwrap().unwrap();
    secrets.kubeconfig = Some("the kubeconfig".to_owned());
    let now = Timestamp::now();
    let txn = vault::put(Txn::new(), app, "demo", Some(&old), &secrets, now).unwrap();
    paper::commit(&app.store, txn).await;
}

/// An operation in the middle of its work, as an install has it.
fn under_way(operation: &mut OperationRecord, now: Timestamp) {
    let names = [
        "connect",
        "preflight",
        "certificates",
        "upload",
        "prepare",
        "etcd",
        "controlplane",
        "nodes",
        "cluster",
        "verify",
    ];
    let ago = |seconds| now.checked_sub(jiff::SignedDuration::from_secs(seconds)).unwrap();
    operation.started_at = ago(31);
    operation.phases = names.iter().enumerate().map(|(i, name)| phase(name, i, &ago)).collect();
    for (i, name) in names.iter().enumerate().take(5) {
        for host in ["m1", "w1", "w2"] {
            let state = match (i, host) {
                (4, "m1") => Progress::Done,
                (4, _) => Progress::Running,
                _ => Progress::Done,
            };
            let what = if i == 4 { "start containerd" } else { name };
            operation.steps.push(step(name, host, what, state));
        }
    }
    operation.log.clear();
    for (i, text) in LOG.iter().enumerate() {
        operation.log(ago(30 - 3 * i as i64), *text);
    }
}

const LOG: [&str; 6] = [
    "connected to m1 (192.0.2.11), host key pinned",
    "connected to w1 (192.0.2.21), host key pinned",
    "connected to w2 (192.0.2.22), host key pinned",
    "preflight: 3 hosts are fit",
    "3 authorities, 21 certificates",
    "uploaded 212 MiB to 3 hosts",
];

fn phase(name: &str, number: usize, ago: &impl Fn(i64) -> Timestamp) -> Phase {
    let state = match number {
        0..4 => Progress::Done,
        4 => Progress::Running,
        _ => Progress::Waiting,
    };
    let began = 30 - 6 * number as i64;
    Phase {
        name: name.to_owned(),
        state,
        started_at: (number <= 4).then(|| ago(began)),
        ended_at: (number < 4).then(|| ago(began - 6)),
    }
}

fn step(phase: &str, host: &str, name: &str, state: Progress) -> Step {
    Step {
        phase: phase.to_owned(),
        host: host.to_owned(),
        name: name.to_owned(),
        state,
        started_at: None,
        ended_at: None,
        exit_code: None,
        stderr_tail: None,
        hint: None,
    }
}

fn fail(operation: &mut OperationRecord, now: Timestamp) {
    operation.state = OperationState::Failed;
    operation.ended_at = Some(now);
    operation.phases[4].state = Progress::Failed;
    operation.error = Some("w2 (192.0.2.22): prepare failed: port 10250 is in use".to_owned());
    operation.hint = Some("stop the program that listens there, then continue".to_owned());
    let step = operation.steps.iter_mut().rfind(|step| step.host == "w2").unwrap();
    step.state = Progress::Failed;
    step.exit_code = Some(1);
    step.stderr_tail =
        Some("wharf-kubelet.service: listen tcp :10250: bind: address in use".into());
    operation.log(now, "w2: start containerd failed");
}

async fn log_in(browser: &mut Browser, server: &TestServer) {
    browser.open(&format!("{}/", server.base)).await;
    browser.until("document.getElementById('password')").await;
    browser.fill("user", "admin").await;
    browser.fill("password", PASSWORD).await;
    browser.click("form button").await;
    browser.until("document.querySelector('h1')?.innerText === 'Clusters'").await;
}

#[tokio::test]
async fn in_a_browser_a_page_follows_what_happens_without_being_loaded_again() {
    let (server, id) = with_demo().await;
    let mut browser = Browser::start().await;
    browser.resize(1100, 900).await;
    log_in(&mut browser, &server).await;
    browser.until("document.body.innerText.includes('demo')").await;
    browser.click("tbody a").await;
    browser.until("document.querySelector('h1')?.innerText.includes('demo')").await;
    browser.value("window.sameDocument = true").await;
    browser.until("document.getElementById('percent').value === 0").await;

    change(&server, &id, |operation| under_way(operation, Timestamp::now())).await;
    browser.until("document.getElementById('percent').value === 43").await;
    browser.until("document.querySelectorAll('.hosts tbody tr').length === 3").await;
    browser.until("document.getElementById('announce').textContent.includes('prepare')").await;
    browser.until("!document.body.innerText.includes(' UTC')").await;
    browser.picture("running").await;

    change(&server, &id, |operation| fail(operation, Timestamp::now())).await;
    put_in_state(&server, "demo", ClusterState::CreateFailed).await;
    browser.until("document.getElementById('error')?.innerText.includes('port 10250')").await;
    browser.until("document.getElementById('retry')").await;
    browser.until("document.querySelector('.output').innerText.includes('bind')").await;
    browser.picture("failed").await;
    assert_eq!(browser.value("window.sameDocument").await, true, "the page was loaded again");

    browser.resize(390, 844).await;
    let overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
    assert_eq!(browser.value(overflow).await, 0, "a phone would scroll sideways");
    browser.picture("phone").await;
    // The session ends elsewhere: the page leads to the login, and back.
    browser.resize(1100, 900).await;
    let new = serde_json::json!({"password": "another good one", "oldPassword": PASSWORD});
    let changed = server.put("/users/admin/password", &server.admin, &new).await;
    assert_eq!(changed.status(), 204);
    browser.until("location.pathname === '/console/login'").await;
    browser.until("document.querySelector('[name=next]').value === '/console/clusters/demo'").await;
    browser.picture("login").await;
}

#[tokio::test]
async fn in_a_browser_a_cluster_is_asked_for_by_the_form() {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo"]).await;
    let mut browser = Browser::start().await;
    browser.resize(1100, 900).await;
    log_in(&mut browser, &server).await;
    browser.picture("empty").await;
    browser.click(".empty .primary").await;
    browser
        .until("document.getElementById('add-row') && !document.getElementById('add-row').hidden")
        .await;
    browser.click("#add-row").await;
    browser.until("document.querySelectorAll('.row').length === 6").await;
    browser.fill("f-name", "Demo").await;
    browser.fill("f-nodes-0--name", "m1").await;
    browser.fill("f-nodes-0--address", "192.0.2.11").await;
    browser.fill("f-nodes-5--name", "w1").await;
    browser.fill("f-nodes-5--address", "192.0.2.11").await;
    browser.fill("f-sshKey", "not a key").await;
    browser.click(".wish button.primary").await;
    browser.until("document.getElementById('faults')").await;
    assert_eq!(browser.value("document.activeElement.id").await, "faults");
    assert_eq!(browser.value("document.getElementById('f-sshKey').value").await, "");
    assert_eq!(browser.value("document.getElementById('f-nodes-1--name').value").await, "w1");
    browser.picture("form").await;

    browser.value("document.getElementById('f-name').value = ''").await;
    browser.value("document.getElementById('f-nodes-1--address').value = ''").await;
    for (id, text) in [
        ("f-name", "demo"),
        ("f-singleCloudAddress", "192.0.2.1:8443"),
        ("f-nodes-1--address", "192.0.2.21"),
        ("f-sshUser", "root"),
        ("f-sshKey", &ssh_key()),
        ("f-sshJumpHost", "nobody@127.0.0.1:1"),
    ] {
        browser.fill(id, text).await;
    }
    browser.click(".wish button.primary").await;
    browser.until("document.querySelector('h1')?.innerText.includes('demo')").await;
    assert_eq!(record(&server, "demo").await.spec.nodes.len(), 2);
}

#[tokio::test]
async fn in_a_browser_a_running_cluster_shows_its_nodes_in_the_dark_too() {
    let (server, id) = with_demo().await;
    put_in_state(&server, "demo", ClusterState::Running).await;
    let now = Timestamp::now();
    change(&server, &id, |operation| {
        under_way(operation, now);
        operation.phases.iter_mut().for_each(|phase| phase.state = Progress::Done);
        operation.state = OperationState::Succeeded;
        operation.ended_at = Some(now);
    })
    .await;
    let store = &server.app().store;
    let nodes = [("m1", 11), ("w1", 21), ("w2", 22)];
    let nodes = nodes.into_iter().enumerate().map(|(i, (name, last))| node(i as u64, name, last));
    let health = HealthRecord::new("demo", Some("v1.36.3".into()), nodes.collect(), true);
    paper::commit(store, put_health(Txn::new(), &health, now).unwrap()).await;
    let mut browser = Browser::start().await;
    browser.resize(1100, 760).await;
    log_in(&mut browser, &server).await;
    browser.until("document.body.innerText.includes('3 of 3')").await;
    browser.picture("list").await;
    browser.open(&format!("{}/console/clusters/demo", server.base)).await;
    browser.until("document.querySelectorAll('.badge.good').length >= 4").await;
    browser.until("document.querySelector('a[download]').innerText === 'Kubeconfig'").await;
    browser.dark(true).await;
    browser.picture("dark").await;
    let back = "getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.value(back).await, "rgb(16, 23, 29)");
}

fn node(number: u64, name: &str, last: u8) -> NodeHealth {
    let role = if number == 0 { "control-plane" } else { "worker" };
    NodeHealth {
        name: name.to_owned(),
        address: Some([192, 0, 2, last].into()),
        ready: true,
        labels: [(format!("node-role.kubernetes.io/{role}"), "true".to_owned())].into(),
        capacity: Amounts { cpu_milli: 4000, memory_bytes: 8 << 30, pods: 110 },
        used: Amounts { cpu_milli: 450 + 300 * number, memory_bytes: (2 + number) << 30, pods: 9 },
        ..NodeHealth::default()
    }
}
