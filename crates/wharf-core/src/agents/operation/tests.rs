//! Every phase of an operation, single looks.

use super::*;
use crate::agents::DrainSaid;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn operation(kind: disruption::Kind) -> NodeOperation {
    let asked_for = NodeOperation::new("demo", "n1", "1", kind, at(0));
    NodeOperation { critical: true, admitted: true, ..asked_for }
}

fn agent(phase: Option<JobPhase>) -> AgentRecord {
    let job = |phase| JobSaid {
        id: "1".to_owned(),
        kind: Some(disruption::Kind::Reboot),
        phase,
        reason: "why".to_owned(),
    };
    AgentRecord { jobs: phase.map(job).into_iter().collect(), reported: true, ..Default::default() }
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
        (
            Reboot,
            Some(JobPhase::Canceled),
            true,
            end(OperationState::Canceled, Some("why".to_owned())),
        ),
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
    assert!(matches!(next(&canceled, Some(JobPhase::Leaving), true, 99), Next::Wait(_)));
    canceled.admitted = false;
    assert_eq!(next(&canceled, None, false, 5), over);
    canceled.canceled_at = None;
    assert_eq!(next(&canceled, None, true, 5), Next::Ask);
}

#[test]
fn a_cancel_lets_go_of_a_machine_that_is_not_heard_of_any_more() {
    let begun = operation(disruption::Kind::Reboot);
    let canceled = NodeOperation { canceled_at: Some(at(100)), ..begun.clone() };
    let next = |operation: &NodeOperation, phase, seen_at: i64, now| {
        let agent = AgentRecord { seen_at: Some(at(seen_at)), ..agent(phase) };
        decide_operation(operation, &agent, false, &Returned::NotAsked, at(now))
    };
    let phases = [
        (None, "there is no link to the node's agent"),
        (Some(JobPhase::Preparing), "why (no link; last known)"),
        (Some(JobPhase::Deferred), "why (no link; last known)"),
        (Some(JobPhase::Commanding), "why (no link; last known)"),
        (Some(JobPhase::Leaving), "the node is down, or on its way back"),
    ];
    for (phase, sentence) in phases {
        let waits = Next::WaitFor(HEARD, sentence.to_owned());
        assert_eq!(next(&canceled, phase, 50, 109), waits, "{phase:?}: it may come back");
        assert_eq!(next(&canceled, phase, 105, 114), waits, "{phase:?}: lost a moment ago");
        let reason = format!("{sentence}; nobody waits for that any more");
        let over = end(OperationState::Failed, Some(reason));
        assert_eq!(next(&canceled, phase, 50, 110), over, "{phase:?}");
        assert_eq!(next(&canceled, phase, 105, 115), over, "{phase:?}");
        assert_eq!(next(&begun, phase, 50, 999), Next::Wait(sentence.to_owned()), "{phase:?}");
    }
    // One that was shut down is off because somebody wanted that.
    let kind = disruption::Kind::Shutdown;
    let down = next(&NodeOperation { kind, ..canceled }, Some(JobPhase::Leaving), 50, 999);
    assert_eq!(down, shut_down());
}

#[test]
fn whoever_canceled_it_needs_no_reason_and_everybody_else_gets_one() {
    let mut canceled = operation(disruption::Kind::Reboot);
    let mut agent = agent(Some(JobPhase::Canceled));
    let next = |operation: &NodeOperation, agent: &AgentRecord| {
        let Next::End { state, reason, .. } =
            decide_operation(operation, agent, true, &Returned::NotAsked, at(1))
        else {
            panic!("it goes on")
        };
        assert_eq!(state, OperationState::Canceled);
        reason
    };
    assert_eq!(next(&canceled, &agent).as_deref(), Some("why"));
    agent.jobs[0].reason.clear();
    let reason = next(&canceled, &agent);
    assert_eq!(reason.as_deref(), Some("it was called off on the node itself"));
    canceled.canceled_at = Some(at(0));
    assert_eq!(next(&canceled, &agent), None);
}

