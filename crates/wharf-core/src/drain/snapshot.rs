//! The facts that a drain is decided on.

use jiff::Timestamp;

/// A node and what is on it, as seen at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// `None` when there is no such Node.
    pub node: Option<NodeFacts>,
    pub pods: Vec<PodFacts>,
    /// Since when, in this drain, every look at the cordoned node found nothing left to move.
    pub empty_since: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
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

/// A pod beyond doubt: a name can be given to a new pod, a UID cannot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    pub controller: Controller,
    /// The picture of a static pod, which only a file on the node ends.
    pub mirror: bool,
    /// Succeeded or failed: it does not run any more.
    pub finished: bool,
    /// Its deletion has begun.
    pub terminating: bool,
    /// The last time that its eviction was asked for, in this drain.
    pub last_try: Option<Try>,
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Try {
    pub at: Timestamp,
    pub answer: Answer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It was a rehearsal, and the eviction would have been done.
    Allowed,
    Accepted,
    /// A budget, or a busy API server, says not now.
    Refused {
        budgets: Vec<Budget>,
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
