//! Reboots, shutdowns and updates of nodes that somebody asked the server for.
//!
//! The node itself does them, once, after its drain; the server lets them in beside what else is out
//! of service, hands them on, and follows what the agent says.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{AgentRecord, JobPhase, JobSaid};
use crate::{
    disruption,
    node::{gate::is_over, status::DrainStatus},
    operation::OperationState,
    record::Kind,
};

/// So long after a cancel an agent that does not speak of the operation has never begun it, and one that
/// has no link is not waited for.
const HEARD: Duration = Duration::from_secs(10);

const NO_LINK: &str = "there is no link to the node's agent";

/// The last operation of a node. The id is `<cluster>/<node>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOperation {
    pub cluster: String,
    pub node: String,
    /// Tells one operation of a node from the next; its journal has the same id.
    pub id: String,
    pub kind: disruption::Kind,
    /// Of an update: where the image is, and its checksum.
    pub image: Option<(String, String)>,
    /// By what the cluster's disruption guard knows the machine: its address, or the node's name.
    pub machine: String,
    /// It is a controlplane or an etcd machine.
    pub critical: bool,
    /// It was asked for on the node itself; the server only lets it in.
    pub local: bool,
    pub requested_by: String,
    pub state: OperationState,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// Somebody wants it to stop, since this time.
    pub canceled_at: Option<Timestamp>,
    /// The guard let it in: from then on the machine counts as out of service.
    pub admitted: bool,
    /// It is over, but the machine was shut down and has not come back.
    pub away: bool,
    /// While it runs, why it does not go on; afterwards why it failed, or what is to be known.
    pub reason: Option<String>,
    /// In which boot of the machine its agent first spoke of it. One that knows nothing of it after that
    /// has lost what it knew, as with a disk.
    #[serde(default)]
    pub taken_in: Option<String>,
}

impl Kind for NodeOperation {
    const KIND: &'static str = "nodeoperation";
}

impl NodeOperation {
    pub fn key(cluster: &str, node: &str) -> String {
        format!("{cluster}/{node}")
    }

    /// One that is asked for and not let in yet, on a machine that the guard knows by the node's name.
    pub fn new(
        cluster: &str,
        node: &str,
        id: &str,
        kind: disruption::Kind,
        started_at: Timestamp,
    ) -> Self {
        Self {
            cluster: cluster.to_owned(),
            node: node.to_owned(),
            id: id.to_owned(),
            kind,
            image: None,
            machine: node.to_owned(),
            critical: false,
            local: false,
            requested_by: String::new(),
            state: OperationState::Running,
            started_at,
            ended_at: None,
            canceled_at: None,
            admitted: false,
            away: false,
            reason: None,
            taken_in: None,
        }
    }

    pub fn is_running(&self) -> bool {
        self.state == OperationState::Running
    }

    /// Whether the machine counts as out of service for it.
    pub fn is_out(&self) -> bool {
        self.admitted && (self.is_running() || self.away)
    }

    /// What is to be stored when the agent speaks of it for the first time. An agent that has not spoken
    /// since it was linked may have spoken in another boot.
    pub fn taken_over(&self, agent: &AgentRecord) -> Option<Self> {
        let is_new = self.is_running() && !self.local && self.taken_in.is_none();
        let boot_id = Some(agent.boot_id.clone()).filter(|boot_id| !boot_id.is_empty());
        if !is_new || !agent.reported || job_of(self, agent).is_none() {
            return None;
        }
        boot_id.map(|boot_id| Self { taken_in: Some(boot_id), ..self.clone() })
    }

    /// Whether the machine was booted since its agent took the operation over.
    fn has_booted(&self, agent: &AgentRecord) -> bool {
        let before = self.taken_in.as_ref().filter(|_| !agent.boot_id.is_empty());
        before.is_some_and(|before| *before != agent.boot_id)
    }
}

/// So often it is asked whether a machine is in service again.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Whether the machine of an operation is in service again, by its cluster and not by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Returned {
    NotAsked,
    Yes,
    /// The sentence says what is missing.
    NotYet(String),
}

