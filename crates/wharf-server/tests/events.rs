//! The event bus, through server-sent events and in the process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::pin::Pin;

use common::{DEADLINE, TestServer, put_cluster};
use futures_util::{Stream, StreamExt};
use serde_json::json;
use wharf_api::client::{Client, ClientError, EventItem, Target};
use wharf_server::events::Delivery;
use wharf_store::Txn;

type Events = Pin<Box<dyn Stream<Item = Result<EventItem, ClientError>> + Send>>;

async fn follow(server: &TestServer, token: &str, after: Option<u64>) -> Events {
    let target =
        Target::Url { url: server.base.clone(), token: Some(token.to_owned()), ca_pem: None };
    Box::pin(Client::new(target).unwrap().events(after).await.unwrap())
}

async fn next(events: &mut Events) -> EventItem {
    tokio::time::timeout(DEADLINE, events.next()).await.unwrap().unwrap().unwrap()
}

async fn next_event(events: &mut Events) -> wharf_api::event::Event {
    match next(events).await {
        EventItem::Event(event) => event,
        EventItem::Lost(lost) => panic!("{lost:?}"),
    }
}

/// The kinds in this test; the server's own membership comes and goes as it likes.
fn is_members(event: &wharf_api::event::Event) -> bool {
    event.type_.starts_with("member.")
}

#[tokio::test]
async fn changes_arrive_in_order_and_a_listener_resumes_where_it_was() {
    let server = TestServer::start().await;
    let mut live = follow(&server, &server.admin, None).await;
    for name in ["a", "b", "c"] {
        let body = json!({"name": name, "role": "viewer", "password": common::PASSWORD});
        assert_eq!(server.post("/users", &server.admin, &body).await.status(), 201);
    }
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let event = next_event(&mut live).await;
        if !is_members(&event) {
            seen.push(event);
        }
    }
    let names: Vec<&str> = seen.iter().map(|e| e.resource.as_str()).collect();
    assert_eq!(names, ["user/a", "user/b", "user/c"]);
    assert!(seen.iter().all(|e| e.type_ == "user.created" && e.cluster.is_none()));
    assert!(seen.windows(2).all(|w| w[0].revision < w[1].revision));
    let mut resumed = follow(&server, &server.admin, Some(seen[0].revision)).await;
    assert_eq!(next_event(&mut resumed).await, seen[1]);
    assert_eq!(next_event(&mut resumed).await, seen[2]);
    assert_eq!(server.delete("/users/b", &server.admin).await.status(), 204);
    for stream in [&mut live, &mut resumed] {
        let event = next_event(stream).await;
        assert_eq!((event.type_.as_str(), event.resource.as_str()), ("user.deleted", "user/b"));
    }
}

#[tokio::test]
async fn a_listener_from_the_future_or_the_forgotten_past_learns_that_it_lost_events() {
    let server = TestServer::start().await;
    let mut future = follow(&server, &server.admin, Some(1_000_000)).await;
    assert!(matches!(next(&mut future).await, EventItem::Lost(_)));
    let store = &server.app().store;
    // More than the history keeps.
    for round in 0..120u32 {
        let txns =
            (0..100).map(|i| store.commit(Txn::new().put(format!("x/{i}"), round.to_be_bytes())));
        for outcome in futures_util::future::join_all(txns).await {
            assert!(matches!(outcome.unwrap(), wharf_store::Outcome::Committed(_)));
        }
    }
    common::eventually(async || {
        // History is trimmed along with single commits, a step with each.
        let trim = store.commit(Txn::new().put("x/trim", *b"1")).await.unwrap();
        assert!(matches!(trim, wharf_store::Outcome::Committed(_)));
        let mut past = follow(&server, &server.admin, Some(1)).await;
        matches!(next(&mut past).await, EventItem::Lost(_))
    })
    .await;
    // After the loss the stream is live.
    let body = json!({"name": "late", "role": "viewer", "password": common::PASSWORD});
    assert_eq!(server.post("/users", &server.admin, &body).await.status(), 201);
    loop {
        if next_event(&mut future).await.resource == "user/late" {
            break;
        }
    }
}

