//! One task for each cluster that this server owns: it makes the cluster hold the objects of its
//! applications.
//!
//! Flow: read the records, apply what is not applied, delete what is not wanted, store that it was
//! done; then wait for a change. What could not be done is tried again after a while, and says why.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use wharf_core::{
    app::AppRecord,
    cluster::{ClusterRecord, ClusterState},
};
use wharf_kube::{Cluster, KubeError};
use wharf_store::{Stored, Txn, typed::key_of};

use super::{NAMESPACE, of_cluster};
use crate::{
    clusters,
    engine::{Fenced, FencedError, OwnedCluster},
    error::chain,
};

/// The same after a cluster refused something.
const AGAIN: Duration = Duration::from_secs(30);
/// For the objects of one application.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps the objects of applications until told to stop.
pub async fn keep(owned: OwnedCluster, stop: CancellationToken) {
    let fenced = owned.fenced();
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            Err(error) = follow(&owned, &fenced) => error,
        };
        if !owned.goes_on(ended, "applications", &stop).await {
            return;
        }
    }
}

/// Never ends but by an error.
async fn follow(
    owned: &OwnedCluster,
    fenced: &Fenced,
) -> Result<std::convert::Infallible, FencedError> {
    let OwnedCluster { app, cluster, .. } = owned;
    let now = app.store.revision().await?;
    let prefix = key_of::<AppRecord>(&AppRecord::key(cluster, ""));
    let mut apps = app.store.watch(&prefix, now).await?;
    // It may become one that answers.
    let mut record = app.store.watch(&key_of::<ClusterRecord>(cluster), now).await?;
    loop {
        let settled = look(owned, fenced).await?;
        let again = if settled { Duration::MAX } else { AGAIN };
        tokio::select! {
            changes = apps.next() => changes.map(drop)?,
            changes = record.next(), if !settled => changes.map(drop)?,
            () = tokio::time::sleep(again) => {}
        }
    }
}

/// Whether the cluster holds all that it should.
async fn look(owned: &OwnedCluster, fenced: &Fenced) -> Result<bool, FencedError> {
    let OwnedCluster { app, cluster, .. } = owned;
    let apps = of_cluster(&app.store, cluster).await?;
    let mut open: Vec<&Stored<AppRecord>> =
        apps.iter().filter(|one| !one.value.is_settled()).collect();
    if open.is_empty() {
        return Ok(true);
    }
    let Some(record) = app.store.read::<ClusterRecord>(cluster).await? else { return Ok(true) };
    if !matches!(record.value.state, ClusterState::Running | ClusterState::Updating) {
        return Ok(false);
    }
    // What goes makes room for what comes.
    open.sort_by_key(|one| one.value.deleted_at.is_none());
    let mut settled = true;
    for stored in open {
        let done = match clusters::connect(app, &record.value).await {
            Ok(api) => carry_out(&api, &stored.value).await.map_err(|error| chain(&error)),
            Err(reason) => Err(reason),
        };
        settled &= done.is_ok();
        write(fenced, stored, done).await?;
    }
    Ok(settled)
}

async fn carry_out(api: &Cluster, wanted: &AppRecord) -> Result<(), KubeError> {
    let applied = wanted.applied.as_deref().unwrap_or_default();
    if wanted.deleted_at.is_some() {
        let all = [applied, &wanted.objects()].join("\n---\n");
        return api.delete_in(NAMESPACE, &all, "", PATIENCE).await.map(drop);
    }
    let objects = wanted.objects();
    let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n");
    api.apply(&namespace, PATIENCE).await?;
    api.apply_in(NAMESPACE, &objects, PATIENCE).await?;
    // Afterwards, so that a Service that moved to another document was never away.
    api.delete_in(NAMESPACE, applied, &objects, PATIENCE).await.map(drop)
}

/// Stores what came of it. If somebody has changed the record meanwhile, it is looked at again.
async fn write(
    fenced: &Fenced,
    stored: &Stored<AppRecord>,
    done: Result<(), String>,
) -> Result<(), FencedError> {
    let now = Timestamp::now();
    let old = &stored.value;
    let txn = match done {
        Ok(()) if old.deleted_at.is_some() => Txn::new().remove(stored),
        Ok(()) => {
            let applied = Some(old.objects());
            let new = AppRecord { applied, reason: None, ..old.clone() };
            Txn::new().replace(stored, &new, now)?
        }
        Err(reason) if old.reason.as_ref() == Some(&reason) => return Ok(()),
        Err(reason) => {
            tracing::warn!(cluster = old.cluster, app = old.name, reason, "was not applied");
            let new = AppRecord { reason: Some(reason), ..old.clone() };
            Txn::new().replace(stored, &new, now)?
        }
    };
    fenced.try_commit(&txn).await.map(drop)
}
