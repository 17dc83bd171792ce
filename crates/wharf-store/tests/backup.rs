//! Backup, restore and check, on both back ends and from one to the other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/etcd.rs"]
mod etcd;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use etcd::{Etcd, location};
use wharf_store::{
    Outcome, Page, Revision, Sealer, Store, StoreError, StoreLocation, StoreOptions, Txn,
    backup::{REVISION_JUMP, SealState, backup, check, restore},
};
use wharf_testbed::disk::SmallDisk;

fn embedded(dir: &Path) -> StoreLocation {
    StoreLocation::Embedded { data_dir: dir.to_owned() }
}

async fn open(location: &StoreLocation) -> Store {
    Store::open(&StoreOptions { location: location.clone() }).await.unwrap()
}

async fn put(store: &Store, key: &str, value: &str) -> Revision {
    match store.commit(Txn::new().put(key, value)).await.unwrap() {
        Outcome::Committed(revision) => revision,
        Outcome::Refused => panic!("refused"),
    }
}

fn record(data: &str) -> String {
    format!(r#"{{"schema":1,"at":"2026-01-01T00:00:00Z","data":"{data}"}}"#)
}

/// A few records, one of them bound to a lease.
async fn fill(store: &Store) {
    for i in 0..300 {
        put(store, &format!("cluster/{i:03}"), &record("x")).await;
    }
    put(store, "cluster/000", &record("changed")).await;
    let two = Txn::new().put("user/ann", record("a")).put("user/bob", record("b"));
    assert!(matches!(store.commit(two).await.unwrap(), Outcome::Committed(_)));
    let lease = store.grant_lease(Duration::from_secs(600)).await.unwrap();
    let member = Txn::new().put_leased("member/1", "me", lease);
    assert!(matches!(store.commit(member).await.unwrap(), Outcome::Committed(_)));
}

async fn contents(store: &Store) -> Vec<(String, Vec<u8>)> {
    let listing = store.list("", Page::ALL).await.unwrap();
    let own = |key: &str| key == "meta/offset" || key.starts_with("member/");
    let entries = listing.entries.into_iter().filter(|entry| !own(&entry.key));
    entries.map(|entry| (entry.key, entry.value)).collect()
}

/// Moves a filled store through a backup into `to`, and looks at what arrived.
async fn round_trip(from: &StoreLocation, to: &StoreLocation, file: &Path) {
    let old = open(from).await;
    fill(&old).await;
    let moved = backup(from, file).await.unwrap();
    let before = old.revision().await.unwrap();
    assert_eq!(moved.revision, before);
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);

    let restored = restore(file, to).await.unwrap();
    assert!(restored.revision.0 >= before.0 + REVISION_JUMP, "{restored:?}");
    let new = open(to).await;
    assert_eq!(contents(&new).await, contents(&old).await);
    assert_eq!(new.get("member/1").await.unwrap(), None, "its holder is gone");
    let now = new.revision().await.unwrap();
    assert!(now >= restored.revision);

    // A client that resumes from a revision of the old store learns that it cannot.
    for after in [before, Revision(before.0 + 1000)] {
        let mut watch = new.watch("cluster/", after).await.unwrap();
        let error = watch.next().await.unwrap_err();
        assert!(matches!(error, StoreError::Compacted { oldest } if oldest > after), "{error:?}");
    }
    let mut watch = new.watch("cluster/", now).await.unwrap();
    let written = put(&new, "cluster/new", &record("x")).await;
    assert_eq!(written.0, now.0 + 1);
    assert_eq!(watch.next().await.unwrap()[0].revision(), written);
    let entry = new.get("cluster/000").await.unwrap().unwrap();
    let swap = wharf_store::Compare::ModifiedAt("cluster/000".into(), entry.modified);
    let swapped = new.commit(Txn::new().when(swap).put("cluster/000", record("y"))).await.unwrap();
    assert!(matches!(swapped, Outcome::Committed(_)));

    let again = restore(file, to).await.unwrap_err();
    assert!(matches!(again, StoreError::NotEmpty { .. }), "{again:?}");
    let report = check(to, None).await.unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!((report.records["cluster"], report.records["user"]), (301, 2));
    new.close().await;
    assert_eq!(contents(&open(to).await).await.len(), contents(&old).await.len() + 1);
}

