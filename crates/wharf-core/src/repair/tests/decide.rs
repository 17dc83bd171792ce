//! Single decisions about single entries.

use super::*;

pub(super) const NOW: i64 = 100;

pub(super) fn look(queue: &Queue, seen: &Observation) -> Decision {
    super::super::decide(&config(), queue, seen, at(NOW))
}

/// One entry in a phase, with its machine a node that was just found ill.
pub(super) fn one(machine_type: &str, phase: Phase) -> (Queue, Observation) {
    (queue_of(vec![entry(0, machine_type, phase)]), ill(seen(&[0]), &[0], at(NOW)))
}

#[test]
fn nothing_is_begun_before_the_health_check_has_answered() {
    let queue = queue_of(vec![entry(0, "drained", Phase::Queued)]);
    assert_eq!(words(&look(&queue, &seen(&[0]))), ["0: probe"]);
    let mut asked = seen(&[0]);
    asked.probes.insert(0, Probe { in_flight: true, ..Probe::default() });
    assert_eq!(words(&look(&queue, &asked)), Vec::<String>::new());
    // An answer that is too old is asked for again.
    let old = ill(seen(&[0]), &[0], at(NOW - 11));
    assert_eq!(words(&look(&queue, &old)), ["0: probe"]);
}

#[test]
fn a_step_begins_with_a_drain_only_if_it_needs_one_and_the_machine_is_a_node() {
    let rows = [
        ("plain", true, "0: processing/0/watching run reset -f 10.0.0.1"),
        ("plain", false, "0: processing/0/watching run reset -f 10.0.0.1"),
        ("drained", true, "0: processing/0/draining drain n0"),
        ("drained", false, "0: processing/0/watching run reset 10.0.0.1"),
    ];
    for (machine_type, is_node, expected) in rows {
        let (queue, mut observed) = one(machine_type, Phase::Queued);
        if !is_node {
            observed.machines.clear();
        }
        let decision = look(&queue, &observed);
        assert_eq!(words(&decision), [expected]);
        let stored = stored(&decision, 0);
        assert_eq!(stored.nodename, if is_node { "n0" } else { "" });
        assert_eq!(stored.started, Some(at(NOW)));
    }
}

#[test]
fn a_command_comes_with_its_arguments_environment_and_limit() {
    let (queue, observed) = one("plain", Phase::Queued);
    let decision = look(&queue, &observed);
    let Some(Effect::Run(command)) = &decision.actions[0].effect else { panic!("{decision:?}") };
    assert_eq!(command.argv, ["reset", "-f", "10.0.0.1"]);
    assert_eq!((command.kind, command.begun), (CommandKind::Repair { attempt: 1 }, at(NOW)));
    assert_eq!(command.timeout, Some(std::time::Duration::from_secs(30)));
    let env: BTreeMap<_, _> = command.env.iter().cloned().collect();
    assert_eq!(env["WHARF_REPAIR_INDEX"], "0");
    assert_eq!(env["WHARF_REPAIR_NODENAME"], "n0");
    assert_eq!(env["WHARF_REPAIR_COMMAND"], "repair");
    // The intent that is stored is the one that runs.
    assert_eq!(stored(&decision, 0).phase.command_begun(), Some(command.begun));
}

#[test]
fn a_healthy_machine_succeeds_from_every_phase_without_drain_or_command() {
    let since = at(NOW - 10);
    let phases = [
        Phase::Queued,
        Phase::Waiting,
        Phase::Stepping { since },
        Phase::Draining { since },
        Phase::Drained { since },
        Phase::Pausing { attempt: 2, until: at(NOW - 1) },
        Phase::Watching { since },
    ];
    for enabled in [true, false] {
        for phase in phases {
            for (machine_type, expected) in [
                ("plain", "0: succeeded/0/"),
                ("drained", "0: processing/0/watching run hurray 10.0.0.1"),
            ] {
                let (mut queue, mut observed) = one(machine_type, phase);
                queue.head.enabled = enabled;
                observed.probes.insert(0, probed(at(NOW), true));
                let draining = matches!(phase, Phase::Draining { .. });
                if draining {
                    observed.drains.insert(0, address(0));
                }
                let seen = words(&look(&queue, &observed));
                assert!(seen.iter().any(|word| word.starts_with(expected)), "{phase:?} {seen:?}");
                let stops = seen.iter().any(|word| word.contains("stop-drain"));
                assert_eq!(stops, draining, "{phase:?} {seen:?}");
            }
        }
    }
}

