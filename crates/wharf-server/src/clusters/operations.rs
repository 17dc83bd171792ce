//! Operations: what was done to clusters, also to those that are gone.

use jiff::Timestamp;
use wharf_core::operation::{OperationOf, OperationRecord};
use wharf_store::{Page, StoreError, StoreResult, Stored, Txn, typed::key_of};

use super::missing;
use crate::{
    access::Caller,
    app::AppState,
    error::{ApiError, ApiResult},
};

/// How many are read from the store at once while looking for the caller's: each may be some ten
/// kilobytes.
const PAGE: usize = 50;

/// Which operations to list.
#[derive(Debug, Default)]
pub struct Filter<'a> {
    pub cluster: Option<&'a str>,
    /// Only those before the one with this id.
    pub before: Option<&'a str>,
    pub limit: usize,
}

/// Writes down an operation that begins.
pub fn create(txn: Txn, id: &str, record: &OperationRecord, now: Timestamp) -> StoreResult<Txn> {
    let of = OperationOf::id(&record.cluster, id);
    txn.create(id, record, now)?.create(&of, &OperationOf {}, now)
}

/// Takes a recorded operation away.
pub fn forget(txn: Txn, operation: &Stored<OperationRecord>) -> Txn {
    let of = OperationOf::id(&operation.value.cluster, &operation.id);
    txn.delete(key_of::<OperationRecord>(&operation.id)).delete(key_of::<OperationOf>(&of))
}

/// The newest operations that the caller may see, and whether there are more.
pub async fn list(
    app: &AppState,
    caller: &Caller,
    filter: &Filter<'_>,
) -> ApiResult<(Vec<Stored<OperationRecord>>, bool)> {
    match filter.cluster {
        Some(cluster) if caller.role.sees_cluster(cluster) => of_one(app, cluster, filter).await,
        Some(_) => Ok((Vec::new(), false)),
        None => of_all(app, caller, filter).await,
    }
}

async fn of_one(
    app: &AppState,
    cluster: &str,
    filter: &Filter<'_>,
) -> ApiResult<(Vec<Stored<OperationRecord>>, bool)> {
    let prefix = key_of::<OperationOf>(&OperationOf::id(cluster, ""));
    let after = filter.before.map(|before| format!("{prefix}{before}"));
    let page = Page { after, limit: filter.limit, descending: true };
    let listing = app.store.list(&prefix, page).await?;
    let mut found = Vec::new();
    for id in listing.entries.iter().filter_map(|entry| entry.key.strip_prefix(&prefix)) {
        match app.store.read::<OperationRecord>(id).await {
            // As in the list of all, one that cannot be read is passed over.
            Ok(None) | Err(StoreError::Unreadable { .. }) => {}
            read => found.extend(read?),
        }
    }
    Ok((found, listing.more))
}

async fn of_all(
    app: &AppState,
    caller: &Caller,
    filter: &Filter<'_>,
) -> ApiResult<(Vec<Stored<OperationRecord>>, bool)> {
    let is_shown =
        |operation: &Stored<OperationRecord>| caller.role.sees_cluster(&operation.value.cluster);
    let mut after = filter.before.map(key_of::<OperationRecord>);
    let mut found = Vec::new();
    loop {
        let page = Page { after: after.take(), limit: PAGE, descending: true };
        let listing = app.store.list(&key_of::<OperationRecord>(""), page).await?;
        let decoded = listing.entries.iter().filter_map(|entry| Stored::decode(entry).ok());
        found.extend(decoded.filter(is_shown));
        if found.len() > filter.limit {
            found.truncate(filter.limit);
            return Ok((found, true));
        }
        after = listing.entries.last().filter(|_| listing.more).map(|entry| entry.key.clone());
        if after.is_none() {
            return Ok((found, false));
        }
    }
}

/// One operation; one of a cluster that the caller may not see is not there.
pub async fn get(app: &AppState, caller: &Caller, id: &str) -> ApiResult<Stored<OperationRecord>> {
    let unknown = || ApiError::not_found("operation", id);
    if id.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(unknown());
    }
    let operation = app.store.read::<OperationRecord>(id).await?.ok_or_else(unknown)?;
    match caller.role.sees_cluster(&operation.value.cluster) {
        true => Ok(operation),
        false => Err(unknown()),
    }
}

/// The last operation of a cluster, which need not be there any more.
pub async fn latest(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
) -> ApiResult<Stored<OperationRecord>> {
    let filter = Filter { cluster: Some(cluster), before: None, limit: 1 };
    let (found, _) = list(app, caller, &filter).await?;
    found.into_iter().next().ok_or_else(|| missing(cluster))
}
