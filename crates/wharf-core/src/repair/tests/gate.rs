//! Who may begin: slots, turns, the guard, etcd and the rules that hold entries back.

use super::{
    decide::{NOW, look, one},
    *,
};
use crate::disruption::{Disruption, Kind};

#[test]
fn slots_go_to_machines_in_hand_then_to_begun_entries_then_by_index() {
    let watching = Phase::Watching { since: at(NOW) };
    let mut backing = entry(2, "plain", Phase::Waiting);
    backing.drain_backoff_expire = Some(at(NOW + 1));
    let queue = queue_of(vec![
        entry(0, "plain", Phase::Queued),
        entry(1, "plain", watching),
        backing,
        entry(3, "plain", Phase::Waiting),
    ]);
    let observed = ill(seen(&[]), &[0, 1, 2, 3], at(NOW));
    let decision = look(&queue, &observed);
    // Two slots: one is used by 1, the other goes to 3; 2 backs off and uses none.
    assert_eq!(words(&decision), ["3: processing/0/watching run reset -f 10.0.0.4"]);
    let text = waits(&decision);
    assert!(text.contains(&"0: as many machines are out of service as may be (2)".to_owned()));
    assert!(text.iter().any(|wait| wait.starts_with("2: the next drain is tried at")), "{text:?}");
}

#[test]
fn one_machine_has_one_running_entry() {
    let same = |index, phase| Entry { address: address(0), ..entry(index, "plain", phase) };
    let second = Entry { operation: "fix".to_owned(), ..same(1, Phase::Queued) };
    for first in [Phase::Queued, Phase::Waiting, Phase::Watching { since: at(NOW) }] {
        let queue = queue_of(vec![same(0, first), second.clone()]);
        // The second is healthy by its own check, but it is not its turn.
        let mut observed = ill(seen(&[]), &[0], at(NOW));
        observed.probes.insert(1, probed(at(NOW), true));
        let decision = look(&queue, &observed);
        assert!(decision.actions.iter().all(|action| action.index == 0), "{decision:?}");
        assert!(
            waits(&decision).contains(&"1: entry 0 for the same machine comes first".to_owned())
        );
    }
    // One that was begun comes before one that was not, whatever their order.
    let queue = queue_of(vec![same(0, Phase::Queued), same(1, Phase::Waiting)]);
    let decision = look(&queue, &ill(seen(&[]), &[0, 1], at(NOW)));
    assert_eq!(decision.actions[0].index, 1);
}

#[test]
fn controlplane_machines_go_first_and_one_at_a_time() {
    let entries = (0..4).map(|n| entry(n, "plain", Phase::Queued)).collect();
    let queue = queue_of(entries);
    let mut observed = ill(seen(&[0, 1, 2, 3]), &[0, 1, 2, 3], at(NOW));
    observed.machines.insert(address(2), controlplane("c2"));
    observed.machines.insert(address(3), controlplane("c3"));
    let decision = look(&queue, &observed);
    let begun: Vec<u64> = decision.actions.iter().map(|action| action.index).collect();
    assert_eq!(begun, [2, 0]);
    let text = waits(&decision).join("; ");
    assert!(
        text.contains("3: the controlplane or etcd machine 10.0.0.3 is out of service"),
        "{text}"
    );
}

#[test]
fn what_others_take_out_of_service_counts_too() {
    let (queue, observed) = one("plain", Phase::Queued);
    for kind in [Kind::Drain, Kind::Reboot, Kind::Shutdown, Kind::Update, Kind::Removal] {
        let mut same = observed.clone();
        same.guard.begin(&address(0), Disruption { kind, critical: false });
        assert_eq!(words(&look(&queue, &same)), Vec::<String>::new(), "{kind:?} of this machine");
        let mut other = observed.clone();
        other.guard.begin("10.1.0.1", Disruption { kind, critical: true });
        assert_eq!(look(&queue, &other).actions.len(), 1, "a worker beside a controlplane");
        other.machines.insert(address(0), controlplane("c0"));
        assert_eq!(words(&look(&queue, &other)), Vec::<String>::new(), "{kind:?} of another");
        let mut full = observed.clone();
        full.guard.begin("10.1.0.1", Disruption { kind, critical: false });
        full.guard.begin("10.1.0.2", Disruption { kind, critical: false });
        assert_eq!(words(&look(&queue, &full)), Vec::<String>::new(), "the limit is two");
    }
}

