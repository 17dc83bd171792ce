//! Drain: emptying a node without breaking what runs on it.
//!
//! One engine for all callers; what differs between them is the [`Policy`]. The stage of a drain
//! is not stored anywhere: it follows from the facts. A node that does not carry our cordon is
//! still rehearsed, one that carries it is being emptied, so that a crash at any point is only a
//! second look.

mod report;
mod snapshot;

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;

pub use report::{Failure, Report, Stage, WaitReason, Waiting};
pub use snapshot::{
    Answer, Budget, Controller, Cordon, NodeFacts, PodFacts, PodRef, Snapshot, Try,
};

/// How one caller wants nodes to be drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Who cordons, as it is written on the Node, so that nobody lifts another's cordon.
    pub owner: String,
    pub deadline: Timestamp,
    pub order: Order,
    pub jobs: Jobs,
    /// A refused eviction is tried again after this time.
    pub retry: Duration,
    /// So many evictions are asked for before the facts are looked at again.
    pub parallel: usize,
    /// On a node that has not been ready for so long, pods that are terminating count as gone, and
    /// Jobs do not block. `None`: they are waited for.
    pub lost_after: Option<Duration>,
}

/// Half a second: a budget that frees up is used soon, and a blocked drain costs the API server
/// two requests a second for each pod at most.
const RETRY: Duration = Duration::from_millis(500);
/// Enough to empty a full node (110 pods) in a few rounds.
const PARALLEL: usize = 16;
/// Kubernetes itself calls a node unready only after as long a silence; a reboot or a restart of
/// the kubelet is over by then.
const LOST_AFTER: Duration = Duration::from_secs(40);

impl Policy {
    /// For the removal of a node, and for the drain action.
    pub fn removal(owner: &str, deadline: Timestamp) -> Self {
        Self {
            owner: owner.to_owned(),
            deadline,
            order: Order::RehearseFirst,
            jobs: Jobs::Block,
            retry: RETRY,
            parallel: PARALLEL,
            lost_after: Some(LOST_AFTER),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Ask for all evictions without doing them, cordon when all are allowed, then evict: a drain
    /// that cannot succeed leaves no trace.
    RehearseFirst,
    /// Cordon at once.
    CordonFirst,
}

/// What becomes of pods that belong to a Job and are not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jobs {
    /// The drain waits for them.
    Block,
    /// They are evicted like others.
    Evict,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub verdict: Verdict,
    pub actions: Vec<Action>,
    /// When to look again if nothing happens before.
    pub wake_at: Timestamp,
    pub report: Report,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Going,
    /// The node is cordoned and empty, or it is gone.
    Done,
    /// Given up; the actions that come with it undo what was done to the node.
    Failed(Failure),
}

/// Every action may be done twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Ask whether the pod could be evicted, without evicting it.
    Rehearse(PodRef),
    Cordon,
    Evict(PodRef),
    /// Take our cordon back; what was cordoned before stays so.
    Uncordon,
}

/// Decides the next move of a drain.
pub fn decide_drain(snapshot: &Snapshot, now: Timestamp, policy: &Policy) -> Decision {
    let Some(node) = &snapshot.node else {
        return Decision::end(Verdict::Done, Vec::new(), now, Report::new(Stage::Gone, 0));
    };
    if is_lost(node, now, policy) {
        return decide_on_lost_node(snapshot, now, policy);
    }
    let cordon = node.cordon.as_ref().filter(|cordon| cordon.owner == policy.owner);
    match (cordon, &node.cordon) {
        (Some(_), _) if !node.unschedulable => give_up_to_a_person(snapshot, now),
        (Some(_), _) => decide_evictions(snapshot, now, policy),
        (None, Some(other)) => wait_for_other_owner(snapshot, &other.owner, now, policy),
        (None, None) => decide_rehearsal(snapshot, now, policy),
    }
}

fn is_lost(node: &NodeFacts, now: Timestamp, policy: &Policy) -> bool {
    let lost_at = node.unready_since.zip(policy.lost_after);
    lost_at.is_some_and(|(since, after)| since.saturating_add(after).is_ok_and(|at| now >= at))
}

