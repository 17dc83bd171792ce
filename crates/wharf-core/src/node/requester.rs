//! The other side of the gate: reboots, shutdowns and updates that wait until the node is drained.
//!
//! Every wish has an id and becomes a [`Job`] in a [`Journal`], which is stored before anything is
//! done. Which requests are published follows from the journal, so that a restart publishes the same.
//!
//! **Guarantee:** a job is carried out once. A reboot or a shutdown is over when the node has booted
//! again; until then ordering it twice is ordering it once. An update's command is begun once: one
//! that a restart cut off is not repeated, and its job has failed. The same holds for a journal that was
//! lost after a wish was taken over, where whoever wishes says so: see [`Wish::taken_in`].
//!
//! **Assumption:** the gate looks at requests before this looks at its answer, and what is begun is
//! in the [`Facts`] of the next look.
//!
//! Start reading at [`decide_jobs`].

mod journal;

#[cfg(test)]
mod tests;

use std::{fmt, time::Duration};

use jiff::Timestamp;

use super::{
    gate::{Published, Requests, is_over, later},
    status::{DrainStatus, Requester, SwState},
};

pub use journal::{Job, Journal, Kind, Phase};

/// After a failed drain it is asked for again; each time the pause doubles, up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// For so long after a request an end may be that of an earlier one, which the gate has not taken
/// back yet.
const SETTLE: Duration = Duration::from_secs(2);
/// A node that is still up so long after it was told to go down will not go by itself.
const LEAVING: Duration = Duration::from_secs(900);

/// What a drain status means for whoever waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Ask for a drain, and wait.
    Ask,
    Wait,
    Go,
}

/// The table of all statuses.
pub fn answer(status: DrainStatus) -> Answer {
    match status {
        DrainStatus::NotRequested | DrainStatus::FailedCordon | DrainStatus::FailedDrain => {
            Answer::Ask
        }
        DrainStatus::Requested
        | DrainStatus::Starting
        | DrainStatus::Cordoned
        | DrainStatus::DrainRetrying => Answer::Wait,
        DrainStatus::Unknown | DrainStatus::NotSupported | DrainStatus::Complete => Answer::Go,
    }
}

/// What is known at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub boot_id: String,
    /// The last device operation that each of those who may wish for one wanted; of several new ones
    /// the last counts. When none is known, that cancels nothing.
    pub device_operations: Vec<Wish>,
    pub updates: Vec<UpdateWish>,
    /// What the gate publishes, or the force file.
    pub drain: Published,
    /// This process is running the update's command. None that an earlier one began is left.
    pub commanding: bool,
    /// For this job this process has told the node to go down, and nothing speaks against its doing so.
    pub ordered: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    pub id: String,
    pub power: Power,
    pub canceled: bool,
    /// In which boot an agent of this node took it over, if one did.
    pub taken_in: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    Reboot,
    Shutdown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateWish {
    pub id: String,
    pub image: Image,
    /// It is to be put in place, and not only fetched.
    pub activate: bool,
    pub canceled: bool,
    /// As of a [`Wish`].
    pub taken_in: Option<String>,
}

/// How far the new base OS is on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    Fetching,
    Loading,
    Loaded,
    Installed,
    Failed(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// To be stored before anything else.
    pub journal: Option<Journal>,
    /// What the request files are to say.
    pub requests: Requests,
    pub effects: Vec<Effect>,
    pub waits: Vec<(Requester, Wait)>,
    pub wake_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Take the node down for the job with this id. May be done twice.
    Leave { id: String, power: Power },
    /// Put the update with this id in place. Is done once.
    Command { id: String },
}

/// What came of an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The update is in place; the node is to reboot into it.
    Commanded,
    CommandFailed(String),
    /// The node could not be told to go down.
    LeaveFailed(String),
}

/// Decides what becomes of the wishes. A drain that has failed is asked for again after `retry`.
pub fn decide_jobs(journal: &Journal, facts: &Facts, now: Timestamp, retry: Duration) -> Decision {
    let mut next = journal.clone();
    next.take_over(facts, now);
    let mut look = Look { facts, now, retry, waits: Vec::new(), wake_at: None };
    // The update comes first, so that it is in place when the node goes down.
    let update = next.update.take();
    next.update = update.map(|job| look.advance(Requester::Update, job, &next));
    let device = next.device_operation.take();
    next.device_operation = device.map(|job| look.advance(Requester::DeviceOperation, job, &next));
    let effects = look.effects(journal, &next);
    let changed = next != *journal;
    let wake_at = if changed { Some(now) } else { look.wake_at };
    let requests = next.requests();
    let journal = changed.then_some(next);
    Decision { journal, requests, effects, waits: look.waits, wake_at }
}