#[test]
fn a_finished_entry_is_never_touched_again() {
    for phase in [
        Phase::Succeeded { step_status: StepStatus::Watching },
        Phase::Failed { step_status: StepStatus::Watching },
    ] {
        for healthy in [true, false] {
            let (queue, mut observed) = one("drained", phase);
            observed.probes.insert(0, probed(at(NOW), healthy));
            let decision = look(&queue, &observed);
            assert_eq!((decision.actions, decision.waits), (vec![], vec![]));
        }
    }
}

#[test]
fn a_machine_must_stay_healthy_as_long_as_the_operation_says() {
    let mut value = base();
    value.pointer_mut("/repair_procedures/0/repair_operations/0").unwrap()["stable_seconds"] =
        json!(30);
    let config = config_of(&value);
    let decide = |queue: &Queue, observed: &Observation, now| {
        super::super::decide(&config, queue, observed, at(now))
    };
    let queue = queue_of(vec![entry(0, "plain", Phase::Watching { since: at(0) })]);
    let mut observed = seen(&[0]);
    let mut probe = probed(at(10), true);
    observed.probes.insert(0, probe.clone());
    let decision = decide(&queue, &observed, 10);
    assert!(waits(&decision)[0].contains("must stay so until"), "{decision:?}");
    assert_eq!(decision.wake_at, Some(at(20)), "the next look");
    // The watch is over, but the machine is on its way.
    probe.note(Probed { begun: at(39), healthy: true });
    observed.probes.insert(0, probe.clone());
    assert_eq!(words(&decide(&queue, &observed, 100)), ["0: probe"]);
    probe.note(Probed { begun: at(40), healthy: true });
    observed.probes.insert(0, probe.clone());
    assert_eq!(words(&decide(&queue, &observed, 40)), ["0: succeeded/0/watching"]);
    // A break begins the count anew.
    probe.note(Probed { begun: at(41), healthy: false });
    probe.note(Probed { begun: at(42), healthy: true });
    assert_eq!(probe.healthy_since, Some(at(42)));
}

#[test]
fn a_health_check_from_before_the_end_of_the_command_says_nothing() {
    let (queue, mut observed) = one("plain", Phase::Watching { since: at(NOW) });
    observed.probes.insert(0, probed(at(NOW - 1), true));
    assert_eq!(words(&look(&queue, &observed)), ["0: probe"]);
}

#[test]
fn the_watch_ends_in_the_next_step_or_in_failure() {
    // (type, step, watched since, last health check) => what is done.
    let rows = [
        ("drained", 0, NOW - 59, NOW, ""),
        ("drained", 0, NOW - 60, NOW - 1, "0: probe"),
        ("drained", 0, NOW - 60, NOW, "0: processing/1/draining drain n0"),
        ("drained", 1, NOW, NOW, "0: processing/1/watching run alas 10.0.0.1"),
        ("drained", 1, NOW - 5, NOW, "0: processing/1/watching run alas 10.0.0.1"),
        ("plain", 0, NOW - 60, NOW, "0: failed/0/watching"),
    ];
    for (machine_type, step, since, probe, expected) in rows {
        let (mut queue, _) = one(machine_type, Phase::Watching { since: at(since) });
        queue.entries.get_mut(&0).unwrap().step = step;
        let observed = ill(seen(&[0]), &[0], at(probe));
        assert_eq!(words(&look(&queue, &observed)).join(", "), expected, "{machine_type} {since}");
    }
}

#[test]
fn commands_and_drains_that_are_under_way_are_waited_for() {
    let (queue, mut observed) = one("drained", Phase::Commanding { attempt: 1, begun: at(50) });
    observed.commands.insert(0);
    let decision = look(&queue, &observed);
    assert_eq!(
        (words(&decision), waits(&decision)),
        (vec![], vec!["0: the command runs".to_owned()])
    );

    let (queue, mut observed) = one("drained", Phase::Draining { since: at(50) });
    observed.drains.insert(0, address(0));
    let decision = look(&queue, &observed);
    assert_eq!(words(&decision), Vec::<String>::new());
    assert_eq!(waits(&decision), ["0: the node is being drained"]);
}

