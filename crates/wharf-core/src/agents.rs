//! What the server knows of the agents of its clusters, and what it wants of their nodes.
//!
//! An agent's words come to whichever server it is linked to and are stored as an [`AgentRecord`];
//! the owner of the cluster acts on the record. So does what is wanted travel the other way: as a
//! [`NodeOperation`], which the linked server hands to the agent.

mod config_get;
mod operation;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{cluster::ServerId, disruption, node::status::DrainStatus, record::Kind};

pub use config_get::{GRACE, config_get};
pub use operation::{Next, NodeOperation, Returned, Seen, decide_operation};

/// What is known of the agent of a node. The id is `<cluster>/<node>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AgentRecord {
    pub cluster: String,
    pub node: String,
    /// Which server it is linked to; one that is no member any more has lost it.
    pub server: Option<ServerId>,
    /// Tells one connection from the next.
    pub link: u64,
    /// When it was linked, or said something, or was lost.
    pub seen_at: Option<Timestamp>,
    /// Of its program.
    pub version: String,
    pub boot_id: String,
    /// It has said how it is since it was linked.
    pub reported: bool,
    /// What is not as it should be there, a sentence each.
    pub faults: Vec<String>,
    pub drain: Option<DrainSaid>,
    /// For what a drain is wanted there, whoever wants it.
    pub wants: Option<disruption::Kind>,
    pub jobs: Vec<JobSaid>,
    /// The version or the state of what the node is updated to, and whether it failed.
    pub base_os: Option<String>,
}

impl Kind for AgentRecord {
    const KIND: &'static str = "agent";
}

impl AgentRecord {
    pub fn key(cluster: &str, node: &str) -> String {
        format!("{cluster}/{node}")
    }

    /// Whether it is linked to one of these servers.
    pub fn is_linked(&self, members: &[ServerId]) -> bool {
        self.server.as_ref().is_some_and(|server| members.contains(server))
    }

    /// For what the node goes out of service on its own account, beside the last operation that the server
    /// knows of it. What was called off while the node was away is not that: it is told to stop, as long as
    /// it can.
    pub fn wants_by_itself(&self, last: Option<&NodeOperation>) -> Option<disruption::Kind> {
        let called_off = last.filter(|last| !last.local && last.canceled_at.is_some());
        let is_stopped = |job: &JobSaid| {
            called_off.is_some_and(|last| last.id == job.id)
                && matches!(job.phase, JobPhase::Preparing | JobPhase::Deferred)
        };
        self.wants.filter(|kind| {
            let mut jobs = self.jobs.iter().filter(|job| job.kind == Some(*kind));
            !jobs.any(is_stopped)
        })
    }

    /// Whether operations there wait for a drain.
    pub fn deferral(&self) -> Deferral {
        let Some(drain) = &self.drain else { return Deferral::Unknown };
        match drain.known() {
            None => Deferral::Unknown,
            // The gate has something to add where somebody forced the status.
            Some(DrainStatus::NotSupported) if drain.reason.is_empty() => {
                Deferral::Goes("the cluster is too small to drain to".to_owned())
            }
            Some(status @ (DrainStatus::NotSupported | DrainStatus::Unknown)) => {
                let colon = if drain.reason.is_empty() { "" } else { ": " };
                let (name, reason) = (status.name(), &drain.reason);
                Deferral::Goes(format!("of drains the node says {name}{colon}{reason}"))
            }
            Some(
                DrainStatus::NotRequested
                | DrainStatus::Requested
                | DrainStatus::Starting
                | DrainStatus::Cordoned
                | DrainStatus::FailedCordon
                | DrainStatus::DrainRetrying
                | DrainStatus::FailedDrain
                | DrainStatus::Complete,
            ) => Deferral::Waits,
        }
    }
}

/// Whether operations on a node wait until it is drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deferral {
    Waits,
    /// They go at once. The sentence says why.
    Goes(String),
    /// The node has not said.
    Unknown,
}

/// The servers among these that hold a link to one of the agents, each once.
pub fn linked_servers<'a>(agents: &[AgentRecord], members: &'a [ServerId]) -> Vec<&'a ServerId> {
    let holds =
        |member: &ServerId| agents.iter().any(|agent| agent.server.as_ref() == Some(member));
    members.iter().filter(|member| holds(member)).collect()
}

/// How far a drain on the node is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DrainSaid {
    /// The number of a [`DrainStatus`].
    pub status: u8,
    pub reason: String,
    /// The pods that block, a sentence each.
    pub blocking: Vec<String>,
}

impl DrainSaid {
    pub fn known(&self) -> Option<DrainStatus> {
        DrainStatus::from_number(self.status)
    }
}

/// What became of a wish.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobSaid {
    pub id: String,
    #[serde(default)]
    pub kind: Option<disruption::Kind>,
    pub phase: JobPhase,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobPhase {
    #[default]
    Preparing,
    Deferred,
    Commanding,
    Leaving,
    Done,
    Failed,
    Canceled,
}

