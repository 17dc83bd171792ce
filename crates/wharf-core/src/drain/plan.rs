//! What a drain will do to each pod of a node. The plan that is printed is the one that runs.

use std::fmt;

use jiff::Timestamp;

use super::{
    budget::{Allowances, Outlook, Say, outlook},
    policy::{Jobs, Policy, is_due},
    report::remark,
    snapshot::{Answer, Controller, HeldFor, PodFacts, PodRef, Snapshot},
};

/// What becomes of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It stays: a DaemonSet makes it again whatever one does.
    DaemonSet,
    /// It stays: it is the picture of a file on the node.
    Mirror,
    /// It stays and disturbs nobody.
    Finished,
    /// It is leaving; its end is waited for.
    Terminating,
    /// It is leaving, but nobody is there to say when it is gone.
    Lost,
    /// Of a Job that must not be disturbed: the drain is given up.
    JobBlocks,
    /// Of a Job whose end is waited for.
    JobWaits,
    Evict,
    Delete,
}

impl Class {
    /// Whether the pod has to leave before the node counts as empty.
    pub fn must_leave(self) -> bool {
        match self {
            Class::DaemonSet | Class::Mirror | Class::Finished | Class::Lost => false,
            Class::Terminating
            | Class::JobBlocks
            | Class::JobWaits
            | Class::Evict
            | Class::Delete => true,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they leave; those that stay keep their place in the list.
    pub pods: Vec<PlannedPod>,
    pub prospect: Prospect,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedPod {
    pub pod: PodRef,
    pub class: Class,
    /// All that cover the pod; more than one means that Kubernetes will not evict it.
    pub budgets: Vec<PlannedBudget>,
    /// What a person may have to do.
    pub remark: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedBudget {
    pub name: String,
    pub allowed: i32,
    pub outlook: Outlook,
}

/// How a drain would go if nothing else changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prospect {
    /// All pods may leave now.
    Clear,
    /// They may leave as budgets free up again.
    InTurns,
    /// Something stands in the way that may pass: a Job, or a budget that allows none now.
    Blocked,
    /// A budget, or two on one pod, will never let a pod go.
    Never,
}

/// Plans a drain without touching anything.
pub fn plan_drain(snapshot: &Snapshot, now: Timestamp, policy: &Policy) -> Plan {
    let mut allowances = Allowances::new(snapshot, now);
    let fresh = Allowances::new(snapshot, now);
    let mut prospect = Prospect::Clear;
    let mut pods = Vec::with_capacity(snapshot.pods.len());
    for seen in look(snapshot, now, policy) {
        let covering = fresh.covering(seen.pod);
        let several = covering.len() > 1;
        let budgets = covering.into_iter().map(|(budget, left)| PlannedBudget {
            name: budget.name.clone(),
            allowed: left.max(0),
            outlook: if several { Outlook::Never } else { outlook(budget, left, seen.pod) },
        });
        let budgets: Vec<PlannedBudget> = budgets.collect();
        prospect = prospect.max(seen.prospect(&mut allowances, &budgets));
        let remark = remark(seen.pod, &allowances);
        pods.push(PlannedPod { pod: seen.pod.pod.clone(), class: seen.class, budgets, remark });
    }
    Plan { pods, prospect }
}

/// A pod with what becomes of it.
pub(super) struct Seen<'a> {
    pub pod: &'a PodFacts,
    pub class: Class,
    pub rank: (i32, i32),
    /// A refusal is final, as far as this drain's rules go.
    pub bound_by_budgets: bool,
}

/// All pods, in the order in which they leave.
pub(super) fn look<'a>(snapshot: &'a Snapshot, now: Timestamp, policy: &Policy) -> Vec<Seen<'a>> {
    let lost = is_lost(snapshot, now, policy);
    let see = |pod: &'a PodFacts| {
        let protected = policy.is_protected(snapshot, pod);
        let laddered = policy.ladder.is_some_and(|ladder| ladder.reaches(pod));
        Seen {
            pod,
            class: classify(pod, now, policy, protected, lost),
            rank: policy.sequence.rank(pod),
            bound_by_budgets: protected && !laddered,
        }
    };
    let seen = snapshot.pods.iter().filter(|pod| !policy.spares(pod));
    let mut all: Vec<Seen<'a>> = seen.map(see).collect();
    all.sort_by_key(|seen| seen.rank);
    all
}

/// Whether nobody on the node ends a pod, nor says that one has ended: those that are terminating
/// would be waited for in vain, and a Job's pod would never finish.
pub(super) fn is_lost(snapshot: &Snapshot, now: Timestamp, policy: &Policy) -> bool {
    let since = snapshot.node.as_ref().and_then(|node| node.unready_since);
    since.zip(policy.lost_after).is_some_and(|(since, after)| is_due(since, after, now))
}

