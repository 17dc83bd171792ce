//! What only shows when there is more than one page.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use wharf_testbed::etcd::Etcd;

use super::{backup_in_pages, check::check_in_pages, restore::restore_in_pages};
use crate::{EtcdOptions, Outcome, Page, Store, StoreLocation, StoreOptions, Txn};

const RECORD: &str = r#"{"schema":1,"at":"2026-01-01T00:00:00Z","data":"x"}"#;
const RECORDS: u64 = 50;
/// Neither a divisor of all records nor of etcd's chunks.
const SMALL: usize = 3;

fn embedded(dir: &Path) -> StoreLocation {
    StoreLocation::Embedded { data_dir: dir.to_owned() }
}

fn on_etcd(etcd: &Etcd) -> StoreLocation {
    let options = EtcdOptions::default();
    StoreLocation::Etcd { endpoints: vec![etcd.address()], options }
}

async fn open(location: &StoreLocation) -> Store {
    Store::open(&StoreOptions { location: location.clone() }).await.unwrap()
}

async fn commit(store: &Store, txn: Txn) {
    assert!(matches!(store.commit(txn).await.unwrap(), Outcome::Committed(_)));
}

async fn records(location: &StoreLocation) -> u64 {
    check_in_pages(location, None, SMALL).await.unwrap().records["cluster"]
}

#[tokio::test]
async fn all_pages_go_through_backup_restore_and_check() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (Etcd::start().unwrap(), Etcd::start().unwrap());
    let from = on_etcd(&first);
    let store = open(&from).await;
    for i in 0..RECORDS / 2 {
        // Two of one transaction, far apart in the order of keys.
        let two = Txn::new()
            .put(format!("cluster/{i:02}"), RECORD)
            .put(format!("cluster/{:02}", RECORDS - 1 - i), RECORD);
        commit(&store, two).await;
    }
    assert_eq!(records(&from).await, RECORDS);
    let all = store.list("", Page::ALL).await.unwrap();

    let file = dir.path().join("backup");
    let moved = backup_in_pages(&from, &file, SMALL).await.unwrap();
    assert_eq!(moved.records, all.entries.len() as u64);
    assert_eq!(moved.revision, all.revision);
    for to in [embedded(&dir.path().join("data")), on_etcd(&second)] {
        let restored = restore_in_pages(&file, &to, SMALL).await.unwrap();
        assert_eq!(restored.records, moved.records);
        assert_eq!(records(&to).await, RECORDS);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_pages_are_of_one_moment() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = Etcd::start().unwrap();
    let from = on_etcd(&etcd);
    let store = open(&from).await;
    let both = |n: u64| Txn::new().put("pair/a", n.to_string()).put("pair/z", n.to_string());
    commit(&store, both(0)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (store, stop) = (store.clone(), Arc::clone(&stop));
        async move {
            for n in 1.. {
                if stop.load(Ordering::Relaxed) {
                    return n;
                }
                commit(&store, both(n)).await;
            }
            0
        }
    });
    for i in 0..20 {
        let file = dir.path().join(format!("backup-{i}"));
        backup_in_pages(&from, &file, 1).await.unwrap();
        let to = embedded(&dir.path().join(format!("data-{i}")));
        restore_in_pages(&file, &to, 1).await.unwrap();
        let restored = open(&to).await;
        let [a, z] = ["pair/a", "pair/z"].map(|key| restored.get(key));
        assert_eq!(a.await.unwrap().unwrap().value, z.await.unwrap().unwrap().value);
        restored.close().await;
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.await.unwrap() > 20, "nothing was written meanwhile");
}
