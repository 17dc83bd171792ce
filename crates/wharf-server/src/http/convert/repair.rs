//! The repair queue on the wire.

use jiff::Timestamp;
use wharf_api::repair as wire;
use wharf_core::repair::{BlockingPod, Entry, StepStatus, Transition};

use crate::repair::Live;

/// The schema's word for a time that was never set.
const NEVER: &str = "0001-01-01T00:00:00Z";

pub fn entry(entry: Entry, live: Option<Live>) -> wire::RepairEntry {
    let step_status = step_status(entry.phase.step_status());
    let status = entry.status().name().to_owned();
    let (wait, blocking) = match live {
        Some(live) => (live.wait, live.blocking_pods),
        None => (String::new(), Vec::new()),
    };
    // What a drain says now is newer than what the last one left.
    let blocking = if blocking.is_empty() { entry.blocking_pods } else { blocking };
    wire::RepairEntry {
        index: entry.index.to_string(),
        address: entry.address,
        nodename: entry.nodename,
        machine_type: entry.machine_type,
        operation: entry.operation,
        status,
        step: entry.step,
        step_status,
        last_transition_time: time(Some(entry.last_transition)),
        drain_backoff_count: entry.drain_backoff_count,
        drain_backoff_expire: time(entry.drain_backoff_expire),
        serial: entry.serial,
        deleted: entry.deleted,
        reason: entry.reason,
        wait,
        history: entry.history.into_iter().map(transition).collect(),
        last_exit_code: entry.last_exit_code,
        stdout_tail: entry.stdout_tail,
        stderr_tail: entry.stderr_tail,
        blocking_pods: blocking.into_iter().map(blocking_pod).collect(),
    }
}

fn transition(line: Transition) -> wire::RepairTransition {
    wire::RepairTransition {
        time: time(Some(line.time)),
        status: line.status.name().to_owned(),
        step: line.step,
        step_status: step_status(line.step_status),
        reason: line.reason,
    }
}

fn blocking_pod(pod: BlockingPod) -> wire::BlockingPod {
    let BlockingPod { namespace, name, budgets, reason } = pod;
    wire::BlockingPod { namespace, name, budgets, reason }
}

fn step_status(status: StepStatus) -> String {
    match status {
        StepStatus::Waiting => "waiting",
        StepStatus::Draining => "draining",
        StepStatus::Watching => "watching",
    }
    .to_owned()
}

/// The queue's times have no fractions.
fn time(time: Option<Timestamp>) -> String {
    time.map_or_else(|| NEVER.to_owned(), |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}
