//! One task for each cluster that this server owns: it makes the cluster hold the objects of its
//! applications.
//!
//! Flow: read the records, apply what is not applied, delete what is not wanted, store that it was
//! done; then wait for a change. What could not be done is tried again after a while, and says why.
//! Every minute it is looked whether what was applied is still there: what somebody deleted is applied
//! again. What somebody changed stays: to tell that from the work of controllers, all of every object
//! would have to be read and compared.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wharf_core::{
    app::AppRecord,
    cluster::{ClusterRecord, ClusterState},
};
use wharf_kube::{Cluster, KubeError, Missing, Seen};
use wharf_store::{Stored, Txn, typed::key_of};

use super::{NAMESPACE, of_cluster};
use crate::{
    clusters,
    engine::{Fenced, FencedError, OwnedCluster},
    error::chain,
};

/// After a cluster refused something.
const AGAIN: Duration = Duration::from_secs(30);
/// How long an object that somebody deleted may be missing. A look costs the API server a list of names
/// for each kind of object that the applications have.
const RESTORE_EVERY: Duration = Duration::from_secs(60);
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
    let mut restore_at = Instant::now() + RESTORE_EVERY;
    loop {
        let standing = look(owned, fenced).await?;
        if Instant::now() >= restore_at {
            restore(owned, fenced).await?;
            restore_at = Instant::now() + RESTORE_EVERY;
        }
        let until_restore = restore_at.saturating_duration_since(Instant::now());
        let again = match standing {
            Standing::NoApps => Duration::MAX,
            Standing::Settled => until_restore,
            Standing::Open => AGAIN.min(until_restore),
        };
        tokio::select! {
            changes = apps.next() => changes.map(drop)?,
            changes = record.next(), if standing == Standing::Open => changes.map(drop)?,
            () = tokio::time::sleep(again) => {}
        }
    }
}

/// How the applications of a cluster stand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    NoApps,
    /// All that is wanted was applied.
    Settled,
    Open,
}

async fn look(owned: &OwnedCluster, fenced: &Fenced) -> Result<Standing, FencedError> {
    let OwnedCluster { app, cluster, .. } = owned;
    let apps = of_cluster(&app.store, cluster).await?;
    if apps.is_empty() {
        return Ok(Standing::NoApps);
    }
    let mut open: Vec<&Stored<AppRecord>> =
        apps.iter().filter(|one| !one.value.is_settled()).collect();
    if open.is_empty() {
        return Ok(Standing::Settled);
    }
    let Some(record) = answering(owned).await? else { return Ok(Standing::Open) };
    // What goes makes room for what comes.
    open.sort_by_key(|one| one.value.deleted_at.is_none());
    let mut standing = Standing::Settled;
    for stored in open {
        let done = match clusters::connect(app, &record).await {
            Ok(api) => carry_out(&api, &stored.value).await.map_err(|error| chain(&error)),
            Err(reason) => Err(reason),
        };
        if done.is_err() {
            standing = Standing::Open;
        }
        write(fenced, stored, done).await?;
    }
    Ok(standing)
}

/// The cluster, if it is one that answers.
async fn answering(owned: &OwnedCluster) -> Result<Option<ClusterRecord>, FencedError> {
    let record = owned.app.store.read::<ClusterRecord>(&owned.cluster).await?;
    let answers = |record: &ClusterRecord| {
        matches!(record.state, ClusterState::Running | ClusterState::Updating)
    };
    Ok(record.map(|record| record.value).filter(answers))
}

/// Applies again what was applied and is not there any more.
async fn restore(owned: &OwnedCluster, fenced: &Fenced) -> Result<(), FencedError> {
    let OwnedCluster { app, cluster, .. } = owned;
    let mut apps = of_cluster(&app.store, cluster).await?;
    apps.retain(|one| one.value.is_settled());
    if apps.is_empty() {
        return Ok(());
    }
    let Some(record) = answering(owned).await? else { return Ok(()) };
    let Ok(api) = clusters::connect(app, &record).await else { return Ok(()) };
    let mut seen = Seen::default();
    for stored in &apps {
        let missing = api.missing_in(NAMESPACE, &stored.value.objects(), &mut seen).await;
        let done = match missing {
            Ok(missing) => bring_back(&api, &stored.value, missing).await,
            // A cluster that does not answer says nothing of its objects, nor of the next one's.
            Err(error) if error.is_transient() => return Ok(()),
            Err(error) => Err(error),
        };
        let done = done.map_err(|error| chain(&error));
        if done.is_err() || stored.value.reason.is_some() {
            write(fenced, stored, done).await?;
        }
    }
    Ok(())
}

async fn bring_back(api: &Cluster, wanted: &AppRecord, missing: Missing) -> Result<(), KubeError> {
    if missing.is_empty() {
        return Ok(());
    }
    ensure_namespace(api).await?;
    let objects = api.restore(missing, PATIENCE).await?.changed;
    tracing::info!(cluster = wanted.cluster, app = wanted.name, ?objects, "were applied again");
    Ok(())
}

async fn ensure_namespace(api: &Cluster) -> Result<(), KubeError> {
    let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n");
    api.apply(&namespace, PATIENCE).await.map(drop)
}

async fn carry_out(api: &Cluster, wanted: &AppRecord) -> Result<(), KubeError> {
    let applied = wanted.applied.as_deref().unwrap_or_default();
    if wanted.deleted_at.is_some() {
        let all = [applied, &wanted.objects()].join("\n---\n");
        return api.delete_in(NAMESPACE, &all, "", PATIENCE).await.map(drop);
    }
    let objects = wanted.objects();
    ensure_namespace(api).await?;
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
