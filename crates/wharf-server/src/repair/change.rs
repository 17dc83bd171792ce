//! What people do to a queue.
//!
//! All of it can be asked of any server: the records are the truth, and the engine of the cluster's
//! owner follows them.

use jiff::Timestamp;
use serde_json::Value;
use wharf_api::error::ErrorCode;
use wharf_core::{
    cluster::{ClusterRecord, ClusterState, health::HealthRecord},
    repair::{AddError, Entry, Queue, QueueHead, RepairConfig, Request},
};
use wharf_store::{Compare, Revision, Stored, Txn, typed::key_of};

use super::{
    board::Live,
    records::{Held, config_id, entry_id, head_id},
};
use crate::{
    access::{Caller, random_text},
    app::AppState,
    clusters::{self, invalid},
    error::{ApiError, ApiResult},
};

/// How often a change is tried again: each time another one got ahead, and a script may add
/// hundreds of machines at once.
const TRIES: usize = 200;
/// Entries that are changed in one transaction, with as many conditions and one audit record.
const BATCH: usize = 100;

/// A queue as it is shown.
pub struct Listed {
    pub enabled: bool,
    /// In the order of the index, each with what the engine says of it.
    pub entries: Vec<(Entry, Option<Live>)>,
}

pub async fn list(app: &AppState, caller: &Caller, cluster: &str) -> ApiResult<Listed> {
    clusters::get_known(app, caller, cluster).await?;
    let (held, _) = Held::read(&app.store, cluster).await?;
    let live = app.repairs.live(cluster);
    let entries = held.queue.entries.into_values();
    let entries = entries.map(|entry| {
        let said = live.as_ref().and_then(|live| live.of(&entry));
        (entry, said)
    });
    Ok(Listed { enabled: held.queue.head.enabled, entries: entries.collect() })
}

/// Appends an entry.
pub async fn add(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    request: &Request,
) -> ApiResult<Entry> {
    for _ in 0..TRIES {
        let now = Timestamp::now();
        let record = clusters::get_known(app, caller, cluster).await?;
        if record.value.state == ClusterState::Deleting {
            return Err(ApiError::denied(format!("cluster {cluster} is being deleted")));
        }
        let (config, _) = read_config(app, cluster).await?;
        let old = app.store.read::<QueueHead>(&head_id(cluster)).await?;
        let mut head = old.as_ref().map(|old| old.value.clone()).unwrap_or_default();
        if head.id.is_empty() {
            head.id = random_text::<4>();
        }
        let nodename = node_at(app, &record.value, &request.address).await?;
        let entry = head.add(&config, request, &nodename, now).map_err(refused)?;
        // The cluster's record too: nothing is added to one whose deletion has begun.
        let txn = Txn::new().when(record.unchanged());
        let txn = put_head(txn, cluster, old.as_ref(), &head, now)?;
        let txn = txn.create(&entry_id(cluster, entry.index), &entry, now)?;
        if clusters::commit(app, caller, "repair.add", cluster, txn, now).await?.is_some() {
            return Ok(entry);
        }
    }
    Err(ApiError::conflict())
}

fn refused(error: AddError) -> ApiError {
    match error {
        AddError::Invalid(faults) => invalid(faults),
        AddError::Full => ApiError::denied(error.to_string())
            .hint("`wharf repair-queue delete-finished` makes room"),
    }
}

/// The name of the node at an address; empty if there is none that is known.
async fn node_at(app: &AppState, record: &ClusterRecord, address: &str) -> ApiResult<String> {
    let installed = record.nodes.values().map(|node| &node.spec);
    let mut specs = record.spec.nodes.iter().chain(installed);
    if let Some(spec) = specs.find(|spec| spec.address.to_string() == address) {
        return Ok(spec.name.clone());
    }
    let health = app.store.read::<HealthRecord>(&record.spec.name).await?;
    let nodes = health.map(|health| health.value.nodes).unwrap_or_default();
    let is_there = |seen: &std::net::Ipv4Addr| seen.to_string() == address;
    let node = nodes.into_iter().find(|node| node.address.as_ref().is_some_and(is_there));
    Ok(node.map(|node| node.name).unwrap_or_default())
}

/// Marks an entry for removal. A second time changes nothing.
pub async fn delete(app: &AppState, caller: &Caller, cluster: &str, index: &str) -> ApiResult<()> {
    clusters::get_known(app, caller, cluster).await?;
    let unknown = || ApiError::not_found("entry", index);
    for _ in 0..TRIES {
        let number: u64 = index.parse().map_err(|_| unknown())?;
        let old = app.store.read::<Entry>(&entry_id(cluster, number)).await?;
        let old = old.ok_or_else(unknown)?;
        let entries = [(number, old.value.clone())].into();
        let mut queue = Queue { entries, ..Queue::default() };
        queue.delete(index).map_err(|_| unknown())?;
        let Some(entry) = queue.entries.remove(&number).filter(|_| !old.value.deleted) else {
            return Ok(());
        };
        let now = Timestamp::now();
        let txn = Txn::new().replace(&old, &entry, now)?;
        if clusters::commit(app, caller, "repair.delete", cluster, txn, now).await?.is_some() {
            return Ok(());
        }
    }
    Err(ApiError::conflict())
}

