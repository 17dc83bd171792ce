//! Tables: every state with everything that can happen in it.

use std::collections::BTreeMap;

use super::*;

pub(super) const BOOT: &str = "boot-1";

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub(super) fn request(second: i64, context: &str) -> Option<Request> {
    Some(Request { at: Some(at(second)), context: context.to_owned() })
}

pub(super) fn node(owner: Option<&str>) -> Option<NodeFacts> {
    let cordon = owner.map(|owner| Cordon { owner: owner.to_owned(), before: false });
    let unschedulable = cordon.is_some();
    Some(NodeFacts { name: "n1".to_owned(), unschedulable, cordon, unready_since: None })
}

/// A healthy member of a cluster that is asked to reboot.
pub(super) fn facts() -> Facts {
    Facts {
        boot_id: BOOT.to_owned(),
        clustered: true,
        requests: Requests { device_operation: request(0, "reboot"), update: None },
        later: Later::Unknown,
        force: None,
        guard: Guard::Open,
        api: Api::Answers,
        node: node(None),
        worker: Worker::Idle,
    }
}

fn asked(device: bool, update: bool) -> Requests {
    Requests {
        device_operation: request(0, "reboot").filter(|_| device),
        update: request(1, "os-2").filter(|_| update),
    }
}

fn record(phase: Phase) -> Record {
    Record { boot_id: BOOT.to_owned(), awaits_ready: false, phase, last_took: None }
}

fn starting(tries: u32, last_try: Option<i64>) -> Phase {
    let reason = "conflict".to_owned();
    let last_try = last_try.map(at);
    Phase::Starting(Starting { tries, last_try, reason, ..Starting::new(at(0), at(0)) })
}

fn draining(attempt: u32) -> Phase {
    Phase::Draining { begun: at(0), attempt }
}

fn pausing(attempt: u32) -> Phase {
    Phase::Pausing(Pause { begun: at(0), attempt, since: at(0), reason: "500".to_owned() })
}

fn complete(how: How) -> Phase {
    let end = End { at: at(0), turn: Turn::first(&facts().requests, at(0)), reason: String::new() };
    Phase::Complete { end, how }
}

fn drained() -> Phase {
    complete(How::Drained { took: Duration::from_secs(3) })
}

/// Every phase, by the name of what it publishes.
fn phases() -> BTreeMap<&'static str, Phase> {
    let requests = facts().requests;
    BTreeMap::from([
        ("idle", Phase::Idle),
        ("requested", Phase::Requested { since: at(0) }),
        ("starting", starting(0, None)),
        ("cordoned", draining(1)),
        ("retrying", pausing(1)),
        ("again", draining(2)),
        ("failed-cordon", Phase::failed_cordon("conflict", &requests, at(0))),
        ("failed-drain", Phase::failed_drain("500", &requests, at(0))),
        ("complete", drained()),
        ("skipped", complete(How::Skipped)),
        ("forced", complete(How::ForcedForOne)),
    ])
}

/// A decision in one line: what is published, what is done.
fn line(phase: &Phase, facts: &Facts, now: i64) -> String {
    words(&decide_gate(&record(phase.clone()), facts, at(now), &Policy::default()))
}

fn words(decision: &Decision) -> String {
    let mut text =
        format!("{}/{}", decision.publish.status.name(), decision.publish.requested_by.number());
    for effect in &decision.effects {
        text.push_str(match effect {
            Effect::Cordon => " cordon",
            Effect::Drain { .. } => " drain",
            Effect::StopDrain => " stop",
            Effect::Uncordon => " uncordon",
            Effect::RemoveForceFile => " remove-file",
        });
    }
    text
}

/// What the gate shows after it has come to rest, with all effects on the way.
fn settle(phase: &Phase, facts: &Facts, now: i64) -> (String, Record) {
    let mut record = record(phase.clone());
    for _ in 0..10 {
        let decision = decide_gate(&record, facts, at(now), &Policy::default());
        match decision.record {
            Some(next) => record = next,
            None => return (words(&decision), record),
        }
    }
    panic!("{phase:?} never comes to rest");
}