/// What the cluster says of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Of which boot its kubelet has spoken last.
    pub boot_id: String,
    pub ready: bool,
    /// Whether each API server finds its etcd in order, where the machine is part of that.
    pub etcd: BTreeMap<String, bool>,
}

impl Returned {
    /// The machine is back when its kubelet works since the boot that the agent speaks of, and etcd is
    /// whole again. `None`: the cluster has no such node.
    pub fn judge(seen: Option<&Seen>, boot_id: &str) -> Self {
        let Some(seen) = seen else {
            return Self::NotYet("the cluster has no such node".to_owned());
        };
        let ill = seen.etcd.iter().filter(|(_, good)| !**good).map(|(host, _)| host.as_str());
        let ill = ill.collect::<Vec<_>>().join(", ");
        match seen {
            Seen { boot_id: theirs, .. } if theirs != boot_id => {
                Self::NotYet("its kubelet has not come back".to_owned())
            }
            Seen { ready: false, .. } => Self::NotYet("the node is not Ready".to_owned()),
            _ if !ill.is_empty() => Self::NotYet(format!("etcd is not in order at {ill}")),
            _ => Self::Yes,
        }
    }
}

/// What is to be done about an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Ask the disruption guard.
    Ask,
    /// The sentence says for what.
    Wait(String),
    /// Look again after this time although nothing has changed.
    WaitFor(Duration, String),
    /// The same for an operation that is over.
    LookAgain(Duration),
    /// `away`: the machine stays out of service.
    End {
        state: OperationState,
        reason: Option<String>,
        away: bool,
    },
    /// Find out whether the machine is in service again, and decide anew.
    LookForReturn,
    /// The machine that was shut down is back.
    Back,
    Nothing,
}

/// Decides what becomes of an operation. `linked`: its agent speaks with a server now.
///
/// That an agent speaks again is not enough: the machine counts as out of service until its cluster
/// has it back, or the next controlplane would go while etcd still lacks this one.
pub fn decide_operation(
    operation: &NodeOperation,
    agent: &AgentRecord,
    linked: bool,
    returned: &Returned,
    now: Timestamp,
) -> Next {
    let job = job_of(operation, agent);
    let phase = job.map(|job| job.phase);
    if !operation.is_running() {
        let is_up = operation.away && linked && phase != Some(JobPhase::Leaving);
        return match returned {
            Returned::Yes if is_up => Next::Back,
            Returned::NotAsked if is_up => Next::LookForReturn,
            Returned::NotYet(_) if is_up => Next::LookAgain(LOOK_EVERY),
            Returned::Yes | Returned::NotAsked | Returned::NotYet(_) => Next::Nothing,
        };
    }
    if operation.canceled_at.is_some() && !operation.admitted {
        return end(OperationState::Canceled, None);
    }
    if operation.local {
        return local(operation, agent, linked, returned, now);
    }
    if !operation.admitted {
        return Next::Ask;
    }
    match phase {
        Some(JobPhase::Done) => once_returned(operation, returned),
        Some(JobPhase::Failed) => {
            let reason = job.map(|job| job.reason.clone());
            undone(operation, agent, returned, OperationState::Failed, reason)
        }
        Some(JobPhase::Canceled) => match called_off(operation, job) {
            // What took its place goes on with its drain: the machine is not back in between.
            Some(why) if agent.wants.is_some() => {
                let sentence = last_known(format!("{why}; {}", drain_sentence(agent)), linked);
                Next::Wait(sentence)
            }
            why => undone(operation, agent, returned, OperationState::Canceled, why),
        },
        Some(phase) if is_shut_down(phase, operation, linked) => shut_down(),
        Some(phase) => {
            let sentence = wait(phase, job.map_or("", |job| &job.reason), agent, linked);
            wait_or_let_go(sentence, operation, agent, linked, now)
        }
        None => unheard(operation, agent, linked, now),
    }
}

