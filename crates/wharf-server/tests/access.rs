//! Who may do what, through HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{PASSWORD, TestServer, error_of, json_of, put_cluster};
use serde_json::{Value, json};
use wharf_core::access::Need;

/// A path that a route's pattern matches, with names that do not exist.
fn example(pattern: &str) -> String {
    pattern.replace("{name}", "no-such").replace("{id}", "none")
}

#[tokio::test]
async fn every_route_asks_for_the_role_that_the_table_says() {
    let server = TestServer::start().await;
    let viewer = server.user("vera", "viewer", None).await;
    let rows = wharf_server::http::routes::rows(server.app());
    assert!(rows.len() > 10, "the table is empty");
    for row in rows {
        let path = example(&row.path);
        // A body that no route takes: whoever gets as far as the body is let in.
        let call = |token: String| {
            let request = server.request(row.method.clone(), &path, &token);
            async move { request.body("{").send().await.unwrap().status().as_u16() }
        };
        let (nobody, viewer, admin) = (
            call(String::new()).await,
            call(viewer.clone()).await,
            call(server.admin.clone()).await,
        );
        let route = format!("{} {}", row.method, row.path);
        let let_in = |status: u16| status != 401 && status != 403;
        match row.need {
            Need::Nobody => assert!(let_in(nobody), "{route}: nobody got {nobody}"),
            Need::Viewer => {
                assert_eq!(nobody, 401, "{route}: nobody");
                // What belongs to another user is refused like an admin's route.
                let foreign = row.path.starts_with("/users/") && viewer == 403;
                assert!(foreign || let_in(viewer), "{route}: a viewer got {viewer}");
            }
            Need::Admin => {
                assert_eq!(nobody, 401, "{route}: nobody");
                assert_eq!(viewer, 403, "{route}: a viewer");
            }
        }
        assert!(let_in(admin), "{route}: an admin got {admin}");
        assert!(admin < 500, "{route}: an admin got {admin}");
        if row.need == Need::Nobody {
            continue;
        }
        for bad in ["Bearer nonsense", "Bearer wharf.admin.x.y", "Basic YWRtaW46YWRtaW4=", "x"] {
            let request = server.request(row.method.clone(), &path, "");
            let response = request.header("authorization", bad).send().await.unwrap();
            assert_eq!(response.status(), 401, "{route} with {bad:?}");
        }
    }
}

#[tokio::test]
async fn refusals_do_not_tell_what_exists() {
    let server = TestServer::start().await;
    put_cluster(&server.app().store, "secret").await;
    let viewer = server.user("vera", "viewer", Some(&["other"])).await;
    for path in ["/users/admin", "/users/no-such", "/users/admin/tokens", "/users/no-such/tokens"] {
        let (status, code, _) = error_of(server.get(path, &viewer).await).await;
        assert_eq!((status, code.as_str()), (403, "PermissionDenied"), "{path}");
    }
    let mut hidden = error_of(server.get("/clusters/secret", &viewer).await).await.2;
    let mut absent = error_of(server.get("/clusters/absent", &viewer).await).await.2;
    for body in [&mut hidden, &mut absent] {
        body["message"] = Value::Null;
    }
    assert_eq!(hidden, absent);
    let list = json_of(server.get("/clusters", &viewer).await).await;
    assert_eq!(list["data"], json!([]));
}

#[tokio::test]
async fn a_wrong_password_and_an_unknown_user_look_the_same_and_are_limited_in_rate() {
    let server = TestServer::start().await;
    let login = async |user: &str| {
        let path = format!("/users/{user}?action=login");
        error_of(server.post(&path, "", &json!({"password": "wrong wrong wrong"})).await).await
    };
    let (known, unknown) = (login("admin").await, login("nobody-here").await);
    assert_eq!(known, unknown);
    assert_eq!(known.0, 401);
    let mut limited = None;
    for _ in 0..20 {
        let path = "/users/admin?action=login";
        let response = server.post(path, "", &json!({"password": "wrong wrong wrong"})).await;
        if response.status() == 429 {
            limited = Some(response);
            break;
        }
    }
    let response = limited.expect("20 wrong passwords in a row were all tried");
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    let (status, code, _) = error_of(response).await;
    assert_eq!((status, code.as_str()), (429, "TooManyRequests"));
    // The right password has to wait too, or guessing would go on unhindered.
    let path = "/users/admin?action=login";
    assert_eq!(server.post(path, "", &json!({"password": PASSWORD})).await.status(), 429);
    // Tokens that are there hold.
    assert_eq!(server.get("/whoami", &server.admin).await.status(), 200);
}