#[test]
fn a_drain_goes_through_all_its_states() {
    let rows = [
        ("idle", facts(), "REQUESTED/2"),
        ("requested", facts(), "STARTING/2"),
        ("starting", facts(), "STARTING/2 cordon"),
        ("starting", Facts { worker: Worker::Cordoning, ..facts() }, "STARTING/2"),
        ("starting", Facts { node: node(Some(CORDON_OWNER)), ..facts() }, "CORDONED/2"),
        ("cordoned", Facts { node: node(Some(CORDON_OWNER)), ..facts() }, "CORDONED/2 drain"),
        ("cordoned", Facts { worker: Worker::Draining, ..facts() }, "CORDONED/2"),
        ("again", Facts { worker: Worker::Draining, ..facts() }, "DRAINRETRYING/2"),
        ("again", facts(), "DRAINRETRYING/2 drain"),
        ("retrying", facts(), "DRAINRETRYING/2"),
        ("failed-cordon", facts(), "FAILEDCORDON/2"),
        ("failed-drain", facts(), "FAILEDDRAIN/2"),
        ("complete", Facts { node: node(Some(CORDON_OWNER)), ..facts() }, "COMPLETE/2"),
        ("skipped", Facts { api: Api::Silent("x".to_owned()), ..facts() }, "COMPLETE/2"),
    ];
    for (name, facts, expected) in rows {
        assert_eq!(line(&phases()[name], &facts, 1), expected, "{name}");
    }
}

#[test]
fn in_every_state_a_withdrawn_request_gives_the_node_back() {
    let nobody = Facts {
        requests: Requests::default(),
        node: node(Some(CORDON_OWNER)),
        worker: Worker::Draining,
        ..facts()
    };
    for (name, phase) in phases() {
        let (rest, record) = settle(&phase, &nobody, 1);
        // After a failure it is the requester's duty to withdraw; it may ask again.
        let expected = match name {
            "failed-cordon" => "FAILEDCORDON/2 stop",
            "failed-drain" => "FAILEDDRAIN/2 stop",
            _ => "NOTREQUESTED/1 stop uncordon",
        };
        assert_eq!(rest, expected, "{name}");
        assert_eq!(record.phase.is_end(), phase.status().is_failure(), "{name}");
    }
}

#[test]
fn in_every_state_a_node_that_is_alone_supports_no_drain() {
    for requests in [asked(false, false), asked(true, false), asked(true, true)] {
        for (name, phase) in phases() {
            let alone = Facts { clustered: false, requests: requests.clone(), ..facts() };
            let (rest, record) = settle(&phase, &alone, 1);
            assert_eq!((rest.as_str(), record.phase), ("NOTSUPPORTED/1", Phase::Idle), "{name}");
        }
    }
}

#[test]
fn in_every_state_another_boot_begins_anew_and_lifts_our_cordon_once_the_node_is_ready() {
    let unready = |owner| {
        let node = node(owner).map(|node| NodeFacts { unready_since: Some(at(0)), ..node });
        let requests = Requests::default();
        Facts { boot_id: "boot-2".to_owned(), node, requests, ..facts() }
    };
    for (name, phase) in phases() {
        let booting = unready(Some(CORDON_OWNER));
        let (rest, record) = settle(&phase, &booting, 1);
        assert_eq!(rest, "NOTREQUESTED/1", "{name}");
        assert!(record.awaits_ready);
        let ready = Facts { node: node(Some(CORDON_OWNER)), ..booting };
        let mut seen = decide_gate(&record, &ready, at(2), &Policy::default());
        let record = seen.record.take().unwrap();
        let seen = decide_gate(&record, &ready, at(2), &Policy::default());
        assert_eq!(words(&seen), "NOTREQUESTED/1 uncordon", "{name}");
        // What others cordoned, persons among them, stays.
        for other in [node(Some("repair 10.0.0.1")), node(None)] {
            let ready = Facts { node: other, ..ready.clone() };
            let seen = decide_gate(&record, &ready, at(3), &Policy::default());
            assert_eq!(words(&seen), "NOTREQUESTED/1", "{name}");
        }
    }
}

#[test]
fn of_two_force_files_the_first_that_means_something_counts() {
    let say = |first, second| {
        let forced = choose_force([first, second]);
        forced.map(|one| (one.status.number(), one.requested_by.number()))
    };
    assert_eq!(say(None, None), None);
    assert_eq!(say(Some((9, 2)), Some((1, 1))), Some((9, 2)));
    assert_eq!(say(None, Some((1, 1))), Some((1, 1)));
    assert_eq!(say(Some((12, 2)), Some((1, 0))), Some((1, 1)), "there is no such status");
    assert_eq!(say(Some((9, 7)), None), None, "nor such a requester");
}