impl JobPhase {
    pub const ALL: [JobPhase; 7] = [
        JobPhase::Preparing,
        JobPhase::Deferred,
        JobPhase::Commanding,
        JobPhase::Leaving,
        JobPhase::Done,
        JobPhase::Failed,
        JobPhase::Canceled,
    ];

    pub fn name(self) -> &'static str {
        match self {
            JobPhase::Preparing => "preparing",
            JobPhase::Deferred => "deferred",
            JobPhase::Commanding => "commanding",
            JobPhase::Leaving => "leaving",
            JobPhase::Done => "done",
            JobPhase::Failed => "failed",
            JobPhase::Canceled => "canceled",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_that_is_alone_by_its_own_word_is_too_small_to_drain_to() {
        let says = |status: DrainStatus, reason: &str| {
            let (status, reason) = (status.number(), reason.to_owned());
            let drain = Some(DrainSaid { status, reason, blocking: Vec::new() });
            AgentRecord { drain, ..AgentRecord::default() }.deferral()
        };
        assert_eq!(AgentRecord::default().deferral(), Deferral::Unknown, "it has not spoken");
        let junk = DrainSaid { status: 99, ..DrainSaid::default() };
        let junk = AgentRecord { drain: Some(junk), ..AgentRecord::default() };
        assert_eq!(junk.deferral(), Deferral::Unknown);
        for status in DrainStatus::ALL {
            let expected = match status {
                DrainStatus::NotSupported => "the cluster is too small to drain to",
                DrainStatus::Unknown => "of drains the node says UNKNOWN",
                _ => {
                    assert_eq!(says(status, "why"), Deferral::Waits, "{status:?}");
                    continue;
                }
            };
            assert_eq!(says(status, ""), Deferral::Goes(expected.to_owned()));
        }
        let forced = says(DrainStatus::NotSupported, "the status is given by the force file");
        let text = "of drains the node says NOTSUPPORTED: the status is given by the force file";
        assert_eq!(forced, Deferral::Goes(text.to_owned()));
    }

    #[test]
    fn what_was_called_off_is_not_what_a_node_wants_by_itself() {
        use disruption::Kind::{Reboot, Update};
        let called_off = NodeOperation {
            canceled_at: Some(Timestamp::UNIX_EPOCH),
            state: crate::operation::OperationState::Failed,
            ..NodeOperation::new("demo", "n1", "1", Reboot, Timestamp::UNIX_EPOCH)
        };
        let done = NodeOperation { canceled_at: None, ..called_off.clone() };
        let local = NodeOperation { local: true, ..called_off.clone() };
        let rows = [
            (None, "1", JobPhase::Deferred, Some(Reboot)),
            (Some(&called_off), "1", JobPhase::Deferred, None),
            (Some(&called_off), "1", JobPhase::Preparing, None),
            (Some(&called_off), "1", JobPhase::Commanding, Some(Reboot)),
            (Some(&called_off), "1", JobPhase::Leaving, Some(Reboot)),
            (Some(&called_off), "local-1", JobPhase::Deferred, Some(Reboot)),
            (Some(&done), "1", JobPhase::Deferred, Some(Reboot)),
            (Some(&local), "1", JobPhase::Deferred, Some(Reboot)),
        ];
        for (last, id, phase, expected) in rows {
            let job =
                JobSaid { id: id.to_owned(), kind: Some(Reboot), phase, ..Default::default() };
            let agent =
                AgentRecord { wants: Some(Reboot), jobs: vec![job], ..AgentRecord::default() };
            assert_eq!(agent.wants_by_itself(last), expected, "{last:?} {agent:?}");
            let another = AgentRecord { wants: Some(Update), ..agent };
            assert_eq!(another.wants_by_itself(last), Some(Update), "{last:?}");
        }
        assert_eq!(AgentRecord::default().wants_by_itself(Some(&called_off)), None);
    }

    #[test]
    fn a_server_holds_links_as_long_as_it_is_a_member() {
        let id = |name: &str| ServerId(name.to_owned());
        let linked =
            |server: Option<&str>| AgentRecord { server: server.map(id), ..AgentRecord::default() };
        let members = [id("a"), id("b"), id("c")];
        let rows: [(&[Option<&str>], &[&str]); 5] = [
            (&[], &[]),
            (&[None], &[]),
            (&[Some("gone")], &[]),
            (&[Some("b"), Some("b"), None], &["b"]),
            (&[Some("c"), Some("a"), Some("gone")], &["a", "c"]),
        ];
        for (servers, expected) in rows {
            let agents: Vec<_> = servers.iter().map(|server| linked(*server)).collect();
            let found = linked_servers(&agents, &members);
            let found: Vec<&str> = found.iter().map(|server| server.0.as_str()).collect();
            assert_eq!(found, expected, "{servers:?}");
        }
    }
}
