//! What only etcd can do to a store: TLS, users, lost members, restarts, silence.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/etcd.rs"]
mod etcd;
#[path = "support/tls.rs"]
mod tls;

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use etcd::{Etcd, cluster_location, location, location_with, open};
use wharf_store::{
    Change, EtcdOptions, Outcome, Revision, Store, StoreError, StoreLocation, StoreOptions, Txn,
};
use wharf_testbed::etcd::{Options, Tls};

const PATIENCE: Duration = Duration::from_secs(20);

async fn put(store: &Store, key: &str, value: &str) -> Result<Revision, StoreError> {
    match store.commit(Txn::new().put(key, value)).await? {
        Outcome::Committed(revision) => Ok(revision),
        Outcome::Refused => panic!("refused"),
    }
}

async fn open_error(location: StoreLocation) -> StoreError {
    let started = Instant::now();
    let result = Store::open(&StoreOptions { location }).await;
    assert!(started.elapsed() < Duration::from_secs(15), "took {:?}", started.elapsed());
    result.err().expect("it opened")
}

#[tokio::test]
async fn tls_with_a_client_certificate_lets_in_whoever_has_one() {
    let dir = tempfile::tempdir().unwrap();
    let files = tls::Files::create(dir.path());
    let tls = Tls {
        certificate: files.server_cert.clone(),
        key: files.server_key.clone(),
        client_authority: Some(files.ca.clone()),
    };
    let etcd = Etcd::start_with(&Options { tls: Some(tls), flags: Vec::new() }).unwrap();
    let full = EtcdOptions {
        ca_file: Some(files.ca.clone()),
        cert_file: Some(files.client_cert.clone()),
        key_file: Some(files.client_key.clone()),
        ..EtcdOptions::default()
    };
    let store = open(location_with(&etcd, full.clone())).await;
    put(&store, "a/1", "x").await.unwrap();
    assert!(store.get("a/1").await.unwrap().is_some());

    let no_certificate = EtcdOptions { cert_file: None, key_file: None, ..full.clone() };
    let wrong_ca = EtcdOptions { ca_file: Some(files.other_ca.clone()), ..full.clone() };
    for options in [no_certificate, wrong_ca, EtcdOptions::default()] {
        let error = open_error(location_with(&etcd, options)).await;
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    }
    let absent = EtcdOptions { ca_file: Some(dir.path().join("no.pem")), ..full };
    let error = open_error(location_with(&etcd, absent)).await;
    assert!(matches!(&error, StoreError::BadOptions(text) if text.contains("no.pem")), "{error:?}");
}

