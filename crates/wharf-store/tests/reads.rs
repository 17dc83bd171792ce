//! Reads of a key that is being written: never older than what was seen before.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use wharf_store::{Outcome, Page, Store, StoreError, StoreLocation, StoreOptions, Txn};

const WRITES: u64 = 500;

async fn open(dir: &tempfile::TempDir) -> Store {
    let location = StoreLocation::Embedded { data_dir: dir.path().to_owned() };
    Store::open(&StoreOptions { location }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_by_key_and_by_list_never_go_back_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let acknowledged = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let _ = store.commit(Txn::new().put("a/k", "0")).await.unwrap();
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (store, acknowledged, stop) = (store.clone(), acknowledged.clone(), stop.clone());
        readers.spawn(async move {
            let mut seen = 0;
            let mut reads: u64 = 0;
            while !stop.load(Ordering::Acquire) {
                let known = acknowledged.load(Ordering::Acquire);
                let entry = if reads.is_multiple_of(3) {
                    let page = Page { after: None, limit: 10, descending: false };
                    store.list("a/", page).await.unwrap().entries.remove(0)
                } else {
                    store.get("a/k").await.unwrap().unwrap()
                };
                let now: u64 = String::from_utf8(entry.value).unwrap().parse().unwrap();
                assert!(now >= seen, "{now} after {seen}");
                assert!(now >= known, "{now} though {known} was acknowledged");
                seen = now;
                reads += 1;
                tokio::task::yield_now().await;
            }
            reads
        });
    }
    for number in 1..=WRITES {
        let txn = Txn::new().put("a/k", number.to_string());
        assert!(matches!(store.commit(txn).await.unwrap(), Outcome::Committed(_)));
        acknowledged.store(number, Ordering::Release);
        assert_eq!(store.get("a/k").await.unwrap().unwrap().value, number.to_string().into_bytes());
    }
    stop.store(true, Ordering::Release);
    let reads: u64 = readers.join_all().await.into_iter().sum();
    assert!(reads > 0);
}

#[tokio::test]
async fn a_deleted_key_is_gone_for_readers_that_had_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let _ = store.commit(Txn::new().put("k", "1")).await.unwrap();
    assert!(store.get("k").await.unwrap().is_some());
    assert!(store.get("k").await.unwrap().is_some());
    let _ = store.commit(Txn::new().delete("k")).await.unwrap();
    assert!(store.get("k").await.unwrap().is_none());
}

#[tokio::test]
async fn a_closed_store_answers_no_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let _ = store.commit(Txn::new().put("k", "1")).await.unwrap();
    assert!(store.get("k").await.unwrap().is_some());
    store.close().await;
    assert!(matches!(store.get("k").await, Err(StoreError::Closed)));
}
