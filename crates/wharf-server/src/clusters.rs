//! Clusters: the functions that the API and the pages call.
//!
//! Flow: whoever asks for something is checked, and what shall be done is written down, all in one
//! transaction: the new state, the operation, the secrets and the audit record. The engine sees
//! the record and acts on it. Nothing here opens a connection to a host.
//!
//! Guarantees: a request that is refused has stored nothing. Every state is entered by
//! [`wharf_core::cluster::life::decide_transition`].

mod cancel;
mod change;
mod check;
mod create;
mod delete;
mod import;
mod kubeconfig;
mod live;
pub mod nodes;
pub mod operations;
mod rehearse;
mod view;

use std::sync::Arc;

use jiff::Timestamp;
use wharf_api::error::ErrorCode;
use wharf_core::{
    access::AuditRecord,
    cluster::{
        ClusterRecord, ClusterState, DeleteMode, Work,
        health::{HealthRecord, HealthSummary},
        life::{ClusterEvent, Life, decide_transition},
    },
    name::check_cluster_name,
    operation::{OperationKind, OperationRecord},
};
use wharf_store::{Decoded, Revision, StoreResult, Stored, Txn, Unreadable, typed::key_of};

pub use cancel::cancel;
pub use change::update;
pub(crate) use check::invalid;
pub use check::{check_create, check_update, kubernetes_versions};
pub use create::create;
pub use delete::{delete, forget};
pub use import::{Import, import};
pub use kubeconfig::{KUBE_ADMIN, kubeconfig};
pub use live::{ask, away, connect, health_of, probe, reach, storage_nodes};
pub use rehearse::{plan, preflight};
pub use view::{Shown, View};

use crate::{
    access::{Caller, audit, new_id},
    app::AppState,
    error::{ApiError, ApiResult},
};

/// How often a change is tried again when others write the same record.
const TRIES: usize = 5;

/// The clusters that the caller may see, by name.
pub async fn list(app: &AppState, caller: &Caller, only_ready: bool) -> ApiResult<Vec<Arc<Shown>>> {
    let mut all = app.clusters.all(&app.store).await?;
    all.retain(|shown| (shown.is_ready() || !only_ready) && caller.role.sees_cluster(shown.id()));
    Ok(all)
}

/// One cluster. One that the caller may not see looks like one that is not there.
pub async fn get(app: &AppState, caller: &Caller, name: &str) -> ApiResult<Shown> {
    if !caller.role.sees_cluster(name) {
        return Err(missing(name));
    }
    Ok(Shown::new(find(app, name).await?, health(app, name).await))
}

/// A cluster in any state whose record can be read.
pub async fn get_known(
    app: &AppState,
    caller: &Caller,
    name: &str,
) -> ApiResult<Stored<ClusterRecord>> {
    let shown = get(app, caller, name).await?;
    shown.record.map_err(|unreadable| unreadable_error(&unreadable))
}

/// What was last seen of a cluster; that it cannot be read is no reason not to show the cluster.
pub async fn health(app: &AppState, name: &str) -> Option<HealthSummary> {
    let health = app.store.read::<HealthSummary>(name).await.unwrap_or_default();
    health.map(|stored| stored.value)
}

/// A cluster whose nodes and kubeconfigs can be asked for; in any other state it is as if these
/// were not there.
pub async fn get_served(
    app: &AppState,
    caller: &Caller,
    name: &str,
) -> ApiResult<Stored<ClusterRecord>> {
    let stored = get_known(app, caller, name).await?;
    if stored.value.state.is_served() {
        return Ok(stored);
    }
    let state = stored.value.state.name();
    let message = format!("cluster {name} serves nothing on {state} status");
    Err(ApiError::new(ErrorCode::NotFound, message)
        .hint("wait until it is Running, or look at its operations"))
}

/// A cluster's record; names that cannot be are not there either.
async fn find(app: &AppState, name: &str) -> ApiResult<Decoded<ClusterRecord>> {
    if check_cluster_name(name).is_err() {
        return Err(missing(name));
    }
    let entry = app.store.get(&key_of::<ClusterRecord>(name)).await?;
    Ok(Stored::decode(&entry.ok_or_else(|| missing(name))?))
}

fn missing(name: &str) -> ApiError {
    ApiError::not_found("cluster", name)
}

fn unreadable_error(unreadable: &Unreadable) -> ApiError {
    let message = format!("the record of cluster {} cannot be read", unreadable.id);
    ApiError::new(ErrorCode::NotFound, message)
        .hint("a newer version may have written it; `mode=forget` deletes it")
}

fn duplicate(name: &str) -> ApiError {
    ApiError::new(ErrorCode::DuplicateResource, format!("duplicate cluster {name}"))
        .hint("choose another name, or change the one that is there")
}

fn check_revision(name: &str, found: Revision, if_match: Option<Revision>) -> ApiResult<()> {
    match if_match {
        Some(wanted) if wanted != found => Err(ApiError::new(
            ErrorCode::PreconditionFailed,
            format!("the cluster {name:?} has changed since revision {wanted}"),
        )
        .hint("read it again and repeat the change")),
        _ => Ok(()),
    }
}

/// The state after an event, if the state allows it.
fn next_state(record: &ClusterRecord, event: ClusterEvent) -> Option<ClusterState> {
    match decide_transition(Life::Recorded(record.state), event) {
        Ok(Life::Recorded(state)) => Some(state),
        Ok(Life::Init | Life::Deleted) | Err(_) => None,
    }
}

/// Adds a new operation to a transaction; its id sorts by time.
fn begin(
    txn: Txn,
    cluster: &str,
    kind: OperationKind,
    delete: Option<DeleteMode>,
    now: Timestamp,
) -> StoreResult<(Txn, Work)> {
    let operation = new_id(now);
    let record = OperationRecord::new(cluster, kind, now);
    let txn = operations::create(txn, &operation, &record, now)?;
    Ok((txn, Work { operation, canceled: false, delete }))
}

/// Commits a change of a cluster with the audit record of it.
pub(crate) async fn commit(
    app: &AppState,
    caller: &Caller,
    action: &str,
    cluster: &str,
    txn: Txn,
    now: Timestamp,
) -> ApiResult<Option<Revision>> {
    let record = audit::record_of(caller, action, &format!("cluster/{cluster}"), now);
    let record = AuditRecord { cluster: Some(cluster.to_owned()), ..record };
    app.commit_with(record, txn, now).await
}

/// Writes down what was seen of a cluster, together with something else.
pub fn put_health(txn: Txn, health: &HealthRecord, now: Timestamp) -> StoreResult<Txn> {
    let txn = txn.write(&health.cluster, &health.summary(), now, None)?;
    txn.write(&health.cluster, health, now, None)
}
