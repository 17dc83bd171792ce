//! Changing a cluster, or going on with one that could not be created.

use jiff::Timestamp;
use wharf_api::error::ErrorCode;
use wharf_core::{
    cluster::{
        ClusterRecord, ClusterState, Origin,
        life::ClusterEvent,
        validate::{Checked, Draft, Fault, FaultCode, removed_nodes},
    },
    operation::OperationKind,
};
use wharf_store::{Revision, Stored, Txn};

use super::{
    TRIES, begin,
    check::{self, Addresses, invalid, known},
    check_revision, commit, find, next_state,
};
use crate::{
    access::Caller,
    app::AppState,
    error::{ApiError, ApiResult},
    vault::{self, Vault},
};

/// Checks a changed wish and writes it down. `storage_nodes` says which of the named nodes hold
/// storage; it asks the cluster itself, and if that cannot be asked no node is removed.
pub async fn update<F, Fut>(
    app: &AppState,
    caller: &Caller,
    name: &str,
    draft: &Draft,
    if_match: Option<Revision>,
    storage_nodes: F,
) -> ApiResult<Stored<ClusterRecord>>
where
    F: Fn(ClusterRecord, Vec<String>) -> Fut,
    Fut: Future<Output = Result<Vec<String>, String>>,
{
    for _ in 0..TRIES {
        let Ok(old) = find(app, name).await? else {
            return Err(refused(name, ClusterState::Unreachable));
        };
        check_revision(name, old.revision, if_match)?;
        let (event, kind) = match old.value.created {
            true => (ClusterEvent::Update, OperationKind::Update),
            false => (ClusterEvent::ContinueCreate, OperationKind::Create),
        };
        let state = next_state(&old.value, event).ok_or_else(|| refused(name, old.value.state))?;
        let found = vault::find(app, name).await?;
        let (vault, vault_record) = found.unzip();
        let vault = vault.unwrap_or_default();
        let addresses = Addresses::of_others(app, name).await?;
        let checked = check::update(app, draft, &old, &vault.secrets, &addresses).await?;
        check_storage(&old.value, &vault, &checked, &storage_nodes).await?;

        let now = Timestamp::now();
        let mut record = ClusterRecord { spec: checked.spec, ..old.value.clone() };
        let mut txn = addresses.claim(Txn::new());
        // There is nothing to do on the machines of an imported cluster: its settings are stored.
        if record.origin == Origin::Installed {
            let (begun, work) = begin(txn, name, kind, None, now)?;
            txn = begun;
            record = ClusterRecord { state, reason: None, work: Some(work), ..record };
        }
        txn = txn.replace(&old, &record, now)?;
        if vault.secrets != checked.secrets {
            let vault = Vault { secrets: checked.secrets, ..vault };
            txn = vault::put(txn, app, name, vault_record.as_ref(), &vault, now)?;
        }
        if let Some(revision) = commit(app, caller, "cluster.update", name, txn, now).await? {
            return Ok(Stored { value: record, revision, at: now, ..old });
        }
    }
    Err(ApiError::conflict())
}

fn refused(name: &str, state: ClusterState) -> ApiError {
    ApiError::denied(format!("cluster {name} can't update on {} status", state.name()))
        .hint("a cluster can be changed when it is Running or CreateFailed")
}

/// A node that holds storage is not removed: its data would be lost.
async fn check_storage<F, Fut>(
    record: &ClusterRecord,
    vault: &Vault,
    checked: &Checked,
    storage_nodes: &F,
) -> ApiResult<()>
where
    F: Fn(ClusterRecord, Vec<String>) -> Fut,
    Fut: Future<Output = Result<Vec<String>, String>>,
{
    let known = known(record, &vault.secrets);
    let removed = removed_nodes(&known, &checked.spec);
    if removed.is_empty() || !record.created || record.origin == Origin::Imported {
        return Ok(());
    }
    let names: Vec<String> = removed.iter().map(|node| node.name.clone()).collect();
    let listed = names.join(", ");
    let in_use = storage_nodes(record.clone(), names).await.map_err(|reason| {
        let message = format!("whether storage is on {listed} cannot be asked: {reason}");
        ApiError::new(ErrorCode::ClusterUnavailable, message)
            .hint("nodes can be removed while the cluster's API answers")
    })?;
    let faults: Vec<Fault> = in_use
        .into_iter()
        .map(|node| Fault {
            field: "nodes".to_owned(),
            code: FaultCode::InvalidOption,
            message: format!("node {node} used by storage, please delete it from storage first"),
        })
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(invalid(faults)) }
}