/// Writes down what came of an effect; whether the journal has changed.
pub fn apply(journal: &mut Journal, outcome: Outcome, now: Timestamp) -> bool {
    let jobs = [&mut journal.update, &mut journal.device_operation];
    let mut jobs = jobs.into_iter().flatten();
    match outcome {
        Outcome::Commanded => jobs.any(|job| job.commanded(now)),
        Outcome::CommandFailed(reason) => jobs.any(|job| {
            let commanding = matches!(job.phase, Phase::Commanding { .. });
            commanding && job.fail(&reason, now)
        }),
        Outcome::LeaveFailed(reason) => jobs.any(|job| {
            let leaving = matches!(job.phase, Phase::Leaving { .. });
            leaving && job.fail(&reason, now)
        }),
    }
}

/// What is said of the base OS of an update: its state, and whether the node runs it. Of one that is not
/// wanted any more nothing is. Once a job is over its image tells nothing.
pub fn base_os_state(image: &Image, job: &Job) -> Option<(SwState, bool)> {
    let state = match (&job.phase, image) {
        (Phase::Canceled { .. }, _) => return None,
        (Phase::Done { .. }, _) => return Some((SwState::Installed, true)),
        (Phase::Failed { .. }, _) => SwState::Failed,
        (Phase::Leaving { .. }, _) => SwState::Installed,
        (Phase::Preparing { .. } | Phase::Deferred { .. } | Phase::Commanding { .. }, image) => {
            match image {
                Image::Fetching => SwState::Downloading,
                Image::Loading => SwState::Loading,
                Image::Loaded => SwState::Loaded,
                Image::Installed => SwState::Installed,
                Image::Failed(_) => SwState::Failed,
            }
        }
    };
    Some((state, false))
}

struct Look<'a> {
    facts: &'a Facts,
    now: Timestamp,
    retry: Duration,
    waits: Vec<(Requester, Wait)>,
    wake_at: Option<Timestamp>,
}

