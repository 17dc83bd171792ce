//! Drains of nodes: the functions that the API and the pages call.
//!
//! Flow: whoever asks for a drain is checked, and the wish is written down with its audit record.
//! The owner of the cluster sees the record and carries it out ([`engine`]). Cordons of persons and
//! plans are asked of the cluster at once: nothing is to be remembered of them.
//!
//! Guarantees: a node has one drain at a time; who asks again gets the one that runs. What a drain
//! did to a node is undone when it fails or is canceled, after a crash too.

mod carry;
mod engine;
mod tell;

use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use wharf_api::error::ErrorCode;
use wharf_core::{
    access::AuditRecord,
    drain::{DrainOptions, DrainRecord, Plan, Progress},
    operation::OperationState,
};
use wharf_kube::{Cluster, KubeError};
use wharf_store::{Page, Revision, Store, StoreResult, Stored, Txn, typed::key_of};

pub use engine::keep;

use crate::{
    access::{Caller, audit, new_id},
    app::AppState,
    clusters::{self, nodes},
    error::{ApiError, ApiResult, chain},
};

/// How the cordons of drains are marked. Not by the drain's id: the next drain of the node takes
/// over what an earlier one left.
pub const CORDON_OWNER: &str = "a drain";

/// How often a change is tried again when others write the same record.
const TRIES: usize = 5;
/// Records that are read or deleted at once: well below the store's limit for one transaction.
const BATCH: usize = 100;
/// Below the limit of a request.
const PATIENCE: Duration = Duration::from_secs(15);
/// The end of a cluster does not wait longer for its API: it may be gone already.
const FAREWELL: Duration = Duration::from_secs(5);

/// Writes down that a node shall be drained, or joins the drain that runs.
pub async fn start(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    node: &str,
    options: &DrainOptions,
) -> ApiResult<Stored<DrainRecord>> {
    for _ in 0..TRIES {
        let (owner, found) = nodes::get(app, caller, cluster, node).await?;
        let key = DrainRecord::key(cluster, node);
        let old = app.store.read::<DrainRecord>(&key).await?;
        if let Some(running) = old.as_ref().filter(|old| old.value.is_running()) {
            return match running.value.canceled {
                false => Ok(running.clone()),
                true => Err(ApiError::new(
                    ErrorCode::Conflict,
                    format!("the drain of node {node} is being canceled"),
                )
                .hint("ask again when it has ended")),
            };
        }
        let now = Timestamp::now();
        let record = DrainRecord {
            cluster: cluster.to_owned(),
            node: node.to_owned(),
            id: new_id(now),
            machine: found.machine(),
            critical: found.is_critical(),
            options: options.clone(),
            state: OperationState::Running,
            requested_by: caller.name.clone(),
            started_at: now,
            ended_at: None,
            canceled: false,
            admitted: false,
            timed_out: false,
            cordon_left: old.as_ref().is_some_and(|old| old.value.cordon_left),
            reason: None,
            progress: Progress::default(),
        };
        // A cluster that is being deleted gets no new ones.
        let txn = Txn::new().when(owner.unchanged());
        let txn = match &old {
            Some(old) => txn.replace(old, &record, now)?,
            None => txn.create(&key, &record, now)?,
        };
        if let Some(revision) = commit(app, caller, "node.drain", cluster, node, txn, now).await? {
            let created = old.map_or(revision, |old| old.created);
            return Ok(Stored { id: key, value: record, created, revision, at: now });
        }
    }
    Err(ApiError::conflict())
}

/// Writes down that the drain that runs shall stop. The wish belongs to that drain, so it cannot
/// hit the next one.
pub async fn cancel(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    node: &str,
) -> ApiResult<Stored<DrainRecord>> {
    clusters::get_served(app, caller, cluster).await?;
    match cancel_running(app, caller, cluster, node, "node.cancelDrain").await? {
        Some(canceled) => Ok(canceled),
        None => {
            Err(ApiError::new(ErrorCode::Conflict, format!("node {node} is not being drained"))
                .hint("there is nothing to cancel"))
        }
    }
}

