//! What comes of the gate's effects, written into its record.
//!
//! The shell stores what this changes. Outcomes of what is not under way any more change nothing.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    Policy,
    record::{End, How, Pause, Phase, Record, Requests, Starting, Turn},
};
use crate::drain::Failure;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    CordonFailed(String),
    Drained,
    /// A try broke off by an error that is no refusal.
    DrainBroken(String),
    /// The drain was given up for good: its time is over, or a person took the cordon away.
    DrainGivenUp(String),
}

impl From<&Failure> for Outcome {
    /// How the drain engine gave up.
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Broken { .. } => Outcome::DrainBroken(failure.to_string()),
            Failure::Deadline { .. }
            | Failure::Jobs { .. }
            | Failure::Refused { .. }
            | Failure::UncordonedByAPerson => Outcome::DrainGivenUp(failure.to_string()),
        }
    }
}

/// Applies an outcome; whether the record has changed.
pub fn apply(
    record: &mut Record,
    outcome: Outcome,
    asked: &Requests,
    now: Timestamp,
    policy: &Policy,
) -> bool {
    let next = match (&record.phase, outcome) {
        (Phase::Starting(starting), Outcome::CordonFailed(reason)) => {
            let tries = starting.tries.saturating_add(1);
            Phase::Starting(Starting { tries, last_try: Some(now), reason, ..starting.clone() })
        }
        (Phase::Draining { begun, .. }, Outcome::Drained) => {
            let took = Duration::try_from(now.duration_since(*begun)).unwrap_or(Duration::ZERO);
            record.last_took = Some(took);
            let turn = Turn::first(asked, now);
            let end = End { at: now, turn, reason: "the node is empty".to_owned() };
            Phase::Complete { end, how: How::Drained { took } }
        }
        (Phase::Draining { attempt, .. }, Outcome::DrainBroken(why))
            if *attempt >= policy.drain_tries =>
        {
            Phase::failed_drain(&why, asked, now)
        }
        (Phase::Draining { begun, attempt }, Outcome::DrainBroken(reason)) => {
            Phase::Pausing(Pause { begun: *begun, attempt: *attempt, since: now, reason })
        }
        (Phase::Draining { .. }, Outcome::DrainGivenUp(why)) => {
            Phase::failed_drain(&why, asked, now)
        }
        (
            Phase::Idle
            | Phase::Requested { .. }
            | Phase::Starting(_)
            | Phase::Draining { .. }
            | Phase::Pausing(_)
            | Phase::Failed { .. }
            | Phase::Complete { .. },
            Outcome::CordonFailed(_)
            | Outcome::Drained
            | Outcome::DrainBroken(_)
            | Outcome::DrainGivenUp(_),
        ) => return false,
    };
    record.phase = next;
    true
}