#[test]
fn after_a_restart_a_drain_goes_on_with_its_old_deadline() {
    let (queue, observed) = one("drained", Phase::Draining { since: at(50) });
    let decision = look(&queue, &observed);
    assert_eq!(words(&decision), ["0: drain n0"]);
    let Some(Effect::StartDrain { policy, .. }) = &decision.actions[0].effect else { panic!() };
    assert_eq!((policy.deadline, policy.owner.as_str()), (at(650), "repair 10.0.0.1"));
}

#[test]
fn a_command_that_a_crash_cut_off_is_repeated_only_if_its_step_says_so() {
    let lost = Phase::Commanding { attempt: 1, begun: at(50) };
    let (mut queue, observed) = one("drained", lost);
    let decision = look(&queue, &observed);
    assert_eq!(words(&decision), ["0: processing/0/watching"]);
    let after = stored(&decision, 0);
    assert_eq!(after.phase, Phase::Watching { since: at(NOW) });
    assert!(after.reason.contains("is not repeated"), "{}", after.reason);
    // The second step says rerun.
    queue.entries.get_mut(&0).unwrap().step = 1;
    assert_eq!(words(&look(&queue, &observed)), ["0: processing/1/watching run cycle 10.0.0.1"]);
    queue.head.enabled = false;
    assert_eq!(words(&look(&queue, &observed)), Vec::<String>::new());
}

#[test]
fn a_hook_that_a_crash_cut_off_is_not_claimed_to_be_done() {
    let (mut queue, observed) = one("drained", Phase::Succeeding { begun: Some(at(50)) });
    assert_eq!(words(&look(&queue, &observed)), ["0: failed/0/watching"]);
    queue.entries.get_mut(&0).unwrap().step = 1;
    assert_eq!(words(&look(&queue, &observed)), ["0: processing/1/watching run hurray 10.0.0.1"]);
    let (queue, observed) = one("drained", Phase::Failing { begun: Some(at(50)) });
    assert_eq!(words(&look(&queue, &observed)), ["0: failed/0/watching"]);
    let (queue, observed) = one("drained", Phase::Failing { begun: None });
    assert_eq!(words(&look(&queue, &observed)), ["0: processing/0/watching run alas 10.0.0.1"]);
}

#[test]
fn a_failed_attempt_is_repeated_after_its_interval() {
    let pausing = |until| Phase::Pausing { attempt: 2, until: at(until) };
    let (queue, observed) = one("drained", pausing(NOW + 5));
    let decision = look(&queue, &observed);
    assert_eq!((words(&decision), decision.wake_at), (vec![], Some(at(NOW + 5))));
    let (queue, observed) = one("drained", pausing(NOW));
    let decision = look(&queue, &observed);
    assert_eq!(words(&decision), ["0: processing/0/watching run reset 10.0.0.1"]);
    assert_eq!(stored(&decision, 0).phase, Phase::Commanding { attempt: 2, begun: at(NOW) });
}

#[test]
fn a_machine_that_leaves_the_cluster_needs_no_drain() {
    let (queue, mut observed) = one("drained", Phase::Draining { since: at(50) });
    observed.machines.clear();
    observed.drains.insert(0, address(0));
    assert_eq!(words(&look(&queue, &observed)), ["0: processing/0/draining stop-drain"]);
    let (queue, mut observed) = one("drained", Phase::Drained { since: at(NOW) });
    observed.machines.clear();
    assert_eq!(words(&look(&queue, &observed)), ["0: processing/0/watching run reset 10.0.0.1"]);
}

#[test]
fn a_drain_that_says_nothing_is_ended_from_here() {
    let (queue, mut observed) = one("drained", Phase::Draining { since: at(NOW - 660) });
    observed.drains.insert(0, address(0));
    let decision = look(&queue, &observed);
    assert_eq!(words(&decision), ["0: processing/0/waiting stop-drain"]);
    assert_eq!(stored(&decision, 0).drain_backoff_count, 1);
}

