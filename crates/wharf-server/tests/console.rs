//! The console through HTTP; `console/live.rs` looks at it in a real browser.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "common/browser.rs"]
mod browser;
mod common;
#[path = "console/live.rs"]
mod live;
#[path = "common/clusters.rs"]
mod paper;

use common::{PASSWORD, TestServer, json_of};
use jiff::Timestamp;
use paper::{leave_alone, put_in_state, record, ssh_key, wish};
use reqwest::{Method, RequestBuilder, Response};
use wharf_core::{
    access::Need,
    cluster::{ClusterState, DeleteMode},
    operation::{Leftover, OperationRecord, OperationState},
};
use wharf_server::http::session::form_token;
use wharf_store::Txn;

/// Asks for a page as a browser does that follows nothing.
struct Visitor<'a> {
    server: &'a TestServer,
    http: reqwest::Client,
    token: String,
}

impl<'a> Visitor<'a> {
    fn new(server: &'a TestServer, token: &str) -> Self {
        let mut http = reqwest::Client::builder().no_proxy();
        if let Some(authority) = &server.running.as_ref().unwrap().authority {
            let pem = std::fs::read(&authority.file).unwrap();
            http = http.tls_certs_only([reqwest::Certificate::from_pem(&pem).unwrap()]);
        }
        let http = http.redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Self { server, http, token: token.to_owned() }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.server.base));
        match self.token.is_empty() {
            true => request,
            false => {
                let name =
                    if self.server.base.starts_with("https") { "__Host-wharf" } else { "wharf" };
                request.header("cookie", format!("{name}={}", self.token))
            }
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
async fn over_https_the_cookie_is_for_this_host_alone() {
    let server = TestServer::start_with(|config| config.http = false).await;
    let nobody = Visitor::new(&server, "");
    let fields = [("user", "admin"), ("password", PASSWORD)];
    let response = nobody.post("/console/login", &fields).await;
    assert_eq!((response.status().as_u16(), location(&response)), (303, "/console/clusters"));
    let cookie = response.headers()["set-cookie"].to_str().unwrap();
    let (pair, rest) = cookie.split_once("; ").unwrap();
    assert!(rest.contains("Path=/;") && rest.ends_with("; Secure"), "{cookie}");
    assert!(!rest.contains("Domain"), "{cookie}");
    let admin = Visitor::new(&server, pair.strip_prefix("__Host-wharf=").unwrap());
    admin.page("/console/clusters").await;
    // A name that a neighbour on the same machine could set opens nothing.
    let plain = nobody.request(Method::GET, "/console/clusters");
    let plain = plain.header("cookie", format!("wharf={}", admin.token)).send().await.unwrap();
    assert_eq!(plain.status(), 303);
}

#[tokio::test]
async fn without_a_script_a_page_under_way_loads_itself_again() {
    let (server, _) = with_demo().await;
    let admin = Visitor::new(&server, &server.admin);
    let refresh = r#"<noscript><meta http-equiv="refresh""#;
    for path in ["/console/clusters", "/console/clusters/demo"] {
        assert!(admin.page(path).await.contains(refresh), "{path}");
    }
    put_in_state(&server, "demo", ClusterState::Running).await;
    for path in ["/console/clusters", "/console/clusters/demo"] {
        assert!(!admin.page(path).await.contains(refresh), "{path}");
    }
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
    assert!(!page.contains("To the cluster"), "{page}");
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
