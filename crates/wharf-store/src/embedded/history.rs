//! The newest changes in memory, shared by all watchers.
//!
//! A watcher that keeps up is served from here; one that fell behind reads the log table until it
//! has caught up. So no watcher holds anything back, and memory is bounded whatever they do.

use std::{
    collections::VecDeque,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::types::Change;

/// Enough that a watcher which is awake never needs the disk.
const KEPT_BATCHES: usize = 4096;
/// Bounds the memory when values are large.
const KEPT_BYTES: usize = 16 << 20;

/// The changes of one SQLite commit: one or more whole transactions.
pub(super) struct Batch {
    pub(super) last: u64,
    pub(super) changes: Vec<Change>,
    pub(super) bytes: usize,
}

pub(super) struct History {
    recent: RwLock<Recent>,
    compacted: AtomicU64,
}

struct Recent {
    batches: VecDeque<Arc<Batch>>,
    bytes: usize,
    /// All changes after this revision are in `batches`.
    complete_after: u64,
}

impl History {
    pub(super) fn new(revision: u64, compacted: u64) -> History {
        let recent = Recent { batches: VecDeque::new(), bytes: 0, complete_after: revision };
        History { recent: RwLock::new(recent), compacted: AtomicU64::new(compacted) }
    }

    pub(super) fn push(&self, batch: Batch) {
        let mut guard = self.recent.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let recent = &mut *guard;
        recent.bytes += batch.bytes;
        recent.batches.push_back(Arc::new(batch));
        while recent.batches.len() > KEPT_BATCHES || recent.bytes > KEPT_BYTES {
            let Some(oldest) = recent.batches.pop_front() else { break };
            recent.bytes -= oldest.bytes;
            recent.complete_after = oldest.last;
        }
    }

    /// The batches with changes after `position`, at most `limit`; `None` if some are not here.
    pub(super) fn after(&self, position: u64, limit: usize) -> Option<Vec<Arc<Batch>>> {
        let recent = self.recent.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if position < recent.complete_after {
            return None;
        }
        let start = recent.batches.partition_point(|batch| batch.last <= position);
        Some(recent.batches.range(start..).take(limit).cloned().collect())
    }

    pub(super) fn compacted(&self) -> u64 {
        self.compacted.load(Ordering::Acquire)
    }

    pub(super) fn set_compacted(&self, revision: u64) {
        self.compacted.store(revision, Ordering::Release);
    }
}
