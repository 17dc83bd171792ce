//! The JSON of entries, their words and their bounds.

use super::*;

const T: i64 = 100;

fn all_phases() -> Vec<Phase> {
    let (since, begun) = (at(T), at(T));
    let waiting = StepStatus::Waiting;
    vec![
        Phase::Queued,
        Phase::Waiting,
        Phase::Stepping { since },
        Phase::Draining { since },
        Phase::Drained { since },
        Phase::Fencing { since },
        Phase::Commanding { attempt: 2, begun },
        Phase::Pausing { attempt: 2, until: since },
        Phase::Watching { since },
        Phase::Succeeding { begun: None },
        Phase::Failing { begun: Some(begun) },
        Phase::Succeeded { step_status: waiting },
        Phase::Failed { step_status: StepStatus::Watching },
    ]
}

#[test]
fn a_new_entry_has_every_field_of_the_schema() {
    let mut one = Entry::new(12, "10.0.0.5", "typeA", "unreachable", at(0));
    one.nodename = "n5".to_owned();
    let value = serde_json::to_value(&one).unwrap();
    let schema = json!({
        "index": "12",
        "address": "10.0.0.5",
        "nodename": "n5",
        "machine_type": "typeA",
        "operation": "unreachable",
        "status": "queued",
        "step": 0,
        "step_status": "waiting",
        "last_transition_time": "2027-01-15T08:00:00Z",
        "drain_backoff_count": 0,
        "drain_backoff_expire": "0001-01-01T00:00:00Z",
    });
    for (key, expected) in schema.as_object().unwrap() {
        assert_eq!(value.get(key), Some(expected), "{key}");
    }
    for key in [
        "reason",
        "history",
        "last_exit_code",
        "stdout_tail",
        "stderr_tail",
        "blocking_pods",
        "deleted",
        "serial",
    ] {
        assert!(value.get(key).is_some(), "{key}");
    }
}

#[test]
fn every_phase_survives_its_json_and_has_the_schemas_words() {
    let words = [
        "queued/waiting",
        "processing/waiting",
        "processing/waiting",
        "processing/draining",
        "processing/draining",
        "processing/draining",
        "processing/watching",
        "processing/watching",
        "processing/watching",
        "processing/watching",
        "processing/watching",
        "succeeded/waiting",
        "failed/watching",
    ];
    for (phase, words) in all_phases().into_iter().zip(words) {
        let one = Entry { phase, step: 3, deleted: true, fenced: true, ..entry(7, "plain", phase) };
        let value = serde_json::to_value(&one).unwrap();
        let text = |key: &str| value[key].as_str().unwrap().to_owned();
        assert_eq!(format!("{}/{}", text("status"), text("step_status")), words);
        assert_eq!(serde_json::from_value::<Entry>(value).unwrap(), one);
    }
}

#[test]
fn an_entry_of_the_schema_alone_is_read_and_its_command_is_not_begun_again() {
    let value = json!({
        "index": "3", "address": "10.0.0.1", "nodename": "", "machine_type": "a",
        "operation": "b", "status": "processing", "step": 1, "step_status": "watching",
        "last_transition_time": "2026-01-01T00:00:00Z",
        "drain_backoff_expire": "0001-01-01T00:00:00Z",
    });
    let one: Entry = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(one.phase, Phase::Watching { since: "2026-01-01T00:00:00Z".parse().unwrap() });
    assert_eq!(one.drain_backoff_expire, None);
    let mut bad = value;
    bad["index"] = json!("three");
    assert!(serde_json::from_value::<Entry>(bad).is_err());
}

#[test]
fn times_are_whole_seconds_and_change_with_the_words_only() {
    let mut one = entry(0, "plain", Phase::Queued);
    let later = at(5) + std::time::Duration::from_millis(700);
    one.move_to(Phase::Commanding { attempt: 1, begun: later }, "runs", later);
    assert_eq!(one.last_transition, at(5));
    // Still `watching` at the same step.
    one.move_to(Phase::Watching { since: at(9) }, "ended", at(9));
    assert_eq!((one.last_transition, one.reason.as_str()), (at(5), "ended"));
    one.step = 1;
    one.move_to(Phase::Commanding { attempt: 1, begun: at(12) }, "next", at(12));
    assert_eq!((one.last_transition, one.history.len()), (at(12), 3));
}