/// What the agent says of the operation. The server does not know the id of what was asked for on the
/// node itself; of each kind there is one job at a time, and those that lost their place come last.
fn job_of<'a>(operation: &NodeOperation, agent: &'a AgentRecord) -> Option<&'a JobSaid> {
    agent.jobs.iter().find(|job| match operation.local {
        true => job.kind == Some(operation.kind),
        false => job.id == operation.id,
    })
}

/// Whoever asked on the node does the rest there. The server asks the guard as long as the node wants
/// it, and tells how it ended.
fn local(
    operation: &NodeOperation,
    agent: &AgentRecord,
    linked: bool,
    returned: &Returned,
    now: Timestamp,
) -> Next {
    let job = job_of(operation, agent);
    let phase = job.map(|job| job.phase);
    // What it said before its link was lost may not hold any more.
    let is_heard = linked && agent.reported;
    if is_heard && agent.wants.is_none() {
        let over = |state, reason| undone(operation, agent, returned, state, reason);
        return match phase {
            Some(JobPhase::Done) => once_returned(operation, returned),
            Some(JobPhase::Failed) => {
                over(OperationState::Failed, job.map(|job| job.reason.clone()))
            }
            Some(JobPhase::Canceled) => over(OperationState::Canceled, None),
            Some(phase) => Next::Wait(wait(phase, job.map_or("", |job| &job.reason), agent, true)),
            None if !operation.admitted => end(OperationState::Canceled, None),
            // An agent that was started a moment ago speaks of its jobs before its machine is back, unless
            // it has lost them.
            None if operation.has_booted(agent) && is_over_with_a_boot(operation.kind) => {
                once_returned(operation, returned)
            }
            None => {
                let reason = "the node's agent does not speak of it any more".to_owned();
                over(OperationState::Failed, Some(reason))
            }
        };
    }
    if phase.is_some_and(|phase| is_shut_down(phase, operation, linked)) {
        return shut_down();
    }
    if !operation.admitted {
        return match (is_heard, linked) {
            (true, _) => Next::Ask,
            (false, true) => Next::Wait("the node's agent has not said how it is".to_owned()),
            (false, false) => Next::Wait(NO_LINK.to_owned()),
        };
    }
    let sentence = match (phase, &agent.drain) {
        (Some(JobPhase::Leaving), _) => wait(JobPhase::Leaving, "", agent, linked),
        (_, Some(_)) => last_known(drain_sentence(agent), linked),
        (_, None) => last_known("the node is being drained".to_owned(), linked),
    };
    wait_or_let_go(sentence, operation, agent, linked, now)
}

/// A machine that was told to shut down and does not speak any more is off.
fn is_shut_down(phase: JobPhase, operation: &NodeOperation, linked: bool) -> bool {
    phase == JobPhase::Leaving && !linked && operation.kind == disruption::Kind::Shutdown
}

fn shut_down() -> Next {
    let reason = Some("the machine was shut down".to_owned());
    Next::End { state: OperationState::Succeeded, reason, away: true }
}

/// Why an operation ended as canceled that nobody canceled here.
fn called_off(operation: &NodeOperation, job: Option<&JobSaid>) -> Option<String> {
    let told = job.map(|job| job.reason.clone()).filter(|reason| !reason.is_empty());
    let told = told.unwrap_or_else(|| "it was called off on the node itself".to_owned());
    operation.canceled_at.is_none().then_some(told)
}

/// An agent without a link cannot be told to stop. Whoever cancels what it does wants no more than not
/// to wait for that machine: others may go out of service, and it may be repaired or removed.
fn wait_or_let_go(
    sentence: String,
    operation: &NodeOperation,
    agent: &AgentRecord,
    linked: bool,
    now: Timestamp,
) -> Next {
    let Some(canceled_at) = operation.canceled_at.filter(|_| !linked) else {
        return Next::Wait(sentence);
    };
    let mut silent_since = [Some(canceled_at), agent.seen_at].into_iter().flatten();
    if silent_since.all(|since| is_over(since, HEARD, now)) {
        let reason = format!("{sentence}; nobody waits for that any more");
        return end(OperationState::Failed, Some(reason));
    }
    Next::WaitFor(HEARD, sentence)
}