#[test]
fn how_the_drain_engine_ends_is_a_failed_try_or_the_end() {
    use crate::drain::{Failure, PodRef, Report, Stage, WaitReason, Waiting};
    let reason = WaitReason::Failed { message: "500".to_owned() };
    let pod = PodRef { namespace: "default".to_owned(), name: "a".to_owned(), uid: String::new() };
    let waiting = vec![Waiting { pod: Some(pod), reason, remark: None }; 9];
    let broken = Failure::Broken { waiting: waiting.clone() };
    assert!(matches!(Outcome::from(&broken), Outcome::DrainBroken(_)));
    let late = Failure::Deadline { waiting: waiting.clone() };
    for failure in [late, Failure::UncordonedByAPerson] {
        assert!(matches!(Outcome::from(&failure), Outcome::DrainGivenUp(_)), "{failure}");
    }
    let report = Report { stage: Stage::Evicting, left: 9, waiting, given_up: 0 };
    let named = name_blockers(&report);
    assert_eq!(named.len(), 5);
    assert_eq!(named[0], "pod default/a could not be evicted: 500");
}

#[test]
fn what_was_forced_before_a_boot_does_not_hold_after_it() {
    let forced = Forced { status: DrainStatus::NotSupported, requested_by: Requester::Nobody };
    let booted = Facts { boot_id: "boot-2".to_owned(), force: Some(forced), ..facts() };
    let decision = decide_gate(&record(Phase::Idle), &booted, at(1), &Policy::default());
    assert_eq!(decision.effects, [Effect::RemoveForceFile]);
}

#[test]
fn a_request_before_the_node_is_ready_takes_the_cordon_over() {
    let booted = Record::new(BOOT);
    let mut facts = Facts { node: node(Some(CORDON_OWNER)), ..facts() };
    facts.node.as_mut().unwrap().unready_since = Some(at(0));
    let mut record = booted;
    for expected in ["REQUESTED/2", "STARTING/2", "CORDONED/2"] {
        let decision = decide_gate(&record, &facts, at(1), &Policy::default());
        assert_eq!(words(&decision), expected);
        record = decision.record.unwrap();
    }
}

#[test]
fn ten_failed_tries_to_cordon_are_a_failure() {
    let policy = Policy::default();
    let mut record = record(starting(0, None));
    let mut now = 0;
    for failed in 1..=10 {
        let decision = decide_gate(&record, &facts(), at(now), &policy);
        assert_eq!(words(&decision), "STARTING/2 cordon", "try {failed}");
        let outcome = Outcome::CordonFailed(format!("conflict {failed}"));
        assert!(apply(&mut record, outcome, &facts().requests, at(now), &policy));
        if failed < 10 {
            let pause = decide_gate(&record, &facts(), at(now + 4), &policy);
            assert_eq!((words(&pause).as_str(), pause.wake_at), ("STARTING/2", Some(at(now + 5))));
            let sentence = pause.wait.unwrap().to_string();
            assert!(sentence.ends_with(&format!("at try {failed}: conflict {failed}")));
        }
        now += 5;
    }
    let decision = decide_gate(&record, &facts(), at(now), &policy);
    assert_eq!(words(&decision), "FAILEDCORDON/2");
}

#[test]
fn five_failed_tries_to_drain_are_a_failure_and_the_pauses_are_kept() {
    let policy = Policy::default();
    let facts = Facts { node: node(Some(CORDON_OWNER)), ..facts() };
    let mut record = record(draining(1));
    let mut now = 0;
    for failed in 1..=5 {
        let expected = if failed == 1 { "CORDONED/2 drain" } else { "DRAINRETRYING/2 drain" };
        assert_eq!(words(&decide_gate(&record, &facts, at(now), &policy)), expected);
        let outcome = Outcome::DrainBroken("500".to_owned());
        assert!(apply(&mut record, outcome, &facts.requests, at(now), &policy));
        if failed < 5 {
            let pause = decide_gate(&record, &facts, at(now + 299), &policy);
            let expected = ("DRAINRETRYING/2", Some(at(now + 300)));
            assert_eq!((words(&pause).as_str(), pause.wake_at), expected);
            now += 300;
            record = decide_gate(&record, &facts, at(now), &policy).record.unwrap();
        }
    }
    assert_eq!(record.phase.status(), DrainStatus::FailedDrain);
}

