//! A watcher of the embedded back end.

use std::sync::Arc;

use tokio::sync::watch as latest;

use super::{
    Shared,
    reader::{self, Replay},
};
use crate::{
    error::{StoreError, StoreResult},
    types::{Change, Revision},
};

/// About how many changes one call returns; a transaction is never split.
const CHANGES_AT_ONCE: usize = 1000;
/// How many batches are looked through before others get a turn.
const BATCHES_AT_ONCE: usize = 64;

pub(crate) struct EmbeddedWatch {
    shared: Arc<Shared>,
    latest: latest::Receiver<u64>,
    prefix: String,
    /// Everything up to this revision was delivered or is not below the prefix.
    position: u64,
}

impl EmbeddedWatch {
    pub(super) fn new(
        shared: Arc<Shared>,
        latest: latest::Receiver<u64>,
        prefix: &str,
        after: Revision,
    ) -> EmbeddedWatch {
        EmbeddedWatch { shared, latest, prefix: prefix.to_owned(), position: after.0 }
    }

    pub(crate) async fn next(&mut self) -> StoreResult<Vec<Change>> {
        loop {
            let latest = *self.latest.borrow_and_update();
            if latest <= self.position {
                self.latest.changed().await.map_err(|_| StoreError::Closed)?;
                continue;
            }
            let changes = self.advance().await?;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    /// Moves on towards the present. `position` changes only after the last await, so that a
    /// dropped call loses nothing.
    async fn advance(&mut self) -> StoreResult<Vec<Change>> {
        let compacted = self.shared.history.compacted();
        if self.position < compacted {
            return Err(StoreError::Compacted { oldest: Revision(compacted + 1) });
        }
        let Some(batches) = self.shared.history.after(self.position, BATCHES_AT_ONCE) else {
            return self.catch_up().await;
        };
        let mut changes = Vec::new();
        let mut position = self.position;
        for batch in batches {
            let wanted = |change: &&Change| {
                change.revision().0 > self.position && change.key().starts_with(&self.prefix)
            };
            changes.extend(batch.changes.iter().filter(wanted).cloned());
            position = batch.last;
            if changes.len() >= CHANGES_AT_ONCE {
                break;
            }
        }
        self.position = position;
        Ok(changes)
    }

    /// Reads from the log table what is no longer in memory.
    async fn catch_up(&mut self) -> StoreResult<Vec<Change>> {
        let (prefix, position) = (self.prefix.clone(), self.position);
        let replay = self
            .shared
            .bulk(move |conn| reader::replay(conn, &prefix, position, CHANGES_AT_ONCE))
            .await?;
        match replay {
            Replay::Compacted { oldest } => Err(StoreError::Compacted { oldest: Revision(oldest) }),
            Replay::Changes { changes, position } => {
                self.position = position;
                Ok(changes)
            }
        }
    }
}
