//! Operations.

use wharf_api::{operation as wire, resource::Head};
use wharf_core::operation::{OperationRecord, Phase, Step};
use wharf_store::Stored;

use super::only_self;

/// An operation without its log, for lists.
pub fn operation(prefix: &str, stored: &Stored<OperationRecord>) -> wire::Operation {
    let record = &stored.value;
    let head = Head {
        id: stored.id.clone(),
        type_: "operation".to_owned(),
        links: only_self(&format!("{prefix}/operations"), &stored.id),
        creation_timestamp: record.started_at,
        deletion_timestamp: None,
    };
    let leftover = |left: &wharf_core::operation::Leftover| wire::Leftover {
        host: left.host.clone(),
        reason: left.reason.clone(),
        items: left.items.clone(),
    };
    wire::Operation {
        head,
        cluster: record.cluster.clone(),
        kind: record.kind.name().to_owned(),
        state: record.state.name().to_owned(),
        percent: record.percent(),
        started_at: record.started_at,
        ended_at: record.ended_at,
        error: record.error.clone(),
        hint: record.hint.clone(),
        phases: record.phases.iter().map(phase).collect(),
        steps: record.steps.iter().map(step).collect(),
        leftovers: record.leftovers.iter().map(leftover).collect(),
        log: None,
        log_start: None,
    }
}

pub fn operation_with_log(prefix: &str, stored: &Stored<OperationRecord>) -> wire::Operation {
    let lines = stored.value.log.iter();
    let lines = lines.map(|line| wire::LogLine { at: line.at, text: line.text.clone() });
    wire::Operation {
        log: Some(lines.collect()),
        log_start: Some(stored.value.log_start),
        ..operation(prefix, stored)
    }
}

fn phase(phase: &Phase) -> wire::Phase {
    wire::Phase {
        name: phase.name.clone(),
        state: phase.state.name().to_owned(),
        started_at: phase.started_at,
        ended_at: phase.ended_at,
    }
}

fn step(step: &Step) -> wire::Step {
    wire::Step {
        phase: step.phase.clone(),
        host: step.host.clone(),
        name: step.name.clone(),
        state: step.state.name().to_owned(),
        started_at: step.started_at,
        ended_at: step.ended_at,
        exit_code: step.exit_code,
        stderr_tail: step.stderr_tail.clone(),
        hint: step.hint.clone(),
    }
}
