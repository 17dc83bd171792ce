//! Cancelling what is under way.

use jiff::Timestamp;
use wharf_core::cluster::{ClusterRecord, ClusterState, Work};
use wharf_store::Txn;

use super::{TRIES, commit, find};
use crate::{
    access::Caller,
    app::AppState,
    error::{ApiError, ApiResult},
};

/// Writes down that the operation under way shall stop. The wish belongs to that operation, so it
/// cannot hit the next one; an operation that ends meanwhile has won.
pub async fn cancel(app: &AppState, caller: &Caller, name: &str) -> ApiResult<()> {
    for _ in 0..TRIES {
        let Ok(old) = find(app, name).await? else {
            return Err(refused(name, ClusterState::Unreachable));
        };
        let can_cancel = match old.value.state {
            ClusterState::Creating | ClusterState::Updating => true,
            ClusterState::CreateFailed
            | ClusterState::Running
            | ClusterState::Unreachable
            | ClusterState::Deleting => false,
        };
        let work = match &old.value.work {
            Some(work) if can_cancel => work,
            Some(_) | None => return Err(refused(name, old.value.state)),
        };
        if work.canceled {
            return Err(ApiError::denied(format!("cluster {name} is canceling")));
        }
        let work = Some(Work { canceled: true, ..work.clone() });
        let record = ClusterRecord { work, ..old.value.clone() };
        let now = Timestamp::now();
        let txn = Txn::new().replace(&old, &record, now)?;
        if commit(app, caller, "cluster.cancel", name, txn, now).await?.is_some() {
            return Ok(());
        }
    }
    Err(ApiError::conflict())
}

fn refused(name: &str, state: ClusterState) -> ApiError {
    ApiError::denied(format!("can't cancel cluster {name} on {} status", state.name()))
        .hint("only Creating and Updating can be canceled")
}