#[test]
fn what_is_kept_is_bounded_and_cut_between_characters() {
    let mut one = entry(0, "plain", Phase::Commanding { attempt: 1, begun: at(0) });
    let flood = "ä".repeat(100_000);
    let end = End { exit: Exit::Code(3), stdout: format!("{flood}end"), stderr: flood.clone() };
    assert!(apply(&config(), &mut one, Outcome::CommandEnded { begun: at(0), end }, at(1)));
    assert!(one.stdout_tail.len() <= TAIL && one.stdout_tail.ends_with("äend"));
    assert!(one.stderr_tail.len() <= TAIL && one.stderr_tail.len() > TAIL - 4);
    for second in 0..100 {
        one.move_to(Phase::Watching { since: at(second) }, &flood, at(second));
    }
    assert_eq!(one.history.len(), HISTORY);
    assert_eq!(one.history.last().unwrap().time, at(99));
    assert!(serde_json::to_vec(&one).unwrap().len() < 10_000);
}

/// Over many entries and counts: the n-th wait is between n and n+1 times the base.
#[test]
fn back_off_grows_with_the_count_without_limit() {
    for index in 0..200 {
        let mut one = entry(index, "plain", Phase::Draining { since: at(0) });
        for count in 1..50_i64 {
            one.back_off(300, "refused", at(0));
            let waits = one.drain_backoff_expire.unwrap().as_second() - at(0).as_second();
            assert!(waits >= 300 * count && waits < 300 * (count + 1), "{index} {count} {waits}");
            assert_eq!((one.phase, i64::from(one.drain_backoff_count)), (Phase::Waiting, count));
        }
        one.drain_backoff_count = u32::MAX;
        one.back_off(u64::MAX, "refused", at(0));
        assert!(one.is_backing_off(at(1_000_000)), "an absurd wait is long, not over");
    }
    let expire = |index| {
        let mut one = entry(index, "plain", Phase::Waiting);
        one.back_off(300, "", at(0));
        one.drain_backoff_expire
    };
    let different: std::collections::BTreeSet<_> = (0..50).map(expire).collect();
    assert!(different.len() > 20, "machines come back apart");
}

/// Each outcome on each phase: only what is under way changes.
#[test]
fn an_outcome_changes_only_what_it_is_about() {
    let failure = crate::drain::Failure::UncordonedByAPerson;
    for phase in all_phases() {
        for (number, outcome) in [
            Outcome::Drained,
            Outcome::DrainFailed(failure.clone()),
            Outcome::DrainBroken("no answer".to_owned()),
            Outcome::CommandEnded { begun: at(T), end: ended(0) },
            Outcome::CommandEnded { begun: at(T + 1), end: ended(0) },
        ]
        .into_iter()
        .enumerate()
        {
            let mut one = entry(0, "drained", phase);
            let before = one.clone();
            let changed = apply(&config(), &mut one, outcome, at(T + 5));
            let draining = matches!(phase, Phase::Draining { .. });
            let commanding = phase.command_begun().is_some();
            let expected = match number {
                0..=2 => draining,
                3 => commanding,
                _ => false,
            };
            assert_eq!((changed, one != before), (expected, expected), "{phase:?} {number}");
        }
    }
}

