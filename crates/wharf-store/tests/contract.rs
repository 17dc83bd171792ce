//! One suite of behaviours, run on both back ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "contract/leases.rs"]
mod leases;
#[path = "contract/model.rs"]
mod model;
#[path = "contract/records.rs"]
mod records;
#[path = "contract/transactions.rs"]
mod transactions;
#[path = "contract/watches.rs"]
mod watches;

#[path = "support/etcd.rs"]
mod etcd;

use std::{any::Any, time::Duration};

use wharf_store::{Change, Outcome, Revision, Store, StoreLocation, StoreOptions, Txn, Watch};

/// A store of one back end, and what has to outlive it.
pub struct Bed {
    pub store: Store,
    _ground: Box<dyn Any + Send>,
}

impl Bed {
    async fn embedded() -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let location = StoreLocation::Embedded { data_dir: dir.path().join("data") };
        let store = Store::open(&StoreOptions { location }).await.unwrap();
        Bed { store, _ground: Box::new(dir) }
    }

    async fn etcd() -> Bed {
        let etcd = etcd::Etcd::start().unwrap();
        let store = etcd::open(etcd::location(&etcd)).await;
        Bed { store, _ground: Box::new(etcd) }
    }
}

/// Commits what must not be refused.
pub async fn commit(store: &Store, txn: Txn) -> Revision {
    match store.commit(txn).await.unwrap() {
        Outcome::Committed(revision) => revision,
        Outcome::Refused => panic!("refused"),
    }
}

pub async fn put(store: &Store, key: &str, value: &str) -> Revision {
    commit(store, Txn::new().put(key, value)).await
}

/// A test waits for nothing longer than this.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it took too long")
}

/// Takes the next `count` changes of a watch, however they are grouped.
pub async fn take(watch: &mut Watch, count: usize) -> Vec<Change> {
    let mut changes = Vec::new();
    while changes.len() < count {
        changes.extend(within(watch.next()).await.unwrap());
    }
    assert_eq!(changes.len(), count, "{changes:?}");
    changes
}

macro_rules! contract {
    ($($room:ident::{$($name:ident),* $(,)?}),* $(,)?) => {
        mod on_embedded {
            $(mod $room { $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::$room::$name(&crate::Bed::embedded().await.store).await;
                }
            )* })*
        }
        mod on_etcd {
            $(mod $room { $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let bed = crate::Bed::etcd().await;
                    crate::$room::$name(&bed.store).await;
                }
            )* })*
        }
    };
}

contract! {
    transactions::{
        a_key_is_created_once,
        a_swap_needs_the_revision_that_was_read,
        a_transaction_is_whole_or_nothing,
        a_key_that_was_deleted_and_made_again_has_a_new_creation,
        deleting_what_is_not_there_changes_nothing,
        a_condition_on_revision_zero_never_holds,
        concurrent_increments_lose_nothing,
        any_bytes_come_back_as_they_were,
        what_is_too_large_is_refused_and_what_just_fits_is_not,
        a_closed_store_says_so,
    },
    records::{
        a_list_holds_exactly_what_begins_with_the_prefix,
        pages_meet_without_gap_or_overlap_in_both_directions,
        a_long_list_comes_whole_and_in_order,
        typed_records_are_created_replaced_and_removed,
        a_record_that_cannot_be_read_is_listed,
        secrets_are_sealed_for_their_context,
        another_key_is_refused_and_nothing_is_overwritten,
    },
    watches::{
        a_watch_from_the_past_sees_every_change_once_and_in_order,
        a_watch_from_the_present_sees_only_what_comes,
        changes_of_one_transaction_come_together,
        a_slow_watcher_misses_nothing_and_delays_nobody,
        a_dropped_wait_loses_nothing,
        history_that_was_compacted_is_refused_by_name,
    },
    leases::{
        a_key_goes_with_its_lease_and_watchers_see_it,
        a_lease_that_is_kept_alive_stays,
        an_ended_lease_is_gone_for_good,
        a_key_that_is_written_without_a_lease_is_free_of_it,
        one_holds_at_a_time_and_the_epoch_grows,
        a_holder_learns_that_its_lease_has_ended,
    },
    model::{
        random_transactions_agree_with_a_simple_model,
    },
}