#[tokio::test]
async fn tokens_end_when_they_expire_or_are_deleted_or_their_user_is() {
    let server = TestServer::start().await;
    let vera = server.user("vera", "viewer", None).await;
    let short = server.post("/users/vera/tokens", &vera, &json!({"expiresInSeconds": 1})).await;
    let short = json_of(short).await;
    let (short, short_id) = (short["token"].as_str().unwrap(), short["id"].as_str().unwrap());
    let kept = json_of(server.post("/users/vera/tokens", &vera, &json!({})).await).await;
    let kept_text = kept["token"].as_str().unwrap();
    common::eventually(async || server.get("/whoami", short).await.status() == 401).await;
    let list = json_of(server.get("/users/vera/tokens", &vera).await).await;
    assert!(!list.to_string().contains(kept_text), "a list shows a token");
    assert!(list["data"].as_array().unwrap().iter().any(|t| t["id"] == short_id));

    let path = format!("/users/vera/tokens/{}", kept["id"].as_str().unwrap());
    assert_eq!(server.delete(&path, &vera).await.status(), 204);
    assert_eq!(server.get("/whoami", kept_text).await.status(), 401);
    assert_eq!(server.delete(&path, &vera).await.status(), 404);

    assert_eq!(server.get("/whoami", &vera).await.status(), 200);
    assert_eq!(server.delete("/users/vera", &server.admin).await.status(), 204);
    assert_eq!(server.get("/whoami", &vera).await.status(), 401);
    // A new user of the same name does not inherit the old one's tokens.
    server.user("vera", "admin", None).await;
    assert_eq!(server.get("/whoami", &vera).await.status(), 401);
    for bad in [0, 400 * 24 * 3600] {
        let body = json!({ "expiresInSeconds": bad });
        let (status, _, body) =
            error_of(server.post("/users/vera/tokens", &server.admin, &body).await).await;
        assert_eq!((status, &body["details"][0]["field"]), (422, &json!("expiresInSeconds")));
    }
}

#[tokio::test]
async fn the_last_admin_can_neither_be_deleted_nor_demoted() {
    let server = TestServer::start().await;
    let demote = json!({"role": "viewer"});
    assert_eq!(server.delete("/users/admin", &server.admin).await.status(), 403);
    assert_eq!(server.put("/users/admin", &server.admin, &demote).await.status(), 403);
    server.user("second", "admin", None).await;
    assert_eq!(server.put("/users/admin", &server.admin, &demote).await.status(), 200);
    assert_eq!(server.get("/users", &server.admin).await.status(), 403);
}

#[tokio::test]
async fn users_change_their_own_password_only_with_the_old_one() {
    let server = TestServer::start().await;
    let vera = server.user("vera", "viewer", None).await;
    let new = "a wholly new password";
    let path = "/users/vera/password";
    for body in [json!({"password": new}), json!({"password": new, "oldPassword": "wrong"})] {
        assert_eq!(server.put(path, &vera, &body).await.status(), 403, "{body}");
    }
    let body = json!({"password": new, "oldPassword": PASSWORD});
    assert_eq!(server.put("/users/admin/password", &vera, &body).await.status(), 403);
    assert_eq!(server.put(path, &vera, &body).await.status(), 204);
    // What was made under the old password no longer holds.
    assert_eq!(server.get("/whoami", &vera).await.status(), 401);
    let vera = server.login("vera", new).await;
    assert_eq!(server.get("/whoami", &vera).await.status(), 200);
    let (status, _, _) =
        error_of(server.put(path, &server.admin, &json!({"password": "short"})).await).await;
    assert_eq!(status, 422);
}

