//! The leases of this process. They live in memory: a lease cannot outlive the only server.
//!
//! Holders extend them directly, the writer ends them. Both do so under one lock, and a lease that
//! the writer has begun to end cannot be extended: whoever is told that it lives still has its keys.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use crate::types::LeaseId;

#[derive(Default)]
pub(super) struct Leases {
    last_id: i64,
    live: HashMap<LeaseId, Lease>,
}

struct Lease {
    ttl: Duration,
    deadline: Instant,
    /// Its keys are being deleted in the batch that is under way.
    ending: bool,
}

/// Never held over I/O.
pub(super) fn lock(leases: &Mutex<Leases>) -> MutexGuard<'_, Leases> {
    leases.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Leases {
    pub(super) fn grant(&mut self, ttl: Duration, now: Instant) -> LeaseId {
        self.last_id += 1;
        let id = LeaseId(self.last_id);
        self.live.insert(id, Lease { ttl, deadline: now + ttl, ending: false });
        id
    }

    pub(super) fn is_live(&self, id: LeaseId, now: Instant) -> bool {
        self.live.get(&id).is_some_and(|lease| lease.is_live(now))
    }

    /// False if the lease has ended.
    pub(super) fn keep_alive(&mut self, id: LeaseId, now: Instant) -> bool {
        match self.live.get_mut(&id) {
            Some(lease) if lease.is_live(now) => {
                lease.deadline = now + lease.ttl;
                true
            }
            Some(_) | None => false,
        }
    }

    /// No key can be bound to the lease from here on; false if there is none.
    pub(super) fn begin_end(&mut self, id: LeaseId) -> bool {
        self.live.get_mut(&id).map(|lease| lease.ending = true).is_some()
    }

    /// Begins to end the leases whose time has passed.
    pub(super) fn begin_end_of_expired(&mut self, now: Instant) -> Vec<LeaseId> {
        let is_expired = |lease: &Lease| !lease.ending && lease.deadline <= now;
        let expired = self.live.iter_mut().filter(|(_, lease)| is_expired(lease));
        let begin = |(id, lease): (&LeaseId, &mut Lease)| {
            lease.ending = true;
            *id
        };
        expired.map(begin).collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.live.values().map(|lease| lease.deadline).min()
    }

    /// The batch that deleted their keys is on disk.
    pub(super) fn forget_ended(&mut self) {
        self.live.retain(|_, lease| !lease.ending);
    }

    /// The batch failed: their keys are still there, the end has to be tried again.
    pub(super) fn undo_end(&mut self) {
        for lease in self.live.values_mut() {
            lease.ending = false;
        }
    }
}

impl Lease {
    fn is_live(&self, now: Instant) -> bool {
        !self.ending && now < self.deadline
    }
}