#[test]
fn a_disabled_queue_begins_nothing_abandons_drains_and_still_finishes() {
    let since = at(NOW - 70);
    let rows = [
        (Phase::Queued, 0, "", "the repair queue is disabled"),
        (Phase::Waiting, 0, "", "the repair queue is disabled"),
        (Phase::Stepping { since }, 1, "", "the repair queue is disabled"),
        (Phase::Draining { since }, 0, "0: processing/0/waiting stop-drain", ""),
        (Phase::Drained { since }, 0, "0: processing/0/waiting stop-drain", ""),
        (Phase::Pausing { attempt: 2, until: since }, 0, "", "the repair queue is disabled"),
        // The middle step stays, the last one fails.
        (Phase::Watching { since }, 0, "", "the repair queue is disabled"),
        (Phase::Watching { since }, 1, "0: processing/1/watching run alas 10.0.0.1", ""),
        (Phase::Failing { begun: None }, 0, "0: processing/0/watching run alas 10.0.0.1", ""),
    ];
    for (phase, step, action, wait) in rows {
        let (mut queue, mut observed) = one("drained", phase);
        queue.head.enabled = false;
        queue.entries.get_mut(&0).unwrap().step = step;
        if matches!(phase, Phase::Draining { .. } | Phase::Drained { .. }) {
            observed.drains.insert(0, address(0));
        }
        let decision = look(&queue, &observed);
        let seen = words(&decision);
        assert_eq!(seen.first().map_or("", String::as_str), action, "{phase:?}");
        let text = waits(&decision).join(", ");
        assert!(text.contains(wait) && text.is_empty() == wait.is_empty(), "{phase:?} {text}");
        if matches!(phase, Phase::Draining { .. }) {
            let back = stored(&decision, 0);
            assert_eq!((back.drain_backoff_count, back.drain_backoff_expire), (0, None));
        }
    }
}

#[test]
fn deleted_entries_go_as_soon_as_no_command_runs_also_when_disabled() {
    for enabled in [true, false] {
        for phase in [
            Phase::Queued,
            Phase::Waiting,
            Phase::Draining { since: at(50) },
            Phase::Watching { since: at(50) },
            Phase::Commanding { attempt: 1, begun: at(50) },
            Phase::Failed { step_status: StepStatus::Watching },
        ] {
            let (mut queue, mut observed) = one("drained", phase);
            queue.head.enabled = enabled;
            queue.entries.get_mut(&0).unwrap().deleted = true;
            if matches!(phase, Phase::Draining { .. }) {
                observed.drains.insert(0, address(0));
                assert_eq!(words(&look(&queue, &observed)), ["0: remove stop-drain"]);
                continue;
            }
            assert_eq!(words(&look(&queue, &observed)), ["0: remove"], "{phase:?}");
            observed.commands.insert(0);
            assert_eq!(words(&look(&queue, &observed)), Vec::<String>::new());
        }
    }
}

#[test]
fn an_entry_whose_procedure_is_gone_fails_with_a_reason_and_holds_up_nobody() {
    let gone = Entry { operation: "gone".to_owned(), ..entry(0, "plain", Phase::Queued) };
    let queue = queue_of(vec![gone, entry(1, "plain", Phase::Queued)]);
    let decision = look(&queue, &ill(seen(&[]), &[0, 1], at(NOW)));
    let expected = ["0: failed/0/waiting", "1: processing/0/watching run reset -f 10.0.0.2"];
    assert_eq!(words(&decision), expected);
    let reason = stored(&decision, 0).reason;
    assert_eq!(reason, "the configuration has no operation gone for machine type plain");
    // Fewer steps than the entry has done.
    let (mut queue, observed) = one("plain", Phase::Stepping { since: at(50) });
    queue.entries.get_mut(&0).unwrap().step = 5;
    assert_eq!(words(&look(&queue, &observed)), ["0: failed/5/waiting"]);
}