#[test]
fn a_drain_that_is_given_up_fails_at_once_and_outcomes_out_of_place_change_nothing() {
    let policy = Policy::default();
    let outcomes = || {
        [
            Outcome::CordonFailed("x".to_owned()),
            Outcome::Drained,
            Outcome::DrainBroken("x".to_owned()),
            Outcome::DrainGivenUp("the deadline passed".to_owned()),
        ]
    };
    for (name, phase) in phases() {
        let changed = outcomes().map(|outcome| {
            apply(&mut record(phase.clone()), outcome, &facts().requests, at(1), &policy)
        });
        let expected = match name {
            "starting" => [true, false, false, false],
            "cordoned" | "again" => [false, true, true, true],
            _ => [false; 4],
        };
        assert_eq!(changed, expected, "{name}");
    }
    let mut over = record(draining(1));
    let [.., given_up] = outcomes();
    apply(&mut over, given_up, &facts().requests, at(86_400), &policy);
    assert_eq!(over.phase.status(), DrainStatus::FailedDrain);
}

#[test]
fn the_time_of_a_drain_is_measured_from_its_cordon() {
    let mut record = record(draining(2));
    let later = at(34) + Duration::from_micros(559_219);
    apply(&mut record, Outcome::Drained, &facts().requests, later, &Policy::default());
    let Phase::Complete { how: How::Drained { took }, .. } = record.phase else {
        panic!("{record:?}")
    };
    assert_eq!(completion_line(took), "kubevirt_node_drain_completion_time_seconds:s34.559219");
}

#[test]
fn the_time_of_the_last_drain_is_known_after_the_boot_that_it_was_for() {
    let mut record = record(draining(1));
    apply(&mut record, Outcome::Drained, &facts().requests, at(7), &Policy::default());
    let booted = Facts { boot_id: "boot-2".to_owned(), requests: Requests::default(), ..facts() };
    let mut record = decide_gate(&record, &booted, at(9), &Policy::default()).record.unwrap();
    assert_eq!(record.last_took, Some(Duration::from_secs(7)));
    // A drain that fails is none.
    record.phase = draining(1);
    let given_up = Outcome::DrainGivenUp("x".to_owned());
    apply(&mut record, given_up, &facts().requests, at(9), &Policy::default());
    assert_eq!(record.last_took, Some(Duration::from_secs(7)));
    // What an earlier version stored says nothing of it.
    let older = r#"{"boot_id":"boot-1","awaits_ready":false,"phase":"idle"}"#;
    assert_eq!(serde_json::from_str::<Record>(older).unwrap().last_took, None);
}

#[test]
fn the_deadline_of_a_drain_stays_the_same_from_try_to_try() {
    for phase in [draining(1), draining(4)] {
        let decision = decide_gate(&record(phase), &facts(), at(500), &Policy::default());
        assert_eq!(decision.effects, [Effect::Drain { deadline: at(86_400) }]);
    }
}

/// Looks every second; the answer is the second at which the drain is skipped.
fn skipped_at(mut answers: impl FnMut(i64) -> bool, mut clock: impl FnMut(i64) -> i64) -> i64 {
    let mut record = record(starting(0, None));
    for second in 0..2000 {
        let api = if answers(second) { Api::Answers } else { Api::Silent("refused".to_owned()) };
        let facts = Facts { api, node: None, ..facts() };
        let now = at(clock(second));
        let decision = decide_gate(&record, &facts, now, &Policy::default());
        record = decision.record.unwrap_or(record);
        if record.phase.is_end() {
            assert!(matches!(record.phase, Phase::Complete { how: How::Skipped, .. }));
            return second;
        }
    }
    -1
}

#[test]
fn a_cluster_that_does_not_answer_for_the_skip_time_is_not_drained() {
    assert_eq!(skipped_at(|_| false, |second| second), 300);
    // One answer begins the count anew, and a cluster that answers now and then is waited for.
    assert_eq!(skipped_at(|second| second == 200, |second| second), 500);
    assert_eq!(skipped_at(|second| second % 250 == 0, |second| second), -1);
}

