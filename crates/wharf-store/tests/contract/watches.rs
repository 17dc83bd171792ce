use std::time::Duration;

use wharf_store::{Change, Revision, Store, StoreError, Txn};

use crate::{commit, put, take, within};

fn shown(changes: &[Change]) -> Vec<(String, Option<String>, Revision)> {
    let show = |change: &Change| match change {
        Change::Put(entry) => {
            let value = String::from_utf8(entry.value.clone()).unwrap();
            (entry.key.clone(), Some(value), entry.modified)
        }
        Change::Deleted { key, revision } => (key.clone(), None, *revision),
    };
    changes.iter().map(show).collect()
}

pub async fn a_watch_from_the_past_sees_every_change_once_and_in_order(store: &Store) {
    let start = put(store, "w/before", "x").await;
    let mut expected = Vec::new();
    for i in 0..5 {
        let revision = put(store, &format!("w/{}", i % 2), &i.to_string()).await;
        expected.push((format!("w/{}", i % 2), Some(i.to_string()), revision));
        put(store, "elsewhere", "x").await;
    }
    let created = expected[0].2;
    let gone = commit(store, Txn::new().delete("w/0")).await;
    expected.push(("w/0".to_owned(), None, gone));

    let mut watch = store.watch("w/", start).await.unwrap();
    let seen = take(&mut watch, 6).await;
    assert_eq!(shown(&seen), expected);
    let Change::Put(third) = &seen[2] else { panic!("deleted") };
    assert_eq!(third.created, created, "a change tells when its key was created");

    let later = put(store, "w/later", "x").await;
    assert_eq!(
        shown(&take(&mut watch, 1).await),
        [("w/later".to_owned(), Some("x".to_owned()), later)]
    );
}

pub async fn a_watch_from_the_present_sees_only_what_comes(store: &Store) {
    put(store, "w/old", "x").await;
    let mut watch = store.watch("w/", store.revision().await.unwrap()).await.unwrap();
    let mut future =
        store.watch("w/", Revision(store.revision().await.unwrap().0 + 1)).await.unwrap();
    put(store, "w/new", "1").await;
    let second = put(store, "w/new", "2").await;
    assert_eq!(shown(&take(&mut watch, 2).await)[1].2, second);
    assert_eq!(shown(&take(&mut future, 1).await)[0].2, second);
}

pub async fn changes_of_one_transaction_come_together(store: &Store) {
    const ROUNDS: usize = 60;
    const KEYS: usize = 40;
    let start = store.revision().await.unwrap();
    let round =
        |i: usize| (0..KEYS).fold(Txn::new(), |txn, k| txn.put(format!("w/{k:02}"), i.to_string()));
    for i in 0..ROUNDS / 2 {
        commit(store, round(i)).await;
    }
    let mut watch = store.watch("w/", start).await.unwrap();
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for i in ROUNDS / 2..ROUNDS {
                commit(&store, round(i)).await;
            }
        })
    };
    let mut seen = 0;
    let mut last = start;
    while seen < ROUNDS {
        let changes = within(watch.next()).await.unwrap();
        assert_eq!(changes.len() % KEYS, 0, "a transaction was split");
        for transaction in changes.chunks(KEYS) {
            let revision = transaction[0].revision();
            assert!(revision > last);
            assert!(transaction.iter().all(|change| change.revision() == revision));
            last = revision;
            seen += 1;
        }
    }
    writer.await.unwrap();
}

pub async fn a_slow_watcher_misses_nothing_and_delays_nobody(store: &Store) {
    // More than the embedded store keeps in memory.
    const COUNT: usize = 40;
    let start = store.revision().await.unwrap();
    let mut slow = store.watch("w/", start).await.unwrap();
    let big = "x".repeat(1_000_000);
    put(store, "w/first", "x").await;
    take(&mut slow, 1).await;
    for i in 0..COUNT {
        within(put(store, &format!("w/{i}"), &big)).await;
    }
    let seen = take(&mut slow, COUNT).await;
    let keys: Vec<_> = seen.iter().map(|change| change.key().to_owned()).collect();
    assert_eq!(keys, (0..COUNT).map(|i| format!("w/{i}")).collect::<Vec<_>>());
    put(store, "w/last", "x").await;
    assert_eq!(take(&mut slow, 1).await[0].key(), "w/last");
}

pub async fn a_dropped_wait_loses_nothing(store: &Store) {
    const COUNT: usize = 100;
    let mut watch = store.watch("w/", store.revision().await.unwrap()).await.unwrap();
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for i in 0..COUNT {
                put(&store, "w/n", &i.to_string()).await;
            }
        })
    };
    let mut seen = Vec::new();
    while seen.len() < COUNT {
        if let Ok(changes) = tokio::time::timeout(Duration::from_micros(300), watch.next()).await {
            seen.extend(shown(&changes.unwrap()).into_iter().map(|(_, value, _)| value.unwrap()));
        }
    }
    assert_eq!(seen, (0..COUNT).map(|i| i.to_string()).collect::<Vec<_>>());
    writer.await.unwrap();
}

pub async fn history_that_was_compacted_is_refused_by_name(store: &Store) {
    let start = put(store, "w/kept", "x").await;
    let mut lagging = store.watch("w/", start).await.unwrap();
    for i in 0..20 {
        put(store, "w/n", &i.to_string()).await;
    }
    let now = store.revision().await.unwrap();
    store.compact(5).await.unwrap();
    store.compact(5).await.unwrap();

    for watch in [&mut lagging, &mut store.watch("w/", Revision(start.0 + 3)).await.unwrap()] {
        let error = within(watch.next()).await.unwrap_err();
        let StoreError::Compacted { oldest } = error else { panic!("{error}") };
        assert_eq!(oldest.0, now.0 - 4);
    }
    let mut watch = store.watch("w/", Revision(now.0 - 5)).await.unwrap();
    let values: Vec<_> =
        shown(&take(&mut watch, 5).await).into_iter().map(|c| c.1.unwrap()).collect();
    assert_eq!(values, ["15", "16", "17", "18", "19"]);
    assert_eq!(store.get("w/kept").await.unwrap().unwrap().value, b"x", "records stay");
    put(store, "w/kept", "y").await;
    assert_eq!(store.get("w/kept").await.unwrap().unwrap().created, start);
}
