//! The facts that a drain is decided on.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::selector::{Labels, Selector};

/// A node and what is on it, as seen at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// `None` when there is no such Node.
    pub node: Option<NodeFacts>,
    pub pods: Vec<PodFacts>,
    /// The budgets of the pods' namespaces. `None` when they cannot be read: then the API server
    /// alone judges.
    pub budgets: Option<Vec<BudgetFacts>>,
    /// The labels of the pods' namespaces, by name.
    pub namespaces: BTreeMap<String, Labels>,
    pub volumes: Volumes,
    /// Why nothing of this may be true any more: what went wrong when the cluster was last asked.
    pub silent: Option<String>,
    /// Since when this drain has known of its cordon on the node.
    pub cordoned_since: Option<Timestamp>,
    /// Since when, in this drain, every look at the cordoned node found nothing left to move.
    pub empty_since: Option<Timestamp>,
}

impl Snapshot {
    /// The budgets that cover a pod, as far as they are known.
    pub fn budgets_of(&self, pod: &PodFacts) -> Vec<Budget> {
        let known = self.budgets.iter().flatten().filter(|budget| budget.covers(pod));
        known.map(|one| Budget { name: one.name.clone(), allowed: one.allowed.max(0) }).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    pub name: String,
    pub unschedulable: bool,
    /// The mark that one of us left on the Node with its cordon; a person leaves none.
    pub cordon: Option<Cordon>,
    /// Since when the node has not been ready: its kubelet is silent, or says that it cannot work.
    pub unready_since: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cordon {
    pub owner: String,
    /// Whether the node was unschedulable before: then it stays so afterwards.
    pub before: bool,
}

/// What holds a node's volumes. Names are those of the persistent volumes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Volumes {
    /// Of pods that this drain has seen on the node and that had to leave.
    pub drained: Vec<String>,
    /// That the node uses (`volumesInUse`) or is attached to (`VolumeAttachment`).
    pub attached: Vec<String>,
    /// Volumes of ours that the node holds for pods that this drain has seen there and that had to
    /// leave.
    pub held: Vec<HeldFor>,
}

/// A volume, and the pod that the node holds it for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldFor {
    pub volume: String,
    pub pod_uid: String,
}

/// A pod beyond doubt: a name can be given to a new pod, a UID cannot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl std::fmt::Display for PodRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    pub pod: PodRef,
    pub labels: Labels,
    pub controller: Controller,
    /// The picture of a static pod, which only a file on the node ends.
    pub mirror: bool,
    /// Succeeded or failed: it does not run any more.
    pub finished: bool,
    /// It has not begun to run; no budget protects it.
    pub pending: bool,
    pub ready: bool,
    /// Its deletion has begun.
    pub terminating: bool,
    pub priority: i32,
    /// Its owner's template, or its own spec where it has no owner, names this node.
    pub pin: Option<Pin>,
    /// The persistent volumes that it uses.
    pub volumes: Vec<String>,
    /// The last time that its eviction was asked for, in this drain.
    pub last_try: Option<Try>,
    /// It is being asked for; the answer is not there yet.
    pub asking: bool,
}

impl Default for PodFacts {
    /// An ordinary pod that runs.
    fn default() -> Self {
        Self {
            pod: PodRef::default(),
            labels: Labels::new(),
            controller: Controller::Other,
            mirror: false,
            finished: false,
            pending: false,
            ready: true,
            terminating: false,
            priority: 0,
            pin: None,
            volumes: Vec::new(),
            last_try: None,
            asking: false,
        }
    }
}

/// What makes the pod again when it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    None,
    /// Of a DaemonSet that is there. A pod whose DaemonSet is gone counts as `None`.
    DaemonSet,
    Job,
    Other,
}

/// Who pins a pod to its node by `spec.nodeName`, past the scheduler and past any cordon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pin {
    /// The pod itself.
    Pod,
    /// The template of this owner.
    Owner { kind: String, name: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Try {
    pub at: Timestamp,
    pub answer: Answer,
    /// How often it was refused since it was last allowed.
    pub refusals: u32,
    /// How often in a row it failed otherwise.
    pub failures: u32,
    /// The server said that asking before is of no use (`Retry-After`).
    pub not_before: Option<Timestamp>,
}

impl Try {
    /// A try and its answer, after those before.
    pub fn after(previous: Option<&Try>, at: Timestamp, answer: Answer) -> Self {
        let refusals = previous.map_or(0, |last| last.refusals);
        let failures = previous.map_or(0, |last| last.failures);
        let (refusals, failures) = match answer {
            Answer::Allowed | Answer::Accepted => (0, 0),
            Answer::Later { .. } => (refusals, 0),
            Answer::Refused { .. } => (refusals.saturating_add(1), 0),
            Answer::Failed { .. } => (refusals, failures.saturating_add(1)),
        };
        Self { at, answer, refusals, failures, not_before: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It was a rehearsal, and the eviction would have been done.
    Allowed,
    Accepted,
    /// A budget says not now.
    Refused {
        budgets: Vec<Budget>,
        message: String,
    },
    /// Nobody refuses, but it is not the time: a busy API server, a budget that its controller has
    /// not looked at, a namespace that is being deleted with all that is in it.
    Later {
        message: String,
    },
    /// Anything else that went wrong.
    Failed {
        message: String,
    },
}

/// A PodDisruptionBudget that covers the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    pub name: String,
    /// How many of its pods may be missing at the moment.
    pub allowed: i32,
}

/// A PodDisruptionBudget with what its controller says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BudgetFacts {
    pub namespace: String,
    pub name: String,
    /// `None` selects nothing.
    pub selector: Option<Selector>,
    /// `disruptionsAllowed`
    pub allowed: i32,
    /// `currentHealthy`
    pub healthy: i32,
    /// `desiredHealthy`
    pub desired: i32,
    /// `expectedPods`
    pub expected: i32,
    /// `unhealthyPodEvictionPolicy: AlwaysAllow`
    pub always_allow_unready: bool,
    /// In this drain the eviction of a ready pod under it was rehearsed and allowed.
    pub agreed: bool,
    /// When this drain last saw it change.
    pub changed_at: Option<Timestamp>,
    /// When this drain asked for the last eviction under it that was accepted.
    pub taken_at: Option<Timestamp>,
}

impl BudgetFacts {
    pub(super) fn covers(&self, pod: &PodFacts) -> bool {
        let selects = self.selector.as_ref().is_some_and(|it| it.matches(&pod.labels));
        selects && self.namespace == pod.pod.namespace
    }
}
