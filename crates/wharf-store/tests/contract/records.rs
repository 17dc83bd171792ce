use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use wharf_store::{Kind, Outcome, Page, Sealer, Store, StoreError, Txn};

use crate::{commit, put};

async fn keys(store: &Store, prefix: &str, page: Page) -> (Vec<String>, bool) {
    let listing = store.list(prefix, page).await.unwrap();
    (listing.entries.into_iter().map(|entry| entry.key).collect(), listing.more)
}

pub async fn a_list_holds_exactly_what_begins_with_the_prefix(store: &Store) {
    let all = ["a", "a/", "a/b", "a/b/c", "a/ü", "a/\u{10ffff}", "a0", "ab", "b/a"];
    for key in all {
        put(store, key, key).await;
    }
    for prefix in ["a/", "a", "a/b", "a/ü", "b/", "c", "a/\u{10ffff}"] {
        let mut expected: Vec<_> = all.iter().filter(|key| key.starts_with(prefix)).collect();
        expected.sort();
        assert_eq!(
            keys(store, prefix, Page::ALL).await.0,
            *expected.iter().map(|k| (**k).to_owned()).collect::<Vec<_>>(),
            "{prefix}"
        );
    }
    let listing = store.list("a/", Page::ALL).await.unwrap();
    assert_eq!(listing.revision, store.revision().await.unwrap());
    assert!(listing.entries.iter().all(|entry| entry.key.as_bytes() == entry.value));
    let everything = keys(store, "", Page::ALL).await.0;
    assert!(all.iter().all(|key| everything.iter().any(|found| found == key)), "{everything:?}");
}

pub async fn pages_meet_without_gap_or_overlap_in_both_directions(store: &Store) {
    for i in 0..10 {
        put(store, &format!("p/{i}"), "x").await;
    }
    put(store, "q", "x").await;
    for descending in [false, true] {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = Page { after: after.clone(), limit: 4, descending };
            let (keys, more) = keys(store, "p/", page).await;
            assert_eq!(keys.len(), if more { 4 } else { 2 });
            after = keys.last().cloned();
            seen.extend(keys);
            if !more {
                break;
            }
        }
        let mut expected: Vec<_> = (0..10).map(|i| format!("p/{i}")).collect();
        if descending {
            expected.reverse();
        }
        assert_eq!(seen, expected);
    }
    let page =
        |after: &str, limit, descending| Page { after: Some(after.to_owned()), limit, descending };
    assert_eq!(keys(store, "p/", page("p/8", 1, false)).await, (vec!["p/9".to_owned()], false));
    assert_eq!(keys(store, "p/", page("p/2", 1, true)).await, (vec!["p/1".to_owned()], true));
    assert_eq!(keys(store, "p/", page("p/9", 5, false)).await, (vec![], false));
    assert_eq!(keys(store, "p/", page("p/0", 5, true)).await, (vec![], false));
    assert_eq!(keys(store, "p/", page("zz", 5, false)).await, (vec![], false));
    assert_eq!(keys(store, "p/", page("a", 1, false)).await, (vec!["p/0".to_owned()], true));
    assert_eq!(keys(store, "p/", page("zz", 1, true)).await, (vec!["p/9".to_owned()], true));
    let none = Page { after: None, limit: 0, descending: false };
    assert_eq!(keys(store, "p/", none.clone()).await, (vec![], true));
    assert_eq!(keys(store, "nothing/", none).await, (vec![], false));
}