#[tokio::test]
async fn a_listener_that_does_not_read_never_delays_a_writer_and_learns_its_loss() {
    let server = TestServer::start().await;
    let app = server.app();
    let mut sleeper = app.hub.subscribe(None).await.unwrap();
    let mut reader = app.hub.subscribe(None).await.unwrap();
    let reading = tokio::spawn(async move {
        let mut count = 0;
        while count < 10_000 {
            match reader.next().await.unwrap().unwrap() {
                Delivery::Event(event) => {
                    count += u32::from(event.event.resource.starts_with("x/"));
                }
                Delivery::Lost { .. } => return None,
            }
        }
        Some(count)
    });
    for round in 0..100u32 {
        let writes = (0..100)
            .map(|i| app.store.commit(Txn::new().put(format!("x/{i}"), round.to_be_bytes())));
        let all = futures_util::future::join_all(writes);
        for outcome in tokio::time::timeout(DEADLINE, all).await.expect("a writer was delayed") {
            assert!(matches!(outcome.unwrap(), wharf_store::Outcome::Committed(_)));
        }
        tokio::task::yield_now().await;
    }
    let read = tokio::time::timeout(DEADLINE, reading).await.unwrap().unwrap();
    assert!(read.is_none() || read == Some(10_000));
    let first = tokio::time::timeout(DEADLINE, sleeper.next()).await.unwrap().unwrap().unwrap();
    let Delivery::Lost { resumed_at, .. } = first else { panic!("{first:?}") };
    // What it gets next is later than what it was told it lost.
    assert!(matches!(
        app.store.commit(Txn::new().put("x/last", *b"1")).await.unwrap(),
        wharf_store::Outcome::Committed(_)
    ));
    let next = tokio::time::timeout(DEADLINE, sleeper.next()).await.unwrap().unwrap().unwrap();
    let Delivery::Event(event) = next else { panic!("{next:?}") };
    assert!(event.event.revision > resumed_at.0);
}

#[tokio::test]
async fn viewers_hear_of_their_clusters_only_and_nothing_once_their_rights_end() {
    let server = TestServer::start().await;
    let vera = server.user("vera", "viewer", Some(&["mine"])).await;
    let mut events = follow(&server, &vera, None).await;
    for name in ["theirs", "mine"] {
        put_cluster(&server.app().store, name).await;
    }
    let event = next_event(&mut events).await;
    assert_eq!(event.cluster.as_deref(), Some("mine"));
    assert_eq!(server.delete("/users/vera", &server.admin).await.status(), 204);
    let ended =
        tokio::time::timeout(DEADLINE, async { while let Some(Ok(_)) = events.next().await {} });
    ended.await.expect("the stream of a deleted user goes on");
}

#[tokio::test]
async fn there_are_only_so_many_streams_and_closed_ones_make_room() {
    let server = TestServer::start_with(|config| config.limits.event_streams = 3).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(server.get("/events", &server.admin).await);
    }
    let (status, code, _) = common::error_of(server.get("/events", &server.admin).await).await;
    assert_eq!((status, code.as_str()), (503, "Unavailable"));
    drop(open);
    common::eventually(async || server.get("/events", &server.admin).await.status() == 200).await;
}

#[tokio::test]
async fn a_listener_may_resume_from_before_its_own_rights_began() {
    let server = TestServer::start().await;
    let start = server.app().store.revision().await.unwrap().0;
    let body = json!({"name": "otto", "role": "viewer", "password": common::PASSWORD});
    assert_eq!(server.post("/users", &server.admin, &body).await.status(), 201);
    let body = json!({"role": "admin"});
    assert_eq!(server.put("/users/otto", &server.admin, &body).await.status(), 200);
    let otto = server.login("otto", common::PASSWORD).await;
    let mut events = follow(&server, &otto, Some(start)).await;
    let mut types = Vec::new();
    while types.len() < 3 {
        let event = next_event(&mut events).await;
        if !is_members(&event) {
            types.push(event.type_);
        }
    }
    assert_eq!(types, ["user.created", "user.updated", "token.created"]);
    // A change from now on does end it.
    let body = json!({"role": "viewer"});
    assert_eq!(server.put("/users/otto", &server.admin, &body).await.status(), 200);
    let ended =
        tokio::time::timeout(DEADLINE, async { while let Some(Ok(_)) = events.next().await {} });
    ended.await.expect("the stream goes on with the old role");
}
