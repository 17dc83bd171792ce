//! How one caller wants nodes to be drained.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::snapshot::{PodFacts, Snapshot};
use crate::selector::{Labels, Operator, Requirement, Selector};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Who cordons, as it is written on the Node, so that nobody lifts another's cordon.
    pub owner: String,
    pub deadline: Timestamp,
    pub order: Order,
    pub jobs: Jobs,
    /// Which pods of Jobs `jobs` is about, by their labels; the others are evicted like any pod.
    /// `None` is all of them.
    pub job_pods: Option<Selector>,
    /// The namespaces whose pods leave by eviction alone, by their labels; `None` is all. Elsewhere
    /// a pod whose eviction is refused is deleted.
    pub protected: Option<Selector>,
    /// Pods that stay, by their labels, as if they were not there.
    pub spared: Option<Selector>,
    /// A refused eviction is tried again after this time.
    pub retry: Duration,
    /// After so many refusals of one pod the drain is given up; `None`: only at the deadline.
    pub attempts: Option<u32>,
    /// After so many errors in a row that are no refusals the drain breaks off; `None`: only at the
    /// deadline.
    pub errors: Option<u32>,
    /// A drain that is given up leaves its cordon, for whoever tries again.
    pub keep_cordon: bool,
    /// So many evictions are asked for before the facts are looked at again.
    pub parallel: usize,
    pub sequence: Sequence,
    pub ladder: Option<Ladder>,
    /// Takes the place of the pods' own grace periods.
    pub grace_seconds: Option<u32>,
    /// How long volumes of drained pods are waited for once the node is empty.
    pub volumes: Option<Duration>,
    /// How long the node may hold volumes of ours for drained pods; `None`: until the deadline. Unlike
    /// others these are always asked about: nobody else says that they are unmounted.
    pub held_volumes: Option<Duration>,
    /// On a node that has not been ready for so long, pods that are terminating count as gone, and
    /// Jobs do not block. `None`: they are waited for.
    pub lost_after: Option<Duration>,
}

/// Half a second: a budget that frees up is used soon, and a blocked drain costs the API server
/// two requests a second for each pod at most. Looks are as far apart when nothing happens.
pub const RETRY: Duration = Duration::from_millis(500);
/// After this time an eviction that was accepted and has not shown is asked for again, which does no
/// harm.
pub(super) const UNSEEN: Duration = Duration::from_secs(10);
/// What the scheduler sent to the node before it knew of the cordon has shown by then.
pub(super) const SETTLED: Duration = Duration::from_millis(500);
/// Enough to empty a full node (110 pods) in a few rounds.
pub const PARALLEL: usize = 16;
/// Kubernetes itself calls a node unready only after as long a silence; a reboot or a restart of
/// the kubelet is over by then.
const LOST_AFTER: Duration = Duration::from_secs(40);

/// What serves the volumes of the other pods on the node, by its label `app`: it goes down with the
/// node, not before them.
const STORAGE_APPS: [&str; 5] = [
    "csi-attacher",
    "csi-provisioner",
    "longhorn-admission-webhook",
    "longhorn-conversion-webhook",
    "longhorn-driver-deployer",
];
/// With the pauses between them some fifteen seconds: more than a moment, so that another try is
/// better made later.
const ERRORS: u32 = 5;

impl Policy {
    /// For the removal of a node; the drain action begins with it too, see `DrainOptions::policy`.
    pub fn removal(owner: &str, deadline: Timestamp) -> Self {
        Self {
            owner: owner.to_owned(),
            deadline,
            order: Order::RehearseFirst,
            jobs: Jobs::Wait,
            job_pods: None,
            protected: None,
            spared: None,
            retry: RETRY,
            attempts: None,
            errors: None,
            keep_cordon: false,
            parallel: PARALLEL,
            sequence: Sequence::default(),
            ladder: None,
            grace_seconds: None,
            volumes: None,
            held_volumes: None,
            lost_after: Some(LOST_AFTER),
        }
    }

    /// For the node agent before a reboot or an update: it may take a day, but it goes on.
    pub fn gate(owner: &str, deadline: Timestamp) -> Self {
        let storage = Requirement {
            key: "app".to_owned(),
            operator: Operator::In,
            values: STORAGE_APPS.map(str::to_owned).into(),
        };
        let spared = Selector { match_expressions: vec![storage], ..Selector::default() };
        Self {
            order: Order::CordonFirst,
            jobs: Jobs::Evict,
            spared: Some(spared),
            errors: Some(ERRORS),
            keep_cordon: true,
            ..Self::removal(owner, deadline)
        }
    }

    pub(super) fn spares(&self, pod: &PodFacts) -> bool {
        self.spared.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
    }

    pub(super) fn is_protected(&self, snapshot: &Snapshot, pod: &PodFacts) -> bool {
        let nothing = Labels::new();
        let labels = snapshot.namespaces.get(&pod.pod.namespace).unwrap_or(&nothing);
        self.protected.as_ref().is_none_or(|selector| selector.matches(labels))
    }

    /// What is done about the pod as one of a Job.
    pub(super) fn job(&self, pod: &PodFacts) -> Jobs {
        let meant = self.job_pods.as_ref().is_none_or(|selector| selector.matches(&pod.labels));
        if meant { self.jobs } else { Jobs::Evict }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Jobs {
    /// The drain is given up at once, for another time.
    Block,
    /// The drain waits until they have finished, as long as its deadline lets it.
    Wait,
    /// They are deleted.
    Delete,
    /// They are evicted like others.
    Evict,
}

/// Which pods leave before which. A pod goes when all that come before it are gone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sequence {
    /// The first rule that selects a pod gives its place; a pod that none selects has place 0.
    pub rules: Vec<Rule>,
    /// Among pods of one place those of lower priority go first.
    pub by_priority: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub selector: Selector,
    /// Smaller ones go first.
    pub place: i32,
}

impl Sequence {
    pub(super) fn rank(&self, pod: &PodFacts) -> (i32, i32) {
        let rule = self.rules.iter().find(|rule| rule.selector.matches(&pod.labels));
        let priority = if self.by_priority { pod.priority } else { 0 };
        (rule.map_or(0, |rule| rule.place), priority)
    }
}

/// From when on a pod is deleted although its budget says no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    pub begun: Timestamp,
    /// For pods that are not ready: they serve nobody, yet hold their own budget down.
    pub unready_after: Option<Duration>,
    pub any_after: Option<Duration>,
}

impl Ladder {
    pub(super) fn allows(&self, pod: &PodFacts, now: Timestamp) -> bool {
        self.rungs(pod).any(|rung| is_due(self.begun, rung, now))
    }

    /// Whether a pod that is refused now will be deleted later.
    pub(super) fn reaches(&self, pod: &PodFacts) -> bool {
        self.rungs(pod).next().is_some()
    }

    fn rungs(&self, pod: &PodFacts) -> impl Iterator<Item = Duration> + use<> {
        let unready = self.unready_after.filter(|_| !pod.ready);
        unready.into_iter().chain(self.any_after)
    }
}

/// Whether `delay` has passed since `from`. A time beyond the calendar never comes.
pub(super) fn is_due(from: Timestamp, delay: Duration, now: Timestamp) -> bool {
    from.checked_add(delay).is_ok_and(|due| now >= due)
}
