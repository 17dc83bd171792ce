//! What the gate remembers.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{TURN, is_over};
use crate::node::status::{DrainStatus, Requester};

/// Stored on the node before anything is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The boot that all this is about.
    pub boot_id: String,
    /// The node has not been ready since it was booted, so that our cordon stays.
    pub awaits_ready: bool,
    pub phase: Phase,
    /// How long the last drain took that emptied the node. Who collects it comes after the reboot that
    /// the drain was for.
    #[serde(default)]
    pub last_took: Option<Duration>,
}

impl Record {
    /// Of a node that was never drained, at the first look after a boot.
    pub fn new(boot_id: &str) -> Self {
        let (awaits_ready, phase) = (true, Phase::Idle);
        Self { boot_id: boot_id.to_owned(), awaits_ready, phase, last_took: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Nobody asks, or the node is alone.
    Idle,
    Requested {
        since: Timestamp,
    },
    /// The node is being cordoned.
    Starting(Starting),
    /// The node is being emptied.
    Draining {
        /// The first try.
        begun: Timestamp,
        /// From 1.
        attempt: u32,
    },
    /// A try has failed; the next one comes later.
    Pausing(Pause),
    Failed {
        cordoned: bool,
        end: End,
    },
    /// The node may be taken out of service.
    Complete {
        end: End,
        how: How,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starting {
    pub since: Timestamp,
    /// So many tries have failed, the last one at this time and for this reason.
    pub tries: u32,
    pub last_try: Option<Timestamp>,
    pub reason: String,
    /// For so long the cluster has not answered, up to this look.
    pub silent: Duration,
    pub looked: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// The first try.
    pub begun: Timestamp,
    /// The one that has failed.
    pub attempt: u32,
    pub since: Timestamp,
    pub reason: String,
}

impl Starting {
    pub(super) fn new(since: Timestamp, now: Timestamp) -> Self {
        let (tries, last_try, reason) = (0, None, String::new());
        Self { since, tries, last_try, reason, silent: Duration::ZERO, looked: now }
    }
}

/// Why the node may be taken out of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// It is empty.
    Drained { took: Duration },
    /// The cluster does not answer.
    Skipped,
    /// A person said so.
    Forced,
    /// A person said so, and for whom; that one has the turn.
    ForcedForOne,
}

/// How a drain ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub at: Timestamp,
    pub turn: Turn,
    pub reason: String,
}

/// To whom the end is being told. There is one status for two requesters who look for their own
/// number in it, so that they are told by turns: first the update, so that it is in place when the
/// device operation reboots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    pub requester: Requester,
    pub since: Timestamp,
    /// The requests that this end answers.
    pub answered: Requests,
}

/// A wish that the node be drained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub at: Option<Timestamp>,
    pub context: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Requests {
    pub device_operation: Option<Request>,
    pub update: Option<Request>,
}

impl Requests {
    pub fn is_empty(&self) -> bool {
        self.device_operation.is_none() && self.update.is_none()
    }

    pub fn get(&self, requester: Requester) -> Option<&Request> {
        match requester {
            Requester::Nobody => None,
            Requester::DeviceOperation => self.device_operation.as_ref(),
            Requester::Update => self.update.as_ref(),
        }
    }

    /// Who is named while the drain is under way.
    pub fn first(&self) -> Requester {
        if self.device_operation.is_some() {
            Requester::DeviceOperation
        } else if self.update.is_some() {
            Requester::Update
        } else {
            Requester::Nobody
        }
    }
}

/// The order in which an end is told.
const ORDER: [Requester; 2] = [Requester::Update, Requester::DeviceOperation];

impl Turn {
    pub(super) fn first(asked: &Requests, now: Timestamp) -> Self {
        let requester = ORDER.into_iter().find(|one| asked.get(*one).is_some());
        Self::of(requester.unwrap_or(Requester::Nobody), asked, now)
    }

    pub(super) fn forced(requester: Requester, asked: &Requests, now: Timestamp) -> Self {
        match requester {
            Requester::Nobody => Self::first(asked, now),
            Requester::DeviceOperation | Requester::Update => Self::of(requester, asked, now),
        }
    }

    fn of(requester: Requester, asked: &Requests, now: Timestamp) -> Self {
        Self { requester, since: now, answered: asked.clone() }
    }

    /// There is a request that this end does not answer.
    pub(super) fn is_news(&self, asked: &Requests) -> bool {
        let is_new = |one: Requester| asked.get(one) != self.answered.get(one);
        ORDER.into_iter().any(|one| asked.get(one).is_some() && is_new(one))
    }

    /// Who else is to be told.
    pub(super) fn other(&self, asked: &Requests) -> Option<Requester> {
        ORDER.into_iter().find(|one| *one != self.requester && asked.get(*one).is_some())
    }

    /// The next turn, when it has come; who has missed theirs gets another. All who ask are answered,
    /// and a request that is withdrawn is forgotten, so that the same one made again is a new one.
    pub(super) fn next(&self, asked: &Requests, now: Timestamp) -> Option<Self> {
        let mut next = Self { answered: asked.clone(), ..self.clone() };
        let served = asked.get(self.requester).is_none() || is_over(self.since, TURN, now);
        if let Some(other) = self.other(asked).filter(|_| served) {
            (next.requester, next.since) = (other, now);
        }
        (next != *self).then_some(next)
    }
}

impl Phase {
    pub(super) fn failed_cordon(reason: &str, asked: &Requests, now: Timestamp) -> Self {
        Self::failed(false, reason, asked, now)
    }

    pub(super) fn failed_drain(reason: &str, asked: &Requests, now: Timestamp) -> Self {
        Self::failed(true, reason, asked, now)
    }

    fn failed(cordoned: bool, reason: &str, asked: &Requests, now: Timestamp) -> Self {
        let turn = Turn::first(asked, now);
        Self::Failed { cordoned, end: End { at: now, turn, reason: reason.to_owned() } }
    }

    /// Whether the drain is over, well or badly.
    pub fn is_end(&self) -> bool {
        match self {
            Phase::Failed { .. } | Phase::Complete { .. } => true,
            Phase::Idle
            | Phase::Requested { .. }
            | Phase::Starting(_)
            | Phase::Draining { .. }
            | Phase::Pausing(_) => false,
        }
    }

    pub(super) fn with_turn(&self, turn: Turn) -> Self {
        let mut phase = self.clone();
        if let Phase::Failed { end, .. } | Phase::Complete { end, .. } = &mut phase {
            end.turn = turn;
        }
        phase
    }

    /// The published word, on a node that is not alone.
    pub fn status(&self) -> DrainStatus {
        match self {
            Phase::Idle => DrainStatus::NotRequested,
            Phase::Requested { .. } => DrainStatus::Requested,
            Phase::Starting(_) => DrainStatus::Starting,
            Phase::Draining { attempt: 0 | 1, .. } => DrainStatus::Cordoned,
            Phase::Draining { .. } | Phase::Pausing(_) => DrainStatus::DrainRetrying,
            Phase::Failed { cordoned: false, .. } => DrainStatus::FailedCordon,
            Phase::Failed { cordoned: true, .. } => DrainStatus::FailedDrain,
            Phase::Complete { .. } => DrainStatus::Complete,
        }
    }
}
