//! What the gate says of itself.

use std::{fmt, time::Duration};

use super::{Facts, record::Phase};
use crate::{
    drain::Report,
    node::status::{DrainStatus, Requester},
};

/// What the status file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    pub status: DrainStatus,
    pub requested_by: Requester,
}

impl Published {
    pub(super) fn of(phase: &Phase, facts: &Facts) -> Self {
        let derived = match phase {
            Phase::Failed { end, .. } | Phase::Complete { end, .. } => end.turn.requester,
            Phase::Idle => Requester::Nobody,
            Phase::Requested { .. }
            | Phase::Starting(_)
            | Phase::Draining { .. }
            | Phase::Pausing(_) => facts.requests.first(),
        };
        // One that completes is taken into the record.
        if let Some(forced) = facts.force.filter(|one| one.status != DrainStatus::Complete) {
            let named = forced.requested_by != Requester::Nobody;
            let requested_by = if named { forced.requested_by } else { derived };
            return Self { status: forced.status, requested_by };
        }
        let alone = !facts.clustered && *phase == Phase::Idle;
        let status = if alone { DrainStatus::NotSupported } else { phase.status() };
        Self { status, requested_by: derived }
    }
}

/// Whether a device operation waits for a drain, as the device's own status shows it: from
/// REQUESTED until COMPLETE, and after a failure too, since it is asked for again.
pub fn is_waiting_for_drain(before: bool, seen: Published) -> bool {
    match seen.status {
        DrainStatus::Unknown | DrainStatus::NotSupported | DrainStatus::NotRequested => false,
        _ if seen.requested_by != Requester::DeviceOperation => before,
        DrainStatus::Complete => false,
        DrainStatus::Requested
        | DrainStatus::Starting
        | DrainStatus::Cordoned
        | DrainStatus::FailedCordon
        | DrainStatus::DrainRetrying
        | DrainStatus::FailedDrain => true,
    }
}

/// So many are named in the status; the drain's own report has them all.
const BLOCKERS: usize = 5;

/// The pods that keep the node from being empty, with their budgets, a sentence each.
pub fn name_blockers(report: &Report) -> Vec<String> {
    let blocking = report.waiting.iter().filter(|waiting| waiting.blocks());
    blocking.take(BLOCKERS).map(ToString::to_string).collect()
}

/// How long a drain took, as a line that people search the log for.
pub fn completion_line(took: Duration) -> String {
    format!("kubevirt_node_drain_completion_time_seconds:s{:.6}", took.as_secs_f64())
}

/// Why the gate does not go on. Its text is a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// The force file is there; nothing is begun.
    Forced,
    /// Other machines of the cluster are out of service.
    Guard(String),
    Api {
        silent: Duration,
        of: Duration,
        why: String,
    },
    CordonedBy(String),
    /// The cordon of the last drain is being taken back.
    Uncordon,
    Cordon,
    CordonRetry {
        tries: u32,
        reason: String,
    },
    /// The drain engine says what it waits for.
    Drain,
    DrainRetry {
        attempt: u32,
        tries: u32,
        reason: String,
    },
    Failed(String),
    /// Our cordon stays until the node is ready.
    NodeNotReady,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Forced => f.write_str("the status is given by the force file"),
            Wait::Guard(reason) => write!(f, "the node must stay in service for now: {reason}"),
            Wait::Api { silent, of, why } => write!(
                f,
                "the cluster has not answered for {} of {} s: {why}",
                silent.as_secs(),
                of.as_secs()
            ),
            Wait::CordonedBy(owner) => write!(f, "the node is cordoned by {owner}"),
            Wait::Uncordon => f.write_str("the cordon of the last drain is taken back first"),
            Wait::Cordon => f.write_str("the node is being cordoned"),
            Wait::CordonRetry { tries, reason } => {
                write!(f, "the node could not be cordoned at try {tries}: {reason}")
            }
            Wait::Drain => f.write_str("the node is being drained"),
            Wait::DrainRetry { attempt, tries, reason } => {
                write!(f, "try {attempt} of {tries} to drain the node failed: {reason}")
            }
            Wait::Failed(reason) => f.write_str(reason),
            Wait::NodeNotReady => f.write_str("the node is not ready for its pods yet"),
        }
    }
}