/// Nobody on the node ends a pod, nor says that one has ended: those that are terminating would be
/// waited for in vain, and a Job's pod would never finish.
fn decide_on_lost_node(snapshot: &Snapshot, now: Timestamp, policy: &Policy) -> Decision {
    let (given_up, pods): (Vec<_>, Vec<_>) =
        to_move(snapshot).cloned().partition(|pod| pod.terminating);
    let policy = Policy { lost_after: None, jobs: Jobs::Evict, ..policy.clone() };
    let mut decision = decide_drain(&Snapshot { pods, ..snapshot.clone() }, now, &policy);
    decision.report.given_up = given_up.len();
    decision
}

/// Somebody made the node schedulable again: it is not fought over.
fn give_up_to_a_person(snapshot: &Snapshot, now: Timestamp) -> Decision {
    let report = Report::new(Stage::Evicting, to_move(snapshot).count());
    let failure = Verdict::Failed(Failure::UncordonedByAPerson);
    Decision::end(failure, vec![Action::Uncordon], now, report)
}

fn wait_for_other_owner(
    snapshot: &Snapshot,
    owner: &str,
    now: Timestamp,
    policy: &Policy,
) -> Decision {
    let mut report = Report::new(Stage::Rehearsing, to_move(snapshot).count());
    let reason = WaitReason::CordonedBy(owner.to_owned());
    report.waiting.push(Waiting { pod: None, reason });
    if now >= policy.deadline {
        let failure = Failure::Deadline { waiting: report.waiting.clone() };
        return Decision::end(Verdict::Failed(failure), Vec::new(), now, report);
    }
    Decision::go_on(Vec::new(), now, policy, report)
}

fn decide_rehearsal(snapshot: &Snapshot, now: Timestamp, policy: &Policy) -> Decision {
    let mut report = Report::new(Stage::Rehearsing, to_move(snapshot).count());
    if policy.order == Order::CordonFirst {
        return Decision::go_on(vec![Action::Cordon], now, policy, report);
    }
    let mut due = Vec::new();
    let mut unanswered = 0;
    for pod in to_move(snapshot) {
        match rehearsal(pod, now, policy) {
            Next::Ask => due.push(pod),
            Next::Agreed => continue,
            Next::Wait => {}
        }
        unanswered += 1;
        report.waiting.push(waiting(pod, policy));
    }
    if now >= policy.deadline {
        let failure = Failure::Deadline { waiting: report.waiting.clone() };
        return Decision::end(Verdict::Failed(failure), Vec::new(), now, report);
    }
    let mut actions = in_turn(due, Action::Rehearse, policy);
    if unanswered == 0 {
        actions.push(Action::Cordon);
    }
    Decision::go_on(actions, now, policy, report)
}

fn decide_evictions(snapshot: &Snapshot, now: Timestamp, policy: &Policy) -> Decision {
    let mut report = Report::new(Stage::Evicting, to_move(snapshot).count());
    if report.left == 0 {
        // What was on its way to the node before the cordon shows a moment later.
        let seen = snapshot.empty_since.and_then(|since| since.saturating_add(policy.retry).ok());
        if now >= policy.deadline || seen.is_some_and(|seen| now >= seen) {
            return Decision::end(Verdict::Done, Vec::new(), now, report);
        }
        return Decision::go_on(Vec::new(), now, policy, report);
    }
    let mut due = Vec::new();
    for pod in to_move(snapshot) {
        report.waiting.push(waiting(pod, policy));
        if is_eviction_due(pod, now, policy) {
            due.push(pod);
        }
    }
    if now >= policy.deadline {
        let failure = Failure::Deadline { waiting: report.waiting.clone() };
        return Decision::end(Verdict::Failed(failure), vec![Action::Uncordon], now, report);
    }
    Decision::go_on(in_turn(due, Action::Evict, policy), now, policy, report)
}

