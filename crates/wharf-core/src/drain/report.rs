//! What a drain says about itself: the same for the API, the command line, the page and the log.

use std::fmt;

use super::snapshot::{Budget, PodRef};

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Rehearsing,
    Evicting,
    /// There is no such node.
    Gone,
}

/// What the drain waits for, and why. Its text is a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// `None` when the node itself is the reason.
    pub pod: Option<PodRef>,
    pub reason: WaitReason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitReason {
    /// Its turn has not come.
    NotYet,
    Refused {
        budgets: Vec<Budget>,
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
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pod) = &self.pod {
            write!(f, "pod {pod} ")?;
        }
        match &self.reason {
            WaitReason::NotYet => f.write_str("has not been evicted yet"),
            WaitReason::Refused { budgets, message } if budgets.is_empty() => {
                write!(f, "may not be evicted now: {message}")
            }
            WaitReason::Refused { budgets, message } => write_budgets(f, budgets, message),
            WaitReason::Job => f.write_str("belongs to a Job that has not finished"),
            WaitReason::Terminating => f.write_str("is terminating"),
            WaitReason::Failed { message } => write!(f, "could not be evicted: {message}"),
            WaitReason::CordonedBy(owner) => write!(f, "the node is cordoned by {owner}"),
        }
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

/// Why a drain was given up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("the deadline passed: {}", sentences(waiting))]
    Deadline { waiting: Vec<Waiting> },
    #[error("somebody made the node schedulable again")]
    UncordonedByAPerson,
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
