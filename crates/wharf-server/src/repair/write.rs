//! The engine's writes: each on the record as it was decided on, and only by the cluster's owner.
//!
//! A store that is away for a moment is asked again; whether a write got through before is told by
//! the record itself.

use std::time::Duration;

use jiff::Timestamp;
use wharf_core::repair::{Entry, Outcome, QueueHead, RepairConfig, apply};
use wharf_store::{
    Compare, Outcome as Committed, Revision, StoreError, StoreResult, Txn, typed::key_of,
};

use super::{
    engine::Engine,
    records::{Held, entry_id, head_id},
};
use crate::engine::FencedError;

/// How long to wait before the store is asked again.
const RETRY: Duration = Duration::from_secs(1);
/// Entries that are removed in one transaction; below the store's limit.
const BATCH: usize = 100;

/// What became of a write.
pub(super) enum Written {
    Done(Revision),
    /// Somebody else wrote the entry: this is what it is now, `None` if it is gone.
    Overtaken(Option<Box<(Entry, Revision)>>),
}

/// Stores an entry in the place of the one of a known revision.
pub(super) async fn put_entry(
    engine: &Engine,
    entry: &Entry,
    known: Revision,
) -> Result<Written, FencedError> {
    let id = entry_id(&engine.cluster, entry.index);
    let unchanged = Compare::ModifiedAt(key_of::<Entry>(&id), known);
    let txn = Txn::new().when(unchanged).write(&id, entry, Timestamp::now(), None)?;
    match engine.fenced.try_commit(&txn).await {
        Ok(Committed::Committed(revision)) => return Ok(Written::Done(revision)),
        Ok(Committed::Refused) => {}
        Err(FencedError::Store(error)) => pause(engine, &error).await,
        Err(lost) => return Err(lost),
    }
    Ok(match read_entry(engine, entry.index).await {
        Some((found, revision)) if found == *entry && revision > known => Written::Done(revision),
        now => Written::Overtaken(now.map(Box::new)),
    })
}

/// Writes what came of a drain or a command into its entry as it is now.
pub(super) async fn apply_outcome(
    engine: &Engine,
    config: &RepairConfig,
    mut known: Option<(Entry, Revision)>,
    outcome: Outcome,
) -> Result<Option<(Entry, Revision)>, FencedError> {
    while let Some((entry, revision)) = known {
        let mut changed = entry.clone();
        if !apply(config, &mut changed, outcome.clone(), Timestamp::now()) {
            return Ok(Some((entry, revision)));
        }
        match put_entry(engine, &changed, revision).await? {
            Written::Done(revision) => return Ok(Some((changed, revision))),
            Written::Overtaken(now) => known = now.map(|now| *now),
        }
    }
    Ok(None)
}

/// Takes entries out of the queue; those that somebody wrote meanwhile stay for the next pass.
pub(super) async fn remove_entries(
    engine: &Engine,
    held: &mut Held,
    indexes: &[u64],
    now: Timestamp,
) -> Result<(), FencedError> {
    for batch in indexes.chunks(BATCH) {
        let (txn, head) = removal(engine, held, batch, now)?;
        match engine.fenced.try_commit(&txn).await {
            Ok(Committed::Committed(revision)) => {
                batch.iter().for_each(|index| held.drop_entry(*index));
                held.head = held.head.map(|_| revision);
                held.queue.head = head;
                continue;
            }
            Ok(Committed::Refused) => {}
            Err(FencedError::Store(error)) => pause(engine, &error).await,
            Err(lost) => return Err(lost),
        }
        for index in batch {
            match read_entry(engine, *index).await {
                Some((entry, revision)) => held.put(entry, revision),
                None => held.drop_entry(*index),
            }
        }
        let id = head_id(&engine.cluster);
        if let Some(head) = read(engine, || engine.app.store.read::<QueueHead>(&id)).await {
            held.head = Some(head.revision);
            held.queue.head = head.value;
        }
    }
    Ok(())
}

fn removal(
    engine: &Engine,
    held: &Held,
    indexes: &[u64],
    now: Timestamp,
) -> StoreResult<(Txn, QueueHead)> {
    let mut head = held.queue.head.clone();
    let mut txn = Txn::new();
    for index in indexes {
        let (Some(entry), Some(revision)) =
            (held.queue.entries.get(index), held.revisions.get(index))
        else {
            continue;
        };
        head.remove(entry);
        let key = key_of::<Entry>(&entry_id(&engine.cluster, *index));
        txn = txn.when(Compare::ModifiedAt(key.clone(), *revision)).delete(key);
    }
    head.forget(held.config.flap_guard, now);
    if let Some(revision) = held.head {
        let id = head_id(&engine.cluster);
        let unchanged = Compare::ModifiedAt(key_of::<QueueHead>(&id), revision);
        txn = txn.when(unchanged).write(&id, &head, now, None)?;
    }
    Ok((txn, head))
}

async fn read_entry(engine: &Engine, index: u64) -> Option<(Entry, Revision)> {
    let id = entry_id(&engine.cluster, index);
    let stored = read(engine, || engine.app.store.read::<Entry>(&id)).await?;
    Some((stored.value, stored.revision))
}

/// Reads until the store answers.
async fn read<T, F>(engine: &Engine, read: impl Fn() -> F) -> Option<T>
where
    F: Future<Output = StoreResult<Option<T>>>,
{
    loop {
        match read().await {
            Ok(found) => return found,
            Err(error @ StoreError::Unreadable { .. }) => {
                tracing::error!(?error, engine.cluster, "a record of the repair queue");
                return None;
            }
            Err(error) => pause(engine, &error).await,
        }
    }
}

async fn pause(engine: &Engine, error: &StoreError) {
    tracing::warn!(?error, engine.cluster, "the repair queue waits for the store");
    tokio::time::sleep(RETRY).await;
}
