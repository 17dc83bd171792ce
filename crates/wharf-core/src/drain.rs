//! Drain: emptying a node without breaking what runs on it.
//!
//! One engine for all callers; what differs between them is the [`Policy`]. The stage of a drain
//! is not stored anywhere: it follows from the facts. A node that does not carry our cordon is
//! still rehearsed, one that carries it is being emptied, so that a crash at any point is only a
//! second look.
//!
//! Start reading at [`decide_drain`]; [`plan_drain`] says the same without doing anything.

mod budget;
mod plan;
mod policy;
mod record;
mod report;
mod snapshot;

#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;

use budget::{Allowances, Say};
use plan::{Seen, look, volumes_left};
use policy::{SETTLED, UNSEEN, is_due};
use report::remark;

pub use budget::Outlook;
pub use plan::{Class, Plan, PlannedBudget, PlannedPod, Prospect, plan_drain};
pub use policy::{Jobs, Ladder, Order, PARALLEL, Policy, RETRY, Rule, Sequence};
pub use record::{Ages, DrainOptions, DrainRecord, Left, Progress, SHOWN, TIMEOUT_SECONDS};
pub use report::{Failure, Report, Stage, WaitReason, Waiting};
pub use snapshot::{
    Answer, Budget, BudgetFacts, Controller, Cordon, HeldFor, NodeFacts, Pin, PodFacts, PodRef,
    Snapshot, Try, Volumes,
};

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
    /// Delete the pod past its budgets, by its UID.
    Delete(PodRef),
    /// Take our cordon back; what was cordoned before stays so.
    Uncordon,
}

/// Decides the next move of a drain.
pub fn decide_drain(snapshot: &Snapshot, now: Timestamp, policy: &Policy) -> Decision {
    let Some(node) = &snapshot.node else {
        return Decision::end(Verdict::Done, Vec::new(), now, Report::new(Stage::Gone, 0));
    };
    let drain = Drain::new(snapshot, now, policy);
    let cordon = node.cordon.as_ref().filter(|cordon| cordon.owner == policy.owner);
    match (cordon, &node.cordon) {
        (Some(_), _) if !node.unschedulable => drain.give_up_to_a_person(),
        (Some(_), _) => drain.decide_evictions(),
        (None, Some(other)) => drain.wait_for_other_owner(&other.owner),
        (None, None) if snapshot.cordoned_since.is_some() => drain.give_up_to_a_person(),
        (None, None) => drain.decide_rehearsal(),
    }
}

/// One look at a drain.
struct Drain<'a> {
    snapshot: &'a Snapshot,
    now: Timestamp,
    policy: &'a Policy,
    /// The pods that must leave, in the order in which they do.
    leaving: Vec<Seen<'a>>,
    given_up: usize,
    allowances: Allowances<'a>,
}

impl<'a> Drain<'a> {
    fn new(snapshot: &'a Snapshot, now: Timestamp, policy: &'a Policy) -> Self {
        let mut leaving = look(snapshot, now, policy);
        let given_up = leaving.iter().filter(|seen| seen.class == Class::Lost).count();
        leaving.retain(|seen| seen.class.must_leave());
        Self {
            snapshot,
            now,
            policy,
            leaving,
            given_up,
            allowances: Allowances::new(snapshot, now),
        }
    }

    /// Somebody took our cordon, or only our mark: the node is not fought over.
    fn give_up_to_a_person(&self) -> Decision {
        let report = self.report(Stage::Evicting);
        let failure = Verdict::Failed(Failure::UncordonedByAPerson);
        Decision::end(failure, vec![Action::Uncordon], self.now, report)
    }

    fn wait_for_other_owner(&self, owner: &str) -> Decision {
        let mut report = self.report(Stage::Rehearsing);
        let reason = WaitReason::CordonedBy(owner.to_owned());
        report.waiting.push(Waiting { pod: None, reason, remark: None });
        if self.is_late() {
            return self.fail(|waiting| Failure::Deadline { waiting }, Vec::new(), report);
        }
        self.go_on(Vec::new(), report)
    }

    fn decide_rehearsal(&self) -> Decision {
        let mut report = self.report(Stage::Rehearsing);
        if self.policy.order == Order::CordonFirst {
            return self.go_on(vec![Action::Cordon], report);
        }
        let mut due = Vec::new();
        let mut asked = self.asked();
        for seen in &self.leaving {
            match self.rehearsal(seen, &mut asked) {
                Next::Ask => due.push(seen),
                Next::Agreed => continue,
                Next::Wait => {}
            }
            report.waiting.push(self.waiting(seen, &self.allowances.say(seen.pod)));
        }
        if let Some(failure) = self.hopeless(&report) {
            return Decision::end(Verdict::Failed(failure), Vec::new(), self.now, report);
        }
        in_turn(&mut due);
        let mut actions: Vec<Action> =
            due.iter().map(|seen| Action::Rehearse(seen.pod.pod.clone())).collect();
        if report.waiting.is_empty() {
            actions.push(Action::Cordon);
        }
        self.go_on(actions, report)
    }

