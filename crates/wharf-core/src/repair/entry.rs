//! An entry of the repair queue: one machine, one operation, and how far it is.
//!
//! Stored and shown are the same JSON: the fields of the schema, then ours. What decides is the
//! [`Phase`]; the words `status` and `step_status` follow from it, so that they cannot contradict.

mod wire;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    drain::{WaitReason, Waiting},
    record::Kind,
};

/// So many transitions are kept. An entry is about 1 KiB as a rule, and at most about 9 KiB with
/// all that is bounded here full.
pub const HISTORY: usize = 20;
/// Of a transition's reason, in bytes.
const HISTORY_REASON: usize = 200;
/// Of each stream, in bytes: enough for the last lines of what went wrong.
pub const TAIL: usize = 1024;
/// So many blocking pods are kept; a node holds 110, but a person reads the first few.
pub const BLOCKING_PODS: usize = 5;
/// Of a blocking pod's reason, in bytes.
const BLOCKING_REASON: usize = 400;
/// Of the entry's reason, in bytes.
pub const REASON: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "wire::Wire", try_from = "wire::Wire")]
pub struct Entry {
    pub index: u64,
    pub address: String,
    /// Empty when the machine is no node of the cluster.
    pub nodename: String,
    pub machine_type: String,
    pub operation: String,
    pub serial: String,
    /// The number of the current step, from 0.
    pub step: usize,
    pub phase: Phase,
    /// In whole seconds.
    pub last_transition: Timestamp,
    pub drain_backoff_count: u32,
    pub drain_backoff_expire: Option<Timestamp>,
    /// Why it is where it is.
    pub reason: String,
    pub history: Vec<Transition>,
    pub last_exit_code: Option<i32>,
    pub stdout_tail: String,
    pub stderr_tail: String,
    pub blocking_pods: Vec<BlockingPod>,
    /// It is to be taken out of the queue.
    pub deleted: bool,
    pub added: Timestamp,
    /// When something was first done for it.
    pub started: Option<Timestamp>,
    /// So many repair commands were begun.
    pub commands_begun: u32,
    /// The machine was proved to be off, so its volumes may be taken away.
    pub fenced: bool,
    /// Its node is marked as one that holds no volumes by right.
    pub volumes_fenced: bool,
    /// A person said that it may go on although the machine was repaired so often.
    pub flap_cleared: bool,
}

impl Kind for Entry {
    const KIND: &'static str = "repair";
}

/// Where an entry is. What is about to be done outside is written down here before it is begun: a
/// command that a crash interrupted is found as `Commanding` without anybody who runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Queued,
    /// Something was begun and given back; the next try comes later.
    Waiting,
    /// At the beginning of a step, with the machine in hand.
    Stepping {
        since: Timestamp,
    },
    Draining {
        since: Timestamp,
    },
    /// The node is empty; the command has not begun.
    Drained {
        since: Timestamp,
    },
    /// The node's volumes are being taken from it; the command has not begun.
    Fencing {
        since: Timestamp,
    },
    Commanding {
        attempt: u32,
        begun: Timestamp,
    },
    /// Before another attempt of the command.
    Pausing {
        attempt: u32,
        until: Timestamp,
    },
    Watching {
        since: Timestamp,
    },
    /// Healthy; `begun` is that of the success command.
    Succeeding {
        begun: Option<Timestamp>,
    },
    /// Given up; `begun` is that of the failure command.
    Failing {
        begun: Option<Timestamp>,
    },
    Succeeded {
        step_status: StepStatus,
    },
    Failed {
        step_status: StepStatus,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Queued,
    Processing,
    Succeeded,
    Failed,
}

impl Status {
    pub const ALL: [Status; 4] =
        [Status::Queued, Status::Processing, Status::Succeeded, Status::Failed];

