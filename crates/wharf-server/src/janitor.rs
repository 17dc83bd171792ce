//! Clears away what has expired. Every server does it; doing it twice does no harm.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use wharf_core::{access::AuditRecord, operation::OperationRecord};
use wharf_store::{
    Entry, Page, Store, StoreResult, Stored, Txn,
    typed::{Kind, key_of},
};

use crate::{
    access::{first_id_at, token},
    app::App,
    clusters::operations,
    drains,
};

const LIMITS_EVERY: Duration = Duration::from_secs(60);
/// In units of `LIMITS_EVERY`: records may lie around for an hour.
const RECORDS_EVERY: u32 = 60;

pub async fn run(app: App, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(LIMITS_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for count in 0u32.. {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        app.login_limits.forget_quiet();
        if count % RECORDS_EVERY == 0
            && let Err(error) = clear_records(&app, Timestamp::now()).await
        {
            tracing::warn!(
                ?error,
                "old records could not be cleared away; they will be in an hour"
            );
        }
    }
}

async fn clear_records(app: &App, now: Timestamp) -> StoreResult<()> {
    token::prune(&app.store, now).await?;
    let days = i64::from(app.config.audit.retention_days);
    let kept = jiff::SignedDuration::from_hours(24 * days);
    let oldest = now.checked_sub(kept).unwrap_or(Timestamp::MIN);
    let plainly = |txn: Txn, entry: Entry| txn.delete(entry.key);
    while prune::<AuditRecord>(&app.store, oldest, plainly).await? {}
    while prune::<OperationRecord>(&app.store, oldest, delete_operation).await? {}
    drains::prune(&app.store, oldest).await
}

/// Deletes records with ids that sort by time from before `time`, a bounded number at once; true if
/// there may be more.
async fn prune<T: Kind>(
    store: &Store,
    time: Timestamp,
    delete: impl Fn(Txn, Entry) -> Txn,
) -> StoreResult<bool> {
    /// Well below the store's limit for one transaction, also when each takes a second record along.
    const BATCH: usize = 50;
    let page = Page { after: None, limit: BATCH, descending: false };
    let listing = store.list(&key_of::<T>(""), page).await?;
    let end = key_of::<T>(&first_id_at(time));
    let old: Vec<_> = listing.entries.into_iter().filter(|e| e.key < end).collect();
    if old.is_empty() {
        return Ok(false);
    }
    let full = old.len() == BATCH;
    store.commit(old.into_iter().fold(Txn::new(), delete)).await.map(|_| full)
}

fn delete_operation(txn: Txn, entry: Entry) -> Txn {
    match Stored::<OperationRecord>::decode(&entry) {
        Ok(operation) => operations::forget(txn, &operation),
        Err(_) => txn.delete(entry.key),
    }
}
