//! A disk that is full or read-only: a clear error, nothing lost, and the server keeps serving.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{PASSWORD, TestServer, error_of, json_of};
use serde_json::json;
use wharf_testbed::disk::SmallDisk;

async fn on(disk: &SmallDisk) -> TestServer {
    let dir = tempfile::tempdir_in(disk.path()).unwrap();
    let config = common::config(dir.path());
    TestServer::start_in(dir, config).await
}

#[tokio::test]
async fn a_full_disk_is_told_and_reading_goes_on_and_writing_once_there_is_room() {
    let disk = SmallDisk::new(16).unwrap();
    let mut server = on(&disk).await;
    server.user("before", "viewer", None).await;
    let filler = disk.fill().unwrap();
    let (mut made, mut refusal) = (Vec::new(), None);
    // Tokens, because they are quick to make; users would hash a password each.
    let body = json!({"description": "x".repeat(200)});
    for _ in 0..200 {
        let response = server.post("/users/before/tokens", &server.admin, &body).await;
        if response.status() == 201 {
            made.push(json_of(response).await["id"].as_str().unwrap().to_owned());
        } else {
            refusal = Some(error_of(response).await);
            break;
        }
    }
    let (status, code, body) = refusal.expect("a full disk took everything");
    assert_eq!((status, code.as_str()), (507, "StorageFull"));
    assert!(body["hint"].as_str().unwrap().contains("free space"), "{body}");
    // Reading goes on, the process is alive and ready.
    assert_eq!(server.get("/users", &server.admin).await.status(), 200);
    for path in ["healthz", "readyz"] {
        let response = server.http.get(format!("{}/{path}", server.base)).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
    }
    std::fs::remove_file(filler).unwrap();
    let response = server.post("/users/before/tokens", &server.admin, &json!({})).await;
    assert_eq!(response.status(), 201, "room again, and still refused");
    made.push(json_of(response).await["id"].as_str().unwrap().to_owned());
    // Everything that was acknowledged is there after a restart.
    server.stop().await;
    let running = wharf_server::start(common::config(server.dir.path())).await.unwrap();
    let (tokens, _) =
        running.app.store.read_all::<wharf_core::access::Token>("before/").await.unwrap();
    let there: Vec<String> = tokens.into_iter().flatten().map(|t| t.value.id).collect();
    for id in &made {
        assert!(there.contains(id), "the acknowledged token {id} is gone");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_read_only_data_directory_is_named_and_left_as_it_is() {
    let disk = SmallDisk::new(16).unwrap();
    let mut server = on(&disk).await;
    let put = async |server: &TestServer| {
        server.post("/users/admin/tokens", &server.admin, &json!({})).await
    };
    assert_eq!(put(&server).await.status(), 201);
    // A file that is open for writing keeps a file system from becoming read-only, so the server
    // stops first and is started on the read-only disk.
    server.stop().await;
    disk.make_read_only().unwrap();
    let config = wharf_server::Config {
        admin_password_file: server.dir.path().join("admin-password"),
        data_dir: server.dir.path().join("data"),
        key_file: server.dir.path().join("data/seal.key"),
        listen: "127.0.0.1:0".parse().unwrap(),
        http: true,
        ..wharf_server::Config::default()
    };
    let error = wharf_server::start(config.clone()).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
    assert!(error.hint().unwrap().contains("mount options"), "{:?}", error.hint());
    disk.make_writable().unwrap();
    let running = wharf_server::start(config).await.unwrap();
    let users = wharf_server::access::user::list(&running.app.store).await.unwrap();
    assert_eq!(users.len(), 1);
    assert!(
        running.app.passwords.verify(PASSWORD, Some(&users[0].value.password_hash)).await.unwrap()
    );
    running.stop().await;
}
