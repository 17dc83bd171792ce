use std::time::{Duration, Instant};

use wharf_store::{Change, Compare, LeaseId, Outcome, Store, StoreError, Txn};

use crate::{commit, put, take, within};

/// The shortest that etcd grants.
const TTL: Duration = Duration::from_secs(2);
/// Longer than any test.
const LONG: Duration = Duration::from_secs(300);

pub async fn a_key_goes_with_its_lease_and_watchers_see_it(store: &Store) {
    let lease = store.grant_lease(TTL).await.unwrap();
    let granted = Instant::now();
    let txn =
        Txn::new().put_leased("m/a", "x", lease).put_leased("m/b", "y", lease).put("m/c", "z");
    let revision = commit(store, txn).await;
    let mut watch = store.watch("m/", revision).await.unwrap();
    let gone = take(&mut watch, 2).await;
    assert!(granted.elapsed() > TTL - Duration::from_millis(200), "{:?}", granted.elapsed());
    let mut keys: Vec<_> = gone.iter().map(Change::key).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["m/a", "m/b"]);
    assert!(gone.iter().all(|change| matches!(change, Change::Deleted { .. })));
    assert_eq!(store.get("m/a").await.unwrap(), None);
    assert!(store.get("m/c").await.unwrap().is_some());
    assert!(matches!(store.keep_alive(lease).await, Err(StoreError::LeaseGone)));
}

pub async fn a_lease_that_is_kept_alive_stays(store: &Store) {
    let lease = store.grant_lease(TTL).await.unwrap();
    commit(store, Txn::new().put_leased("m/a", "x", lease)).await;
    let started = Instant::now();
    let mut ticks = tokio::time::interval(TTL / 4);
    while started.elapsed() < TTL * 2 {
        ticks.tick().await;
        store.keep_alive(lease).await.unwrap();
        assert!(store.get("m/a").await.unwrap().is_some());
    }
    store.revoke_lease(lease).await.unwrap();
    assert_eq!(store.get("m/a").await.unwrap(), None);
}

pub async fn an_ended_lease_is_gone_for_good(store: &Store) {
    let lease = store.grant_lease(LONG).await.unwrap();
    commit(store, Txn::new().put_leased("m/a", "x", lease)).await;
    store.revoke_lease(lease).await.unwrap();
    store.revoke_lease(lease).await.unwrap();
    assert_eq!(store.get("m/a").await.unwrap(), None);
    for lease in [lease, LeaseId(987_654_321)] {
        assert!(matches!(store.keep_alive(lease).await, Err(StoreError::LeaseGone)));
        let write = store.commit(Txn::new().put_leased("m/a", "x", lease).put("m/b", "y")).await;
        assert!(matches!(write, Err(StoreError::LeaseGone)), "{write:?}");
    }
    assert_eq!(store.get("m/b").await.unwrap(), None, "nothing of it was written");
    let refused = Txn::new()
        .when(Compare::ModifiedAt("m/none".into(), wharf_store::Revision(1)))
        .put_leased("m/a", "x", lease);
    assert_eq!(store.commit(refused).await.unwrap(), Outcome::Refused);
}

pub async fn a_key_that_is_written_without_a_lease_is_free_of_it(store: &Store) {
    let lease = store.grant_lease(LONG).await.unwrap();
    let created = commit(store, Txn::new().put_leased("m/a", "x", lease)).await;
    put(store, "m/a", "y").await;
    store.revoke_lease(lease).await.unwrap();
    let entry = store.get("m/a").await.unwrap().unwrap();
    assert_eq!((entry.value.as_slice(), entry.created), (&b"y"[..], created));
}

pub async fn one_holds_at_a_time_and_the_epoch_grows(store: &Store) {
    let first = store.hold("leader/x", "a", LONG).await.unwrap().unwrap();
    assert!(store.hold("leader/x", "b", LONG).await.unwrap().is_none());
    assert!(!first.is_lost());
    let guarded = Txn::new().when(first.still_held()).put("work/1", "by a");
    commit(store, guarded.clone()).await;
    let epoch = first.epoch();
    first.release().await.unwrap();
    assert_eq!(store.commit(guarded.clone()).await.unwrap(), Outcome::Refused);

    let second = store.hold("leader/x", "b", LONG).await.unwrap().unwrap();
    assert!(second.epoch() > epoch);
    assert_eq!(
        store.commit(guarded).await.unwrap(),
        Outcome::Refused,
        "the old holder can do no harm"
    );
    commit(store, Txn::new().when(second.still_held()).put("work/1", "by b")).await;
}

pub async fn a_holder_learns_that_its_lease_has_ended(store: &Store) {
    // Kept alive well beyond its time to live, then closed under it.
    let held = store.hold("leader/x", "a", TTL).await.unwrap().unwrap();
    let longer = tokio::time::timeout(TTL * 3 / 2, held.lost()).await;
    assert!(longer.is_err() && !held.is_lost(), "it was lost although it was kept alive");
    store.close().await;
    within(held.lost()).await;
    assert!(held.is_lost());
}