#[tokio::test]
async fn from_embedded_to_embedded() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (embedded(&dir.path().join("a")), embedded(&dir.path().join("b")));
    round_trip(&from, &to, &dir.path().join("backup.db")).await;
}

#[tokio::test]
async fn from_etcd_to_embedded() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = Etcd::start().unwrap();
    round_trip(&location(&etcd), &embedded(&dir.path().join("b")), &dir.path().join("f")).await;
}

#[tokio::test]
async fn from_embedded_to_etcd_and_on() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = Etcd::start().unwrap();
    let from = embedded(&dir.path().join("a"));
    round_trip(&from, &location(&etcd), &dir.path().join("f")).await;
    // The offset of a restored etcd counts in its own backups too.
    let store = open(&location(&etcd)).await;
    let moved = backup(&location(&etcd), &dir.path().join("g")).await.unwrap();
    assert_eq!(moved.revision, store.revision().await.unwrap());
    let onward = embedded(&dir.path().join("c"));
    restore(&dir.path().join("g"), &onward).await.unwrap();
    assert_eq!(contents(&open(&onward).await).await, contents(&store).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_is_of_one_moment() {
    let dir = tempfile::tempdir().unwrap();
    let from = embedded(&dir.path().join("a"));
    let store = open(&from).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (store, stop) = (store.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut i = 0;
            while !stop.load(Ordering::Relaxed) {
                let n = i.to_string();
                let both = Txn::new()
                    .put("pair/a", n.clone())
                    .put("pair/b", n.clone())
                    .put(format!("cluster/{n}"), n);
                assert!(matches!(store.commit(both).await.unwrap(), Outcome::Committed(_)));
                i += 1;
            }
            i
        })
    };
    while store.get("cluster/200").await.unwrap().is_none() {
        tokio::task::yield_now().await;
    }
    for i in 0..5 {
        let file = dir.path().join(format!("backup-{i}"));
        backup(&from, &file).await.unwrap();
        let to = embedded(&dir.path().join(format!("restored-{i}")));
        restore(&file, &to).await.unwrap();
        let restored = open(&to).await;
        let (a, b) = (
            restored.get("pair/a").await.unwrap().unwrap(),
            restored.get("pair/b").await.unwrap().unwrap(),
        );
        assert_eq!(a.value, b.value);
        let newest: usize = String::from_utf8(a.value).unwrap().parse().unwrap();
        let all = restored.list("cluster/", Page::ALL).await.unwrap().entries;
        assert_eq!(all.len(), newest + 1);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.await.unwrap() > 200);
}

#[tokio::test]
async fn a_file_that_exists_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let from = embedded(&dir.path().join("a"));
    open(&from).await.close().await;
    let file = dir.path().join("backup");
    fs::write(&file, "mine").unwrap();
    let error = backup(&from, &file).await.unwrap_err();
    assert!(matches!(&error, StoreError::Io { path, .. } if *path == file), "{error:?}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    let nowhere = backup(&embedded(&dir.path().join("none")), &dir.path().join("new")).await;
    assert!(nowhere.is_err());
    let left: Vec<PathBuf> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[tokio::test]
async fn damaged_and_newer_backups_are_refused_and_leave_the_directory_empty() {
    let dir = tempfile::tempdir().unwrap();
    let from = embedded(&dir.path().join("a"));
    let store = open(&from).await;
    fill(&store).await;
    let good = dir.path().join("good");
    backup(&from, &good).await.unwrap();
    let to = dir.path().join("to");

    let damaged = dir.path().join("damaged");
    let mut bytes = fs::read(&good).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0x5a);
    fs::write(&damaged, bytes).unwrap();
    let garbage = dir.path().join("garbage");
    fs::write(&garbage, [7; 5000]).unwrap();
    for file in [&damaged, &garbage] {
        let error = restore(file, &embedded(&to)).await.unwrap_err();
        assert!(matches!(&error, StoreError::Damaged { path, .. } if path == file), "{error:?}");
    }

    put(&store, "meta/schema", r#"{"schema":99,"writer":"9.0.0"}"#).await;
    let newer = dir.path().join("newer");
    backup(&from, &newer).await.unwrap();
    let error = restore(&newer, &embedded(&to)).await.unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 99, .. }), "{error:?}");
    let missing = restore(&dir.path().join("no such file"), &embedded(&to)).await.unwrap_err();
    assert!(matches!(missing, StoreError::Io { .. }), "{missing:?}");

    restore(&good, &embedded(&to)).await.expect("nothing was left behind");
}

