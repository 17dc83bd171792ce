//! The record of who did what.

use jiff::Timestamp;
use wharf_core::access::{AuditOutcome, AuditRecord};
use wharf_store::{Page, Store, StoreResult, Stored, Txn};

use crate::{access::Caller, app::AppState};

pub fn record_of(caller: &Caller, action: &str, resource: &str, now: Timestamp) -> AuditRecord {
    AuditRecord {
        time: now,
        user: caller.name.clone(),
        origin: caller.origin.clone(),
        request_id: caller.request_id.clone(),
        action: action.to_owned(),
        resource: resource.to_owned(),
        cluster: None,
        reason: None,
        outcome: AuditOutcome::Done,
    }
}

/// Records an attempt that was refused. That the record itself cannot be written is no reason to
/// answer the caller differently; it is logged.
pub async fn record_refusal(app: &AppState, caller: &Caller, action: &str, resource: &str) {
    let now = Timestamp::now();
    let record =
        AuditRecord { outcome: AuditOutcome::Refused, ..record_of(caller, action, resource, now) };
    if let Err(error) = app.commit_with(record, Txn::new(), now).await {
        tracing::error!(?error, action, resource, "a refused attempt could not be recorded");
    }
}

/// The newest records, older than `before` if given, and whether there are more.
pub async fn list(
    store: &Store,
    before: Option<&str>,
    limit: usize,
) -> StoreResult<(Vec<Stored<AuditRecord>>, bool)> {
    let after = before.map(|id| format!("audit/{id}"));
    let listing = store.list("audit/", Page { after, limit, descending: true }).await?;
    let records = listing.entries.iter().filter_map(|e| Stored::decode(e).ok()).collect();
    Ok((records, listing.more))
}
