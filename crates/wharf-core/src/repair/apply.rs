//! What comes of a drain or a command, written into the entry.
//!
//! The shell reads the entry anew, applies the outcome and stores it by compare-and-swap; if
//! somebody wrote in between it does so again. Outcomes of what is not under way any more (the
//! entry was finished or given back meanwhile) change nothing.

use jiff::Timestamp;

use super::{
    command::{End, Exit},
    config::{OnFailure, RepairConfig, Step, later},
    entry::{BlockingPod, Entry, Phase, TAIL, head, tail},
};
use crate::drain::Failure;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The drain has ended well.
    Drained,
    /// The drain was given up; the node is as it was.
    DrainFailed(Failure),
    /// The drain ended for a reason outside of it: the cluster refuses, or does not answer.
    DrainBroken(String),
    /// The volumes of the node are taken from it, as far as they could be. What it holds yet is
    /// explained.
    VolumesFenced { since: Timestamp, left: Vec<String> },
    /// The command that was begun at this time has ended.
    CommandEnded { begun: Timestamp, end: End },
}

/// Applies an outcome; whether the entry has changed.
pub fn apply(config: &RepairConfig, entry: &mut Entry, outcome: Outcome, now: Timestamp) -> bool {
    let draining = matches!(entry.phase, Phase::Draining { .. });
    match outcome {
        Outcome::Drained if draining => {
            entry.blocking_pods.clear();
            entry.move_to(Phase::Drained { since: now }, "the node is drained", now);
        }
        Outcome::DrainFailed(failure) if draining => {
            entry.blocking_pods = BlockingPod::of(failure.waiting());
            entry.back_off(config.backoff_base_seconds, &failure.to_string(), now);
        }
        Outcome::DrainBroken(reason) if draining => {
            entry.back_off(config.backoff_base_seconds, &reason, now);
        }
        Outcome::CommandEnded { begun, end } if entry.phase.command_begun() == Some(begun) => {
            command_ended(config, entry, &end, now);
        }
        Outcome::VolumesFenced { since, left } if entry.phase == (Phase::Fencing { since }) => {
            let reason = match left.is_empty() {
                true => "the node holds no volume any more".to_owned(),
                false => format!("the node still holds volumes: {}", left.join("; ")),
            };
            entry.move_to(Phase::Drained { since: now }, &reason, now);
        }
        Outcome::Drained
        | Outcome::VolumesFenced { .. }
        | Outcome::DrainFailed(_)
        | Outcome::DrainBroken(_)
        | Outcome::CommandEnded { .. } => return false,
    }
    true
}

fn command_ended(config: &RepairConfig, entry: &mut Entry, end: &End, now: Timestamp) {
    entry.last_exit_code = match end.exit {
        Exit::Code(code) => Some(code),
        // As a shell says it.
        Exit::Signal(signal) => Some(128_i32.saturating_add(signal)),
        Exit::TimedOut | Exit::NotStarted(_) => None,
    };
    entry.stdout_tail = tail(&end.stdout, TAIL);
    entry.stderr_tail = tail(&end.stderr, TAIL);
    let well = end.exit.is_success();
    match entry.phase {
        Phase::Commanding { attempt, .. } => {
            let operation = config.operation(&entry.machine_type, &entry.operation);
            let step = operation.and_then(|operation| operation.repair_steps.get(entry.step));
            match step {
                Some(step) => repair_ended(entry, step, attempt, &end.exit, now),
                // The next pass says that there is no such procedure any more.
                None => entry.move_to(Phase::Watching { since: now }, "the command has ended", now),
            }
        }
        Phase::Succeeding { .. } if well => entry.end(true, "the machine is healthy", now),
        Phase::Succeeding { .. } => {
            entry.end(false, &format!("the success command {}", end.exit), now);
        }
        Phase::Failing { .. } => {
            let mut reason = entry.reason.clone();
            if !well {
                // Room for this at the end of a long reason.
                reason = format!("{}; the failure command {}", head(&reason, 768), end.exit);
            }
            entry.end(false, &reason, now);
        }
        Phase::Queued
        | Phase::Waiting
        | Phase::Stepping { .. }
        | Phase::Draining { .. }
        | Phase::Drained { .. }
        | Phase::Fencing { .. }
        | Phase::Pausing { .. }
        | Phase::Watching { .. }
        | Phase::Succeeded { .. }
        | Phase::Failed { .. } => {}
    }
}

fn repair_ended(entry: &mut Entry, step: &Step, attempt: u32, exit: &Exit, now: Timestamp) {
    if exit.is_success() {
        entry.fenced |= step.fence_volumes;
        let reason = "the command has succeeded; the machine is watched";
        return entry.move_to(Phase::Watching { since: now }, reason, now);
    }
    if attempt <= step.command_retries {
        let until = later(now, step.command_interval);
        let reason = format!("the command {exit} at attempt {attempt}");
        return entry.move_to(Phase::Pausing { attempt: attempt + 1, until }, &reason, now);
    }
    let reason = format!("the command of step {} {exit}", entry.step);
    match step.on_failure {
        OnFailure::Stop => entry.move_to(Phase::Failing { begun: None }, &reason, now),
        OnFailure::Continue => {
            let reason = format!("{reason}; the machine is watched all the same");
            entry.move_to(Phase::Watching { since: now }, &reason, now);
        }
    }
}