pub async fn a_long_list_comes_whole_and_in_order(store: &Store) {
    const COUNT: usize = 1250;
    let expected: Vec<_> = (0..COUNT).map(|i| format!("l/{i:05}")).collect();
    for chunk in expected.chunks(125) {
        commit(store, chunk.iter().fold(Txn::new(), |txn, key| txn.put(key, "x"))).await;
    }
    assert_eq!(keys(store, "l/", Page::ALL).await, (expected.clone(), false));
    let backwards = Page { after: None, limit: 1100, descending: true };
    let (found, more) = keys(store, "l/", backwards).await;
    assert!(more);
    assert_eq!(found, expected.iter().rev().take(1100).cloned().collect::<Vec<_>>());
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Ship {
    name: String,
}

impl Kind for Ship {
    const KIND: &'static str = "ship";
}

fn ship(name: &str) -> Ship {
    Ship { name: name.to_owned() }
}

pub async fn typed_records_are_created_replaced_and_removed(store: &Store) {
    let at = Timestamp::from_second(1_800_000_000).unwrap();
    let create = || Txn::new().create("s1", &ship("Anna"), at).unwrap();
    let created = commit(store, create()).await;
    assert_eq!(store.commit(create()).await.unwrap(), Outcome::Refused);
    let first = store.read::<Ship>("s1").await.unwrap().unwrap();
    assert_eq!((first.value.clone(), first.revision, first.at), (ship("Anna"), created, at));

    commit(store, Txn::new().replace(&first, &ship("Berta"), at).unwrap()).await;
    let stale = Txn::new().replace(&first, &ship("Carla"), at).unwrap();
    assert_eq!(store.commit(stale).await.unwrap(), Outcome::Refused);
    assert_eq!(store.commit(Txn::new().remove(&first)).await.unwrap(), Outcome::Refused);

    let second = store.read::<Ship>("s1").await.unwrap().unwrap();
    assert_eq!((second.value.clone(), second.created), (ship("Berta"), created));
    commit(store, Txn::new().remove(&second)).await;
    assert_eq!(store.read::<Ship>("s1").await.unwrap(), None);
}

pub async fn a_record_that_cannot_be_read_is_listed(store: &Store) {
    let at = Timestamp::from_second(1_800_000_000).unwrap();
    commit(store, Txn::new().create("good", &ship("Anna"), at).unwrap()).await;
    let bad = put(store, "ship/bad", "{\"schema\":1}").await;
    let (all, _) = store.read_all::<Ship>("").await.unwrap();
    assert_eq!(all.len(), 2);
    let unreadable = all[0].as_ref().unwrap_err();
    assert_eq!((unreadable.id.as_str(), unreadable.revision), ("bad", bad));
    assert_eq!(all[1].as_ref().unwrap().value, ship("Anna"));
    assert!(matches!(store.read::<Ship>("bad").await, Err(StoreError::Unreadable { .. })));
}

pub async fn secrets_are_sealed_for_their_context(store: &Store) {
    let dir = tempfile::tempdir().unwrap();
    let key_file = dir.path().join("seal.key");
    let sealer = Sealer::open(store, &key_file).await.unwrap();
    let sealed = sealer.seal("cluster/a ssh_key", b"top secret");
    assert_ne!(sealed, sealer.seal("cluster/a ssh_key", b"top secret"), "no nonce is used twice");
    let text = serde_json::to_string(&sealed).unwrap();
    assert!(!text.contains("top secret"));

    let again = Sealer::open(store, &key_file).await.unwrap();
    let sealed = serde_json::from_str(&text).unwrap();
    assert_eq!(again.open_sealed("cluster/a ssh_key", &sealed).unwrap(), b"top secret");
    let elsewhere = again.open_sealed("cluster/b ssh_key", &sealed);
    assert!(matches!(elsewhere, Err(StoreError::Unsealable { .. })));
    let damaged = text.replace(&text[30..31], if &text[30..31] == "A" { "B" } else { "A" });
    let damaged = serde_json::from_str(&damaged).unwrap();
    assert!(again.open_sealed("cluster/a ssh_key", &damaged).is_err());
}

pub async fn another_key_is_refused_and_nothing_is_overwritten(store: &Store) {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first.key"), dir.path().join("second.key"));
    Sealer::open(store, &first).await.unwrap();
    let before = store.revision().await.unwrap();

    let missing = Sealer::open(store, &second).await.unwrap_err();
    assert!(matches!(missing, StoreError::KeyMissing { .. }), "{missing}");
    assert!(!second.exists());

    let text = std::fs::read_to_string(&first).unwrap();
    let line = text.lines().last().unwrap();
    let other = format!("{}=", "A".repeat(43));
    std::fs::copy(&first, &second).unwrap();
    std::fs::write(&second, text.replace(line, &other)).unwrap();
    let wrong = Sealer::open(store, &second).await.unwrap_err();
    assert!(matches!(wrong, StoreError::KeyWrong { .. }), "{wrong}");
    assert_eq!(store.revision().await.unwrap(), before);
    Sealer::open(store, &first).await.unwrap();
}