/// As many as may be asked for at once: first those that never were, then those whose last try is
/// the longest ago, so that a few that are blocked do not keep the others from their turn.
fn in_turn(
    mut due: Vec<&PodFacts>,
    action: impl Fn(PodRef) -> Action,
    policy: &Policy,
) -> Vec<Action> {
    due.sort_by_key(|pod| pod.last_try.as_ref().map(|last| last.at));
    due.iter().take(policy.parallel.max(1)).map(|pod| action(pod.pod.clone())).collect()
}

/// The pods that must leave. Pods of a DaemonSet come back whatever one does, a mirror pod is
/// only the picture of a file on the node, and a finished pod disturbs nobody.
fn to_move(snapshot: &Snapshot) -> impl Iterator<Item = &PodFacts> {
    let stays =
        |pod: &PodFacts| pod.mirror || pod.finished || pod.controller == Controller::DaemonSet;
    snapshot.pods.iter().filter(move |pod| !stays(pod))
}

fn blocks_as_job(pod: &PodFacts, policy: &Policy) -> bool {
    pod.controller == Controller::Job && policy.jobs == Jobs::Block
}

enum Next {
    Ask,
    Agreed,
    Wait,
}

fn rehearsal(pod: &PodFacts, now: Timestamp, policy: &Policy) -> Next {
    if blocks_as_job(pod, policy) {
        return Next::Wait;
    }
    // It is leaving already; nobody needs to be asked.
    if pod.terminating {
        return Next::Agreed;
    }
    match &pod.last_try {
        None => Next::Ask,
        Some(last) => match last.answer {
            Answer::Allowed | Answer::Accepted => Next::Agreed,
            Answer::Refused { .. } | Answer::Failed { .. } if is_retry_due(last, now, policy) => {
                Next::Ask
            }
            Answer::Refused { .. } | Answer::Failed { .. } => Next::Wait,
        },
    }
}

fn is_eviction_due(pod: &PodFacts, now: Timestamp, policy: &Policy) -> bool {
    if pod.terminating || blocks_as_job(pod, policy) {
        return false;
    }
    match &pod.last_try {
        None => true,
        Some(last) => match last.answer {
            // Only a rehearsal; the eviction itself has not been tried.
            Answer::Allowed => true,
            // An accepted eviction shows as a terminating pod at the next look; asking again when
            // it does not is harmless.
            Answer::Accepted | Answer::Refused { .. } | Answer::Failed { .. } => {
                is_retry_due(last, now, policy)
            }
        },
    }
}

fn is_retry_due(last: &Try, now: Timestamp, policy: &Policy) -> bool {
    last.at.saturating_add(policy.retry).is_ok_and(|due| now >= due)
}

/// Why the pod is still there.
fn waiting(pod: &PodFacts, policy: &Policy) -> Waiting {
    let reason = if pod.terminating {
        WaitReason::Terminating
    } else if blocks_as_job(pod, policy) {
        WaitReason::Job
    } else {
        match pod.last_try.as_ref().map(|last| &last.answer) {
            Some(Answer::Refused { budgets, message }) => {
                WaitReason::Refused { budgets: budgets.clone(), message: message.clone() }
            }
            Some(Answer::Failed { message }) => WaitReason::Failed { message: message.clone() },
            Some(Answer::Allowed | Answer::Accepted) | None => WaitReason::NotYet,
        }
    };
    Waiting { pod: Some(pod.pod.clone()), reason }
}

impl Decision {
    fn end(verdict: Verdict, actions: Vec<Action>, now: Timestamp, report: Report) -> Self {
        Self { verdict, actions, wake_at: now, report }
    }

    /// With something to do the facts change at once; otherwise the next look is after the time
    /// of a retry, and at the deadline at the latest.
    fn go_on(actions: Vec<Action>, now: Timestamp, policy: &Policy, report: Report) -> Self {
        let pause = if actions.is_empty() { policy.retry } else { Duration::ZERO };
        let wake_at = now.saturating_add(pause).unwrap_or(now).min(policy.deadline).max(now);
        Self { verdict: Verdict::Going, actions, wake_at, report }
    }
}
