//! Bad input gets a clear error, and the server keeps serving.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::time::{Duration, Instant};

use common::{DEADLINE, TestServer, error_of, json_of};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn a_bad_body_is_refused_with_the_place_of_the_fault() {
    let server = TestServer::start().await;
    let post = async |body: Vec<u8>| {
        let request = server.request(Method::POST, "/users", &server.admin);
        error_of(request.body(body).send().await.unwrap()).await
    };
    let cases: [(&[u8], u16, &str, &str); 9] = [
        (b"{", 400, "MalformedBody", ""),
        (b"", 400, "MalformedBody", ""),
        (b"{\"name\":\"\xff\"}", 400, "MalformedBody", ""),
        (b"{} trailing", 422, "InvalidBodyContent", ""),
        (b"[]", 422, "InvalidBodyContent", ""),
        (br#"{"name":7,"role":"admin"}"#, 422, "InvalidBodyContent", "name"),
        (br#"{"name":"a","role":"king"}"#, 422, "InvalidBodyContent", "role"),
        (br#"{"name":"a","role":"admin","rool":1}"#, 422, "InvalidBodyContent", "rool"),
        (br#"{"name":"A b","role":"admin"}"#, 422, "InvalidBodyContent", "name"),
    ];
    for (body, status, code, field) in cases {
        let shown = String::from_utf8_lossy(body).into_owned();
        let (got, got_code, answer) = post(body.to_vec()).await;
        assert_eq!((got, got_code.as_str()), (status, code), "{shown}: {answer}");
        if !field.is_empty() {
            assert_eq!(answer["details"][0]["field"], field, "{shown}: {answer}");
        }
    }
    let users = json_of(server.get("/users", &server.admin).await).await;
    assert_eq!(users["data"].as_array().unwrap().len(), 1, "a bad body made a user");
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_whether_announced_or_not() {
    let server = TestServer::start_with(|config| config.limits.body_bytes = 1000).await;
    let long = vec![b' '; 2000];
    let request = server.request(Method::POST, "/users", &server.admin);
    let (status, code, _) = error_of(request.body(long.clone()).send().await.unwrap()).await;
    assert_eq!((status, code.as_str()), (413, "BodyTooLarge"));
    let chunks = futures_util::stream::iter(
        long.chunks(100).map(|c| Ok::<_, std::io::Error>(c.to_vec())).collect::<Vec<_>>(),
    );
    let request = server.request(Method::POST, "/users", &server.admin);
    let request = request.body(reqwest::Body::wrap_stream(chunks));
    assert_eq!(error_of(request.send().await.unwrap()).await.0, 413);
    assert_eq!(server.get("/whoami", &server.admin).await.status(), 200);
}

#[tokio::test]
async fn wrong_paths_methods_types_and_actions_are_named() {
    let server = TestServer::start().await;
    let admin = server.admin.as_str();
    let status = async |method: Method, path: &str| {
        error_of(server.request(method, path, admin).send().await.unwrap()).await
    };
    assert_eq!(status(Method::GET, "/nowhere").await.1, "NotFound");
    assert_eq!(status(Method::PATCH, "/users").await.1, "MethodNotAllow");
    assert_eq!(status(Method::GET, "/audit?limit=many").await.1, "InvalidRequest");
    assert_eq!(status(Method::GET, "/users/%FF").await.0, 404);
    let body = json!({"password": "x"});
    let (code, _, answer) =
        error_of(server.post("/users/admin?action=fly", admin, &body).await).await;
    assert_eq!(code, 404, "{answer}");
    let form = server.request(Method::POST, "/users", admin);
    let form = form.header("content-type", "application/x-www-form-urlencoded").body("name=a");
    assert_eq!(error_of(form.send().await.unwrap()).await.1, "UnsupportedMediaType");
    let (status, _, _) = error_of(server.get("/users/no-such", admin).await).await;
    assert_eq!(status, 404);
    let twice = json!({"name": "admin", "role": "viewer"});
    let (status, code, _) = error_of(server.post("/users", admin, &twice).await).await;
    assert_eq!((status, code.as_str()), (422, "DuplicateResource"));
}

#[tokio::test]
async fn a_request_id_is_kept_if_it_is_reasonable() {
    let server = TestServer::start().await;
    let id = async |given: &str| {
        let request = server.request(Method::GET, "/whoami", &server.admin);
        let response = request.header("x-request-id", given).send().await.unwrap();
        response.headers()["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(id("abc-1.2_3").await, "abc-1.2_3");
    for bad in ["has space", "", &"x".repeat(100)] {
        let made = id(bad).await;
        assert_eq!(made.len(), 16, "{made}");
    }
}

#[tokio::test]
async fn connections_that_say_nothing_or_too_much_are_closed_and_others_are_served() {
    let server = TestServer::start_with(|config| {
        config.limits.header_seconds = 1;
        config.limits.header_bytes = 8 << 10;
        config.limits.connections = 20;
    })
    .await;
    let address = server.running.as_ref().unwrap().address;
    let connect = || tokio::net::TcpStream::connect(address);
    // A head that never ends.
    let mut slow = connect().await.unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: ").await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(DEADLINE, slow.read_to_end(&mut answer)).await.unwrap().unwrap();
    // A head that is too large.
    let mut large = connect().await.unwrap();
    let head = format!("GET /healthz HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "y".repeat(20_000));
    large.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The server may close while we still write; what it said before counts.
    let read = tokio::time::timeout(DEADLINE, large.read_to_end(&mut answer)).await.unwrap();
    let text = String::from_utf8_lossy(&answer);
    assert!(read.is_err() || text.starts_with("HTTP/1.1 431"), "{text}");
    // More connections than there is room for: the surplus is closed, and room comes back.
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(connect().await.unwrap());
    }
    drop(held);
    common::eventually(async || {
        server
            .http
            .get(format!("{}/healthz", server.base))
            .send()
            .await
            .is_ok_and(|r| r.status() == 200)
    })
    .await;
    let metrics = server.http.get(format!("{}/metrics", server.base)).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    let refused = metrics.lines().find(|l| l.starts_with("wharf_http_connections_refused_total"));
    assert!(refused.is_some_and(|line| !line.ends_with(" 0")), "{refused:?}");
}

#[tokio::test]
async fn silent_strangers_neither_stay_nor_lock_the_owner_out() {
    let server = TestServer::start_with(|config| {
        config.limits.header_seconds = 2;
        config.limits.connections = 10;
        config.limits.connections_per_address = 10;
    })
    .await;
    let address = server.running.as_ref().unwrap().address;
    let mut silent = Vec::new();
    for i in 0..10 {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        // Some say nothing at all, some begin like HTTP/1, some like HTTP/2.
        let word: &[u8] =
            [&b""[..], b"P", b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"][i % 4];
        stream.write_all(word).await.unwrap();
        silent.push(stream);
    }
    let socket = wharf_api::client::Target::Socket(server.app().config.socket_path());
    let local = wharf_api::client::Client::new(socket).unwrap();
    let me: wharf_api::user::WhoAmI = local.get("/whoami").await.unwrap();
    assert_eq!(me.name, "local");
    for mut stream in silent {
        let mut answer = Vec::new();
        let closed = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await;
        assert!(closed.is_ok(), "a silent connection stays open");
    }
    assert_eq!(server.get("/whoami", &server.admin).await.status(), 200);
}

#[tokio::test]
async fn one_address_gets_only_its_share_of_connections() {
    let server = TestServer::start_with(|config| {
        config.limits.connections = 20;
        config.limits.connections_per_address = 5;
    })
    .await;
    let address = server.running.as_ref().unwrap().address;
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(tokio::net::TcpStream::connect(address).await.unwrap());
    }
    let mut surplus = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut answer = Vec::new();
    let read =
        tokio::time::timeout(Duration::from_secs(10), surplus.read_to_end(&mut answer)).await;
    // Closed at once, long before an idle connection would be.
    assert!(read.is_ok() && answer.is_empty(), "the surplus connection stays open");
    let other = tokio::net::TcpSocket::new_v4().unwrap();
    other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = other.connect(address).await.unwrap();
    other
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    other.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn invented_methods_and_names_leave_no_trace_and_no_error() {
    let server = TestServer::start().await;
    for i in 0..5 {
        let method = Method::from_bytes(format!("FOO{i}").as_bytes()).unwrap();
        server.request(method, "/users", &server.admin).send().await.unwrap();
    }
    let metrics = server.http.get(format!("{}/metrics", server.base)).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    assert!(!metrics.contains("FOO"), "{metrics}");
    assert!(metrics.contains("method=\"other\""), "{metrics}");
    let long = format!("/clusters/{}", "a".repeat(1100));
    for path in ["/clusters/%00", "/clusters/%0a", &long, "/users/%00/tokens", "/users/%00"] {
        assert_eq!(server.get(path, &server.admin).await.status(), 404, "{path}");
    }
    let path = "/users/admin/tokens/%00";
    assert_eq!(server.delete(path, &server.admin).await.status(), 404);
}

#[tokio::test]
async fn the_first_password_is_told_by_the_first_start_that_works() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = wharf_server::Config {
        admin_password_file: std::path::PathBuf::new(),
        listen: taken.local_addr().unwrap(),
        ..common::config(dir.path())
    };
    let error = wharf_server::start(config.clone()).await.map(drop).unwrap_err();
    assert!(error.hint().unwrap().contains("--listen"), "{error}");
    config.listen = "127.0.0.1:0".parse().unwrap();
    let running = wharf_server::start(config).await.unwrap();
    assert!(running.admin_password.is_some(), "the password was lost with the failed start");
    running.stop().await;
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_ended() {
    let server = TestServer::start_with(|config| config.limits.request_seconds = 1).await;
    let address = server.running.as_ref().unwrap().address;
    let mut slow = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /api/v1/users HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\ncontent-length: 100\r\n\r\n{{",
        server.admin
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let n = tokio::time::timeout(DEADLINE, slow.read(&mut answer)).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&answer[..n]).into_owned();
    assert!(text.starts_with("HTTP/1.1 408"), "{text}");
    assert!(text.contains("RequestTimeout"), "{text}");
}

#[tokio::test]
async fn a_stop_ends_event_streams_and_slow_requests_within_ten_seconds() {
    let mut server = TestServer::start().await;
    let mut events = server.get("/events", &server.admin).await;
    assert_eq!(events.status(), 200);
    let address = server.running.as_ref().unwrap().address;
    let mut hanging = tokio::net::TcpStream::connect(address).await.unwrap();
    hanging.write_all(b"POST /api/v1/users HTTP/1.1\r\nhost: a\r\n").await.unwrap();
    let started = Instant::now();
    server.stop().await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let end =
        tokio::time::timeout(DEADLINE, async { while let Ok(Some(_)) = events.chunk().await {} });
    end.await.unwrap();
    // All that was acknowledged is there after a new start.
    let config = common::config(server.dir.path());
    let running = wharf_server::start(config).await.unwrap();
    assert!(running.admin_password.is_none(), "a second start made a new password");
    let users = wharf_server::access::user::list(&running.app.store).await.unwrap();
    assert_eq!(users.len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn the_socket_gives_admin_rights_to_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let server = TestServer::start().await;
    let socket = server.app().config.socket_path();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let client = wharf_api::client::Client::new(wharf_api::client::Target::Socket(socket)).unwrap();
    let me: wharf_api::user::WhoAmI = client.get("/whoami").await.unwrap();
    assert_eq!((me.name.as_str(), me.role), ("local", wharf_api::user::RoleName::Admin));
    // A second server on the same directory is refused and leaves the first one alone.
    let second = wharf_server::start(common::config(server.dir.path())).await;
    let error = second.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("another wharf server"), "{error}");
    assert!(error.hint().unwrap().contains("--data-dir"));
    let again: wharf_api::user::WhoAmI = client.get("/whoami").await.unwrap();
    assert_eq!(again, me);
}
