//! Drains.

use jiff::Timestamp;
use wharf_api::{
    drain as wire,
    error::{ErrorCode, FieldFault},
    resource::{Head, Links},
};
use wharf_core::drain::{
    Class, DrainOptions, DrainRecord, Jobs, Left, Outlook, Plan, PlannedPod, Prospect, Stage,
    TIMEOUT_SECONDS,
};

use crate::error::{ApiError, ApiResult};

/// A week: longer than any drain should take, and short enough for any arithmetic.
const LONGEST_SECONDS: u32 = 7 * 24 * 3600;

/// What was asked for, or all faults of it.
pub fn options(request: &wire::DrainRequest) -> ApiResult<DrainOptions> {
    let mut faults = Vec::new();
    let mut seconds = |field: &str, given: Option<i64>, least: u32| -> Option<u32> {
        let number = u32::try_from(given?).ok();
        let number = number.filter(|number| (least..=LONGEST_SECONDS).contains(number));
        if number.is_none() {
            let message = format!("{field} must be a number from {least} to {LONGEST_SECONDS}");
            let field = field.to_owned();
            faults.push(FieldFault { field, code: ErrorCode::InvalidOption, message });
        }
        number
    };
    let timeout = seconds("timeoutSeconds", request.timeout_seconds, 1);
    let grace = seconds("gracePeriodSeconds", request.grace_period_seconds, 0);
    let unready = seconds("deleteUnreadyAfterSeconds", request.delete_unready_after_seconds, 0);
    let any = seconds("deleteAfterSeconds", request.delete_after_seconds, 0);
    let volumes = seconds("waitVolumesSeconds", request.wait_volumes_seconds, 0);
    let jobs = match request.jobs.as_deref() {
        None | Some("block") => Jobs::Block,
        Some("wait") => Jobs::Wait,
        Some("delete") => Jobs::Delete,
        Some("evict") => Jobs::Evict,
        Some(other) => {
            let message =
                format!("jobs {other} isn't included in options [block wait delete evict]");
            let field = "jobs".to_owned();
            faults.push(FieldFault { field, code: ErrorCode::InvalidOption, message });
            Jobs::Block
        }
    };
    if !faults.is_empty() {
        return Err(ApiError::invalid(faults));
    }
    Ok(DrainOptions {
        timeout_seconds: timeout.unwrap_or(TIMEOUT_SECONDS),
        jobs,
        grace_period_seconds: grace,
        delete_unready_after_seconds: unready,
        delete_after_seconds: any,
        wait_volumes_seconds: volumes,
        order_by_priority: request.order_by_priority.unwrap_or_default(),
        cordon_first: request.cordon_first.unwrap_or_default(),
    })
}

fn request(options: &DrainOptions) -> wire::DrainRequest {
    let jobs = match options.jobs {
        Jobs::Block => "block",
        Jobs::Wait => "wait",
        Jobs::Delete => "delete",
        Jobs::Evict => "evict",
    };
    wire::DrainRequest {
        timeout_seconds: Some(options.timeout_seconds.into()),
        jobs: Some(jobs.to_owned()),
        grace_period_seconds: options.grace_period_seconds.map(i64::from),
        delete_unready_after_seconds: options.delete_unready_after_seconds.map(i64::from),
        delete_after_seconds: options.delete_after_seconds.map(i64::from),
        wait_volumes_seconds: options.wait_volumes_seconds.map(i64::from),
        order_by_priority: Some(options.order_by_priority),
        cordon_first: Some(options.cordon_first),
    }
}

pub fn drain(prefix: &str, record: &DrainRecord, now: Timestamp) -> wire::Drain {
    let cluster = format!("{prefix}/clusters/{}", record.cluster);
    let links = Links::from([
        ("self".to_owned(), format!("{cluster}/nodes/{}/drain", record.node)),
        ("collection".to_owned(), format!("{cluster}/drains")),
        ("node".to_owned(), format!("{cluster}/nodes/{}", record.node)),
    ]);
    let progress = &record.progress;
    wire::Drain {
        head: Head {
            id: record.id.clone(),
            type_: "drain".to_owned(),
            links,
            creation_timestamp: record.started_at,
            deletion_timestamp: None,
        },
        cluster: record.cluster.clone(),
        node: record.node.clone(),
        state: record.state.name().to_owned(),
        canceled: record.canceled,
        timed_out: record.timed_out,
        cordon_left: record.cordon_left,
        requested_by: record.requested_by.clone(),
        options: request(&record.options),
        started_at: record.started_at,
        ended_at: record.ended_at,
        reason: record.reason.clone(),
        stage: stage(progress.stage).to_owned(),
        total: progress.total,
        left: progress.left,
        given_up: progress.given_up,
        pods: progress.pods.iter().map(|pod| left(pod, record.ended_at.unwrap_or(now))).collect(),
    }
}

fn stage(stage: Option<Stage>) -> &'static str {
    match stage {
        None => "waiting",
        Some(Stage::Rehearsing) => "rehearsing",
        Some(Stage::Evicting) => "evicting",
        Some(Stage::Detaching) => "detaching",
        Some(Stage::Gone) => "gone",
    }
}

fn left(pod: &Left, now: Timestamp) -> wire::PodLeft {
    wire::PodLeft {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        reason: pod.reason.clone(),
        since: pod.since,
        age_seconds: u64::try_from(now.duration_since(pod.since).as_secs()).unwrap_or_default(),
        blocks: pod.blocks,
    }
}

pub fn plan(cluster: &str, node: &str, plan: &Plan) -> wire::DrainPlan {
    let verdict = match plan.prospect {
        Prospect::Clear => "clear",
        Prospect::InTurns => "inTurns",
        Prospect::Blocked => "blocked",
        Prospect::Never => "never",
    };
    wire::DrainPlan {
        type_: "drainPlan".to_owned(),
        cluster: cluster.to_owned(),
        node: node.to_owned(),
        verdict: verdict.to_owned(),
        message: plan.prospect.to_string(),
        pods: plan.pods.iter().map(planned).collect(),
    }
}

fn planned(planned: &PlannedPod) -> wire::PlannedPod {
    let (class, action) = match planned.class {
        Class::DaemonSet => ("daemonSet", "stay"),
        Class::Mirror => ("static", "stay"),
        Class::Finished => ("finished", "stay"),
        Class::Terminating => ("terminating", "wait"),
        Class::Lost => ("lost", "ignore"),
        Class::JobBlocks => ("job", "block"),
        Class::JobWaits => ("job", "wait"),
        Class::Evict => ("pod", "evict"),
        Class::Delete => ("pod", "delete"),
    };
    let budgets = planned.budgets.iter().map(|budget| wire::PlannedBudget {
        name: budget.name.clone(),
        allowed: budget.allowed,
        outlook: match budget.outlook {
            Outlook::Now => "now",
            Outlook::Later => "later",
            Outlook::Never => "never",
        }
        .to_owned(),
    });
    wire::PlannedPod {
        namespace: planned.pod.namespace.clone(),
        name: planned.pod.name.clone(),
        uid: planned.pod.uid.clone(),
        class: class.to_owned(),
        action: action.to_owned(),
        budgets: budgets.collect(),
        // What is to be done about it is the hint.
        why: PlannedPod { remark: None, ..planned.clone() }.to_string(),
        hint: planned.remark.clone(),
    }
}