#[tokio::test]
async fn a_restore_that_fails_leaves_nothing_and_can_be_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let from = embedded(&dir.path().join("a"));
    let store = open(&from).await;
    for i in 0..3 {
        put(&store, &format!("cluster/{i}"), &record(&"x".repeat(1_000_000))).await;
    }
    let file = dir.path().join("backup");
    backup(&from, &file).await.unwrap();
    let disk = SmallDisk::new(2).unwrap();
    let made = disk.path().join("there");
    fs::create_dir(&made).unwrap();
    let fresh = disk.path().join("not/yet");
    for to in [&made, &fresh, &made, &fresh] {
        let error = restore(&file, &embedded(to)).await.unwrap_err();
        assert!(matches!(error, StoreError::DiskFull(_)), "{error:?}");
    }
    assert_eq!(fs::read_dir(&made).unwrap().count(), 0);
    assert!(!fresh.exists());
}

#[tokio::test]
async fn where_there_is_no_store_it_is_said_by_backup_and_check_alike() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("nowhere");
    let out = dir.path().join("backup");
    let errors = [
        backup(&embedded(&nowhere), &out).await.unwrap_err(),
        check(&embedded(&nowhere), None).await.unwrap_err(),
        backup(&embedded(dir.path()), &out).await.unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().starts_with("there is no store in"), "{error}");
        assert!(error.hint().unwrap().contains("--data-dir"));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn check_counts_records_and_names_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("a");
    let location = embedded(&data);
    let store = open(&location).await;
    fill(&store).await;
    assert_eq!(check(&location, None).await.unwrap().sealed, SealState::Nothing);
    let key = dir.path().join("seal.key");
    Sealer::open(&store, &key).await.unwrap();
    let revision = put(&store, "user/broken", "{}").await;
    put(&store, "user/broken", r#"{"schema":7,"at":"2026-01-01T00:00:00Z","data":1}"#).await;

    // While the server runs.
    let report = check(&location, Some(&key)).await.unwrap();
    assert_eq!(report.revision.0, revision.0 + 1);
    assert_eq!((report.schema, report.sealed.clone()), (Some(1), SealState::Ok));
    assert_eq!((report.records["cluster"], report.records["user"]), (300, 3));
    assert_eq!(report.unreadable.len(), 1);
    assert_eq!(report.unreadable[0].key, "user/broken");
    assert!(report.unreadable[0].reason.contains('7') && !report.is_sound());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["sealed"]["state"], "ok");

    let sealed = |key: Option<PathBuf>| {
        let location = location.clone();
        async move { check(&location, key.as_deref()).await.unwrap().sealed }
    };
    assert_eq!(sealed(None).await, SealState::NotChecked);
    assert_eq!(sealed(Some(dir.path().join("none"))).await, SealState::KeyMissing);
    fs::write(&key, format!("{}=\n", "A".repeat(43))).unwrap();
    assert_eq!(sealed(Some(key.clone())).await, SealState::KeyWrong);
    store.close().await;

    // A page in the middle of the file is overwritten.
    let db = data.join("wharf.db");
    let mut bytes = fs::read(&db).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0x5a);
    fs::write(&db, bytes).unwrap();
    match check(&location, None).await {
        Ok(report) => assert!(!report.problems.is_empty() && !report.is_sound()),
        Err(error) => assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}"),
    }
}
