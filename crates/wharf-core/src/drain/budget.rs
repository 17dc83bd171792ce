//! Counting disruptions.
//!
//! The API server judges each eviction by itself, and a rehearsal changes no budget: three pods
//! under a budget that allows one are all allowed. So the plan counts on its own.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    policy::{RETRY, is_due},
    snapshot::{Answer, Budget, BudgetFacts, PodFacts, Snapshot},
};

/// What the budgets of a node's pods still allow, counted down as evictions are chosen.
pub(super) struct Allowances<'a> {
    by_namespace: BTreeMap<&'a str, Vec<usize>>,
    budgets: Vec<Counted<'a>>,
}

struct Counted<'a> {
    facts: &'a BudgetFacts,
    left: i32,
    /// An eviction under it is under way, or not seen in what it allows.
    busy: bool,
}

/// What budgets say to an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Say {
    Free,
    /// Kubernetes never evicts a pod under more than one budget.
    Several(Vec<Budget>),
    Exhausted(Budget),
}

/// Whether a budget lets a pod go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    Now,
    /// Once others of its pods are healthy again.
    Later,
    /// As it is set: also with all of its pods healthy none may be missing.
    Never,
}

impl<'a> Allowances<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        let mut by_namespace: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let known = || snapshot.budgets.iter().flatten();
        for (place, budget) in known().enumerate() {
            by_namespace.entry(&budget.namespace).or_default().push(place);
        }
        let counted = |facts: &'a BudgetFacts| Counted {
            facts,
            left: facts.allowed,
            busy: facts.taken_at.is_some_and(|taken| {
                facts.changed_at.is_none_or(|changed| changed <= taken)
                    && !is_due(taken, RETRY, now)
            }),
        };
        let mut allowances = Self { by_namespace, budgets: known().map(counted).collect() };
        for pod in &snapshot.pods {
            let last = pod.last_try.as_ref();
            let accepted = last.filter(|last| last.answer == Answer::Accepted);
            // Accepted, but not seen as terminating: the budgets seen may be older than that.
            let unseen = accepted.is_some_and(|last| allowances.is_older(pod, last.at));
            if pod.asking || (unseen && !pod.terminating) {
                allowances.take(pod);
            }
        }
        allowances
    }

    fn is_older(&self, pod: &PodFacts, than: Timestamp) -> bool {
        let covering = self.covering(pod);
        covering.iter().any(|(budget, _)| budget.changed_at.is_none_or(|at| at <= than))
    }

    /// The budgets that cover a pod, with what they allow now.
    pub(super) fn covering(&self, pod: &PodFacts) -> Vec<(&'a BudgetFacts, i32)> {
        let places = self.places(pod);
        let counted = places.into_iter().filter_map(|place| self.budgets.get(place));
        counted.map(|one| (one.facts, one.left)).collect()
    }

    /// The place of the only budget that covers the pod and is asked about it.
    pub(super) fn only(&self, pod: &PodFacts) -> Option<usize> {
        match self.places(pod).as_slice() {
            [one] if !pod.pending => Some(*one),
            _ => None,
        }
    }

    pub(super) fn has_agreed(&self, place: usize) -> bool {
        self.budgets.get(place).is_some_and(|budget| budget.facts.agreed)
    }

    fn places(&self, pod: &PodFacts) -> Vec<usize> {
        let here = self.by_namespace.get(pod.pod.namespace.as_str()).into_iter().flatten();
        let covers = |place: &&usize| {
            self.budgets.get(**place).is_some_and(|budget| budget.facts.covers(pod))
        };
        here.filter(covers).copied().collect()
    }

    /// Whether an eviction that counts against the pod's budget is to be seen first. The API server
    /// writes the budget at each: of two at once one meets a conflict and sleeps half a second, while
    /// one after the other takes some milliseconds.
    pub(super) fn is_busy(&self, pod: &PodFacts) -> bool {
        let mut budgets = self.places(pod).into_iter().filter_map(|place| self.budgets.get(place));
        !pod.pending && budgets.any(|budget| budget.busy && counts(budget.facts, pod))
    }

    /// Whether the pod's only budget has changed since this time, so that another answer may come.
    pub(super) fn has_changed(&self, pod: &PodFacts, since: Timestamp) -> bool {
        let covering = self.covering(pod);
        covering.len() == 1 && covering.iter().any(|(one, _)| one.changed_at > Some(since))
    }

    pub(super) fn say(&self, pod: &PodFacts) -> Say {
        if pod.pending || pod.finished || pod.terminating {
            return Say::Free;
        }
        match self.covering(pod).as_slice() {
            [] => Say::Free,
            [(budget, left)] if *left > 0 || !counts(budget, pod) => Say::Free,
            [(budget, _)] => Say::Exhausted(Budget { name: budget.name.clone(), allowed: 0 }),
            several => Say::Several(several.iter().map(|(one, left)| named(one, *left)).collect()),
        }
    }

    /// Counts an eviction of the pod.
    pub(super) fn take(&mut self, pod: &PodFacts) {
        if pod.pending || pod.finished {
            return;
        }
        for place in self.places(pod) {
            if let Some(budget) = self.budgets.get_mut(place)
                && counts(budget.facts, pod)
            {
                budget.left -= 1;
                budget.busy = true;
            }
        }
    }
}

fn named(budget: &BudgetFacts, left: i32) -> Budget {
    Budget { name: budget.name.clone(), allowed: left.max(0) }
}

/// A pod that is not ready costs nothing while enough others are healthy, or where the budget does
/// not protect such pods.
fn counts(budget: &BudgetFacts, pod: &PodFacts) -> bool {
    let enough = budget.desired > 0 && budget.healthy >= budget.desired;
    pod.ready || !(budget.always_allow_unready || enough)
}

pub(super) fn outlook(budget: &BudgetFacts, left: i32, pod: &PodFacts) -> Outlook {
    if left > 0 || pod.pending || !counts(budget, pod) {
        Outlook::Now
    } else if budget.expected > 0 && budget.desired >= budget.expected {
        Outlook::Never
    } else {
        Outlook::Later
    }
}
