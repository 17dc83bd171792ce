//! Making a cluster.

use jiff::Timestamp;
use wharf_core::{
    cluster::{
        ClusterRecord, Origin,
        life::{ClusterEvent, Life, decide_transition},
        validate::Draft,
    },
    operation::OperationKind,
};
use wharf_store::{Stored, Txn, typed::key_of};

use super::{
    TRIES, begin,
    check::{self, Addresses},
    commit, duplicate,
};
use crate::{
    access::Caller,
    app::AppState,
    error::{ApiError, ApiResult},
    vault::{self, Vault},
};

/// Checks a wish and writes it down as a cluster that is being created.
pub async fn create(
    app: &AppState,
    caller: &Caller,
    draft: &Draft,
) -> ApiResult<Stored<ClusterRecord>> {
    let name = draft.name.as_deref().unwrap_or_default().trim();
    for _ in 0..TRIES {
        refuse_duplicate(app, name).await?;
        let addresses = Addresses::of_others(app, name).await?;
        let checked = check::create(app, draft, &addresses).await?;
        let Ok(Life::Recorded(state)) = decide_transition(Life::Init, ClusterEvent::Create) else {
            return Err(ApiError::internal("a cluster cannot be created"));
        };
        let now = Timestamp::now();
        let mut record = ClusterRecord::new(checked.spec, state, Origin::Installed, now);
        let vault = Vault { secrets: checked.secrets, ..Vault::default() };
        let (txn, work) = begin(Txn::new(), name, OperationKind::Create, None, now)?;
        record.work = Some(work);
        let txn = addresses.claim(txn).create(name, &record, now)?;
        let txn = vault::put(txn, app, name, None, &vault, now)?;
        if let Some(revision) = commit(app, caller, "cluster.create", name, txn, now).await? {
            let id = name.to_owned();
            return Ok(Stored { id, value: record, created: revision, revision, at: now });
        }
    }
    Err(ApiError::conflict())
}

/// A name that is taken is told before anything else.
pub(super) async fn refuse_duplicate(app: &AppState, name: &str) -> ApiResult<()> {
    if wharf_core::name::check_cluster_name(name).is_err() {
        // The checks say what is wrong with it.
        return Ok(());
    }
    match app.store.get(&key_of::<ClusterRecord>(name)).await? {
        Some(_) => Err(duplicate(name)),
        None => Ok(()),
    }
}