fn classify(pod: &PodFacts, now: Timestamp, policy: &Policy, protected: bool, lost: bool) -> Class {
    if pod.mirror {
        return Class::Mirror;
    }
    if pod.controller == Controller::DaemonSet {
        return Class::DaemonSet;
    }
    if pod.finished {
        return Class::Finished;
    }
    if pod.terminating {
        return if lost { Class::Lost } else { Class::Terminating };
    }
    if pod.controller == Controller::Job && !lost {
        match policy.job(pod) {
            Jobs::Block => return Class::JobBlocks,
            Jobs::Wait => return Class::JobWaits,
            Jobs::Delete => return Class::Delete,
            Jobs::Evict => {}
        }
    }
    let answer = pod.last_try.as_ref().map(|last| &last.answer);
    let refused = matches!(answer, Some(Answer::Refused { .. }));
    let climbed = policy.ladder.is_some_and(|ladder| ladder.allows(pod, now));
    if (refused && !protected) || climbed { Class::Delete } else { Class::Evict }
}

impl Seen<'_> {
    fn prospect(&self, allowances: &mut Allowances<'_>, budgets: &[PlannedBudget]) -> Prospect {
        match self.class {
            Class::JobBlocks | Class::JobWaits => return Prospect::Blocked,
            Class::Evict if self.bound_by_budgets => {}
            // What is refused here is deleted, at once or later.
            Class::Evict
            | Class::Delete
            | Class::DaemonSet
            | Class::Mirror
            | Class::Finished
            | Class::Terminating
            | Class::Lost => return Prospect::Clear,
        }
        match allowances.say(self.pod) {
            Say::Free => {
                allowances.take(self.pod);
                Prospect::Clear
            }
            Say::Several(_) => Prospect::Never,
            Say::Exhausted(_) => match budgets.first().map(|budget| budget.outlook) {
                Some(Outlook::Now) | None => Prospect::InTurns,
                Some(Outlook::Later) => Prospect::Blocked,
                Some(Outlook::Never) => Prospect::Never,
            },
        }
    }
}

/// The volumes that are still attached for the sake of pods that left. Those of pods that stay are
/// theirs.
pub(super) fn volumes_left(snapshot: &Snapshot, now: Timestamp, policy: &Policy) -> Vec<String> {
    // A silent node says nothing about its volumes either.
    if is_lost(snapshot, now, policy) {
        return Vec::new();
    }
    let begun = snapshot.empty_since.unwrap_or(now);
    let mut left = Vec::new();
    if policy.volumes.is_some_and(|wait| !is_due(begun, wait, now)) {
        let kept = |name: &&String| snapshot.pods.iter().any(|pod| pod.volumes.contains(name));
        let attached = |name: &&String| snapshot.volumes.attached.contains(name);
        let drained = snapshot.volumes.drained.iter();
        left.extend(drained.filter(attached).filter(|name| !kept(name)).cloned());
    }
    if policy.held_volumes.is_none_or(|wait| !is_due(begun, wait, now)) {
        let is_there =
            |held: &&HeldFor| snapshot.pods.iter().any(|pod| pod.pod.uid == held.pod_uid);
        let held = snapshot.volumes.held.iter().filter(|held| !is_there(held));
        left.extend(held.map(|held| held.volume.clone()));
    }
    left.sort();
    left.dedup();
    left
}

impl fmt::Display for PlannedPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.class {
            Class::DaemonSet => "stays: it belongs to a DaemonSet",
            Class::Mirror => "stays: it is a static pod",
            Class::Finished => "has finished",
            Class::Terminating => "is terminating",
            Class::Lost => "is terminating on a node that is not heard of; not waited for",
            Class::JobBlocks => "blocks the drain: it belongs to a Job that has not finished",
            Class::JobWaits => "is waited for: it belongs to a Job that has not finished",
            Class::Evict => "is evicted",
            Class::Delete => "is deleted",
        };
        write!(f, "pod {} {what}", self.pod)?;
        for budget in self.budgets.iter().filter(|_| self.class == Class::Evict) {
            let outlook = match budget.outlook {
                Outlook::Now => "",
                Outlook::Later => ", later",
                Outlook::Never => ", never",
            };
            write!(f, "; budget {} allows {}{outlook}", budget.name, budget.allowed)?;
        }
        if let Some(remark) = &self.remark {
            write!(f, "; {remark}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Prospect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Prospect::Clear => "all pods may leave now",
            Prospect::InTurns => "the pods may leave in turns, as their budgets free up",
            Prospect::Blocked => "the drain is blocked for now",
            Prospect::Never => "the drain cannot succeed as the budgets are",
        })
    }
}