#[tokio::test]
async fn a_user_with_rights_on_the_prefix_is_enough_and_others_are_denied() {
    // Signed tokens, which a change of etcd's users makes invalid.
    let dir = tempfile::tempdir().unwrap();
    let (public, private) = tls::key_pair(dir.path());
    let tokens = format!(
        "--auth-token=jwt,pub-key={},priv-key={},sign-method=ES256,ttl=10m",
        public.display(),
        private.display()
    );
    let etcd = Etcd::start_with(&Options { tls: None, flags: vec![tokens] }).unwrap();
    open(location(&etcd)).await.close().await;
    let mut admin = etcd_client::Client::connect([etcd.endpoint()], None).await.unwrap();
    admin.user_add("root", "root", None).await.unwrap();
    admin.user_grant_role("root", "root").await.unwrap();
    admin.user_add("wharf", "secret", None).await.unwrap();
    admin.role_add("wharf").await.unwrap();
    let prefix = etcd_client::Permission::read_write("/wharf/").with_prefix();
    admin.role_grant_permission("wharf", prefix).await.unwrap();
    admin.user_grant_role("wharf", "wharf").await.unwrap();
    admin.user_add("guest", "guest", None).await.unwrap();
    admin.auth_enable().await.unwrap();

    let user = |user: &str, password: &str| EtcdOptions {
        user: Some(user.to_owned()),
        password: Some(password.to_owned()),
        ..EtcdOptions::default()
    };
    let location = location_with(&etcd, user("wharf", "secret"));
    let store = Store::open(&StoreOptions { location }).await.unwrap();
    let start = put(&store, "a/1", "x").await.unwrap();
    put(&store, "a/2", "x").await.unwrap();
    let mut watch = store.watch("a/", start).await.unwrap();
    assert_eq!(watch.next().await.unwrap()[0].key(), "a/2");
    let held = store.hold("leader/a", "x", Duration::from_secs(60)).await.unwrap().unwrap();
    held.release().await.unwrap();
    let root = etcd_client::ConnectOptions::new().with_user("root", "root");
    let mut admin = etcd_client::Client::connect([etcd.endpoint()], Some(root)).await.unwrap();
    admin.user_add("new", "new", None).await.unwrap();
    put(&store, "a/3", "x").await.unwrap();
    assert!(store.get("a/3").await.unwrap().is_some());
    // Forgetting history is for etcd's own auto-compaction then.
    assert!(matches!(store.compact(1).await, Err(StoreError::Denied { .. })));

    for options in [
        user("wharf", "wrong"),
        user("nobody", "x"),
        user("guest", "guest"),
        EtcdOptions::default(),
    ] {
        let name = options.user.clone();
        let error = open_error(location_with(&etcd, options)).await;
        let StoreError::Denied { user, .. } = &error else { panic!("{name:?}: {error:?}") };
        assert_eq!(*user, name.unwrap_or_else(|| "a client without a user".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_loses_a_member_goes_on() {
    let mut members = Etcd::start_cluster(3).unwrap();
    let store = open(cluster_location(&members)).await;
    let start = put(&store, "a/0", "x").await.unwrap();
    let mut watch = store.watch("a/", start).await.unwrap();
    let held = store.hold("leader/a", "x", Duration::from_secs(30)).await.unwrap().unwrap();

    // The first endpoint is the one in use.
    members[0].kill().unwrap();
    let killed = Instant::now();
    let mut written = 0;
    while written < 20 {
        match put(&store, &format!("a/{}", written + 1), "x").await {
            Ok(_) => written += 1,
            // Only while a new leader is elected; whether it was written is then not known.
            Err(StoreError::Unreachable { .. }) => {
                assert!(killed.elapsed() < PATIENCE, "it does not come back");
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(store.get("a/20").await.unwrap().is_some());
    assert!(!held.is_lost());
    let mut seen = Vec::new();
    while seen.last().is_none_or(|key| key != "a/20") {
        let changes = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
        seen.extend(changes.iter().map(|change| change.key().to_owned()));
    }
    seen.dedup();
    assert_eq!(seen, (1..=20).map(|i| format!("a/{i}")).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_where_it_was_when_etcd_restarts() {
    let mut etcd = Etcd::start().unwrap();
    let store = open(location(&etcd)).await;
    let start = put(&store, "a/1", "x").await.unwrap();
    let mut watch = store.watch("a/", start).await.unwrap();
    put(&store, "a/2", "x").await.unwrap();
    assert_eq!(watch.next().await.unwrap()[0].key(), "a/2");
    let reader = tokio::spawn(async move {
        let mut seen = Vec::new();
        while seen.len() < 2 {
            let changes = watch.next().await.unwrap();
            seen.extend(changes.iter().map(Change::key).map(str::to_owned).collect::<Vec<_>>());
        }
        seen
    });

    etcd.kill().unwrap();
    let error = put(&store, "a/never", "x").await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    etcd.restart().unwrap();
    let restarted = Instant::now();
    for key in ["a/3", "a/4"] {
        while let Err(error) = put(&store, key, "x").await {
            assert!(restarted.elapsed() < PATIENCE, "{error:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let seen = tokio::time::timeout(PATIENCE, reader).await.unwrap().unwrap();
    assert_eq!(seen, ["a/3", "a/4"]);
}

#[tokio::test]
async fn a_dead_etcd_is_an_error_in_bounded_time() {
    // Nobody listens at one; the other takes the connection and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let closed = etcd::free_address();
    for endpoints in [vec![closed.clone()], vec![closed, silent]] {
        let options = EtcdOptions::default();
        let error = open_error(StoreLocation::Etcd { endpoints, options }).await;
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
        assert!(error.hint().is_some());
    }
}

#[tokio::test]
async fn an_endpoint_that_is_down_from_the_start_is_passed_over() {
    let etcd = Etcd::start().unwrap();
    open(location(&etcd)).await.close().await;
    let endpoints = vec![etcd::free_address(), etcd.address()];
    let location = StoreLocation::Etcd { endpoints, options: EtcdOptions::default() };
    let store = Store::open(&StoreOptions { location }).await.unwrap();
    put(&store, "a/1", "x").await.unwrap();
}

#[tokio::test]
async fn a_holder_whose_etcd_is_gone_knows_it_after_the_time_to_live() {
    let mut etcd = Etcd::start().unwrap();
    let store = open(location(&etcd)).await;
    let ttl = Duration::from_secs(2);
    let held = store.hold("leader/a", "x", ttl).await.unwrap().unwrap();
    etcd.kill().unwrap();
    let killed = Instant::now();
    held.lost().await;
    assert!(held.is_lost());
    assert!(killed.elapsed() <= ttl + Duration::from_millis(300), "{:?}", killed.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_falls_silent_does_not_cost_the_lease() {
    let mut members = Etcd::start_cluster(3).unwrap();
    let store = open(cluster_location(&members)).await;
    let ttl = Duration::from_secs(5);
    let held = store.hold("leader/a", "x", ttl).await.unwrap().unwrap();
    // The first endpoint is the one in use; the two others are a quorum.
    members[0].pause().unwrap();
    assert!(tokio::time::timeout(ttl * 2, held.lost()).await.is_err(), "the lease was lost");
    let guarded = Txn::new().when(held.still_held()).put("work/1", "x");
    assert!(matches!(store.commit(guarded).await.unwrap(), Outcome::Committed(_)));
}

#[tokio::test]
async fn keys_of_others_are_not_seen() {
    let etcd = Etcd::start().unwrap();
    let store = open(location(&etcd)).await;
    let mut other = etcd_client::Client::connect([etcd.endpoint()], None).await.unwrap();
    for key in ["/registry/pods", "/wharf", "/wharf0", "wharf/a"] {
        other.put(key, "x", None).await.unwrap();
    }
    let listing = store.list("", wharf_store::Page::ALL).await.unwrap();
    let keys: Vec<_> = listing.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, ["meta/schema"]);
}
