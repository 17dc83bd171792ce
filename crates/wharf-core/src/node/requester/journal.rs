//! What is remembered of jobs, across restarts of the agent and of the node.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Facts, Power};
use crate::node::{
    gate::{Request, Requests},
    status::DrainStatus,
};

/// So many ids of jobs that are over are remembered, so that a wish that is sent again is known.
const PAST: usize = 32;
/// So many jobs that lost their place are remembered with their ends: more than can be wished for at once.
const REPLACED: usize = 8;
const FORGOTTEN: &str = "this node has lost its record of it, as with a disk, so that nobody knows whether the \
                         image is in place; look, and ask for it again if it is not";

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Journal {
    pub device_operation: Option<Job>,
    pub update: Option<Job>,
    /// Of jobs before those, the latest at the end.
    pub past: Vec<String>,
    /// The last of them as they ended: whoever wished for one is still to hear of it.
    #[serde(default)]
    pub replaced: Vec<Job>,
    /// The last update that was done, once another has taken its place.
    #[serde(default)]
    pub installed: Option<Job>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: String,
    pub kind: Kind,
    pub phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Reboot,
    Shutdown,
    Update,
}

/// Where a job is. The time of its request stays the same as long as it is one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The new base OS is not there yet. The request is that of an older one that it replaces.
    Preparing {
        request: Option<Timestamp>,
    },
    /// It waits for the drain.
    Deferred {
        request: Option<Timestamp>,
        /// So many drains have failed, the last one at this time.
        failures: u32,
        paused: Option<Timestamp>,
        reason: String,
    },
    /// The update is being put in place.
    Commanding {
        boot_id: String,
        since: Timestamp,
        request: Option<Timestamp>,
    },
    /// The node is going down.
    Leaving {
        boot_id: String,
        since: Timestamp,
        request: Option<Timestamp>,
    },
    Done {
        at: Timestamp,
    },
    Failed {
        at: Timestamp,
        reason: String,
    },
    Canceled {
        at: Timestamp,
    },
}

impl Journal {
    /// What the request files are to say.
    pub fn requests(&self) -> Requests {
        let request = |job: &Option<Job>| job.as_ref().and_then(Job::request);
        Requests {
            device_operation: request(&self.device_operation),
            update: request(&self.update),
        }
    }

    /// The same before the first look in a boot: what went down with the boot before asks no more.
    pub fn requests_in(&self, boot_id: &str) -> Requests {
        let of_this_boot = |job: &Job| match &job.phase {
            Phase::Commanding { boot_id: begun, .. } | Phase::Leaving { boot_id: begun, .. } => {
                begun == boot_id
            }
            Phase::Preparing { .. }
            | Phase::Deferred { .. }
            | Phase::Done { .. }
            | Phase::Failed { .. }
            | Phase::Canceled { .. } => true,
        };
        let job = |job: &Option<Job>| job.clone().filter(of_this_boot);
        let (device_operation, update) = (job(&self.device_operation), job(&self.update));
        Journal { device_operation, update, ..Journal::default() }.requests()
    }

    /// Whether a job waits, for its drain or for what comes before.
    pub fn waits(&self) -> bool {
        [&self.device_operation, &self.update].into_iter().flatten().any(Job::is_waiting)
    }

    /// Whether the node is about to go down or to be changed.
    pub(super) fn is_leaving(&self) -> bool {
        let jobs = [&self.device_operation, &self.update];
        jobs.into_iter()
            .flatten()
            .any(|job| matches!(job.phase, Phase::Commanding { .. } | Phase::Leaving { .. }))
    }

    /// The update of which something is said: the last one, and when that is not wanted any more, what the
    /// node was updated to before.
    pub fn base_os(&self) -> Option<&Job> {
        let last = self.update.as_ref();
        let is_canceled = last.is_some_and(|job| matches!(job.phase, Phase::Canceled { .. }));
        self.installed.as_ref().filter(|_| is_canceled).or(last)
    }

