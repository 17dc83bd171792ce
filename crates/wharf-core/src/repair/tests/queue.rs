//! What people do to the queue.

use super::*;

fn request(operation: &str, machine_type: &str, address: &str) -> Request {
    Request {
        operation: operation.to_owned(),
        machine_type: machine_type.to_owned(),
        address: address.to_owned(),
        serial: String::new(),
    }
}

#[test]
fn indexes_are_given_once_and_in_order() {
    let mut queue = Queue::default();
    for number in 0..3 {
        let added = queue.add(&config(), &request("fix", "plain", "10.0.0.1"), "n1", at(0));
        let added = added.unwrap();
        assert_eq!(
            (added.index, added.phase, added.nodename.as_str()),
            (number, Phase::Queued, "n1")
        );
    }
    queue.remove(2);
    let added = queue.add(&config(), &request("fix", "plain", "10.0.0.1"), "", at(0)).unwrap();
    assert_eq!(added.index, 3);
}

#[test]
fn what_cannot_be_repaired_is_refused_and_nothing_is_stored() {
    let rows = [
        (request("fix", "other", "10.0.0.1"), vec!["machine_type"]),
        (request("other", "plain", "10.0.0.1"), vec!["operation"]),
        (request("fix", "plain", "host-1"), vec!["address"]),
        (request("fix", "plain", ""), vec!["address"]),
        (request("fix", "plain", " 10.0.0.1"), vec!["address"]),
        (request("fix", "plain", "10.0.0.1/24"), vec!["address"]),
        (request("", "", "300.0.0.1"), vec!["machine_type", "address"]),
        (Request { serial: "a b".to_owned(), ..request("fix", "plain", "::1") }, vec!["serial"]),
        (Request { serial: "x".repeat(999), ..request("fix", "plain", "::1") }, vec!["serial"]),
    ];
    for (request, fields) in rows {
        let mut queue = Queue::default();
        let error = queue.add(&config(), &request, "", at(0)).unwrap_err();
        let AddError::Invalid(faults) = error else { panic!("{error}") };
        let seen: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
        assert_eq!(seen, fields, "{request:?}");
        assert_eq!(queue, Queue::default());
    }
    let mut queue = Queue::default();
    let error = queue.add(&config(), &request("x", "plain", "::1"), "", at(0));
    let text = error.unwrap_err().to_string();
    assert_eq!(text, "machine type plain has no operation \"x\"; there are fix");
}

#[test]
fn an_address_is_kept_in_one_spelling() {
    let mut queue = Queue::default();
    let added = queue.add(&config(), &request("fix", "plain", "FD00:0::1"), "", at(0)).unwrap();
    assert_eq!(added.address, "fd00::1");
}

#[test]
fn a_full_queue_says_so() {
    let entries = (0..MAX_ENTRIES as u64).map(|n| entry(n, "plain", Phase::Queued)).collect();
    let mut queue = queue_of(entries);
    let full = queue.add(&config(), &request("fix", "plain", "10.0.0.1"), "", at(0));
    assert_eq!(full.unwrap_err(), AddError::Full);
}

#[test]
fn deleting_marks_and_an_index_that_does_not_exist_is_an_error() {
    let done = Phase::Succeeded { step_status: StepStatus::Watching };
    let bad = Phase::Failed { step_status: StepStatus::Watching };
    let phases = [Phase::Queued, done, Phase::Waiting, bad];
    let fresh = || {
        let entries = phases.iter().enumerate();
        queue_of(entries.map(|(n, phase)| entry(n as u64, "plain", *phase)).collect())
    };
    let mut queue = fresh();
    assert_eq!((queue.delete("1"), queue.delete("1")), (Ok(1), Ok(1)));
    for index in ["4", "-1", "x", "", "01", "+1"] {
        assert_eq!(queue.delete(index), Err(NoSuchEntry(index.to_owned())));
    }
    assert_eq!(queue.delete_finished(), [3], "1 was marked before");
    assert!(queue.delete_finished().is_empty());
    assert_eq!(fresh().delete_unfinished(), [0, 2]);
    assert_eq!(fresh().delete_finished(), [1, 3]);
    assert_eq!(Status::ALL.map(|status| fresh().count(status)), [1, 1, 1, 1]);
    assert!(!fresh().is_settled() && Queue::default().is_settled());
}

#[test]
fn a_reset_lets_waiting_entries_go_on_and_leaves_finished_ones() {
    let mut backing = entry(0, "plain", Phase::Draining { since: at(0) });
    backing.back_off(300, "refused", at(0));
    let mut finished = entry(1, "plain", Phase::Failed { step_status: StepStatus::Watching });
    finished.drain_backoff_count = 4;
    let mut queue = queue_of(vec![backing, finished.clone()]);
    assert_eq!(queue.reset_backoff(), [0]);
    assert!(queue.reset_backoff().is_empty());
    let reset = &queue.entries[&0];
    assert_eq!((reset.drain_backoff_count, reset.drain_backoff_expire), (0, None));
    assert!(!reset.is_backing_off(at(1)));
    assert_eq!(queue.entries[&1], finished);
}

#[test]
fn the_past_of_machines_is_remembered_while_the_flap_guard_looks_at_it() {
    let started = |index: u64, second| Entry {
        started: Some(at(second)),
        commands_begun: 1,
        address: "10.0.0.1".to_owned(),
        ..entry(index, "plain", Phase::Failed { step_status: StepStatus::Watching })
    };
    let untouched = entry(2, "plain", Phase::Queued);
    let mut queue = queue_of(vec![started(0, 0), started(1, 50), untouched]);
    for index in 0..3 {
        queue.remove(index);
    }
    assert_eq!(queue.head.past, BTreeMap::from([("10.0.0.1".to_owned(), vec![at(0), at(50)])]));
    let guard = FlapGuard { max_repairs: 1, window_seconds: 100 };
    queue.head.forget(Some(guard), at(120));
    assert_eq!(queue.head.past["10.0.0.1"], [at(50)]);
    assert!(queue.head.forget(Some(guard), at(150)) && queue.head.past.is_empty());
    let text = serde_json::to_string(&queue.head).unwrap();
    assert_eq!(serde_json::from_str::<QueueHead>(&text).unwrap(), queue.head);
}

#[test]
fn the_past_of_all_machines_together_is_bounded_and_loses_the_oldest() {
    let mut head = QueueHead { count: 9000, ..QueueHead::default() };
    for number in 0..8002_u64 {
        let address = format!("10.{}.{}.{}", number >> 16, (number >> 8) & 255, number & 255);
        let started = at(i64::try_from(number).unwrap());
        let mut gone = entry(number, "plain", Phase::Failed { step_status: StepStatus::Watching });
        (gone.address, gone.started, gone.commands_begun) = (address, Some(started), 1);
        head.remove(&gone);
    }
    assert_eq!((head.past.len(), head.count), (8000, 998));
    assert!(!head.past.contains_key("10.0.0.1") && head.past.contains_key("10.0.0.2"));
}