/// It was done; it is over when the machine is in service again, or when nobody wants to wait for that.
fn once_returned(operation: &NodeOperation, returned: &Returned) -> Next {
    match returned {
        Returned::NotAsked => Next::LookForReturn,
        Returned::Yes => end(OperationState::Succeeded, None),
        Returned::NotYet(why) if operation.canceled_at.is_some() => {
            let reason = format!("it was done, but {why}; nobody waits for that any more");
            end(OperationState::Failed, Some(reason))
        }
        Returned::NotYet(why) => Next::WaitFor(LOOK_EVERY, format!("it was done, but {why}")),
    }
}

/// It ended and was not done. A machine that was booted meanwhile, for whatever reason, is out of service
/// until its cluster has it back all the same.
fn undone(
    operation: &NodeOperation,
    agent: &AgentRecord,
    returned: &Returned,
    state: OperationState,
    reason: Option<String>,
) -> Next {
    match returned {
        Returned::NotAsked if operation.has_booted(agent) => Next::LookForReturn,
        Returned::NotYet(why) if operation.canceled_at.is_none() => {
            let ended = reason.unwrap_or_else(|| state.name().to_owned());
            Next::WaitFor(LOOK_EVERY, format!("{ended}; the machine was booted, but {why}"))
        }
        Returned::NotAsked | Returned::Yes | Returned::NotYet(_) => end(state, reason),
    }
}

/// Whether nothing else was wanted.
fn is_over_with_a_boot(kind: disruption::Kind) -> bool {
    match kind {
        disruption::Kind::Reboot | disruption::Kind::Shutdown => true,
        disruption::Kind::Update
        | disruption::Kind::Repair
        | disruption::Kind::Drain
        | disruption::Kind::Removal => false,
    }
}

/// The agent does not speak of it.
fn unheard(operation: &NodeOperation, agent: &AgentRecord, linked: bool, now: Timestamp) -> Next {
    if !linked {
        return wait_or_let_go(NO_LINK.to_owned(), operation, agent, linked, now);
    }
    let not_taken = "the node's agent has not taken it over yet".to_owned();
    match operation.canceled_at {
        Some(since) if agent.reported && is_over(since, HEARD, now) => {
            end(OperationState::Canceled, None)
        }
        Some(_) => Next::WaitFor(HEARD, not_taken),
        None => Next::Wait(not_taken),
    }
}

fn wait(phase: JobPhase, reason: &str, agent: &AgentRecord, linked: bool) -> String {
    let sentence = match phase {
        JobPhase::Leaving if !linked => "the node is down, or on its way back".to_owned(),
        JobPhase::Deferred => match reason {
            "" => drain_sentence(agent),
            reason => reason.to_owned(),
        },
        JobPhase::Preparing
        | JobPhase::Commanding
        | JobPhase::Leaving
        | JobPhase::Done
        | JobPhase::Failed
        | JobPhase::Canceled => match reason {
            "" => phase.name().to_owned(),
            reason => reason.to_owned(),
        },
    };
    last_known(sentence, linked || phase == JobPhase::Leaving)
}

fn last_known(sentence: String, holds: bool) -> String {
    if holds { sentence } else { format!("{sentence} (no link; last known)") }
}

/// How far the drain is, with what blocks it.
fn drain_sentence(agent: &AgentRecord) -> String {
    let drain = agent.drain.clone().unwrap_or_default();
    let status = drain.known().unwrap_or(DrainStatus::Unknown);
    let mut sentence = format!("the drain is at {}", status.name());
    for more in std::iter::once(&drain.reason).chain(&drain.blocking) {
        if !more.is_empty() {
            sentence.push_str("; ");
            sentence.push_str(more);
        }
    }
    sentence
}

fn end(state: OperationState, reason: Option<String>) -> Next {
    Next::End { state, reason, away: false }
}