/// Marks all finished entries for removal; says which.
pub async fn delete_finished(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
) -> ApiResult<Vec<u64>> {
    change_all(app, caller, cluster, "repair.deleteFinished", Queue::delete_finished).await
}

pub async fn delete_unfinished(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
) -> ApiResult<Vec<u64>> {
    change_all(app, caller, cluster, "repair.deleteUnfinished", Queue::delete_unfinished).await
}

/// Lets all unfinished entries be tried again now; says which changed.
pub async fn reset_backoff(app: &AppState, caller: &Caller, cluster: &str) -> ApiResult<Vec<u64>> {
    change_all(app, caller, cluster, "repair.resetBackoff", Queue::reset_backoff).await
}

/// Changes entries in several transactions, each with its audit record. Entries that the engine
/// wrote meanwhile are looked at again.
async fn change_all(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    action: &str,
    change: impl Fn(&mut Queue) -> Vec<u64>,
) -> ApiResult<Vec<u64>> {
    clusters::get_known(app, caller, cluster).await?;
    let mut done = Vec::new();
    for _ in 0..TRIES {
        let (mut held, _) = Held::read(&app.store, cluster).await?;
        let indexes = change(&mut held.queue);
        let mut all = true;
        for batch in indexes.chunks(BATCH) {
            let now = Timestamp::now();
            let txn = put_entries(Txn::new(), cluster, &held, batch, now)?;
            match clusters::commit(app, caller, action, cluster, txn, now).await? {
                Some(_) => done.extend_from_slice(batch),
                None => all = false,
            }
        }
        if all {
            done.sort_unstable();
            return Ok(done);
        }
    }
    Err(ApiError::conflict())
}

fn put_entries(
    mut txn: Txn,
    cluster: &str,
    held: &Held,
    indexes: &[u64],
    now: Timestamp,
) -> ApiResult<Txn> {
    for index in indexes {
        let (Some(entry), Some(revision)) =
            (held.queue.entries.get(index), held.revisions.get(index))
        else {
            continue;
        };
        let id = entry_id(cluster, *index);
        let key = key_of::<Entry>(&id);
        let unchanged = Compare::ModifiedAt(key, *revision);
        txn = txn.when(unchanged).write(&id, entry, now, None)?;
    }
    Ok(txn)
}

pub async fn set_enabled(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    enabled: bool,
) -> ApiResult<()> {
    for _ in 0..TRIES {
        let record = clusters::get_known(app, caller, cluster).await?;
        let old = app.store.read::<QueueHead>(&head_id(cluster)).await?;
        let mut head = old.as_ref().map(|old| old.value.clone()).unwrap_or_default();
        if head.enabled == enabled {
            return Ok(());
        }
        head.enabled = enabled;
        let now = Timestamp::now();
        let txn = Txn::new().when(record.unchanged());
        let txn = put_head(txn, cluster, old.as_ref(), &head, now)?;
        let action = if enabled { "repair.enable" } else { "repair.disable" };
        if clusters::commit(app, caller, action, cluster, txn, now).await?.is_some() {
            return Ok(());
        }
    }
    Err(ApiError::conflict())
}

/// How machines are repaired, with the revision of it; 0 while nobody has said anything.
pub async fn config(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
) -> ApiResult<(RepairConfig, Revision)> {
    clusters::get_known(app, caller, cluster).await?;
    let (config, stored) = read_config(app, cluster).await?;
    Ok((config, stored.map_or(Revision(0), |stored| stored.revision)))
}

/// Checks a configuration and stores it. Entries go on by the new one.
pub async fn set_config(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    value: &Value,
    if_match: Option<Revision>,
) -> ApiResult<(RepairConfig, Revision)> {
    let config = RepairConfig::read(value).map_err(invalid)?;
    for _ in 0..TRIES {
        let record = clusters::get_known(app, caller, cluster).await?;
        let (_, old) = read_config(app, cluster).await?;
        let found = old.as_ref().map_or(Revision(0), |old| old.revision);
        if if_match.is_some_and(|wanted| wanted != found) {
            let message = format!("the repair configuration of {cluster} has changed meanwhile");
            return Err(ApiError::new(ErrorCode::PreconditionFailed, message)
                .hint("read it again and repeat the change"));
        }
        let now = Timestamp::now();
        let txn = Txn::new().when(record.unchanged());
        let txn = match &old {
            Some(old) => txn.replace(old, &config, now)?,
            None => txn.create(&config_id(cluster), &config, now)?,
        };
        if let Some(revision) =
            clusters::commit(app, caller, "repair.config", cluster, txn, now).await?
        {
            return Ok((config, revision));
        }
    }
    Err(ApiError::conflict())
}

async fn read_config(
    app: &AppState,
    cluster: &str,
) -> ApiResult<(RepairConfig, Option<Stored<RepairConfig>>)> {
    let stored = app.store.read::<RepairConfig>(&config_id(cluster)).await?;
    let config = stored.as_ref().map(|stored| stored.value.clone()).unwrap_or_default();
    Ok((config, stored))
}

fn put_head(
    txn: Txn,
    cluster: &str,
    old: Option<&Stored<QueueHead>>,
    head: &QueueHead,
    now: Timestamp,
) -> ApiResult<Txn> {
    Ok(match old {
        Some(old) => txn.replace(old, head, now)?,
        None => txn.create(&head_id(cluster), head, now)?,
    })
}