#[test]
fn cordons_and_taints_without_an_entry_that_wants_them_go() {
    let cordoned = |phase: Option<Phase>, keep: bool, deleted: bool| {
        let mut value = base();
        value["keep_cordon_on_failure"] = json!(keep);
        let entries = phase.map(|phase| Entry {
            deleted,
            started: Some(at(0)),
            drain_backoff_expire: Some(at(NOW + 100)),
            fenced: true,
            ..entry(0, "drained", phase)
        });
        let queue = queue_of(entries.into_iter().collect());
        let mut observed = ill(seen(&[]), &[0], at(NOW));
        observed.commands.insert(0);
        let ours = Machine {
            cordoned_by: Some(cordon_owner(&QueueHead::default(), &address(0))),
            fenced: true,
            ..machine("n0")
        };
        observed.machines.insert(address(0), ours);
        let foreign = Machine { cordoned_by: Some("update demo".to_owned()), ..machine("n1") };
        observed.machines.insert(address(1), foreign);
        let decision = super::super::decide(&config_of(&value), &queue, &observed, at(NOW));
        let has = |wanted: &dyn Fn(&NodeAction) -> bool| decision.nodes.iter().any(wanted);
        assert!(decision.nodes.iter().all(|action| action.node() == "n0"));
        (
            has(&|action| matches!(action, NodeAction::Uncordon { .. })),
            has(&|action| matches!(action, NodeAction::Unfence { .. })),
        )
    };
    let failed = Phase::Failed { step_status: StepStatus::Watching };
    let succeeded = Phase::Succeeded { step_status: StepStatus::Watching };
    let rows = [
        (None, false, false, (true, true)),
        (Some(Phase::Waiting), false, false, (true, false)),
        (Some(Phase::Watching { since: at(NOW) }), false, false, (false, false)),
        (Some(Phase::Commanding { attempt: 1, begun: at(NOW) }), false, false, (false, false)),
        (Some(succeeded), true, false, (true, true)),
        (Some(failed), false, false, (true, true)),
        (Some(failed), true, false, (false, true)),
        (Some(failed), true, true, (true, true)),
    ];
    for (phase, keep, deleted, expected) in rows {
        assert_eq!(cordoned(phase, keep, deleted), expected, "{phase:?} {keep} {deleted}");
    }
}

#[test]
fn a_cordon_is_not_lifted_under_a_drain_that_is_still_ending() {
    let mut observed = seen(&[]);
    let ours = Machine {
        cordoned_by: Some(cordon_owner(&QueueHead::default(), &address(0))),
        ..machine("n0")
    };
    observed.machines.insert(address(0), ours);
    observed.drains.insert(4, address(0));
    let decision = look(&Queue::default(), &observed);
    assert_eq!((words(&decision), decision.nodes), (vec!["4: stop-drain".to_owned()], vec![]));
}

#[test]
fn a_fenced_machine_is_freed_of_its_taint_before_the_next_command() {
    let (mut queue, mut observed) = one("drained", Phase::Drained { since: at(NOW) });
    queue.entries.get_mut(&0).unwrap().fenced = true;
    assert_eq!(
        look(&queue, &observed).nodes,
        [NodeAction::Fence { node: "n0".to_owned() }],
        "the taint is set as long as the entry says so"
    );
    let decision = look(&queue, &observed);
    assert_eq!(words(&decision), ["0: processing/0/draining"]);
    let freed = stored(&decision, 0);
    assert!(!freed.fenced);
    queue.entries.insert(0, freed);
    observed.machines.insert(address(0), Machine { fenced: true, ..machine("n0") });
    let decision = look(&queue, &observed);
    assert_eq!(words(&decision), Vec::<String>::new());
    assert_eq!(decision.nodes, [NodeAction::Unfence { node: "n0".to_owned() }]);
    observed.machines.insert(address(0), machine("n0"));
    assert_eq!(words(&look(&queue, &observed)), ["0: processing/0/watching run reset 10.0.0.1"]);
}

#[test]
fn a_step_that_fences_takes_the_nodes_volumes_before_its_command_and_once() {
    let mut value = base();
    let step =
        value.pointer_mut("/repair_procedures/1/repair_operations/0/repair_steps/0").unwrap();
    step["fence_volumes"] = json!(true);
    value["fence_timeout_seconds"] = json!(30);
    let config = config_of(&value);
    let look = |queue: &Queue, observed: &Observation| {
        super::super::decide(&config, queue, observed, at(NOW))
    };
    let (mut queue, mut observed) = one("drained", Phase::Drained { since: at(NOW) });
    let decision = look(&queue, &observed);
    assert_eq!(words(&decision), ["0: processing/0/draining fence-volumes n0"]);
    let fencing = stored(&decision, 0);
    assert!(fencing.volumes_fenced && fencing.commands_begun == 0);
    let fence = Effect::FenceVolumes { node: "n0".to_owned(), since: at(NOW), until: at(NOW + 30) };
    assert_eq!(decision.actions[0].effect, Some(fence));

    queue.entries.insert(0, fencing.clone());
    assert_eq!(
        words(&look(&queue, &observed)),
        ["0: fence-volumes n0"],
        "begun anew after a crash"
    );
    observed.commands.insert(0);
    observed.machines.insert(address(0), Machine { volumes_fenced: true, ..machine("n0") });
    let decision = look(&queue, &observed);
    assert_eq!((words(&decision), decision.nodes), (vec![], vec![]));
    assert!(decision.waits[0].1.to_string().starts_with("the node's volumes are taken from it"));
    observed.commands.clear();

    let mut late = fencing.clone();
    let other = Outcome::VolumesFenced { since: at(0), left: Vec::new() };
    assert!(!apply(&config, &mut late, other, at(NOW)), "of an earlier try");
    let mut done = fencing;
    let left = vec!["volume pv of pod a/b: a client of dir ends only with its machine".to_owned()];
    assert!(apply(&config, &mut done, Outcome::VolumesFenced { since: at(NOW), left }, at(NOW)));
    assert!(done.reason.starts_with("the node still holds volumes: volume pv"), "{}", done.reason);
    queue.entries.insert(0, done.clone());
    assert_eq!(words(&look(&queue, &observed)), ["0: processing/0/watching run reset 10.0.0.1"]);

    done.end(true, "the machine is healthy", at(NOW));
    queue.entries.insert(0, done);
    let decision = look(&queue, &observed);
    assert_eq!(decision.nodes, [NodeAction::UnfenceVolumes { node: "n0".to_owned() }]);

    let (queue, mut stranger) = one("drained", Phase::Drained { since: at(NOW) });
    stranger.machines.clear();
    let decision = look(&queue, &stranger);
    assert_eq!(words(&decision), ["0: processing/0/watching run reset 10.0.0.1"], "no node");
}