impl Look<'_> {
    fn advance(&mut self, me: Requester, mut job: Job, others: &Journal) -> Job {
        match job.phase.clone() {
            Phase::Preparing { request } => {
                if self.is_ready(&job) {
                    job.phase = Phase::deferred(request);
                } else if let Some(reason) = self.image_fault(&job) {
                    job.fail(&reason, self.now);
                } else {
                    self.wait(me, Wait::Image);
                }
            }
            Phase::Deferred { .. } => self.defer(me, &mut job, others),
            Phase::Commanding { boot_id, .. } => {
                if boot_id != self.facts.boot_id || !self.facts.commanding {
                    job.fail("the update was cut off by a restart and is not repeated", self.now);
                } else {
                    self.wait(me, Wait::Command);
                }
            }
            Phase::Leaving { boot_id, since, .. } => {
                if boot_id != self.facts.boot_id {
                    job.phase = Phase::Done { at: self.now };
                } else if self.is_ordered(&job) && is_over(since, LEAVING, self.now) {
                    job.fail("the node is still up", self.now);
                } else {
                    self.wait(me, Wait::Leaving);
                    self.wake_after(since, LEAVING);
                }
            }
            Phase::Done { .. } | Phase::Failed { .. } | Phase::Canceled { .. } => {}
        }
        job
    }

    /// Waits for the drain, and goes when it is over.
    fn defer(&mut self, me: Requester, job: &mut Job, others: &Journal) {
        let Phase::Deferred { request, failures, paused, .. } = &job.phase else { return };
        let (asked, failures, paused) = (*request, *failures, *paused);
        if let Some(reason) = self.image_fault(job) {
            job.fail(&reason, self.now);
            return;
        }
        match self.answer(me, asked) {
            Say::Go if others.is_leaving() => self.wait(me, Wait::Other),
            Say::Go if !self.is_ready(job) => self.wait(me, Wait::Image),
            Say::Go => job.go(&self.facts.boot_id, self.now),
            Say::Wait => {
                self.wait(me, Wait::Drain(self.facts.drain.status));
                asked.into_iter().for_each(|at| self.wake_after(at, SETTLE));
            }
            Say::Failed => job.pause(self.facts.drain.status, self.now),
            Say::Ask => {
                let pause = pause_after(failures, self.retry);
                match paused.filter(|since| !is_over(*since, pause, self.now)) {
                    Some(since) => {
                        self.wait(me, Wait::Pause { failures });
                        self.wake_after(since, pause);
                    }
                    None => job.ask(self.now),
                }
            }
        }
    }

    /// What the gate says to one requester. An end that is told to the other, or that was there before
    /// anybody asked, is not ours.
    fn answer(&self, me: Requester, asked: Option<Timestamp>) -> Say {
        let Published { status, requested_by } = self.facts.drain;
        let settled = asked.is_some_and(|at| is_over(at, SETTLE, self.now));
        let ours = settled && (requested_by == me || requested_by == Requester::Nobody);
        match answer(status) {
            Answer::Go if status != DrainStatus::Complete || ours => Say::Go,
            Answer::Ask if ours && status.is_failure() => Say::Failed,
            Answer::Go | Answer::Ask | Answer::Wait if asked.is_some() => Say::Wait,
            Answer::Go | Answer::Ask | Answer::Wait => Say::Ask,
        }
    }

    fn effects(&self, before: &Journal, after: &Journal) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (old, new) in
            [(&before.update, &after.update), (&before.device_operation, &after.device_operation)]
        {
            let Some(job) = new else { continue };
            match &job.phase {
                Phase::Commanding { .. } if old.as_ref() != Some(job) => {
                    effects.push(Effect::Command { id: job.id.clone() });
                }
                Phase::Leaving { .. } if !self.is_ordered(job) => {
                    effects.push(Effect::Leave { id: job.id.clone(), power: job.kind.power() });
                }
                Phase::Preparing { .. }
                | Phase::Deferred { .. }
                | Phase::Commanding { .. }
                | Phase::Leaving { .. }
                | Phase::Done { .. }
                | Phase::Failed { .. }
                | Phase::Canceled { .. } => {}
            }
        }
        effects
    }

    /// An order that was given for another job came to nothing: that one has failed.
    fn is_ordered(&self, job: &Job) -> bool {
        self.facts.ordered.as_ref() == Some(&job.id)
    }

    /// Whether what the job needs is on the node. A device operation needs nothing.
    fn is_ready(&self, job: &Job) -> bool {
        match (job.kind, self.wish(job)) {
            (Kind::Reboot | Kind::Shutdown, _) => true,
            (Kind::Update, Some(wish)) => {
                wish.activate && matches!(wish.image, Image::Loaded | Image::Installed)
            }
            (Kind::Update, None) => false,
        }
    }

    fn image_fault(&self, job: &Job) -> Option<String> {
        match &self.wish(job)?.image {
            Image::Failed(reason) => Some(reason.clone()),
            Image::Fetching | Image::Loading | Image::Loaded | Image::Installed => None,
        }
    }

    fn wish(&self, job: &Job) -> Option<&UpdateWish> {
        let mut wishes = self.facts.updates.iter();
        wishes.find(|wish| job.kind == Kind::Update && wish.id == job.id)
    }

    fn wait(&mut self, me: Requester, wait: Wait) {
        self.waits.push((me, wait));
    }

    /// What is over already wakes nobody.
    fn wake_after(&mut self, since: Timestamp, wait: Duration) {
        let at = later(since, wait);
        if at > self.now {
            self.wake_at = Some(self.wake_at.map_or(at, |known| known.min(at)));
        }
    }
}

enum Say {
    Ask,
    Wait,
    Go,
    Failed,
}

/// Who wants longer pauses from the beginning has them.
fn pause_after(failures: u32, retry: Duration) -> Duration {
    let doubled = retry.saturating_mul(1 << failures.saturating_sub(1).min(10));
    doubled.min(LONGEST_PAUSE.max(retry))
}

/// Why a job does not go on. Its text is a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// For the new base OS.
    Image,
    Drain(DrainStatus),
    Pause {
        failures: u32,
    },
    /// The other job is taking the node down.
    Other,
    Command,
    Leaving,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Image => f.write_str("the new base OS is not on the node yet"),
            Wait::Drain(status) => {
                write!(f, "the node is drained first; the drain is at {}", status.name())
            }
            Wait::Pause { failures } => {
                write!(f, "the drain failed {failures} times and is asked for again in a while")
            }
            Wait::Other => f.write_str("the node is going down for another reason"),
            Wait::Command => f.write_str("the update is being put in place"),
            Wait::Leaving => f.write_str("the node is going down"),
        }
    }
}