    fn decide_evictions(mut self) -> Decision {
        let mut report = self.report(Stage::Evicting);
        if report.left == 0 {
            return self.decide_detaching();
        }
        if let Some(decision) = self.rehearse_what_is_untried() {
            return decision;
        }
        // Pods of one rank leave before those of the next.
        let rank = self.leaving.first().map(|seen| seen.rank);
        let mut due = Vec::new();
        for seen in &self.leaving {
            report.waiting.push(self.waiting(seen, &self.allowances.say(seen.pod)));
            if Some(seen.rank) == rank && self.is_due(seen) {
                due.push(seen);
            }
        }
        in_turn(&mut due);
        let mut actions = Vec::new();
        for seen in due {
            if actions.len() >= self.room() {
                break;
            }
            let held = self.is_held(seen) && self.allowances.say(seen.pod) != Say::Free;
            let held = held || self.allowances.is_busy(seen.pod);
            match seen.class {
                Class::Delete => actions.push(Action::Delete(seen.pod.pod.clone())),
                Class::Evict if !held => {
                    self.allowances.take(seen.pod);
                    actions.push(Action::Evict(seen.pod.pod.clone()));
                }
                Class::Evict
                | Class::DaemonSet
                | Class::Mirror
                | Class::Finished
                | Class::Terminating
                | Class::Lost
                | Class::JobBlocks
                | Class::JobWaits => {}
            }
        }
        if let Some(failure) = self.hopeless(&report) {
            let keeps = self.policy.keep_cordon;
            let undo = if keeps { Vec::new() } else { vec![Action::Uncordon] };
            return Decision::end(Verdict::Failed(failure), undo, self.now, report);
        }
        self.go_on(actions, report)
    }

