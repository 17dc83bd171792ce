use wharf_store::{Compare, Outcome, Revision, Store, StoreError, Txn, limits};

use crate::{commit, put};

pub async fn a_key_is_created_once(store: &Store) {
    let create = || Txn::new().when(Compare::Absent("a/1".into())).put("a/1", "first");
    let revision = commit(store, create()).await;
    assert_eq!(store.commit(create()).await.unwrap(), Outcome::Refused);
    let entry = store.get("a/1").await.unwrap().unwrap();
    assert_eq!((entry.created, entry.modified), (revision, revision));
    assert_eq!(entry.value, b"first");
    assert_eq!(store.get("a/2").await.unwrap(), None);
}

pub async fn a_swap_needs_the_revision_that_was_read(store: &Store) {
    let first = put(store, "a/1", "one").await;
    let swap =
        |at, value: &str| Txn::new().when(Compare::ModifiedAt("a/1".into(), at)).put("a/1", value);
    let second = commit(store, swap(first, "two")).await;
    assert!(second > first);
    assert_eq!(store.commit(swap(first, "stale")).await.unwrap(), Outcome::Refused);
    assert_eq!(store.commit(swap(Revision(u64::MAX), "x")).await.unwrap(), Outcome::Refused);
    let entry = store.get("a/1").await.unwrap().unwrap();
    assert_eq!(
        (entry.value.as_slice(), entry.created, entry.modified),
        (&b"two"[..], first, second)
    );
}

pub async fn a_transaction_is_whole_or_nothing(store: &Store) {
    let old = put(store, "a/old", "x").await;
    let both = Txn::new()
        .when(Compare::ModifiedAt("a/old".into(), old))
        .when(Compare::Absent("a/new".into()))
        .delete("a/old")
        .put("a/new", "y")
        .put("b/other", "z");
    let revision = commit(store, both.clone()).await;
    assert_eq!(revision.0, old.0 + 1, "one transaction is one revision");
    assert_eq!(store.get("a/old").await.unwrap(), None);
    assert_eq!(store.get("a/new").await.unwrap().unwrap().modified, revision);
    assert_eq!(store.get("b/other").await.unwrap().unwrap().modified, revision);

    let half = Txn::new()
        .when(Compare::ModifiedAt("a/new".into(), revision))
        .when(Compare::Absent("b/other".into()))
        .put("a/new", "changed")
        .put("c/third", "made");
    assert_eq!(store.commit(half).await.unwrap(), Outcome::Refused);
    assert_eq!(store.get("a/new").await.unwrap().unwrap().value, b"y");
    assert_eq!(store.get("c/third").await.unwrap(), None);
    assert_eq!(store.revision().await.unwrap(), revision);
}

pub async fn a_key_that_was_deleted_and_made_again_has_a_new_creation(store: &Store) {
    let first = put(store, "a/1", "one").await;
    put(store, "a/1", "two").await;
    let guarded = |at| Txn::new().when(Compare::CreatedAt("a/1".into(), at)).put("a/guarded", "x");
    commit(store, guarded(first)).await;
    commit(store, Txn::new().delete("a/1")).await;
    assert_eq!(store.commit(guarded(first)).await.unwrap(), Outcome::Refused);
    let again = put(store, "a/1", "three").await;
    assert_eq!(store.get("a/1").await.unwrap().unwrap().created, again);
    assert_eq!(store.commit(guarded(first)).await.unwrap(), Outcome::Refused);
    commit(store, guarded(again)).await;
}

pub async fn deleting_what_is_not_there_changes_nothing(store: &Store) {
    let before = put(store, "a/1", "x").await;
    assert_eq!(commit(store, Txn::new().delete("a/2")).await, before);
    assert_eq!(commit(store, Txn::new()).await, before);
    assert_eq!(store.revision().await.unwrap(), before);
}

pub async fn a_condition_on_revision_zero_never_holds(store: &Store) {
    for compare in [
        Compare::ModifiedAt("a/none".into(), Revision(0)),
        Compare::CreatedAt("a/none".into(), Revision(0)),
    ] {
        let txn = Txn::new().when(compare).put("a/none", "x");
        assert_eq!(store.commit(txn).await.unwrap(), Outcome::Refused);
    }
}

pub async fn concurrent_increments_lose_nothing(store: &Store) {
    const WRITERS: u32 = 8;
    const EACH: u32 = 20;
    put(store, "counter/n", "0").await;
    let tasks: Vec<_> = (0..WRITERS)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..EACH {
                    while !increment(&store).await {}
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let end = store.get("counter/n").await.unwrap().unwrap();
    assert_eq!(String::from_utf8(end.value).unwrap(), (WRITERS * EACH).to_string());
}

async fn increment(store: &Store) -> bool {
    let entry = store.get("counter/n").await.unwrap().unwrap();
    let n: u32 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
    let unchanged = Compare::ModifiedAt("counter/n".into(), entry.modified);
    let txn = Txn::new().when(unchanged).put("counter/n", (n + 1).to_string());
    matches!(store.commit(txn).await.unwrap(), Outcome::Committed(_))
}

pub async fn any_bytes_come_back_as_they_were(store: &Store) {
    let all: Vec<u8> = (0..=255).collect();
    for (key, value) in [
        ("a/binary", all),
        ("a/empty", Vec::new()),
        ("a/größe", "Größe".into()),
        ("a/集群 🚢", "\u{202e}rtl \u{0}".into()),
        ("a/'; DROP TABLE kv; --", b"\"".to_vec()),
    ] {
        commit(store, Txn::new().put(key, value.clone())).await;
        assert_eq!(store.get(key).await.unwrap().unwrap().value, value, "{key}");
    }
}

pub async fn what_is_too_large_is_refused_and_what_just_fits_is_not(store: &Store) {
    let many = |n| (0..n).fold(Txn::new(), |txn, i| txn.put(format!("a/{i}"), "v"));
    commit(store, many(limits::MAX_OPS)).await;
    let fits = vec![b'x'; limits::MAX_TXN_BYTES - 3];
    commit(store, Txn::new().put("a/b", fits.clone())).await;
    assert_eq!(store.get("a/b").await.unwrap().unwrap().value, fits);
    let before = store.revision().await.unwrap();
    for txn in [
        many(limits::MAX_OPS + 1),
        Txn::new().put("a/bb", fits),
        Txn::new().put("", "v"),
        Txn::new().put("a/\0", "v"),
        Txn::new().put("a/1", "v").put("a/1", "w"),
    ] {
        assert!(matches!(store.commit(txn).await, Err(StoreError::BadTxn(_))));
    }
    assert_eq!(store.revision().await.unwrap(), before);
}

pub async fn a_closed_store_says_so(store: &Store) {
    put(store, "a/1", "x").await;
    let mut watch = store.watch("a/", store.revision().await.unwrap()).await.unwrap();
    let waiting = tokio::spawn(async move { watch.next().await });
    store.close().await;
    store.close().await;
    assert!(matches!(crate::within(waiting).await.unwrap(), Err(StoreError::Closed)));
    assert!(matches!(store.get("a/1").await, Err(StoreError::Closed)));
    assert!(matches!(store.commit(Txn::new().put("a/1", "y")).await, Err(StoreError::Closed)));
    assert!(matches!(store.revision().await, Err(StoreError::Closed)));
}
