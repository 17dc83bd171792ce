//! Bad ground: full and read-only disks, damaged files, a second server, wrong keys.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use wharf_store::{
    Outcome, Page, Revision, Sealer, Store, StoreError, StoreLocation, StoreOptions, Txn,
};
use wharf_testbed::disk::SmallDisk;

fn options(dir: &Path) -> StoreOptions {
    StoreOptions { location: StoreLocation::Embedded { data_dir: dir.to_owned() } }
}

async fn open(dir: &Path) -> Store {
    Store::open(&options(dir)).await.unwrap()
}

async fn open_error(dir: &Path) -> StoreError {
    Store::open(&options(dir)).await.err().expect("it opened")
}

async fn put(store: &Store, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
    match store.commit(Txn::new().put(key, value)).await? {
        Outcome::Committed(revision) => Ok(revision),
        Outcome::Refused => panic!("refused"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_nothing_and_writing_goes_on_once_there_is_room() {
    let disk = SmallDisk::new(8).unwrap();
    let store = open(&disk.path().join("data")).await;
    put(&store, "a/first", b"x").await.unwrap();
    let filler = disk.fill().unwrap();

    let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
    let mut acknowledged = Vec::new();
    let error = loop {
        assert!(acknowledged.len() < 10_000, "a full disk takes writes for ever");
        let key = format!("a/{:05}", acknowledged.len());
        match put(&store, &key, &[b'x'; 3000]).await {
            Ok(revision) => acknowledged.push((key, revision)),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::DiskFull(_)), "{error:?}");
    assert!(error.hint().is_some());
    // Others in the same batch are told too, reads go on, leases live.
    let many = (0..20).map(|i| {
        let store = store.clone();
        tokio::spawn(async move { put(&store, &format!("b/{i}"), &[b'y'; 100_000]).await })
    });
    for writer in many.collect::<Vec<_>>() {
        let error = writer.await.unwrap().unwrap_err();
        assert!(matches!(error, StoreError::DiskFull(_)), "{error:?}");
    }
    store.keep_alive(lease).await.unwrap();
    assert_acknowledged(&store, &acknowledged).await;

    fs::remove_file(filler).unwrap();
    put(&store, "a/later", b"x").await.expect("there is room again");
    assert_acknowledged(&store, &acknowledged).await;
    assert!(store.list("b/", Page::ALL).await.unwrap().entries.is_empty());
    store.close().await;

    let store = open(&disk.path().join("data")).await;
    assert_acknowledged(&store, &acknowledged).await;
    assert!(store.get("a/later").await.unwrap().is_some());
}

async fn assert_acknowledged(store: &Store, acknowledged: &[(String, Revision)]) {
    for (key, revision) in acknowledged {
        let entry = store.get(key).await.unwrap().expect("an acknowledged write is lost");
        assert_eq!(entry.modified, *revision);
    }
}

#[tokio::test]
async fn a_store_on_a_full_disk_does_not_open_and_says_why() {
    let disk = SmallDisk::new(1).unwrap();
    disk.fill().unwrap();
    let error = open_error(&disk.path().join("data")).await;
    assert!(matches!(error, StoreError::DiskFull(_)), "{error:?}");
}

#[tokio::test]
async fn a_read_only_data_directory_is_named() {
    let disk = SmallDisk::new(8).unwrap();
    let store = open(&disk.path().join("data")).await;
    put(&store, "a/1", b"x").await.unwrap();
    store.close().await;
    disk.make_read_only().unwrap();
    let error = open_error(&disk.path().join("data")).await;
    assert!(matches!(&error, StoreError::ReadOnly { what } if what.contains("data")), "{error:?}");
    let error = open_error(&disk.path().join("new")).await;
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
}

#[tokio::test]
async fn a_second_server_is_refused_with_the_first_ones_process() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).await;
    let error = open_error(dir.path()).await;
    let me = std::process::id();
    assert!(matches!(error, StoreError::InUse { pid: Some(pid), .. } if pid == me), "{error:?}");
    assert!(error.to_string().contains(&me.to_string()));
    put(&first, "a/1", b"x").await.expect("the first one goes on");
    first.close().await;
    let again = open(dir.path()).await;
    assert!(again.get("a/1").await.unwrap().is_some());
}

#[tokio::test]
async fn the_data_directory_and_its_files_are_for_their_owner() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("new/data");
    let store = open(&data).await;
    put(&store, "a/1", b"x").await.unwrap();
    Sealer::open(&store, &data.join("seal.key")).await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    assert_eq!(mode(&data.join("seal.key")), 0o600);
    assert_eq!(mode(&data.join("wharf.lock")), 0o600);
}