#[test]
fn what_comes_of_a_command() {
    let run = |attempt, exit: Exit| {
        let mut one = entry(0, "drained", Phase::Commanding { attempt, begun: at(T) });
        let end = End { exit, stdout: String::new(), stderr: String::new() };
        apply(&config(), &mut one, Outcome::CommandEnded { begun: at(T), end }, at(200));
        one
    };
    assert_eq!(run(1, Exit::Code(0)).phase, Phase::Watching { since: at(200) });
    let again = run(1, Exit::Code(1));
    assert_eq!(again.phase, Phase::Pausing { attempt: 2, until: at(205) });
    let over = run(2, Exit::TimedOut);
    assert_eq!(over.phase, Phase::Failing { begun: None });
    assert_eq!(over.reason, "the command of step 0 did not end in time");
    assert_eq!(over.last_exit_code, None);
    assert_eq!(run(2, Exit::Signal(9)).last_exit_code, Some(137));
    assert_eq!(
        run(2, Exit::NotStarted("no such file".to_owned())).reason,
        "the command of step 0 could not be started: no such file"
    );
}

#[test]
fn a_step_may_go_on_after_a_failed_command_and_may_prove_the_machine_off() {
    let mut value = base();
    let step =
        value.pointer_mut("/repair_procedures/0/repair_operations/0/repair_steps/0").unwrap();
    step["on_failure"] = json!("continue");
    step["fence_volumes"] = json!(true);
    let config = config_of(&value);
    for (code, fenced) in [(0, true), (1, false)] {
        let mut one = entry(0, "plain", Phase::Commanding { attempt: 1, begun: at(T) });
        apply(&config, &mut one, Outcome::CommandEnded { begun: at(T), end: ended(code) }, at(200));
        assert_eq!((one.phase, one.fenced), (Phase::Watching { since: at(200) }, fenced));
    }
}

#[test]
fn hooks_decide_the_end() {
    let run = |phase: Phase, code| {
        let mut one = entry(0, "drained", phase);
        one.reason = "it was bad".to_owned();
        apply(
            &config(),
            &mut one,
            Outcome::CommandEnded { begun: at(T), end: ended(code) },
            at(200),
        );
        (one.status(), one.reason)
    };
    let (succeeding, failing) =
        (Phase::Succeeding { begun: Some(at(T)) }, Phase::Failing { begun: Some(at(T)) });
    assert_eq!(run(succeeding, 0).0, Status::Succeeded);
    let expected = (Status::Failed, "the success command exited with 1".to_owned());
    assert_eq!(run(succeeding, 1), expected);
    assert_eq!(run(failing, 0), (Status::Failed, "it was bad".to_owned()));
    let text = "it was bad; the failure command exited with 1".to_owned();
    assert_eq!(run(failing, 1), (Status::Failed, text));
}

#[test]
fn a_failed_drain_names_its_pods() {
    use crate::drain::{Budget, Failure, PodRef, WaitReason, Waiting};
    let waiting = |number: usize| Waiting {
        pod: Some(PodRef {
            namespace: "default".to_owned(),
            name: format!("db-{number}"),
            uid: String::new(),
        }),
        reason: WaitReason::Refused {
            budgets: vec![Budget { name: "db".to_owned(), allowed: 0 }],
            message: String::new(),
        },
        remark: None,
    };
    let mut one = entry(0, "drained", Phase::Draining { since: at(0) });
    let failure = Failure::Refused { waiting: (0..50).map(waiting).collect() };
    apply(&config(), &mut one, Outcome::DrainFailed(failure), at(10));
    assert_eq!((one.phase, one.drain_backoff_count), (Phase::Waiting, 1));
    assert_eq!(one.blocking_pods.len(), BLOCKING_PODS);
    assert_eq!(one.blocking_pods[0].budgets, ["db"]);
    assert_eq!(
        one.blocking_pods[0].reason,
        "pod default/db-0 is protected by budget db, 0 allowed"
    );
}

#[test]
fn health_is_exactly_true_and_a_clean_exit() {
    for (code, stdout, healthy) in [
        (Some(0), "true", true),
        (Some(0), " true\n", true),
        (Some(0), "True", false),
        (Some(0), "true true", false),
        (Some(0), "", false),
        (Some(1), "true", false),
        (None, "true", false),
    ] {
        assert_eq!(is_healthy(code, stdout), healthy, "{code:?} {stdout:?}");
    }
}
