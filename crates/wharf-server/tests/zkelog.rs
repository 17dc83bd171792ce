//! The log of an operation as a WebSocket.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/clusters.rs"]
mod paper;

use common::{DEADLINE, TestServer};
use futures_util::StreamExt;
use jiff::Timestamp;
use paper::{leave_alone, record, wish};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Error, Message, client::IntoClientRequest},
};
use wharf_core::operation::{LOG_LINES, OperationRecord, OperationState};
use wharf_store::Txn;

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A server with a cluster `demo` that is being created, and nobody works on it.
async fn with_demo() -> (TestServer, String) {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo"]).await;
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

async fn open(
    server: &TestServer,
    query: &str,
    headers: &[(&'static str, &str)],
) -> Result<Socket, u16> {
    let base = server.base.replace("http://", "ws://");
    let url = format!("{base}/apis/ws.zcloud.cn/v1/clusters/demo/zkelog{query}");
    let mut request = url.into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    match connect_async(request).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

/// The next line; `None` when the server closes.
async fn line(socket: &mut Socket) -> Option<String> {
    loop {
        match tokio::time::timeout(DEADLINE, socket.next()).await.unwrap() {
            Some(Ok(Message::Text(text))) => return Some(text.to_string()),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_late_joiner_gets_the_last_lines_and_then_new_ones_until_the_end() {
    let (server, id) = with_demo().await;
    let now = Timestamp::now();
    change(&server, &id, |operation| {
        for number in 0..LOG_LINES + 5 {
            operation.log(now, format!("line {number}"));
        }
    })
    .await;
    let bearer = format!("Bearer {}", server.admin);
    let mut socket = open(&server, "", &[("authorization", &bearer)]).await.unwrap();
    for number in 5..LOG_LINES + 5 {
        assert_eq!(line(&mut socket).await, Some(format!("line {number}")));
    }
    change(&server, &id, |operation| operation.log(now, "and on")).await;
    assert_eq!(line(&mut socket).await.as_deref(), Some("and on"));
    change(&server, &id, |operation| {
        operation.log(now, "the end");
        operation.state = OperationState::Failed;
    })
    .await;
    assert_eq!(line(&mut socket).await.as_deref(), Some("the end"));
    assert_eq!(line(&mut socket).await, None);
    // Whoever comes after the end still gets the log.
    let mut socket = open(&server, "", &[("authorization", &bearer)]).await.unwrap();
    let mut lines = Vec::new();
    while let Some(line) = line(&mut socket).await {
        lines.push(line);
    }
    assert_eq!((lines.len(), lines[LOG_LINES - 1].as_str()), (LOG_LINES, "the end"));
}

#[tokio::test]
async fn only_those_who_may_see_the_cluster_get_its_log() {
    let (server, id) = with_demo().await;
    change(&server, &id, |operation| {
        operation.log(Timestamp::now(), "hello");
        operation.state = OperationState::Succeeded;
    })
    .await;
    let vera = server.user("vera", "viewer", Some(&["demo"])).await;
    let otto = server.user("otto", "viewer", Some(&["other"])).await;
    assert_eq!(open(&server, "", &[]).await.unwrap_err(), 401);
    assert_eq!(open(&server, "?token=nonsense", &[]).await.unwrap_err(), 401);
    assert_eq!(open(&server, &format!("?token={otto}"), &[]).await.unwrap_err(), 404);
    let cookie = format!("theme=dark; wharf={vera}");
    let bearer = format!("Bearer {vera}");
    let own = server.base.clone();
    for (query, headers) in [
        (format!("?token={vera}"), vec![]),
        (String::new(), vec![("cookie", cookie.as_str()), ("origin", own.as_str())]),
        (String::new(), vec![("authorization", bearer.as_str())]),
    ] {
        let mut socket = open(&server, &query, &headers).await.unwrap();
        assert_eq!(line(&mut socket).await.as_deref(), Some("hello"), "{headers:?}");
    }
    let foreign = [("cookie", cookie.as_str()), ("origin", "https://evil.example")];
    assert_eq!(open(&server, "", &foreign).await.unwrap_err(), 403);
    // A token in the query or a cookie is for this socket alone.
    let path = format!("/clusters/demo?token={vera}");
    assert_eq!(server.get(&path, "").await.status(), 401);
}

#[tokio::test]
async fn a_log_ends_with_the_rights_of_whoever_reads_it() {
    let (server, id) = with_demo().await;
    let vera = server.user("vera", "viewer", Some(&["demo"])).await;
    change(&server, &id, |operation| operation.log(Timestamp::now(), "hello")).await;
    let mut socket = open(&server, &format!("?token={vera}"), &[]).await.unwrap();
    assert_eq!(line(&mut socket).await.as_deref(), Some("hello"));
    assert_eq!(server.delete("/users/vera", &server.admin).await.status(), 204);
    assert_eq!(line(&mut socket).await, None);
}