#[test]
fn a_clock_that_jumps_skips_no_drain() {
    let jump = |by: i64| move |second: i64| if second < 100 { second } else { second + by };
    let forward = skipped_at(|_| false, jump(1_000_000));
    assert!((290..=300).contains(&forward), "{forward}");
    let back = skipped_at(|_| false, jump(-1_000_000));
    assert!((300..=310).contains(&back), "{back}");
    let paused = decide_gate(&record(pausing(1)), &facts(), at(-50), &Policy::default());
    assert_eq!(paused.record.unwrap().phase, draining(2), "nobody waits for a time that is gone");
}

#[test]
fn both_requesters_are_told_the_end_in_turn_the_update_first() {
    for failed in [false, true] {
        let both = asked(true, true);
        let facts = Facts { requests: both.clone(), node: node(Some(CORDON_OWNER)), ..facts() };
        let mut record = record(draining(1));
        let outcome = if failed { Outcome::DrainGivenUp("x".to_owned()) } else { Outcome::Drained };
        apply(&mut record, outcome, &both, at(5), &Policy::default());
        let mut seen = Vec::new();
        for second in 5..34 {
            let decision = decide_gate(&record, &facts, at(second), &Policy::default());
            record = decision.record.unwrap_or(record);
            if seen.last() != Some(&decision.publish.requested_by) {
                seen.push(decision.publish.requested_by);
            }
        }
        // Who missed the turn gets another.
        let turns = [Requester::Update, Requester::DeviceOperation, Requester::Update];
        assert_eq!(seen, turns, "failed: {failed}");
    }
}

#[test]
fn while_the_drain_goes_on_the_device_operation_is_named_before_the_update() {
    let rows = [(asked(true, true), "CORDONED/2"), (asked(false, true), "CORDONED/3")];
    for (requests, expected) in rows {
        let facts = Facts { requests, worker: Worker::Draining, ..facts() };
        assert_eq!(line(&draining(1), &facts, 1), expected);
    }
}

#[test]
fn who_asks_when_the_node_is_empty_joins_and_who_asks_when_it_is_not_begins_anew() {
    let both = Facts { requests: asked(true, true), ..facts() };
    let empty = Facts { node: node(Some(CORDON_OWNER)), ..both.clone() };
    let (rest, joined) = settle(&drained(), &empty, 20);
    assert_eq!(rest, "COMPLETE/3");
    let (rest, _) = settle(&joined.phase, &empty, 60);
    assert_eq!(rest, "COMPLETE/2", "the other one is still there");
    assert_eq!(line(&drained(), &both, 20), "NOTREQUESTED/1", "somebody took our cordon away");
    assert_eq!(line(&complete(How::Skipped), &both, 20), "NOTREQUESTED/1", "it answers again");
}

#[test]
fn after_a_failure_the_same_request_waits_and_another_one_begins_anew() {
    let failed = Phase::failed_drain("500", &facts().requests, at(0));
    assert_eq!(settle(&failed, &facts(), 5).0, "FAILEDDRAIN/2");
    let newer = Requests { device_operation: request(7, "reboot"), update: None };
    let newer = Facts { requests: newer, ..facts() };
    assert_eq!(line(&failed, &newer, 8), "NOTREQUESTED/1");
    // Withdrawn and made again, it is a new one even if it reads the same.
    let nobody = Facts { requests: Requests::default(), ..facts() };
    let (_, forgotten) = settle(&failed, &nobody, 6);
    assert_eq!(line(&forgotten.phase, &facts(), 7), "NOTREQUESTED/1");
}

#[test]
fn a_failed_drain_that_nobody_asks_for_again_gives_the_node_back_after_a_while() {
    let failed = Phase::failed_drain("500", &facts().requests, at(0));
    let nobody = Facts { requests: Requests::default(), node: node(Some(CORDON_OWNER)), ..facts() };
    assert_eq!(settle(&failed, &nobody, 599).0, "FAILEDDRAIN/2");
    let (rest, record) = settle(&failed, &nobody, 600);
    assert_eq!(rest, "FAILEDDRAIN/2 uncordon");
    let decision = decide_gate(&record, &nobody, at(600), &Policy::default());
    assert_eq!(decision.wake_at, Some(at(605)), "until it is seen to be gone");
}

