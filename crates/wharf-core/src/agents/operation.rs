//! Reboots, shutdowns and updates of nodes that somebody asked the server for.
//!
//! The node itself does them, once, after its drain; the server lets them in beside what else is out
//! of service, hands them on, and follows what the agent says.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{AgentRecord, JobPhase};
use crate::{
    disruption,
    node::{gate::is_over, status::DrainStatus},
    operation::OperationState,
    record::Kind,
};

/// So long after a cancel an agent that does not speak of the operation has never begun it.
const HEARD: Duration = Duration::from_secs(10);

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
}

impl Kind for NodeOperation {
    const KIND: &'static str = "nodeoperation";
}

impl NodeOperation {
    pub fn key(cluster: &str, node: &str) -> String {
        format!("{cluster}/{node}")
    }

    pub fn is_running(&self) -> bool {
        self.state == OperationState::Running
    }

    /// Whether the machine counts as out of service for it.
    pub fn is_out(&self) -> bool {
        self.admitted && (self.is_running() || self.away)
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
    let job = agent.jobs.iter().find(|job| job.id == operation.id);
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
    if !operation.admitted {
        return Next::Ask;
    }
    if operation.local {
        return local(operation, agent, linked, returned);
    }
    match phase {
        Some(JobPhase::Done) => once_returned(operation, returned),
        Some(JobPhase::Failed) => end(OperationState::Failed, job.map(|job| job.reason.clone())),
        Some(JobPhase::Canceled) => end(OperationState::Canceled, None),
        Some(JobPhase::Leaving) if !linked && operation.kind == disruption::Kind::Shutdown => {
            let reason = Some("the machine was shut down".to_owned());
            Next::End { state: OperationState::Succeeded, reason, away: true }
        }
        Some(phase) => Next::Wait(wait(phase, job.map_or("", |job| &job.reason), agent, linked)),
        None => unheard(operation, agent, linked, now),
    }
}

/// Whoever asked on the node does the rest there.
fn local(
    operation: &NodeOperation,
    agent: &AgentRecord,
    linked: bool,
    returned: &Returned,
) -> Next {
    if linked && agent.reported && agent.wants.is_none() {
        return once_returned(operation, returned);
    }
    Next::Wait(match &agent.drain {
        Some(_) => drain_sentence(agent),
        None => "the node is being drained".to_owned(),
    })
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

/// The agent does not speak of it.
fn unheard(operation: &NodeOperation, agent: &AgentRecord, linked: bool, now: Timestamp) -> Next {
    if !linked {
        return Next::Wait("there is no link to the node's agent".to_owned());
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
    let lost = !linked && phase != JobPhase::Leaving;
    if lost { format!("{sentence} (no link; last known)") } else { sentence }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::{DrainSaid, JobSaid};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn operation(kind: disruption::Kind) -> NodeOperation {
        NodeOperation {
            cluster: "demo".to_owned(),
            node: "n1".to_owned(),
            id: "1".to_owned(),
            kind,
            image: None,
            machine: "192.0.2.1".to_owned(),
            critical: true,
            local: false,
            requested_by: "admin".to_owned(),
            state: OperationState::Running,
            started_at: at(0),
            ended_at: None,
            canceled_at: None,
            admitted: true,
            away: false,
            reason: None,
        }
    }

    fn agent(phase: Option<JobPhase>) -> AgentRecord {
        let job = |phase| JobSaid { id: "1".to_owned(), phase, reason: "why".to_owned() };
        AgentRecord {
            jobs: phase.map(job).into_iter().collect(),
            reported: true,
            ..Default::default()
        }
    }

    #[test]
    fn every_phase_that_the_agent_tells_of_leads_on() {
        use disruption::Kind::{Reboot, Shutdown};
        let waits = |text: &str| Next::Wait(text.to_owned());
        let rows = [
            (Reboot, None, true, waits("the node's agent has not taken it over yet")),
            (Reboot, None, false, waits("there is no link to the node's agent")),
            (Reboot, Some(JobPhase::Preparing), true, waits("why")),
            (Reboot, Some(JobPhase::Deferred), false, waits("why (no link; last known)")),
            (Reboot, Some(JobPhase::Commanding), true, waits("why")),
            (Reboot, Some(JobPhase::Leaving), true, waits("why")),
            (Reboot, Some(JobPhase::Leaving), false, waits("the node is down, or on its way back")),
            (Reboot, Some(JobPhase::Done), true, Next::LookForReturn),
            (Shutdown, Some(JobPhase::Leaving), true, waits("why")),
            (
                Shutdown,
                Some(JobPhase::Leaving),
                false,
                Next::End {
                    state: OperationState::Succeeded,
                    reason: Some("the machine was shut down".to_owned()),
                    away: true,
                },
            ),
            (
                Reboot,
                Some(JobPhase::Failed),
                false,
                end(OperationState::Failed, Some("why".to_owned())),
            ),
            (Reboot, Some(JobPhase::Canceled), true, end(OperationState::Canceled, None)),
        ];
        for (kind, phase, linked, expected) in rows {
            let (operation, agent) = (operation(kind), agent(phase));
            let next = decide_operation(&operation, &agent, linked, &Returned::NotAsked, at(1));
            assert_eq!(next, expected, "{kind:?} {phase:?} {linked}");
        }
    }

    #[test]
    fn a_cancel_ends_what_nobody_heard_of_and_waits_for_the_agent_otherwise() {
        let mut canceled = operation(disruption::Kind::Reboot);
        canceled.canceled_at = Some(at(5));
        let next = |operation: &NodeOperation, phase, linked, now| {
            decide_operation(operation, &agent(phase), linked, &Returned::NotAsked, at(now))
        };
        let over = end(OperationState::Canceled, None);
        assert!(matches!(next(&canceled, None, true, 6), Next::WaitFor(..)));
        assert_eq!(next(&canceled, None, true, 15), over, "it was never begun");
        assert!(matches!(next(&canceled, None, false, 99), Next::Wait(_)), "who knows");
        assert!(matches!(next(&canceled, Some(JobPhase::Leaving), true, 99), Next::Wait(_)));
        canceled.admitted = false;
        assert_eq!(next(&canceled, None, false, 5), over);
        canceled.canceled_at = None;
        assert_eq!(next(&canceled, None, true, 5), Next::Ask);
    }

    #[test]
    fn a_machine_is_back_when_its_kubelet_and_etcd_are() {
        let seen = |boot_id: &str, ready, etcd: &[(&str, bool)]| Seen {
            boot_id: boot_id.to_owned(),
            ready,
            etcd: etcd.iter().map(|(host, good)| ((*host).to_owned(), *good)).collect(),
        };
        let rows = [
            (None, Some("no such node")),
            (Some(seen("old", true, &[])), Some("has not come back")),
            (Some(seen("new", false, &[])), Some("not Ready")),
            (Some(seen("new", true, &[("a", true), ("b", false)])), Some("in order at b")),
            (Some(seen("new", true, &[("a", true), ("b", true)])), None),
            (Some(seen("new", true, &[])), None),
        ];
        for (seen, missing) in rows {
            match (Returned::judge(seen.as_ref(), "new"), missing) {
                (Returned::Yes, None) => {}
                (Returned::NotYet(why), Some(missing)) => assert!(why.ends_with(missing), "{why}"),
                (other, _) => panic!("{seen:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_machine_that_was_shut_down_counts_until_it_is_back() {
        let mut down = operation(disruption::Kind::Shutdown);
        (down.state, down.away) = (OperationState::Succeeded, true);
        assert!(down.is_out());
        let next = |phase, linked, returned: &Returned| {
            decide_operation(&down, &agent(phase), linked, returned, at(1))
        };
        let unasked = Returned::NotAsked;
        assert_eq!(next(Some(JobPhase::Leaving), false, &unasked), Next::Nothing);
        assert_eq!(next(Some(JobPhase::Leaving), true, &unasked), Next::Nothing, "not gone yet");
        assert_eq!(next(Some(JobPhase::Done), true, &unasked), Next::LookForReturn);
        let not_yet = Returned::NotYet("it is not Ready".to_owned());
        assert_eq!(next(Some(JobPhase::Done), true, &not_yet), Next::LookAgain(LOOK_EVERY));
        assert_eq!(next(Some(JobPhase::Done), true, &Returned::Yes), Next::Back);
        down.away = false;
        assert!(!down.is_out());
        let yes = Returned::Yes;
        assert_eq!(decide_operation(&down, &agent(None), true, &yes, at(1)), Next::Nothing);
    }

    #[test]
    fn a_machine_that_speaks_again_is_out_until_its_cluster_has_it_back() {
        let mut done = operation(disruption::Kind::Update);
        let next = |operation: &NodeOperation, returned: &Returned| {
            decide_operation(operation, &agent(Some(JobPhase::Done)), true, returned, at(1))
        };
        let not_yet = Returned::NotYet("the node is not Ready".to_owned());
        let sentence = "it was done, but the node is not Ready".to_owned();
        assert_eq!(next(&done, &not_yet), Next::WaitFor(LOOK_EVERY, sentence));
        assert_eq!(next(&done, &Returned::Yes), end(OperationState::Succeeded, None));
        done.canceled_at = Some(at(0));
        let Next::End { state, reason, away } = next(&done, &not_yet) else { panic!("it goes on") };
        assert_eq!((state, away), (OperationState::Failed, false));
        assert!(reason.unwrap().contains("the node is not Ready"));
    }

    #[test]
    fn what_is_asked_for_on_the_node_lasts_as_long_as_the_node_wants_it() {
        let local = NodeOperation { local: true, ..operation(disruption::Kind::Update) };
        let mut wanting = agent(None);
        wanting.wants = Some(disruption::Kind::Update);
        wanting.drain =
            Some(DrainSaid { status: 5, reason: "r".to_owned(), blocking: vec!["b".to_owned()] });
        let text = "the drain is at CORDONED; r; b".to_owned();
        let next = |agent: &AgentRecord, linked, returned: &Returned| {
            decide_operation(&local, agent, linked, returned, at(1))
        };
        assert_eq!(next(&wanting, true, &Returned::Yes), Next::Wait(text));
        wanting.wants = None;
        assert!(matches!(next(&wanting, false, &Returned::Yes), Next::Wait(_)));
        assert_eq!(next(&wanting, true, &Returned::NotAsked), Next::LookForReturn);
        let over = end(OperationState::Succeeded, None);
        assert_eq!(next(&wanting, true, &Returned::Yes), over);
    }
}