/// The drain that was running, now canceled; `None` when there is none.
async fn cancel_running(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    node: &str,
    action: &str,
) -> ApiResult<Option<Stored<DrainRecord>>> {
    let key = DrainRecord::key(cluster, node);
    for _ in 0..TRIES {
        let old = match app.store.read::<DrainRecord>(&key).await? {
            Some(old) if old.value.is_running() => old,
            Some(_) | None => return Ok(None),
        };
        if old.value.canceled {
            return Ok(Some(old));
        }
        let now = Timestamp::now();
        let value = DrainRecord { canceled: true, ..old.value.clone() };
        let txn = Txn::new().replace(&old, &value, now)?;
        if let Some(revision) = commit(app, caller, action, cluster, node, txn, now).await? {
            return Ok(Some(Stored { value, revision, at: now, ..old }));
        }
    }
    Err(ApiError::conflict())
}

/// The last drain of a node, which need not be there any more.
pub async fn get(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    node: &str,
) -> ApiResult<Stored<DrainRecord>> {
    clusters::get(app, caller, cluster).await?;
    let found = app.store.read::<DrainRecord>(&DrainRecord::key(cluster, node)).await?;
    found.ok_or_else(|| ApiError::not_found("drain of node", node))
}

/// The last drain of every node of a cluster that had one, by the node's name.
pub async fn list(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
) -> ApiResult<Vec<Stored<DrainRecord>>> {
    clusters::get(app, caller, cluster).await?;
    Ok(of_cluster(&app.store, cluster).await?)
}

/// The drains of a cluster, also of one that nobody asks for. One that cannot be read is passed
/// over; the engine says so in the log.
pub async fn of_cluster(store: &Store, cluster: &str) -> StoreResult<Vec<Stored<DrainRecord>>> {
    let (drains, _) = store.read_all::<DrainRecord>(&DrainRecord::key(cluster, "")).await?;
    Ok(drains.into_iter().filter_map(Result::ok).collect())
}

/// What a drain would do to each pod of a node now; nothing is touched.
pub async fn plan(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    node: &str,
    options: &DrainOptions,
) -> ApiResult<Plan> {
    let policy = options.policy(CORDON_OWNER, Timestamp::now());
    ask(app, caller, cluster, node, async |api| wharf_kube::drain::plan(api, node, &policy).await)
        .await
}

/// Makes a node unschedulable in the name of the caller.
pub async fn cordon(app: &AppState, caller: &Caller, cluster: &str, node: &str) -> ApiResult<()> {
    nodes::get(app, caller, cluster, node).await?;
    let now = Timestamp::now();
    commit(app, caller, "node.cordon", cluster, node, Txn::new(), now).await?;
    ask(app, caller, cluster, node, async |api| api.cordon_by_person(node).await).await?;
    app.nudge(cluster);
    Ok(())
}

/// Makes a node schedulable again in the name of the caller. A drain that runs is canceled: who
/// wants pods on the node does not want it emptied.
pub async fn uncordon(app: &AppState, caller: &Caller, cluster: &str, node: &str) -> ApiResult<()> {
    nodes::get(app, caller, cluster, node).await?;
    let now = Timestamp::now();
    if cancel_running(app, caller, cluster, node, "node.uncordon").await?.is_none() {
        commit(app, caller, "node.uncordon", cluster, node, Txn::new(), now).await?;
    }
    ask(app, caller, cluster, node, async |api| api.uncordon_by_person(node).await).await?;
    app.nudge(cluster);
    Ok(())
}

/// Asks something of the cluster that has the node.
async fn ask<T>(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    node: &str,
    question: impl AsyncFnOnce(&Cluster) -> Result<T, KubeError>,
) -> ApiResult<T> {
    let (record, _) = nodes::get(app, caller, cluster, node).await?;
    let connected = clusters::connect(app, &record.value).await;
    let api = connected.map_err(|reason| clusters::away(cluster, &reason))?;
    let refused = |error: KubeError| match error.is_not_found() {
        true => ApiError::not_found("node", node),
        false => clusters::away(cluster, &chain(&error)),
    };
    clusters::ask(cluster, PATIENCE, question(&api), refused).await
}

async fn commit(
    app: &AppState,
    caller: &Caller,
    action: &str,
    cluster: &str,
    node: &str,
    txn: Txn,
    now: Timestamp,
) -> ApiResult<Option<Revision>> {
    let record = audit::record_of(caller, action, &format!("node/{cluster}/{node}"), now);
    let record = AuditRecord { cluster: Some(cluster.to_owned()), ..record };
    app.commit_with(record, txn, now).await
}

