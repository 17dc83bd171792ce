//! Counting disruptions.
//!
//! The API server judges each eviction by itself, and a rehearsal changes no budget: three pods
//! under a budget that allows one are all allowed. So the plan counts on its own.

use std::collections::BTreeMap;

use super::snapshot::{Answer, Budget, BudgetFacts, PodFacts, Snapshot};

/// What the budgets of a node's pods still allow, counted down as evictions are chosen.
pub(super) struct Allowances<'a> {
    by_namespace: BTreeMap<&'a str, Vec<usize>>,
    budgets: Vec<(&'a BudgetFacts, i32)>,
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
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        let mut by_namespace: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (place, budget) in snapshot.budgets.iter().enumerate() {
            by_namespace.entry(&budget.namespace).or_default().push(place);
        }
        let budgets = snapshot.budgets.iter().map(|budget| (budget, budget.allowed)).collect();
        let mut allowances = Self { by_namespace, budgets };
        // Accepted, but not seen as terminating: the budgets seen may be older than that.
        let accepted = |pod: &&PodFacts| {
            let answer = pod.last_try.as_ref().map(|last| &last.answer);
            matches!(answer, Some(Answer::Accepted)) && !pod.terminating
        };
        for pod in snapshot.pods.iter().filter(accepted) {
            allowances.take(pod);
        }
        allowances
    }

    /// The budgets that cover a pod, with what they allow now.
    pub(super) fn covering(&self, pod: &PodFacts) -> Vec<(&'a BudgetFacts, i32)> {
        let places = self.places(pod);
        places.into_iter().filter_map(|place| self.budgets.get(place).copied()).collect()
    }

    fn places(&self, pod: &PodFacts) -> Vec<usize> {
        let here = self.by_namespace.get(pod.pod.namespace.as_str()).into_iter().flatten();
        let covers = |place: &&usize| {
            let budget = self.budgets.get(**place);
            let selector = budget.and_then(|(budget, _)| budget.selector.as_ref());
            selector.is_some_and(|selector| selector.matches(&pod.labels))
        };
        here.filter(covers).copied().collect()
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
            if let Some((budget, left)) = self.budgets.get_mut(place)
                && counts(budget, pod)
            {
                *left -= 1;
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