    /// Whether a wish has been taken over, so that its job is under way or over.
    pub fn knows(&self, id: &str) -> bool {
        let jobs = [&self.device_operation, &self.update];
        let current = jobs.into_iter().flatten().any(|job| job.id == id);
        current || self.past.iter().any(|past| past == id)
    }

    /// Makes jobs of wishes that are new, and lets go of those that are not wanted any more.
    pub(super) fn take_over(&mut self, facts: &Facts, now: Timestamp) {
        for wish in &facts.device_operations {
            let kind = match wish.power {
                Power::Reboot => Kind::Reboot,
                Power::Shutdown => Kind::Shutdown,
            };
            let taken_in = wish.taken_in.as_deref().filter(|_| !wish.canceled);
            self.recall(&wish.id, kind, taken_in, facts, now);
            let slot = self.device_operation.take();
            self.device_operation = self.replace(slot, &wish.id, kind, wish.canceled, now);
        }
        for wish in &facts.updates {
            let taken_in = wish.taken_in.as_deref().filter(|_| !wish.canceled);
            self.recall(&wish.id, Kind::Update, taken_in, facts, now);
            let slot = self.update.take();
            self.update = self.replace(slot, &wish.id, Kind::Update, wish.canceled, now);
        }
        self.forget_the_oldest(facts);
    }

    /// A wish that was taken over here and is not known has been lost with the journal. A node that was
    /// booted since is not taken down for it again, and an update's command is not begun again.
    fn recall(
        &mut self,
        id: &str,
        kind: Kind,
        taken_in: Option<&str>,
        facts: &Facts,
        now: Timestamp,
    ) {
        let Some(boot_id) = taken_in.filter(|_| !self.knows(id)) else { return };
        let phase = match kind {
            // As long as the node is up nothing has come of it.
            Kind::Reboot | Kind::Shutdown if boot_id == facts.boot_id => return,
            Kind::Reboot | Kind::Shutdown => Phase::Done { at: now },
            Kind::Update => Phase::Failed { at: now, reason: FORGOTTEN.to_owned() },
        };
        self.past.push(id.to_owned());
        self.replaced.push(Job { id: id.to_owned(), kind, phase });
    }

    /// What is still wished for is never forgotten: it would be done once more.
    fn forget_the_oldest(&mut self, facts: &Facts) {
        let devices = facts.device_operations.iter().map(|wish| &wish.id);
        let wished: Vec<&String> = devices.chain(facts.updates.iter().map(|w| &w.id)).collect();
        keep_last(&mut self.past, PAST, |id| wished.contains(&id));
        keep_last(&mut self.replaced, REPLACED, |job| wished.contains(&&job.id));
    }

    fn replace(
        &mut self,
        slot: Option<Job>,
        id: &str,
        kind: Kind,
        canceled: bool,
        now: Timestamp,
    ) -> Option<Job> {
        match slot {
            Some(mut job) if job.id == id => {
                if canceled && job.is_waiting() {
                    job.phase = Phase::Canceled { at: now };
                }
                Some(job)
            }
            // It cannot be called back; the next one comes after it.
            Some(job) if !job.is_waiting() && !job.is_over() => Some(job),
            slot if self.past.iter().any(|past| past == id) => slot,
            // The one that was to take its place is gone, and it is not wanted any more either, unless it
            // is of another kind. That counts once: what is wished for later is not meant.
            Some(mut job) if canceled => {
                if job.is_waiting() && job.kind == kind {
                    job.phase = Phase::Canceled { at: now };
                }
                self.past.push(id.to_owned());
                Some(job)
            }
            None if canceled => {
                self.past.push(id.to_owned());
                None
            }
            slot => {
                // The drain that is under way serves the new one too.
                let request = slot.as_ref().and_then(Job::asked_at);
                if let Some(mut old) = slot {
                    self.past.push(old.id.clone());
                    if old.is_waiting() {
                        old.phase = Phase::Canceled { at: now };
                    }
                    if old.kind == Kind::Update && matches!(old.phase, Phase::Done { .. }) {
                        self.installed = Some(old.clone());
                    }
                    self.replaced.push(old);
                }
                let phase = match kind {
                    Kind::Reboot | Kind::Shutdown => Phase::deferred(request),
                    Kind::Update => Phase::Preparing { request },
                };
                Some(Job { id: id.to_owned(), kind, phase })
            }
        }
    }
}