    pub fn name(self) -> &'static str {
        match self {
            Status::Queued => "queued",
            Status::Processing => "processing",
            Status::Succeeded => "succeeded",
            Status::Failed => "failed",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepStatus {
    Waiting,
    Draining,
    Watching,
}

impl Phase {
    pub fn status(self) -> Status {
        match self {
            Phase::Queued => Status::Queued,
            Phase::Waiting
            | Phase::Stepping { .. }
            | Phase::Draining { .. }
            | Phase::Drained { .. }
            | Phase::Fencing { .. }
            | Phase::Commanding { .. }
            | Phase::Pausing { .. }
            | Phase::Watching { .. }
            | Phase::Succeeding { .. }
            | Phase::Failing { .. } => Status::Processing,
            Phase::Succeeded { .. } => Status::Succeeded,
            Phase::Failed { .. } => Status::Failed,
        }
    }

    /// A command that runs counts as watching, since there is no word for it.
    pub fn step_status(self) -> StepStatus {
        match self {
            Phase::Queued | Phase::Waiting | Phase::Stepping { .. } => StepStatus::Waiting,
            Phase::Draining { .. } | Phase::Drained { .. } | Phase::Fencing { .. } => {
                StepStatus::Draining
            }
            Phase::Commanding { .. }
            | Phase::Pausing { .. }
            | Phase::Watching { .. }
            | Phase::Succeeding { .. }
            | Phase::Failing { .. } => StepStatus::Watching,
            Phase::Succeeded { step_status } | Phase::Failed { step_status } => step_status,
        }
    }

    pub fn is_finished(self) -> bool {
        matches!(self.status(), Status::Succeeded | Status::Failed)
    }

    /// Whether it has the machine in hand: it uses a slot, and our cordon is left where it is.
    pub fn holds(self) -> bool {
        match self {
            Phase::Queued | Phase::Waiting | Phase::Succeeded { .. } | Phase::Failed { .. } => {
                false
            }
            Phase::Stepping { .. }
            | Phase::Draining { .. }
            | Phase::Drained { .. }
            | Phase::Fencing { .. }
            | Phase::Commanding { .. }
            | Phase::Pausing { .. }
            | Phase::Watching { .. }
            | Phase::Succeeding { .. }
            | Phase::Failing { .. } => true,
        }
    }

    /// When the command was begun that this phase waits for.
    pub fn command_begun(self) -> Option<Timestamp> {
        match self {
            Phase::Commanding { begun, .. } => Some(begun),
            Phase::Succeeding { begun } | Phase::Failing { begun } => begun,
            Phase::Queued
            | Phase::Waiting
            | Phase::Stepping { .. }
            | Phase::Draining { .. }
            | Phase::Drained { .. }
            | Phase::Fencing { .. }
            | Phase::Pausing { .. }
            | Phase::Watching { .. }
            | Phase::Succeeded { .. }
            | Phase::Failed { .. } => None,
        }
    }
}

/// One line of an entry's past.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    pub time: Timestamp,
    pub status: Status,
    pub step: usize,
    pub step_status: StepStatus,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockingPod {
    pub namespace: String,
    pub name: String,
    /// The budgets that protect it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<String>,
    /// A sentence, with a hint where there is one.
    pub reason: String,
}

impl BlockingPod {
    /// The pods among what a drain waits for, as many as are kept.
    pub fn of(waiting: &[Waiting]) -> Vec<Self> {
        let pods = waiting.iter().filter_map(|one| one.pod.as_ref().map(|pod| (one, pod)));
        let blocking = pods.take(BLOCKING_PODS).map(|(one, pod)| {
            let budgets = match &one.reason {
                WaitReason::Refused { budgets, .. } => {
                    budgets.iter().map(|budget| budget.name.clone()).collect()
                }
                WaitReason::NotYet
                | WaitReason::Later { .. }
                | WaitReason::Job
                | WaitReason::Terminating
                | WaitReason::Failed { .. }
                | WaitReason::CordonedBy(_)
                | WaitReason::Silent { .. }
                | WaitReason::Volumes(_) => Vec::new(),
            };
            Self {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                budgets,
                reason: head(&one.to_string(), BLOCKING_REASON),
            }
        });
        blocking.collect()
    }
}

impl Entry {
    pub fn new(
        index: u64,
        address: &str,
        machine_type: &str,
        operation: &str,
        now: Timestamp,
    ) -> Self {
        Self {
            index,
            address: address.to_owned(),
            nodename: String::new(),
            machine_type: machine_type.to_owned(),
            operation: operation.to_owned(),
            serial: String::new(),
            step: 0,
            phase: Phase::Queued,
            last_transition: whole_seconds(now),
            drain_backoff_count: 0,
            drain_backoff_expire: None,
            reason: String::new(),
            history: Vec::new(),
            last_exit_code: None,
            stdout_tail: String::new(),
            stderr_tail: String::new(),
            blocking_pods: Vec::new(),
            deleted: false,
            added: now,
            started: None,
            commands_begun: 0,
            fenced: false,
            volumes_fenced: false,
            flap_cleared: false,
        }
    }

    pub fn status(&self) -> Status {
        self.phase.status()
    }

    pub fn is_finished(&self) -> bool {
        self.phase.is_finished()
    }

    /// Whether the next drain is not due yet.
    pub fn is_backing_off(&self, now: Timestamp) -> bool {
        self.phase == Phase::Waiting && self.drain_backoff_expire.is_some_and(|end| now < end)
    }

    /// Goes to another phase, and notes why.
    pub(super) fn move_to(&mut self, phase: Phase, reason: &str, now: Timestamp) {
        let words = |entry: &Self| (entry.status(), entry.step, entry.phase.step_status());
        let before = self.history.last().map(|last| (last.status, last.step, last.step_status));
        self.phase = phase;
        self.reason = head(reason, REASON);
        let (status, step, step_status) = words(self);
        if before != Some((status, step, step_status)) {
            self.last_transition = whole_seconds(now);
        }
        let reason = head(reason, HISTORY_REASON);
        let time = whole_seconds(now);
        self.history.push(Transition { time, status, step, step_status, reason });
        let surplus = self.history.len().saturating_sub(HISTORY);
        self.history.drain(..surplus);
    }

    /// Ends well or badly, with the step's last word kept.
    pub(super) fn end(&mut self, succeeded: bool, reason: &str, now: Timestamp) {
        let step_status = self.phase.step_status();
        let phase = if succeeded {
            Phase::Succeeded { step_status }
        } else {
            Phase::Failed { step_status }
        };
        self.fenced = false;
        self.volumes_fenced = false;
        self.move_to(phase, reason, now);
    }

    /// Gives the machine back until the next try. The waiting time grows with the count and has no
    /// limit: `count` times the base, and up to one base more so that machines that were refused
    /// together do not come back together.
    pub(super) fn back_off(&mut self, base_seconds: u64, reason: &str, now: Timestamp) {
        self.drain_backoff_count = self.drain_backoff_count.saturating_add(1);
        let spread = spread(self.index, self.drain_backoff_count) % base_seconds.max(1);
        let seconds =
            base_seconds.saturating_mul(u64::from(self.drain_backoff_count)).saturating_add(spread);
        self.drain_backoff_expire = Some(whole_seconds(super::config::later(now, seconds)));
        self.give_back(reason, now);
    }

    /// Nothing of the step counts any more.
    pub(super) fn give_back(&mut self, reason: &str, now: Timestamp) {
        self.volumes_fenced = false;
        self.move_to(Phase::Waiting, reason, now);
    }
}

/// A number that differs from entry to entry and from try to try, and is the same at each look.
fn spread(index: u64, count: u32) -> u64 {
    let mut mixed = index.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(u64::from(count));
    for shift in [30, 27, 31] {
        mixed = (mixed ^ (mixed >> shift)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    }
    mixed
}

/// The schema's times have no fractions.
pub(super) fn whole_seconds(time: Timestamp) -> Timestamp {
    let fraction = SignedDuration::from_nanos(i64::from(time.subsec_nanosecond()));
    time.checked_sub(fraction).unwrap_or(time)
}

/// The beginning of a text, cut between characters.
pub(super) fn head(text: &str, bytes: usize) -> String {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or_default().to_owned()
}

/// The end of a text, cut between characters.
pub(super) fn tail(text: &str, bytes: usize) -> String {
    let start = text.ceil_char_boundary(text.len().saturating_sub(bytes));
    text.get(start..).unwrap_or_default().to_owned()
}