#[test]
fn a_machine_whose_operation_lost_its_place_is_out_for_what_took_it() {
    let mut replaced = operation(disruption::Kind::Reboot);
    let mut agent = agent(Some(JobPhase::Canceled));
    agent.wants = Some(disruption::Kind::Shutdown);
    let next = |operation: &NodeOperation, agent: &AgentRecord, linked| {
        decide_operation(operation, agent, linked, &Returned::NotAsked, at(99))
    };
    let sentence = "why; the drain is at UNKNOWN";
    assert_eq!(next(&replaced, &agent, true), Next::Wait(sentence.to_owned()));
    let lost = format!("{sentence} (no link; last known)");
    assert_eq!(next(&replaced, &agent, false), Next::Wait(lost));
    agent.wants = None;
    let over = end(OperationState::Canceled, Some("why".to_owned()));
    assert_eq!(next(&replaced, &agent, true), over);
    // Somebody does not want to wait for that.
    agent.wants = Some(disruption::Kind::Shutdown);
    replaced.canceled_at = Some(at(1));
    assert_eq!(next(&replaced, &agent, false), end(OperationState::Canceled, None));
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

/// What was asked for on the node itself, and an agent that says of it what is given.
fn on_the_node(admitted: bool, phase: Option<JobPhase>) -> (NodeOperation, AgentRecord) {
    let kind = disruption::Kind::Reboot;
    let id = "server".to_owned();
    let busy = [JobPhase::Deferred, JobPhase::Commanding, JobPhase::Leaving];
    let wants = phase.filter(|phase| busy.contains(phase)).map(|_| kind);
    let operation = NodeOperation { local: true, id, admitted, ..operation(kind) };
    (operation, AgentRecord { wants, ..agent(phase) })
}

#[test]
fn what_is_asked_for_on_the_node_lasts_as_long_as_the_node_wants_it() {
    let (local, mut wanting) = on_the_node(true, Some(JobPhase::Deferred));
    wanting.drain =
        Some(DrainSaid { status: 5, reason: "r".to_owned(), blocking: vec!["b".to_owned()] });
    let next = |agent: &AgentRecord, linked| {
        decide_operation(&local, agent, linked, &Returned::Yes, at(1))
    };
    let text = "the drain is at CORDONED; r; b".to_owned();
    assert_eq!(next(&wanting, true), Next::Wait(text.clone()));
    assert_eq!(next(&wanting, false), Next::Wait(format!("{text} (no link; last known)")));
    wanting.reported = false;
    assert_eq!(next(&wanting, true), Next::Wait(text), "of before");
}

#[test]
fn what_is_asked_for_on_the_node_is_asked_for_here_only_as_long_as_the_node_is_heard() {
    let (local, mut wanting) = on_the_node(false, Some(JobPhase::Deferred));
    let next = |agent: &AgentRecord, linked| {
        decide_operation(&local, agent, linked, &Returned::NotAsked, at(1))
    };
    assert_eq!(next(&wanting, true), Next::Ask);
    assert_eq!(next(&wanting, false), Next::Wait(NO_LINK.to_owned()));
    wanting.reported = false;
    assert!(matches!(next(&wanting, true), Next::Wait(_)), "what it said may not hold any more");
}

#[test]
fn what_was_asked_for_on_the_node_ends_as_it_ended_there() {
    let succeeded = end(OperationState::Succeeded, None);
    let failed = |reason: &str| end(OperationState::Failed, Some(reason.to_owned()));
    let canceled = end(OperationState::Canceled, None);
    let lost = failed("the node's agent does not speak of it any more");
    let rows = [
        (true, Some(JobPhase::Done), succeeded.clone()),
        (true, Some(JobPhase::Failed), failed("why")),
        (true, Some(JobPhase::Canceled), canceled.clone()),
        (true, Some(JobPhase::Preparing), Next::Wait("why".to_owned())),
        (true, None, lost),
        // It may have gone without the guard while nobody could be asked.
        (false, Some(JobPhase::Done), succeeded),
        (false, Some(JobPhase::Failed), failed("why")),
        (false, Some(JobPhase::Canceled), canceled.clone()),
        (false, Some(JobPhase::Preparing), Next::Wait("why".to_owned())),
        (false, None, canceled),
    ];
    for (admitted, phase, expected) in rows {
        let (local, mut agent) = on_the_node(admitted, phase);
        let next = |agent: &AgentRecord, returned: &Returned| {
            decide_operation(&local, agent, true, returned, at(1))
        };
        assert_eq!(next(&agent, &Returned::Yes), expected, "{admitted} {phase:?}");
        // A job of another kind says nothing about it.
        let kind = Some(disruption::Kind::Update);
        agent.jobs.insert(0, JobSaid { kind, ..JobSaid::default() });
        assert_eq!(next(&agent, &Returned::Yes), expected, "{admitted} {phase:?}");
    }
    let (local, agent) = on_the_node(true, Some(JobPhase::Done));
    let next = decide_operation(&local, &agent, true, &Returned::NotAsked, at(1));
    assert_eq!(next, Next::LookForReturn);
}

#[test]
fn a_machine_that_went_down_by_itself_is_off_or_let_go() {
    let (mut local, mut agent) = on_the_node(true, Some(JobPhase::Leaving));
    local.canceled_at = Some(at(100));
    let next = |local: &NodeOperation, agent: &AgentRecord, linked, now| {
        decide_operation(local, agent, linked, &Returned::NotAsked, at(now))
    };
    assert!(matches!(next(&local, &agent, false, 109), Next::WaitFor(HEARD, _)));
    let Next::End { state, reason, away } = next(&local, &agent, false, 110) else {
        panic!("it is waited for")
    };
    assert_eq!((state, away), (OperationState::Failed, false));
    assert!(reason.unwrap().ends_with("nobody waits for that any more"));

    (local.kind, agent.jobs[0].kind) =
        (disruption::Kind::Shutdown, Some(disruption::Kind::Shutdown));
    assert_eq!(next(&local, &agent, false, 101), shut_down());
    (local.state, local.away) = (OperationState::Succeeded, true);
    assert_eq!(next(&local, &agent, true, 102), Next::Nothing, "it is not gone yet");
    agent.jobs[0].phase = JobPhase::Done;
    assert_eq!(next(&local, &agent, true, 103), Next::LookForReturn);
}

#[test]
fn the_boot_in_which_an_agent_first_speaks_of_an_operation_is_kept() {
    let asked_for = operation(disruption::Kind::Reboot);
    let said = |boot_id: &str, phase| AgentRecord { boot_id: boot_id.to_owned(), ..agent(phase) };
    let taken = |operation: &NodeOperation, agent: &AgentRecord| {
        operation.taken_over(agent).map(|taken| taken.taken_in.unwrap())
    };
    let deferred = said("one", Some(JobPhase::Deferred));
    assert_eq!(taken(&asked_for, &deferred).as_deref(), Some("one"));
    assert_eq!(taken(&asked_for, &said("one", None)), None, "it does not speak of it");
    assert_eq!(taken(&asked_for, &said("", Some(JobPhase::Deferred))), None);
    let of_before = AgentRecord { reported: false, ..deferred.clone() };
    assert_eq!(taken(&asked_for, &of_before), None, "it said so in another boot, maybe");
    let known = asked_for.taken_over(&deferred).unwrap();
    assert_eq!(taken(&known, &said("two", Some(JobPhase::Deferred))), None, "the first counts");
    assert_eq!(taken(&NodeOperation { local: true, ..asked_for.clone() }, &deferred), None);
    let over = NodeOperation { state: OperationState::Failed, ..asked_for };
    assert_eq!(taken(&over, &deferred), None);
}

#[test]
fn a_machine_that_was_booted_is_out_until_it_is_back_however_its_operation_ended() {
    let not_yet = Returned::NotYet("the node is not Ready".to_owned());
    let rows = [
        (JobPhase::Failed, end(OperationState::Failed, Some("why".to_owned()))),
        (JobPhase::Canceled, end(OperationState::Canceled, Some("why".to_owned()))),
    ];
    for (phase, over) in rows {
        for local in [false, true] {
            let (taken_in, id) = (Some("one".to_owned()), "1".to_owned());
            let kind = disruption::Kind::Reboot;
            let operation = NodeOperation { local, id, taken_in, ..operation(kind) };
            let over = match (&over, local) {
                (Next::End { state: OperationState::Canceled, .. }, true) => {
                    end(OperationState::Canceled, None)
                }
                (over, _) => over.clone(),
            };
            let next = |operation: &NodeOperation, boot_id: &str, returned: &Returned| {
                let agent = AgentRecord { boot_id: boot_id.to_owned(), ..agent(Some(phase)) };
                decide_operation(operation, &agent, true, returned, at(1))
            };
            assert_eq!(next(&operation, "one", &Returned::NotAsked), over, "it never went");
            assert_eq!(next(&operation, "two", &Returned::NotAsked), Next::LookForReturn);
            assert_eq!(next(&operation, "two", &Returned::Yes), over);
            let waits = next(&operation, "two", &not_yet);
            assert!(matches!(&waits, Next::WaitFor(LOOK_EVERY, why) if why.ends_with("not Ready")));
            let let_go = NodeOperation { canceled_at: Some(at(0)), ..operation };
            assert!(matches!(next(&let_go, "two", &not_yet), Next::End { away: false, .. }));
        }
    }
}

#[test]
fn what_was_asked_for_on_a_node_that_forgot_it_is_over_with_the_boot() {
    let taken_in = Some("one".to_owned());
    let next = |kind, boot_id: &str, returned: &Returned| {
        let (local, mut agent) = on_the_node(true, None);
        agent.boot_id = boot_id.to_owned();
        let local = NodeOperation { kind, taken_in: taken_in.clone(), ..local };
        decide_operation(&local, &agent, true, returned, at(1))
    };
    let lost = "the node's agent does not speak of it any more".to_owned();
    let failed = end(OperationState::Failed, Some(lost));
    let unasked = Returned::NotAsked;
    for kind in [disruption::Kind::Reboot, disruption::Kind::Shutdown] {
        assert_eq!(next(kind, "one", &unasked), failed, "{kind:?}");
        assert_eq!(next(kind, "two", &unasked), Next::LookForReturn, "{kind:?}");
        let succeeded = end(OperationState::Succeeded, None);
        assert_eq!(next(kind, "two", &Returned::Yes), succeeded, "{kind:?}");
    }
    // Nobody knows whether the image is in place.
    assert_eq!(next(disruption::Kind::Update, "two", &unasked), Next::LookForReturn);
    assert_eq!(next(disruption::Kind::Update, "two", &Returned::Yes), failed);
}