#[tokio::test]
async fn a_database_in_a_directory_that_others_may_enter_is_for_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let store = open(dir.path()).await;
    put(&store, "a/1", b"x").await.unwrap();
    for file in ["wharf.db", "wharf.db-wal", "wharf.db-shm"] {
        let mode = fs::metadata(dir.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_stalls_for_longer_than_the_time_to_live_does_not_cost_the_lease() {
    let ttl = Duration::from_secs(1);
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let held = store.hold("leader/a", "x", ttl).await.unwrap().unwrap();
    // Whoever holds the database's lock holds up the writer, as a disk does that does not answer.
    let stall = rusqlite::Connection::open(dir.path().join("wharf.db")).unwrap();
    stall.execute_batch("BEGIN IMMEDIATE").unwrap();
    let writer = tokio::spawn({
        let store = store.clone();
        async move { put(&store, "a/1", b"x").await }
    });
    assert!(tokio::time::timeout(ttl * 3, held.lost()).await.is_err(), "the lease was lost");
    assert!(!writer.is_finished(), "nothing was held up");
    stall.execute_batch("ROLLBACK").unwrap();
    writer.await.unwrap().unwrap();
    let guarded = Txn::new().when(held.still_held()).put("work/1", "x");
    assert!(matches!(store.commit(guarded).await.unwrap(), Outcome::Committed(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ends_while_the_disk_stalls_takes_its_keys_along() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let ttl = Duration::from_secs(1);
    let lease = store.grant_lease(ttl).await.unwrap();
    let bound = store.commit(Txn::new().put_leased("m/a", "x", lease)).await.unwrap();
    let Outcome::Committed(bound) = bound else { panic!("refused") };
    let stall = rusqlite::Connection::open(dir.path().join("wharf.db")).unwrap();
    stall.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut watch = store.watch("m/", bound).await.unwrap();
    // Nobody keeps it alive.
    assert!(tokio::time::timeout(ttl * 2, watch.next()).await.is_err());
    assert!(matches!(store.keep_alive(lease).await, Err(StoreError::LeaseGone)));
    stall.execute_batch("ROLLBACK").unwrap();
    let gone = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.unwrap().unwrap();
    assert_eq!(gone[0].key(), "m/a");
    assert_eq!(store.get("m/a").await.unwrap(), None);
}

#[tokio::test]
async fn a_damaged_file_is_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    for content in [&b"this was never a database file, whatever its name says"[..], &[0xff; 8192]] {
        let db = dir.path().join("wharf.db");
        fs::write(&db, content).unwrap();
        let error = open_error(dir.path()).await;
        assert!(matches!(&error, StoreError::Damaged { path, .. } if *path == db), "{error:?}");
        assert_eq!(fs::read(&db).unwrap(), content);
    }
}

#[tokio::test]
async fn a_foreign_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("wharf.db");
    rusqlite::Connection::open(&db).unwrap().execute_batch("CREATE TABLE mine (x)").unwrap();
    let error = open_error(dir.path()).await;
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
}

#[tokio::test]
async fn a_newer_layout_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).await.close().await;
    let db = rusqlite::Connection::open(dir.path().join("wharf.db")).unwrap();
    db.execute_batch(
        "PRAGMA user_version = 9; UPDATE meta SET value = '8.1.0' WHERE name = 'writer'",
    )
    .unwrap();
    drop(db);
    let error = open_error(dir.path()).await;
    assert!(
        matches!(&error, StoreError::Newer { found: 9, writer, .. } if writer == "8.1.0"),
        "{error:?}"
    );
}

#[tokio::test]
async fn keys_of_an_earlier_process_go_when_the_store_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let lease = store.grant_lease(Duration::from_secs(3600)).await.unwrap();
    let txn = Txn::new().put_leased("member/a", "x", lease).put("cluster/a", "y");
    let Outcome::Committed(before) = store.commit(txn).await.unwrap() else { panic!("refused") };
    store.close().await;

    let store = open(dir.path()).await;
    assert_eq!(store.get("member/a").await.unwrap(), None);
    assert!(store.get("cluster/a").await.unwrap().is_some());
    let mut watch = store.watch("member/", before).await.unwrap();
    let seen = tokio::time::timeout(Duration::from_secs(5), watch.next()).await.unwrap().unwrap();
    assert_eq!(seen[0].key(), "member/a", "a watch resumes over the restart and sees it go");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_revisions_of_history_are_kept_and_no_file_grows_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let kept = wharf_store::HISTORY_REVISIONS;
    let start = store.revision().await.unwrap().0;
    for _ in 0..80 {
        let writers = (0..1000).map(|i| {
            let store = store.clone();
            tokio::spawn(async move { put(&store, &format!("a/{}", i % 50), &[b'x'; 200]).await })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap().unwrap();
        }
    }
    let now = store.revision().await.unwrap();
    assert_eq!(now.0, start + 80_000);
    let mut watch = store.watch("a/", Revision(now.0 - kept)).await.unwrap();
    let mut seen = 0;
    while seen < kept {
        seen += watch.next().await.unwrap().len() as u64;
    }
    let mut old = store.watch("a/", Revision(start)).await.unwrap();
    let error = old.next().await.unwrap_err();
    assert!(
        matches!(error, StoreError::Compacted { oldest } if oldest.0 <= now.0 - kept),
        "{error:?}"
    );
    let size: u64 =
        fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
    assert!(size < 80_000_000, "{size} bytes");
}

#[tokio::test]
async fn a_key_file_that_others_can_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let key = dir.path().join("seal.key");
    Sealer::open(&store, &key).await.unwrap();
    let before = fs::read(&key).unwrap();
    for mode in [0o640, 0o604, 0o660] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let error = Sealer::open(&store, &key).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, StoreError::KeyUnusable { .. }), "{text}");
        assert!(text.contains(&format!("{mode:04o}")) && text.contains("chmod 600"), "{text}");
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::read(&key).unwrap(), before);
    for content in ["", "# only a comment\n", "not base64!\n", "AAAA\n"] {
        fs::write(&key, content).unwrap();
        let error = Sealer::open(&store, &key).await.unwrap_err();
        assert!(matches!(error, StoreError::KeyUnusable { .. }), "{content:?}: {error}");
    }
}