/// Forgets the first of a list until it is short enough, but none that is needed.
fn keep_last<T>(all: &mut Vec<T>, most: usize, is_needed: impl Fn(&T) -> bool) {
    let mut surplus = all.len().saturating_sub(most);
    all.retain(|one| {
        let goes = surplus > 0 && !is_needed(one);
        surplus -= usize::from(goes);
        !goes
    });
}

impl Kind {
    /// How the node goes down for it.
    pub(super) fn power(self) -> Power {
        match self {
            Kind::Reboot | Kind::Update => Power::Reboot,
            Kind::Shutdown => Power::Shutdown,
        }
    }
}

impl Phase {
    pub(super) fn deferred(request: Option<Timestamp>) -> Self {
        Phase::Deferred { request, failures: 0, paused: None, reason: String::new() }
    }
}

impl Job {
    /// It has done nothing yet but ask.
    pub fn is_waiting(&self) -> bool {
        match self.phase {
            Phase::Preparing { .. } | Phase::Deferred { .. } => true,
            Phase::Commanding { .. }
            | Phase::Leaving { .. }
            | Phase::Done { .. }
            | Phase::Failed { .. }
            | Phase::Canceled { .. } => false,
        }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done { .. } | Phase::Failed { .. } | Phase::Canceled { .. })
    }

    fn asked_at(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::Preparing { request }
            | Phase::Deferred { request, .. }
            | Phase::Commanding { request, .. }
            | Phase::Leaving { request, .. } => *request,
            Phase::Done { .. } | Phase::Failed { .. } | Phase::Canceled { .. } => None,
        }
    }

    fn request(&self) -> Option<Request> {
        let at = self.asked_at()?;
        let context = match self.kind {
            Kind::Reboot => "reboot".to_owned(),
            Kind::Shutdown => "shutdown".to_owned(),
            Kind::Update => self.id.clone(),
        };
        Some(Request { at: Some(at), context })
    }

    pub(super) fn ask(&mut self, now: Timestamp) {
        if let Phase::Deferred { request, .. } = &mut self.phase {
            *request = Some(now);
        }
    }

    pub(super) fn pause(&mut self, status: DrainStatus, now: Timestamp) {
        if let Phase::Deferred { request, failures, paused, reason } = &mut self.phase {
            *request = None;
            *failures = failures.saturating_add(1);
            *paused = Some(now);
            *reason = format!("the drain ended with {}", status.name());
        }
    }

    pub(super) fn go(&mut self, boot_id: &str, now: Timestamp) {
        let (boot_id, since, request) = (boot_id.to_owned(), now, self.asked_at());
        self.phase = match self.kind {
            Kind::Reboot | Kind::Shutdown => Phase::Leaving { boot_id, since, request },
            Kind::Update => Phase::Commanding { boot_id, since, request },
        };
    }

    pub(super) fn commanded(&mut self, now: Timestamp) -> bool {
        let Phase::Commanding { boot_id, request, .. } = &self.phase else { return false };
        self.phase = Phase::Leaving { boot_id: boot_id.clone(), since: now, request: *request };
        true
    }

    pub(super) fn fail(&mut self, reason: &str, now: Timestamp) -> bool {
        self.phase = Phase::Failed { at: now, reason: reason.to_owned() };
        true
    }
}