/// All states of three members, for a member, a controlplane machine without etcd, a worker and a
/// machine outside.
#[test]
fn etcd_never_loses_a_member_that_it_needs() {
    for bits in 0..8_u8 {
        let healthy = |number: u8| bits & (1 << number) != 0;
        let members: BTreeMap<String, bool> =
            (0..3).map(|n| (address(u64::from(n)), healthy(n))).collect();
        let quorum = bits.count_ones() >= 2;
        for (index, is_node) in [(0, true), (7, true), (8, true), (9, false)] {
            let queue = queue_of(vec![entry(index, "plain", Phase::Queued)]);
            let nodes: Vec<u64> = if is_node { vec![index] } else { vec![] };
            let mut observed = ill(seen(&nodes), &[index], at(NOW));
            observed.etcd = Etcd::Members(members.clone());
            match index {
                0 => drop(observed.machines.insert(address(0), controlplane("c0"))),
                7 => {
                    let only = Machine { controlplane: true, ..machine("c7") };
                    observed.machines.insert(address(7), only);
                }
                _ => {}
            }
            let begins = !look(&queue, &observed).actions.is_empty();
            let expected = match index {
                0 => !healthy(0) || bits == 7,
                7 | 8 => quorum,
                _ => true,
            };
            assert_eq!(begins, expected, "members {bits:03b}, entry {index}");
        }
    }
    let (queue, mut observed) = one("plain", Phase::Queued);
    observed.etcd = Etcd::Unknown;
    assert_eq!(waits(&look(&queue, &observed)), ["0: the state of etcd is not known"]);
}

#[test]
fn a_storm_a_closed_window_an_opt_out_and_flapping_keep_what_was_not_begun() {
    let mut value = base();
    value["breaker"] = json!({ "max_unhealthy": 2, "cooldown_seconds": 60 });
    value["flap_guard"] = json!({ "max_repairs": 1, "window_seconds": 1000 });
    value["excluded_machines"] = json!([address(5)]);
    let open = config_of(&value);
    value["windows"] = json!([{ "start": "00:00", "end": "00:01" }]);
    let closed = config_of(&value);
    let fleet = |unhealthy, last_storm| Fleet { machines: 100, unhealthy, last_storm };
    let flapping = |queue: &mut Queue| {
        queue.head.past.insert(address(0), vec![at(0)]);
    };
    let check =
        |config: &RepairConfig, change: &dyn Fn(&mut Queue, &mut Observation), text: &str| {
            for begun in [0, 1] {
                let (mut queue, mut observed) = one("plain", Phase::Queued);
                change(&mut queue, &mut observed);
                for entry in queue.entries.values_mut() {
                    entry.commands_begun = begun;
                }
                let decision = super::super::decide(config, &queue, &observed, at(NOW));
                let waits = waits(&decision).join("; ");
                if begun == 0 {
                    assert!(waits.contains(text) && decision.actions.is_empty(), "{waits} {text}");
                } else {
                    assert_eq!(decision.actions.len(), 1, "what was begun goes on: {waits}");
                }
            }
        };
    check(&open, &|_, seen| seen.fleet = fleet(3, None), "3 of 100 machines are unhealthy");
    check(&open, &|_, seen| seen.fleet = fleet(0, Some(at(NOW - 59))), "nothing begins until");
    check(&closed, &|_, _| {}, "no maintenance window is open");
    check(
        &open,
        &|_, seen| {
            drop(seen.machines.insert(address(0), Machine { opted_out: true, ..machine("n0") }));
        },
        "excluded from repairs",
    );
    let excluded = |queue: &mut Queue, seen: &mut Observation| {
        *queue = queue_of(vec![Entry { address: address(5), ..entry(0, "plain", Phase::Queued) }]);
        seen.machines.clear();
    };
    check(&open, &excluded, "excluded from repairs");
    check(&open, &|queue, _| flapping(queue), "was repaired 1 times");
    // Calm, and with a person's word: it begins.
    let (mut queue, mut observed) = one("plain", Phase::Queued);
    observed.fleet = fleet(2, Some(at(NOW - 60)));
    flapping(&mut queue);
    queue.reset_backoff();
    assert_eq!(super::super::decide(&open, &queue, &observed, at(NOW)).actions.len(), 1);
}

#[test]
fn the_guard_of_others_knows_the_machines_in_hand() {
    let watching = Phase::Watching { since: at(0) };
    let queue = queue_of(vec![
        entry(0, "plain", watching),
        entry(1, "plain", Phase::Queued),
        entry(2, "plain", Phase::Waiting),
        entry(3, "plain", watching),
    ]);
    let mut observed = seen(&[0, 1, 2]);
    observed.machines.insert(address(0), controlplane("c0"));
    let mut guard = crate::disruption::Guard::default();
    note_repairs(&mut guard, &queue, &observed.machines);
    let repair = |critical| Some(Disruption { kind: Kind::Repair, critical });
    assert_eq!(guard.len(), 2);
    assert_eq!((guard.get(&address(0)), guard.get(&address(3))), (repair(true), repair(false)));
    let drain = Disruption { kind: Kind::Drain, critical: true };
    assert!(guard.admit("10.1.0.1", drain, 9).is_err(), "no second controlplane machine");
}