    /// Where refusals are counted, all budgets are asked before the first pod leaves: later a refusal
    /// would only tell of our own evictions.
    fn rehearse_what_is_untried(&self) -> Option<Decision> {
        self.policy.attempts?;
        let open = |seen: &&Seen<'_>| {
            seen.class == Class::Evict && seen.bound_by_budgets && seen.pod.last_try.is_none()
        };
        let open = || self.leaving.iter().filter(open);
        let mut asked = self.asked();
        let due = open().filter(|seen| matches!(self.rehearsal(seen, &mut asked), Next::Ask));
        let due: Vec<Action> = due.map(|seen| Action::Rehearse(seen.pod.pod.clone())).collect();
        let awaited = open().any(|seen| seen.pod.asking);
        if (due.is_empty() && !awaited) || self.is_late() {
            return None;
        }
        let mut report = self.report(Stage::Evicting);
        let waiting = |seen| self.waiting(seen, &self.allowances.say(seen.pod));
        report.waiting.extend(self.leaving.iter().map(waiting));
        match self.hopeless(&report) {
            Some(_) => None,
            None => Some(self.go_on(due, report)),
        }
    }

    /// Whether a pod whose budget allows nothing is left alone until that changes, since asking
    /// would only be refused. What was refused and counted is asked for again.
    fn is_held(&self, seen: &Seen<'_>) -> bool {
        let refused = seen.pod.last_try.as_ref().is_some_and(is_refusal);
        seen.bound_by_budgets && !(refused && self.policy.attempts.is_some())
    }

    /// All pods are gone. What was on its way to the node before the cordon shows a moment later,
    /// and a volume that never detaches does not hold the drain for ever.
    fn decide_detaching(&self) -> Decision {
        let settled = self.snapshot.cordoned_since.map(|since| since.saturating_add(SETTLED));
        let settled = settled.and_then(Result::ok).filter(|time| self.now < *time);
        if let Some(time) = settled.filter(|_| !self.is_late()) {
            let decision = self.go_on(Vec::new(), self.report(Stage::Evicting));
            return Decision { wake_at: decision.wake_at.min(time), ..decision };
        }
        let volumes = volumes_left(self.snapshot, self.now, self.policy);
        if volumes.is_empty() || self.is_late() {
            let report = self.report(Stage::Evicting);
            return Decision::end(Verdict::Done, Vec::new(), self.now, report);
        }
        let mut report = self.report(Stage::Detaching);
        let reason = WaitReason::Volumes(volumes);
        report.waiting.push(Waiting { pod: None, reason, remark: None });
        self.go_on(Vec::new(), report)
    }

    /// Why going on is of no use.
    fn hopeless(&self, report: &Report) -> Option<Failure> {
        let named = |is: &dyn Fn(&Seen<'_>) -> bool| -> Vec<Waiting> {
            let meant = self.leaving.iter().filter(|seen| is(seen));
            meant.map(|seen| self.waiting(seen, &self.allowances.say(seen.pod))).collect()
        };
        let jobs = named(&|seen| seen.class == Class::JobBlocks);
        if !jobs.is_empty() {
            return Some(Failure::Jobs { waiting: jobs });
        }
        let limit = self.policy.attempts.unwrap_or(u32::MAX).max(1);
        let refused = |seen: &Seen<'_>| {
            let last = seen.pod.last_try.as_ref();
            seen.class == Class::Evict
                && seen.bound_by_budgets
                && last.is_some_and(|last| is_refusal(last) && last.refusals >= limit)
        };
        let refused = named(&refused);
        if !refused.is_empty() {
            return Some(Failure::Refused { waiting: refused });
        }
        let limit = self.policy.errors.unwrap_or(u32::MAX).max(1);
        let broken =
            |seen: &Seen<'_>| seen.pod.last_try.as_ref().is_some_and(|last| last.failures >= limit);
        let broken = named(&broken);
        if !broken.is_empty() {
            return Some(Failure::Broken { waiting: broken });
        }
        self.is_late().then(|| Failure::Deadline { waiting: report.waiting.clone() })
    }

    /// The budgets that are asked for one of their pods, or have not agreed when they were.
    ///
    /// The API server judges each pod by itself and a rehearsal changes nothing: what it says of one
    /// ready pod of a budget it says of all. So one is asked for all, and the drain of a node costs
    /// hardly more writes than evictions.
    fn asked(&self) -> BTreeSet<usize> {
        let evicted = self.leaving.iter().filter(|seen| seen.class == Class::Evict);
        let asked = evicted.filter(|seen| seen.pod.asking || seen.pod.last_try.is_some());
        asked.filter_map(|seen| self.judge_of(seen.pod)).collect()
    }

    /// The budget whose word on one of its pods is its word on this one.
    fn judge_of(&self, pod: &PodFacts) -> Option<usize> {
        self.allowances.only(pod).filter(|_| pod.ready)
    }

    fn rehearsal(&self, seen: &Seen<'_>, asked: &mut BTreeSet<usize>) -> Next {
        match seen.class {
            Class::JobBlocks | Class::JobWaits => return Next::Wait,
            Class::Evict => {}
            // It is leaving already, or nobody will be asked.
            Class::Terminating
            | Class::Delete
            | Class::DaemonSet
            | Class::Mirror
            | Class::Finished
            | Class::Lost => return Next::Agreed,
        }
        if seen.pod.asking {
            return Next::Wait;
        }
        let covered = !self.allowances.covering(seen.pod).is_empty() && !seen.pod.pending;
        // No budget can refuse a pod that none covers; anything else that may stand in the way of
        // its eviction is met, and waited for, when it is done.
        if self.snapshot.budgets.is_some() && !covered {
            return Next::Agreed;
        }
        // It would be refused, and its budget is watched.
        let known = seen.bound_by_budgets && self.policy.attempts.is_none();
        let held = known && self.allowances.say(seen.pod) != Say::Free;
        let Some(last) = &seen.pod.last_try else {
            return match self.judge_of(seen.pod) {
                Some(budget) if self.allowances.has_agreed(budget) => Next::Agreed,
                _ if held => Next::Wait,
                Some(budget) if !asked.insert(budget) => Next::Wait,
                Some(_) | None => Next::Ask,
            };
        };
        match last.answer {
            Answer::Allowed | Answer::Accepted => Next::Agreed,
            Answer::Refused { .. } | Answer::Failed { .. } | Answer::Later { .. } => {
                if !held && self.is_retry_due(seen.pod, last) { Next::Ask } else { Next::Wait }
            }
        }
    }

    fn is_due(&self, seen: &Seen<'_>) -> bool {
        if seen.pod.asking {
            return false;
        }
        let Some(last) = &seen.pod.last_try else { return true };
        match last.answer {
            // Only a rehearsal; the eviction itself has not been tried.
            Answer::Allowed => true,
            // A refusal is what a deletion comes from; it need not wait for another.
            Answer::Refused { .. } if seen.class == Class::Delete => true,
            // It shows as a terminating pod soon; a busy API server tells of it late.
            Answer::Accepted => is_due(last.at, UNSEEN, self.now),
            Answer::Refused { .. } | Answer::Failed { .. } | Answer::Later { .. } => {
                self.is_retry_due(seen.pod, last)
            }
        }
    }

    fn is_retry_due(&self, pod: &PodFacts, last: &Try) -> bool {
        let asked_for = last.not_before.is_none_or(|time| self.now >= time);
        // A budget that changed and allows it now has another answer.
        let freed = is_refusal(last)
            && self.allowances.say(pod) == Say::Free
            && self.allowances.has_changed(pod, last.at);
        let delay = retry_delay(self.policy.retry, pod, last);
        asked_for && (freed || is_due(last.at, delay, self.now))
    }

    /// Why the pod is still there.
    fn waiting(&self, seen: &Seen<'_>, say: &Say) -> Waiting {
        let held = |budgets: Vec<Budget>, message: &str| WaitReason::Refused {
            budgets,
            message: message.to_owned(),
        };
        let reason = match seen.class {
            Class::Terminating | Class::Lost => WaitReason::Terminating,
            Class::JobBlocks | Class::JobWaits => WaitReason::Job,
            Class::Evict | Class::Delete | Class::DaemonSet | Class::Mirror | Class::Finished => {
                match seen.pod.last_try.as_ref().map(|last| &last.answer) {
                    Some(Answer::Refused { budgets, message }) => {
                        WaitReason::Refused { budgets: budgets.clone(), message: message.clone() }
                    }
                    Some(Answer::Later { message }) => {
                        WaitReason::Later { message: message.clone() }
                    }
                    Some(Answer::Failed { message }) => {
                        WaitReason::Failed { message: message.clone() }
                    }
                    Some(Answer::Allowed | Answer::Accepted) | None => match say {
                        Say::Exhausted(budget) if seen.bound_by_budgets => {
                            held(vec![budget.clone()], "its budget allows none now")
                        }
                        Say::Several(budgets) if seen.bound_by_budgets => held(
                            budgets.clone(),
                            "Kubernetes evicts no pod that more than one covers",
                        ),
                        Say::Free | Say::Exhausted(_) | Say::Several(_) => WaitReason::NotYet,
                    },
                }
            }
        };
        let remark = remark(seen.pod, &self.allowances);
        Waiting { pod: Some(seen.pod.pod.clone()), reason, remark }
    }

    fn report(&self, stage: Stage) -> Report {
        let silent = self.snapshot.silent.iter().map(|message| Waiting {
            pod: None,
            reason: WaitReason::Silent { message: message.clone() },
            remark: None,
        });
        Report {
            given_up: self.given_up,
            waiting: silent.collect(),
            ..Report::new(stage, self.leaving.len())
        }
    }

    fn is_late(&self) -> bool {
        self.now >= self.policy.deadline
    }

    fn fail(
        &self,
        failure: impl FnOnce(Vec<Waiting>) -> Failure,
        undo: Vec<Action>,
        report: Report,
    ) -> Decision {
        let verdict = Verdict::Failed(failure(report.waiting.clone()));
        Decision::end(verdict, undo, self.now, report)
    }

    /// How many more may be asked for at once.
    fn room(&self) -> usize {
        let asking = self.snapshot.pods.iter().filter(|pod| pod.asking).count();
        self.policy.parallel.max(1).saturating_sub(asking)
    }

    /// An answer or a change calls for another look at once; without any the next one is soon, and at
    /// the deadline at the latest.
    fn go_on(&self, mut actions: Vec<Action>, report: Report) -> Decision {
        actions.truncate(self.room());
        let wake_at = self.now.saturating_add(RETRY).unwrap_or(self.now);
        let wake_at = wake_at.min(self.policy.deadline).max(self.now);
        Decision { verdict: Verdict::Going, actions, wake_at, report }
    }
}

enum Next {
    Ask,
    Agreed,
    Wait,
}

/// First those that were never asked for, then those whose last try is the longest ago, so that a
/// few that are blocked do not keep the others from their turn.
fn in_turn(due: &mut [&Seen<'_>]) {
    due.sort_by_key(|seen| (seen.rank, seen.pod.last_try.as_ref().map(|last| last.at)));
}

fn is_refusal(last: &Try) -> bool {
    matches!(last.answer, Answer::Refused { .. })
}

/// Failures back off to 16 times the delay, and each pod a little apart from the others, so that an
/// API server that comes back is not met by all at once.
fn retry_delay(retry: Duration, pod: &PodFacts, last: &Try) -> Duration {
    if last.failures == 0 {
        return retry;
    }
    let doubled = retry.saturating_mul(1 << last.failures.saturating_sub(1).min(4));
    let spread = pod
        .pod
        .uid
        .bytes()
        .fold(last.failures, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    doubled.saturating_add(retry.saturating_mul(spread % 8) / 8)
}

impl Decision {
    fn end(verdict: Verdict, actions: Vec<Action>, now: Timestamp, report: Report) -> Self {
        Self { verdict, actions, wake_at: now, report }
    }
}