#[test]
fn a_failed_drain_that_is_surely_not_asked_for_again_gives_the_node_back_at_once() {
    let nobody = |later| Facts {
        requests: Requests::default(),
        node: node(Some(CORDON_OWNER)),
        later,
        ..facts()
    };
    for name in ["failed-cordon", "failed-drain"] {
        let failed = &phases()[name];
        let (rest, record) = settle(failed, &nobody(Later::Nobody), 1);
        assert_eq!((rest.as_str(), record.phase), ("NOTREQUESTED/1 uncordon", Phase::Idle));
        // Who pauses asks again, and who asks is waited for.
        let (rest, record) = settle(failed, &nobody(Later::Asks), 1);
        assert!(rest.starts_with("FAILED") && record.phase.is_end(), "{name}: {rest}");
        let asking = Facts { later: Later::Nobody, ..facts() };
        assert!(settle(failed, &asking, 1).1.phase.is_end(), "{name}");
    }
}

#[test]
fn the_guard_is_asked_before_anything_is_published() {
    let refused = Facts { guard: Guard::Refuses("n2 is out".to_owned()), ..facts() };
    let decision = decide_gate(&record(Phase::Idle), &refused, at(1), &Policy::default());
    assert_eq!((words(&decision).as_str(), decision.wake_at), ("NOTREQUESTED/1", Some(at(6))));
    let sentence = decision.wait.unwrap().to_string();
    assert_eq!(sentence, "the node must stay in service for now: n2 is out");
    // What is under way is not held up.
    assert_eq!(line(&starting(0, None), &refused, 1), "STARTING/2 cordon");
}

#[test]
fn a_request_that_comes_while_the_last_cordon_is_taken_back_waits_for_that() {
    let node = node(Some(CORDON_OWNER));
    let uncordoning = Facts { node, worker: Worker::Uncordoning, ..facts() };
    let decision = decide_gate(&record(starting(0, None)), &uncordoning, at(1), &Policy::default());
    assert_eq!((words(&decision).as_str(), decision.record), ("STARTING/2", None));
    let sentence = decision.wait.unwrap().to_string();
    assert_eq!(sentence, "the cordon of the last drain is taken back first");
    for phase in [draining(1), draining(2)] {
        assert!(!line(&phase, &uncordoning, 1).contains("drain"), "{phase:?}");
    }
    // It is taken back once at a time.
    let nobody = Facts { requests: Requests::default(), ..uncordoning };
    assert_eq!(settle(&Phase::Idle, &nobody, 1).0, "NOTREQUESTED/1");
    let again = Facts { worker: Worker::Idle, ..nobody };
    assert_eq!(settle(&Phase::Idle, &again, 1).0, "NOTREQUESTED/1 uncordon");
}

#[test]
fn a_cordon_of_another_owner_is_waited_for() {
    let other = Facts { node: node(Some("repair 10.0.0.1")), ..facts() };
    let decision = decide_gate(&record(starting(0, None)), &other, at(1), &Policy::default());
    assert_eq!(words(&decision), "STARTING/2");
    assert_eq!(decision.wait, Some(Wait::CordonedBy("repair 10.0.0.1".to_owned())));
    assert_eq!(line(&starting(0, None), &other, 86_400), "FAILEDCORDON/2");
}

#[test]
fn a_forced_status_is_published_in_every_state_and_nothing_new_begins() {
    for status in DrainStatus::ALL.into_iter().filter(|one| *one != DrainStatus::Complete) {
        let forced = Forced { status, requested_by: Requester::Nobody };
        for (name, phase) in phases() {
            let facts = Facts {
                force: Some(forced),
                node: node(Some(CORDON_OWNER)),
                worker: Worker::Draining,
                ..facts()
            };
            let decision = decide_gate(&record(phase), &facts, at(1), &Policy::default());
            assert_eq!(decision.publish.status, status, "{name}");
        }
        let idle = Facts { force: Some(forced), ..facts() };
        let decision = decide_gate(&record(Phase::Idle), &idle, at(1), &Policy::default());
        assert_eq!((decision.record, decision.effects), (None, vec![]), "nothing begins");
        assert_eq!(decision.wait, Some(Wait::Forced));
    }
}

