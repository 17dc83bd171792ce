//! Deleting a cluster.

use jiff::Timestamp;
use wharf_core::{
    cluster::{
        ClusterRecord, ClusterState, DeleteMode, Origin,
        health::{HealthRecord, HealthSummary},
        life::ClusterEvent,
    },
    operation::OperationKind,
};
use wharf_store::{Compare, Revision, Stored, Txn, Unreadable, typed::key_of};

use super::{TRIES, begin, check_revision, commit, find, next_state};
use crate::{
    access::Caller,
    app::AppState,
    drains,
    error::{ApiError, ApiResult},
    repair, vault,
};

/// The name under which the beginning of a deletion is published, once for each cluster that ever
/// ran.
const DELETED: &str = "cluster.deleted";

/// Writes down that a cluster shall be deleted.
pub async fn delete(
    app: &AppState,
    caller: &Caller,
    name: &str,
    mode: DeleteMode,
    if_match: Option<Revision>,
) -> ApiResult<()> {
    for _ in 0..TRIES {
        let now = Timestamp::now();
        let txn = match find(app, name).await? {
            Ok(old) => {
                check_revision(name, old.revision, if_match)?;
                let state = next_state(&old.value, ClusterEvent::Delete)
                    .ok_or_else(|| refused(name, old.value.state))?;
                let mode = possible_mode(app, &old, mode).await?;
                begin_delete(&old, state, mode, now)?
            }
            Err(unreadable) => {
                check_revision(name, unreadable.revision, if_match)?;
                let txn = forget_unreadable(&unreadable, mode)?;
                // Too many for one transaction; nobody carries them out for such a cluster.
                while let Some(txn) = drains::removal(&app.store, name).await? {
                    let _ = app.store.commit(txn).await?;
                }
                repair::empty(&app.store, name).await?;
                txn
            }
        };
        if commit(app, caller, "cluster.delete", name, txn, now).await?.is_some() {
            return Ok(());
        }
    }
    Err(ApiError::conflict())
}

fn refused(name: &str, state: ClusterState) -> ApiError {
    ApiError::denied(format!("cluster {name} can't delete when on {} status", state.name()))
        .hint("cancel what is under way, or wait for its end")
}

/// The machines of an imported cluster without a key cannot be reached.
async fn possible_mode(
    app: &AppState,
    old: &Stored<ClusterRecord>,
    mode: DeleteMode,
) -> ApiResult<DeleteMode> {
    if old.value.origin == Origin::Installed || mode == DeleteMode::Forget {
        return Ok(mode);
    }
    let vault = vault::read(app, &old.id).await?;
    Ok(if vault.secrets.ssh_key.is_empty() { DeleteMode::Forget } else { mode })
}

fn begin_delete(
    old: &Stored<ClusterRecord>,
    state: ClusterState,
    mode: DeleteMode,
    now: Timestamp,
) -> ApiResult<Txn> {
    let (txn, work) = begin(Txn::new(), &old.id, OperationKind::Delete, Some(mode), now)?;
    let record = ClusterRecord {
        state,
        reason: None,
        work: Some(work),
        deleted_at: Some(now),
        ..old.value.clone()
    };
    let event = old.value.created.then_some(DELETED);
    Ok(txn.when(old.unchanged()).write(&old.id, &record, now, event)?)
}

/// Nothing is known of the cluster but its name, so it can only be forgotten.
fn forget_unreadable(unreadable: &Unreadable, mode: DeleteMode) -> ApiResult<Txn> {
    if mode != DeleteMode::Forget {
        let message = format!(
            "cluster {} can't delete when on Unreachable status: its record cannot be read",
            unreadable.id
        );
        return Err(ApiError::denied(message).hint("forget it with `mode=forget`"));
    }
    let condition =
        Compare::ModifiedAt(key_of::<ClusterRecord>(&unreadable.id), unreadable.revision);
    Ok(forget_all(Txn::new().when(condition), &unreadable.id))
}

/// Adds to a transaction the end of all that is kept of a cluster but its operations. The entries
/// of its repair queue may be too many for one transaction: [`repair::empty`] goes before.
pub fn forget(txn: Txn, cluster: &Stored<ClusterRecord>) -> Txn {
    forget_all(txn, &cluster.id)
}

fn forget_all(txn: Txn, cluster: &str) -> Txn {
    let txn = txn
        .delete(key_of::<ClusterRecord>(cluster))
        .delete(key_of::<HealthSummary>(cluster))
        .delete(key_of::<HealthRecord>(cluster));
    vault::remove(repair::forget(txn, cluster), cluster)
}