#[test]
fn only_volumes_that_can_be_taken_from_a_node_are_waited_for() {
    use crate::volume::backend::Backend;
    let held = |backend: Option<Backend>| HeldVolume {
        volume: "pv".to_owned(),
        pod: "shop/db-0".to_owned(),
        backend,
    };
    let (rbd, dir, none) = (held(Some(Backend::Rbd)), held(Some(Backend::Dir)), held(None));
    let say = |why: &str| format!("volume pv of pod shop/db-0: {why}");
    let going = say("it is being shut out");
    let stays = say("a client of dir ends only with its machine");
    let late = say("nobody has shut the node out of it in time");
    let gone = say("its storage cluster is gone");
    for (held, now, expected) in [
        (vec![], 0, Fencing::Done(vec![])),
        (vec![rbd.clone()], 0, Fencing::Wait(vec![going.clone()])),
        (vec![rbd.clone(), dir.clone()], 0, Fencing::Wait(vec![going, stays.clone()])),
        (vec![dir], 0, Fencing::Done(vec![stays])),
        (vec![none], 0, Fencing::Done(vec![gone])),
        (vec![rbd], 30, Fencing::Done(vec![late])),
    ] {
        assert_eq!(decide_fencing(&held, at(now), at(30)), expected, "{held:?} {now}");
    }
}

#[test]
fn a_thousand_healthy_machines_do_not_start_a_thousand_processes() {
    let queue = queue_of((0..1000).map(|n| entry(n, "drained", Phase::Queued)).collect());
    let mut observed = seen(&[]);
    observed.probes.extend((0..1000).map(|n| (n, probed(at(NOW), true))));
    let decision = look(&queue, &observed);
    assert_eq!(decision.actions.len(), BACKGROUND_HOOKS);
    assert_eq!(decision.waits.len(), 1000 - BACKGROUND_HOOKS);
}

#[test]
fn waiting_entries_are_looked_at_in_turn_and_not_all_at_once() {
    let entries = (0..500).map(|n| entry(n, "plain", Phase::Queued)).collect();
    let mut queue = queue_of(entries);
    queue.head.enabled = false;
    let mut observed = seen(&[]);
    let mut looked = std::collections::BTreeSet::new();
    for pass in 0..9 {
        let now = at(NOW + pass);
        let decision = super::super::decide(&config(), &queue, &observed, now);
        let due: Vec<u64> = decision.actions.iter().map(|action| action.index).collect();
        assert!(due.len() <= BACKGROUND_PROBES);
        for index in due {
            assert!(looked.insert(index) || pass >= 8, "{index} again in pass {pass}");
            observed.probes.insert(index, probed(now, false));
        }
    }
    assert_eq!(looked.len(), 500);
    for probe in observed.probes.values_mut().take(BACKGROUND_PROBES) {
        probe.in_flight = true;
    }
    let later = super::super::decide(&config(), &queue, &observed, at(NOW + 1000));
    assert_eq!(later.actions, []);
}