#[test]
fn a_forced_completion_holds_once_for_whom_it_names_and_its_file_goes() {
    for (named, number) in [(Requester::DeviceOperation, 2), (Requester::Update, 3)] {
        for (name, phase) in phases() {
            let forced = Forced { status: DrainStatus::Complete, requested_by: named };
            let facts = Facts {
                force: Some(forced),
                requests: asked(true, true),
                worker: Worker::Draining,
                ..facts()
            };
            let (rest, record) = settle(&phase, &facts, 1);
            assert_eq!(rest, format!("COMPLETE/{number} stop remove-file"), "{name}");
            let gone = Facts { force: None, worker: Worker::Idle, ..facts };
            // It is not the other one's, however long that one waits.
            for now in [2, 11, 12, 3600] {
                let (rest, _) = settle(&record.phase, &gone, now);
                assert_eq!(rest, format!("COMPLETE/{number}"), "{name} at {now}");
            }
            // When the one that was named is through, the other one gets a drain of its own.
            let rest = match named {
                Requester::DeviceOperation => asked(false, true),
                Requester::Update | Requester::Nobody => asked(true, false),
            };
            let other = Facts { requests: rest, ..gone };
            assert_eq!(line(&record.phase, &other, 12), "NOTREQUESTED/1", "{name}");
        }
    }
}

#[test]
fn a_completion_that_was_forced_for_nobody_in_particular_is_told_to_both_in_turn() {
    let forced = Forced { status: DrainStatus::Complete, requested_by: Requester::Nobody };
    let facts = Facts { force: Some(forced), requests: asked(true, true), ..facts() };
    let (rest, record) = settle(&draining(1), &facts, 0);
    assert_eq!(rest, "COMPLETE/3 remove-file");
    let gone = Facts { force: None, ..facts };
    assert_eq!(settle(&record.phase, &gone, 10).0, "COMPLETE/2");
}

#[test]
fn a_completion_that_was_forced_for_one_who_does_not_ask_yet_is_not_taken_by_the_other() {
    let forced = Forced { status: DrainStatus::Complete, requested_by: Requester::DeviceOperation };
    let update = Facts { requests: asked(false, true), force: Some(forced), ..facts() };
    let (_, record) = settle(&draining(1), &update, 0);
    let gone = Facts { force: None, ..update };
    assert_eq!(settle(&record.phase, &gone, 599).0, "COMPLETE/2");
    assert_eq!(line(&record.phase, &gone, 600), "NOTREQUESTED/1", "the update has a drain again");
    // The one that it is for takes it up when it comes.
    let both = Facts { requests: asked(true, true), ..gone };
    let (rest, taken) = settle(&record.phase, &both, 20);
    assert_eq!(rest, "COMPLETE/2");
    // Another request of the same one is another matter.
    let newer = Requests { device_operation: request(30, "reboot"), update: None };
    assert_eq!(line(&taken.phase, &Facts { requests: newer, ..both }, 31), "NOTREQUESTED/1");
}

#[test]
fn a_completion_that_was_forced_before_anybody_asked_stands_for_a_while() {
    let forced = Forced { status: DrainStatus::Complete, requested_by: Requester::DeviceOperation };
    let nobody = Facts { requests: Requests::default(), force: Some(forced), ..facts() };
    let (_, record) = settle(&Phase::Idle, &nobody, 0);
    let gone = Facts { force: None, ..nobody };
    let shown = |now| settle(&record.phase, &gone, now).0;
    assert_eq!((shown(599).as_str(), shown(600).as_str()), ("COMPLETE/2", "NOTREQUESTED/1"));
    let asking = Facts { requests: facts().requests, ..gone.clone() };
    assert_eq!(settle(&record.phase, &asking, 5).0, "COMPLETE/2");
}

#[test]
fn the_device_shows_that_it_waits_from_the_request_to_the_end() {
    use DrainStatus::*;
    for status in DrainStatus::ALL {
        let seen = |requested_by| Published { status, requested_by };
        let waits = is_waiting_for_drain(true, seen(Requester::DeviceOperation));
        let rising = is_waiting_for_drain(false, seen(Requester::DeviceOperation));
        let in_progress = [Requested, Starting, Cordoned, FailedCordon, DrainRetrying, FailedDrain];
        assert_eq!(waits, in_progress.contains(&status), "{status:?}");
        assert_eq!(waits, rising, "{status:?}");
        // The update's drain is not the device operation's.
        assert!(!is_waiting_for_drain(false, seen(Requester::Update)), "{status:?}");
    }
}

#[test]
fn a_record_is_read_as_it_was_stored() {
    for (name, phase) in phases() {
        let stored = serde_json::to_string(&record(phase.clone())).unwrap();
        let read: Record = serde_json::from_str(&stored).unwrap();
        assert_eq!(read, record(phase), "{name}");
    }
}