/// Takes back what drains did to the nodes of a cluster that is about to be forgotten, as far as it
/// answers: afterwards nobody knows of it.
pub async fn give_all_back(app: &AppState, cluster: &str) -> StoreResult<()> {
    let drains = of_cluster(&app.store, cluster).await?.into_iter().map(|drain| drain.value);
    let cordoned =
        drains.filter(|drain| drain.cordon_left || (drain.is_running() && drain.admitted));
    let uncordon = cordoned.map(|drain| async move {
        let uncordon = carry::uncordon(app, cluster, &drain.node, CORDON_OWNER);
        match tokio::time::timeout(FAREWELL, uncordon).await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => tracing::warn!(cluster, node = drain.node, reason, "stays cordoned"),
            Err(_) => tracing::warn!(cluster, node = drain.node, "stays cordoned: no answer"),
        }
    });
    join_all(uncordon).await;
    Ok(())
}

/// Deletes what is kept of drains that ended before `oldest`: nodes come and go, and with them their
/// names.
pub async fn prune(store: &Store, oldest: Timestamp) -> StoreResult<()> {
    let prefix = key_of::<DrainRecord>("");
    let mut after = None;
    loop {
        let page = Page { after: after.take(), limit: BATCH, descending: false };
        let listing = store.list(&prefix, page).await?;
        let drains = listing.entries.iter().filter_map(|entry| Stored::decode(entry).ok());
        let is_old = |drain: &Stored<DrainRecord>| {
            drain.value.ended_at.is_some_and(|ended| ended < oldest) && !drain.value.cordon_left
        };
        for drain in drains.filter(is_old) {
            // If it is refused, somebody has begun the next one.
            let _ = store.commit(Txn::new().remove(&drain)).await?;
        }
        after = listing.entries.last().filter(|_| listing.more).map(|entry| entry.key.clone());
        if after.is_none() {
            return Ok(());
        }
    }
}

/// A transaction that deletes some drains of a cluster that goes; `None` when there are no more.
/// Nothing new comes: a cluster that is being deleted takes no drains.
pub async fn removal(store: &Store, cluster: &str) -> StoreResult<Option<Txn>> {
    let prefix = key_of::<DrainRecord>(&DrainRecord::key(cluster, ""));
    let page = Page { after: None, limit: BATCH, descending: false };
    let listing = store.list(&prefix, page).await?;
    let keys = listing.entries.into_iter().map(|entry| entry.key);
    let txn = keys.fold(Txn::new(), Txn::delete);
    Ok((!txn.ops.is_empty()).then_some(txn))
}

#[cfg(test)]
mod tests {
    use wharf_store::{Outcome, StoreLocation, StoreOptions};

    use super::*;

    #[tokio::test]
    async fn drains_that_ended_long_ago_are_forgotten_unless_their_cordon_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let location = StoreLocation::Embedded { data_dir: dir.path().to_owned() };
        let store = Store::open(&StoreOptions { location }).await.unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        let put = async |node: &str, ended_at: Option<Timestamp>, cordon_left: bool| {
            let record = DrainRecord {
                cluster: "demo".to_owned(),
                node: node.to_owned(),
                id: "1".to_owned(),
                machine: "192.0.2.1".to_owned(),
                critical: false,
                options: DrainOptions::default(),
                state: OperationState::Succeeded,
                requested_by: "admin".to_owned(),
                started_at: at(0),
                ended_at,
                canceled: false,
                admitted: true,
                timed_out: false,
                cordon_left,
                reason: None,
                progress: Progress::default(),
            };
            let key = DrainRecord::key("demo", node);
            let txn = Txn::new().create(&key, &record, at(0)).unwrap();
            assert!(matches!(store.commit(txn).await.unwrap(), Outcome::Committed(_)));
        };
        put("kept-left", Some(at(5)), true).await;
        put("kept-new", Some(at(10)), false).await;
        put("kept-running", None, false).await;
        for number in 0..BATCH + 5 {
            put(&format!("old-{number}"), Some(at(9)), false).await;
        }
        prune(&store, at(10)).await.unwrap();
        let left = of_cluster(&store, "demo").await.unwrap();
        let left: Vec<&str> = left.iter().map(|drain| drain.value.node.as_str()).collect();
        assert_eq!(left, ["kept-left", "kept-new", "kept-running"]);
        store.close().await;
    }
}