#[tokio::test]
async fn a_change_based_on_an_old_revision_is_refused() {
    let server = TestServer::start().await;
    server.user("vera", "viewer", None).await;
    let response = server.get("/users/vera", &server.admin).await;
    let tag = response.headers()["etag"].to_str().unwrap().to_owned();
    let change = async |tag: &str| {
        let request = server.request(reqwest::Method::PUT, "/users/vera", &server.admin);
        let request = request.header("if-match", tag).json(&json!({"role": "admin"}));
        request.send().await.unwrap()
    };
    assert_eq!(change("\"1\"").await.status(), 412);
    let response = change(&tag).await;
    assert_eq!(response.status(), 200);
    assert_ne!(response.headers()["etag"].to_str().unwrap(), tag);
    assert_eq!(change(&tag).await.status(), 412);
    assert_eq!(change("*").await.status(), 200);
    assert_eq!(change("nonsense").await.status(), 400);
}

#[tokio::test]
async fn the_audit_log_tells_who_did_what_and_no_secret() {
    let server = TestServer::start().await;
    let vera = server.user("vera", "viewer", None).await;
    let wrong = json!({"password": "a guess that is wrong"});
    server.post("/users/vera?action=login", "", &wrong).await;
    server.delete("/users/vera", &server.admin).await;
    let audit = json_of(server.get("/audit", &server.admin).await).await;
    let rows: Vec<(&str, &str, &str, &str)> = audit["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let text = |key: &str| row[key].as_str().unwrap();
            assert_eq!(text("origin"), "127.0.0.1");
            assert!(!text("requestId").is_empty());
            (text("user"), text("action"), text("resource"), text("outcome"))
        })
        .collect();
    assert_eq!(rows[0], ("admin", "user.delete", "user/vera", "done"));
    assert_eq!(rows[1], ("vera", "login", "user/vera", "refused"));
    assert_eq!(rows[2].1, "token.create");
    assert_eq!(rows[3], ("admin", "user.create", "user/vera", "done"));
    let secret = vera.rsplit('.').next().unwrap();
    for secret in [PASSWORD, "a guess that is wrong", secret] {
        assert!(!audit.to_string().contains(secret), "the audit log holds a secret");
    }
    // Pages: the older half follows from the link of the newer.
    let first = json_of(server.get("/audit?limit=2", &server.admin).await).await;
    let next = first["links"]["next"].as_str().unwrap().strip_prefix("/api/v1").unwrap();
    let second = json_of(server.get(next, &server.admin).await).await;
    assert_eq!(second["data"][0], audit["data"][2]);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_listed_with_its_reason() {
    let server = TestServer::start().await;
    put_cluster(&server.app().store, "good").await;
    let txn = wharf_store::Txn::new().put("cluster/bad", *b"not json");
    assert!(matches!(
        server.app().store.commit(txn).await.unwrap(),
        wharf_store::Outcome::Committed(_)
    ));
    let list = json_of(server.get("/clusters", &server.admin).await).await;
    let names: Vec<_> = list["data"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["bad", "good"]);
    let bad = json_of(server.get("/clusters/bad", &server.admin).await).await;
    assert_eq!(bad["status"], "Unreachable");
    assert!(bad["reason"].as_str().unwrap().contains("cannot be read"), "{bad}");
    // The same API answers under the prefix of existing clients, with links of that prefix.
    let url = format!("{}/apis/zcloud.cn/v1/clusters/good", server.base);
    let good = server.http.get(url).bearer_auth(&server.admin).send().await.unwrap();
    assert_eq!(json_of(good).await["links"]["self"], "/apis/zcloud.cn/v1/clusters/good");
}

#[tokio::test]
async fn a_viewer_makes_only_so_many_tokens_and_streams() {
    let server = TestServer::start().await;
    let vera = server.user("vera", "viewer", None).await;
    let mut status = 201;
    let mut made = 0;
    while status == 201 && made < 200 {
        status = server.post("/users/vera/tokens", &vera, &json!({})).await.status().as_u16();
        made += 1;
    }
    assert_eq!((status, made), (403, 100));
    let mut open = Vec::new();
    let refused = loop {
        let response = server.get("/events", &vera).await;
        if response.status() != 200 {
            break response;
        }
        open.push(response);
        assert!(open.len() <= 50);
    };
    assert_eq!(error_of(refused).await.0, 503);
    assert_eq!(server.get("/events", &server.admin).await.status(), 200);
}
