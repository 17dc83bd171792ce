//! What a drain says about itself: the same for the API, the command line, the page and the log.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    budget::{Allowances, Outlook, Say, outlook},
    snapshot::{Answer, Budget, Pin, PodFacts, PodRef},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub stage: Stage,
    /// So many pods have to leave the node yet.
    pub left: usize,
    pub waiting: Vec<Waiting>,
    /// So many are terminating and count as gone, since nobody on the node ends them.
    pub given_up: usize,
}

impl Report {
    pub(super) fn new(stage: Stage, left: usize) -> Self {
        Self { stage, left, waiting: Vec::new(), given_up: 0 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    Rehearsing,
    Evicting,
    /// The pods are gone, their volumes are not.
    Detaching,
    /// There is no such node.
    Gone,
}

/// What the drain waits for, and why. Its text is a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// `None` when the node itself is the reason.
    pub pod: Option<PodRef>,
    pub reason: WaitReason,
    /// What a person may have to do, or why waiting will not help.
    pub remark: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitReason {
    /// Its turn has not come.
    NotYet,
    Refused {
        budgets: Vec<Budget>,
        message: String,
    },
    /// The server asks to come back.
    Later {
        message: String,
    },
    /// It belongs to a Job and runs.
    Job,
    Terminating,
    Failed {
        message: String,
    },
    /// Another part of Wharf has cordoned the node.
    CordonedBy(String),
    /// Volumes of pods that left.
    Volumes(Vec<String>),
    /// The cluster does not answer.
    Silent {
        message: String,
    },
}

impl Waiting {
    /// Whether this is what keeps a drain from going on, and not only its turn or its end.
    pub fn blocks(&self) -> bool {
        match self.reason {
            WaitReason::Refused { .. }
            | WaitReason::Job
            | WaitReason::Failed { .. }
            | WaitReason::Later { .. }
            | WaitReason::Silent { .. }
            | WaitReason::CordonedBy(_) => true,
            WaitReason::NotYet | WaitReason::Terminating | WaitReason::Volumes(_) => {
                self.remark.is_some()
            }
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pod) = &self.pod {
            write!(f, "pod {pod} ")?;
        }
        match &self.reason {
            WaitReason::NotYet => f.write_str("has not been evicted yet")?,
            WaitReason::Refused { budgets, message } if budgets.is_empty() => {
                write!(f, "may not be evicted now: {message}")?;
            }
            WaitReason::Refused { budgets, message } => write_budgets(f, budgets, message)?,
            WaitReason::Later { message } => write!(f, "cannot be evicted yet: {message}")?,
            WaitReason::Job => f.write_str("belongs to a Job that has not finished")?,
            WaitReason::Terminating => f.write_str("is terminating")?,
            WaitReason::Failed { message } => write!(f, "could not be evicted: {message}")?,
            WaitReason::CordonedBy(owner) => write!(f, "the node is cordoned by {owner}")?,
            WaitReason::Silent { message } => write!(f, "the cluster does not answer: {message}")?,
            WaitReason::Volumes(names) => {
                write!(f, "volumes of drained pods are attached: {}", names.join(", "))?;
            }
        }
        self.remark.as_ref().map_or(Ok(()), |remark| write!(f, "; {remark}"))
    }
}

fn write_budgets(f: &mut fmt::Formatter<'_>, budgets: &[Budget], message: &str) -> fmt::Result {
    match budgets {
        [one] => write!(f, "is protected by budget {}, {} allowed", one.name, one.allowed),
        // Kubernetes never evicts such a pod, however many disruptions are allowed.
        several => {
            let names: Vec<_> = several.iter().map(|budget| budget.name.as_str()).collect();
            write!(f, "is protected by several budgets ({}): {message}", names.join(", "))
        }
    }
}

/// What a person should know of a pod that does not leave.
pub(super) fn remark(pod: &PodFacts, allowances: &Allowances<'_>) -> Option<String> {
    let mut remarks = Vec::new();
    if let [(budget, left)] = allowances.covering(pod).as_slice()
        && outlook(budget, *left, pod) == Outlook::Never
    {
        remarks.push(format!(
            "as budget {} is set it never allows one: {} of its {} pods must be healthy",
            budget.name, budget.desired, budget.expected
        ));
    }
    let refused = matches!(
        pod.last_try.as_ref().map(|last| &last.answer),
        Some(Answer::Refused { .. } | Answer::Failed { .. })
    );
    remarks.extend(match &pod.pin {
        // It leaves by itself unless somebody says no.
        Some(Pin::Pod) if !refused && allowances.say(pod) == Say::Free => None,
        pin => pin.as_ref().map(hint),
    });
    if remarks.is_empty() { None } else { Some(remarks.join("; ")) }
}

fn hint(pin: &Pin) -> String {
    match pin {
        Pin::Pod => {
            "its spec.nodeName names this node: delete the pod to let the drain go on".to_owned()
        }
        // Its pod would be made again on this very node, cordoned or not.
        Pin::Owner { kind, name } => format!(
            "the spec.nodeName of {kind} {name} names this node, so deleting the pod is not enough: \
             delete the {kind} to let the drain go on"
        ),
    }
}

/// Why a drain was given up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("the deadline passed: {}", sentences(waiting))]
    Deadline { waiting: Vec<Waiting> },
    #[error("pods of Jobs are on the node: {}", sentences(waiting))]
    Jobs { waiting: Vec<Waiting> },
    #[error("evictions were refused too often: {}", sentences(waiting))]
    Refused { waiting: Vec<Waiting> },
    #[error("evictions failed too often: {}", sentences(waiting))]
    Broken { waiting: Vec<Waiting> },
    #[error("somebody made the node schedulable again")]
    UncordonedByAPerson,
}

impl Failure {
    /// What stood in the way.
    pub fn waiting(&self) -> &[Waiting] {
        match self {
            Failure::Deadline { waiting }
            | Failure::Jobs { waiting }
            | Failure::Refused { waiting }
            | Failure::Broken { waiting } => waiting,
            Failure::UncordonedByAPerson => &[],
        }
    }
}

/// So many are named; the rest is counted.
const NAMED: usize = 5;

fn sentences(waiting: &[Waiting]) -> String {
    let mut parts: Vec<String> = waiting.iter().take(NAMED).map(Waiting::to_string).collect();
    if waiting.len() > NAMED {
        parts.push(format!("and {} more", waiting.len() - NAMED));
    }
    if parts.is_empty() { "nothing was left to wait for".to_owned() } else { parts.join("; ") }
}
