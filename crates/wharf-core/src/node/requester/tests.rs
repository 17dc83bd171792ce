//! The table of the document, and single looks at jobs.

use super::*;

const BOOT: &str = "boot-1";
const RETRY: Duration = Duration::from_secs(300);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn drain(status: DrainStatus, requested_by: Requester) -> Published {
    Published { status, requested_by }
}

fn wish(id: &str) -> Wish {
    Wish { id: id.to_owned(), power: Power::Reboot, canceled: false, taken_in: None }
}

fn reboot(id: &str) -> Vec<Wish> {
    vec![wish(id)]
}

fn update(id: &str, image: Image) -> Vec<UpdateWish> {
    let (id, taken_in) = (id.to_owned(), None);
    vec![UpdateWish { id, image, activate: true, canceled: false, taken_in }]
}

fn leave(id: &str, power: Power) -> Effect {
    Effect::Leave { id: id.to_owned(), power }
}

fn facts() -> Facts {
    Facts {
        boot_id: BOOT.to_owned(),
        device_operations: reboot("op-1"),
        updates: Vec::new(),
        drain: drain(DrainStatus::NotRequested, Requester::Nobody),
        commanding: false,
        ordered: None,
    }
}

/// Looks until nothing changes; what was begun on the way, and what is asked for.
fn settle(journal: &mut Journal, facts: &Facts, now: i64) -> Vec<Effect> {
    let mut effects = Vec::new();
    let mut facts = facts.clone();
    for _ in 0..10 {
        let decision = decide_jobs(journal, &facts, at(now), RETRY);
        for effect in decision.effects {
            match effect {
                Effect::Leave { ref id, .. } => facts.ordered = Some(id.clone()),
                Effect::Command { .. } => facts.commanding = true,
            }
            effects.push(effect);
        }
        match decision.journal {
            Some(next) => *journal = next,
            None => return effects,
        }
    }
    panic!("{journal:?} never comes to rest");
}

fn phase(job: &Option<Job>) -> &'static str {
    match job.as_ref().map(|job| &job.phase) {
        None => "none",
        Some(Phase::Preparing { .. }) => "preparing",
        Some(Phase::Deferred { request: Some(_), .. }) => "asking",
        Some(Phase::Deferred { request: None, .. }) => "paused",
        Some(Phase::Commanding { .. }) => "commanding",
        Some(Phase::Leaving { .. }) => "leaving",
        Some(Phase::Done { .. }) => "done",
        Some(Phase::Failed { .. }) => "failed",
        Some(Phase::Canceled { .. }) => "canceled",
    }
}

#[test]
fn the_table_of_the_document_holds() {
    use DrainStatus::*;
    let rows = [
        (Answer::Ask, &[NotRequested, FailedCordon, FailedDrain][..]),
        (Answer::Wait, &[Requested, Starting, Cordoned, DrainRetrying]),
        (Answer::Go, &[Unknown, NotSupported, Complete]),
    ];
    let mut seen = 0;
    for (expected, statuses) in rows {
        for status in statuses {
            assert_eq!(answer(*status), expected, "{status:?}");
            seen += 1;
        }
    }
    assert_eq!(seen, DrainStatus::ALL.len());
}

#[test]
fn in_every_status_a_fresh_operation_asks_waits_or_goes() {
    for status in DrainStatus::ALL {
        let facts = Facts { drain: drain(status, Requester::DeviceOperation), ..facts() };
        let mut journal = Journal::default();
        let mut effects = settle(&mut journal, &facts, 1);
        let ordered = effects.first().map(|_| "op-1".to_owned());
        effects.extend(settle(&mut journal, &Facts { ordered, ..facts }, 3));
        let (expected, leaves) = match status {
            DrainStatus::Unknown | DrainStatus::NotSupported => ("leaving", true),
            // It asks first, for the end may be that of an earlier drain.
            DrainStatus::Complete => ("leaving", true),
            DrainStatus::FailedCordon | DrainStatus::FailedDrain => ("paused", false),
            DrainStatus::NotRequested
            | DrainStatus::Requested
            | DrainStatus::Starting
            | DrainStatus::Cordoned
            | DrainStatus::DrainRetrying => ("asking", false),
        };
        assert_eq!(phase(&journal.device_operation), expected, "{status:?}");
        assert_eq!(!effects.is_empty(), leaves, "{status:?}");
        let asks = expected == "asking" || status == DrainStatus::Complete;
        assert_eq!(journal.requests().device_operation.is_some(), asks, "{status:?}");
    }
}

#[test]
fn the_request_names_what_it_is_for() {
    let mut journal = Journal::default();
    let facts = Facts { updates: update("os-2", Image::Loaded), ..facts() };
    settle(&mut journal, &facts, 1);
    let requests = journal.requests();
    assert_eq!(requests.device_operation.unwrap().context, "reboot");
    assert_eq!(requests.update.unwrap().context, "os-2");
}

#[test]
fn an_end_that_is_told_to_the_other_one_is_not_ours() {
    let both = Facts { updates: update("os-2", Image::Loaded), ..facts() };
    let mut journal = Journal::default();
    settle(&mut journal, &both, 1);
    let complete =
        |requested_by| Facts { drain: drain(DrainStatus::Complete, requested_by), ..both.clone() };
    let effects = settle(&mut journal, &complete(Requester::Update), 3);
    assert_eq!(effects, [Effect::Command { id: "os-2".to_owned() }]);
    assert_eq!(phase(&journal.device_operation), "asking");
    // The device operation's turn comes while the update is being put in place: it waits.
    let busy = Facts { commanding: true, ..complete(Requester::DeviceOperation) };
    assert_eq!(settle(&mut journal, &busy, 3), []);
    assert!(apply(&mut journal, Outcome::Commanded, at(4)));
    let effects = settle(&mut journal, &complete(Requester::DeviceOperation), 5);
    assert_eq!(effects, [leave("os-2", Power::Reboot)], "into the update, once");
    // After the boot the device operation has its own turn.
    let booted = Facts { boot_id: "boot-2".to_owned(), ..both };
    settle(&mut journal, &booted, 6);
    assert_eq!((phase(&journal.update), phase(&journal.device_operation)), ("done", "asking"));
}

#[test]
fn a_reboot_is_done_once_whenever_the_agent_is_restarted() {
    let go = Facts { drain: drain(DrainStatus::NotSupported, Requester::Nobody), ..facts() };
    let mut journal = Journal::default();
    assert_eq!(settle(&mut journal, &go, 1), [leave("op-1", Power::Reboot)]);
    // Killed before the order was given: it is given again, for the node is still up.
    assert_eq!(settle(&mut journal, &go, 2), [leave("op-1", Power::Reboot)]);
    let booted = Facts { boot_id: "boot-2".to_owned(), ..go };
    assert_eq!(settle(&mut journal, &booted, 3), []);
    assert_eq!(phase(&journal.device_operation), "done");
    assert_eq!(settle(&mut journal, &booted, 4), [], "the wish is still there, and is known");
    let shutdown = Wish { power: Power::Shutdown, ..wish("op-2") };
    let next = Facts { device_operations: vec![shutdown], ..booted.clone() };
    assert_eq!(settle(&mut journal, &next, 5), [leave("op-2", Power::Shutdown)]);
    let third = Facts { boot_id: "boot-3".to_owned(), ..booted };
    assert_eq!(settle(&mut journal, &third, 6), [], "an old wish that is sent again");
}

#[test]
fn an_update_is_put_in_place_once_and_not_again_after_a_restart() {
    let facts = Facts {
        device_operations: Vec::new(),
        updates: update("os-2", Image::Loaded),
        drain: drain(DrainStatus::NotSupported, Requester::Nobody),
        ..facts()
    };
    let mut journal = Journal::default();
    assert_eq!(settle(&mut journal, &facts, 1).len(), 1);
    assert_eq!(settle(&mut journal, &facts, 2), [], "nobody runs it any more");
    assert_eq!(phase(&journal.update), "failed");
    assert_eq!(settle(&mut journal, &facts, 3), []);
    // Another wish is another try.
    let again = Facts { updates: update("os-2b", Image::Loaded), ..facts };
    assert_eq!(settle(&mut journal, &again, 4).len(), 1);
}

#[test]
fn a_job_that_went_down_with_the_boot_before_asks_no_more() {
    let mut journal = Journal::default();
    settle(&mut journal, &facts(), 1);
    assert_eq!(journal.requests_in("boot-2"), journal.requests(), "it waits on");
    let complete = Facts { drain: drain(DrainStatus::Complete, Requester::Nobody), ..facts() };
    settle(&mut journal, &complete, 5);
    assert_eq!(phase(&journal.device_operation), "leaving");
    assert_eq!(journal.requests_in(BOOT), journal.requests());
    assert!(journal.requests().device_operation.is_some());
    assert_eq!(journal.requests_in("boot-2"), Requests::default());
}

#[test]
fn no_drain_begins_before_the_image_is_there_and_none_when_it_is_bad() {
    for (image, expected) in [
        (Image::Fetching, "preparing"),
        (Image::Loading, "preparing"),
        (Image::Loaded, "asking"),
        (Image::Installed, "asking"),
        (Image::Failed("the checksum differs".to_owned()), "failed"),
    ] {
        let facts = Facts {
            device_operations: Vec::new(),
            updates: update("os-2", image.clone()),
            ..facts()
        };
        let mut journal = Journal::default();
        settle(&mut journal, &facts, 1);
        assert_eq!(phase(&journal.update), expected, "{image:?}");
        assert_eq!(journal.requests().update.is_some(), expected == "asking", "{image:?}");
    }
    let idle = UpdateWish { activate: false, ..update("os-2", Image::Loaded).remove(0) };
    let facts = Facts { device_operations: Vec::new(), updates: vec![idle], ..facts() };
    let mut journal = Journal::default();
    settle(&mut journal, &facts, 1);
    assert_eq!(phase(&journal.update), "preparing", "it is only to be fetched");
}

#[test]
fn a_newer_image_takes_the_place_of_the_older_one_and_its_drain() {
    let with = |wishes| Facts { device_operations: Vec::new(), updates: wishes, ..facts() };
    let mut journal = Journal::default();
    settle(&mut journal, &with(update("os-2", Image::Loaded)), 1);
    let asked = journal.requests().update.unwrap().at;
    let draining = Facts {
        drain: drain(DrainStatus::Cordoned, Requester::Update),
        ..with(update("os-3", Image::Fetching))
    };
    settle(&mut journal, &draining, 2);
    let request = journal.requests().update.unwrap();
    assert_eq!((request.at, request.context.as_str()), (asked, "os-3"), "the drain goes on");
    // The drain ends before the image is there: it is waited for.
    let complete = Facts { drain: drain(DrainStatus::Complete, Requester::Update), ..draining };
    assert_eq!(settle(&mut journal, &complete, 3), []);
    let there = Facts { updates: update("os-3", Image::Loaded), ..complete };
    assert_eq!(settle(&mut journal, &there, 4), [Effect::Command { id: "os-3".to_owned() }]);
}

#[test]
fn a_failed_drain_withdraws_the_request_and_is_asked_for_again_without_a_new_wish() {
    let failed =
        Facts { drain: drain(DrainStatus::FailedDrain, Requester::DeviceOperation), ..facts() };
    let mut journal = Journal::default();
    settle(&mut journal, &facts(), 0);
    for (now, expected) in [
        (1, "asking"),
        (2, "paused"),
        (301, "paused"),
        (302, "asking"),
        (304, "paused"),
        (903, "paused"),
        (904, "asking"),
    ] {
        settle(&mut journal, &failed, now);
        assert_eq!(phase(&journal.device_operation), expected, "{now}");
    }
    settle(&mut journal, &facts(), 1000);
    assert_eq!(phase(&journal.device_operation), "asking");
    let pauses = [1, 2, 3, 4, 5, 40].map(|failures| pause_after(failures, RETRY).as_secs());
    assert_eq!(pauses, [300, 600, 1200, 2400, 3600, 3600]);
    let day = Duration::from_secs(86_400);
    assert_eq!([1, 2].map(|failures| pause_after(failures, day)), [day, day]);
}

#[test]
fn a_canceled_wish_withdraws_its_request_unless_it_is_too_late() {
    let canceled = Wish { canceled: true, ..wish("op-1") };
    let canceled = Facts { device_operations: vec![canceled], ..facts() };
    let mut journal = Journal::default();
    settle(&mut journal, &facts(), 1);
    settle(&mut journal, &canceled, 2);
    assert_eq!(phase(&journal.device_operation), "canceled");
    assert!(journal.requests().is_empty());
    let go = drain(DrainStatus::NotSupported, Requester::Nobody);
    let mut journal = Journal::default();
    settle(&mut journal, &Facts { drain: go, ..facts() }, 1);
    settle(&mut journal, &Facts { drain: go, ordered: Some("op-1".to_owned()), ..canceled }, 2);
    assert_eq!(phase(&journal.device_operation), "leaving");
}

#[test]
fn a_wish_that_was_replaced_by_a_canceled_one_is_not_wanted_either() {
    let mut journal = Journal::default();
    settle(&mut journal, &facts(), 1);
    let canceled = Wish { canceled: true, ..wish("op-2") };
    settle(&mut journal, &Facts { device_operations: vec![canceled], ..facts() }, 2);
    assert_eq!(phase(&journal.device_operation), "canceled");
    // One of another kind is not meant, now and later.
    let mut journal = Journal::default();
    settle(&mut journal, &facts(), 1);
    let canceled = Wish { power: Power::Shutdown, canceled: true, ..wish("op-3") };
    let other = Facts { device_operations: vec![wish("op-1"), canceled], ..facts() };
    settle(&mut journal, &other, 2);
    assert_eq!(phase(&journal.device_operation), "asking");
    assert!(journal.knows("op-3"), "it is over");
    // Not knowing what is wanted is another thing.
    let mut journal = Journal::default();
    settle(&mut journal, &facts(), 1);
    settle(&mut journal, &Facts { device_operations: Vec::new(), ..facts() }, 2);
    assert_eq!(phase(&journal.device_operation), "asking");
}

#[test]
fn of_two_who_wish_the_last_new_one_counts_and_nobodys_old_wish_comes_back() {
    let with = |wishes: &[Wish]| Facts { device_operations: wishes.to_vec(), ..facts() };
    let mut journal = Journal::default();
    settle(&mut journal, &with(&[wish("server-1"), wish("local-1")]), 1);
    assert_eq!(journal.device_operation.as_ref().unwrap().id, "local-1");
    assert!(journal.knows("server-1") && journal.knows("local-1") && !journal.knows("local-2"));
    // Only the one of the two that is under way can be called back.
    let no = Wish { canceled: true, ..wish("server-1") };
    settle(&mut journal, &with(&[no, wish("local-1")]), 2);
    assert_eq!(phase(&journal.device_operation), "asking");
    // A cancellation is about what is there when it comes, not about what comes later.
    let cancel = Wish { canceled: true, ..wish("local-2") };
    settle(&mut journal, &with(&[wish("server-1"), cancel.clone()]), 3);
    assert_eq!(phase(&journal.device_operation), "canceled");
    settle(&mut journal, &with(&[wish("server-2"), cancel]), 4);
    assert_eq!(phase(&journal.device_operation), "asking");
}

#[test]
fn of_a_wish_that_lost_its_place_it_is_known_how_it_ended() {
    let with = |wishes: &[Wish]| Facts { device_operations: wishes.to_vec(), ..facts() };
    let ends = |journal: &Journal| -> Vec<(String, &'static str)> {
        let end = |job: &Job| (job.id.clone(), phase(&Some(job.clone())));
        journal.replaced.iter().map(end).collect()
    };
    let mut journal = Journal::default();
    settle(&mut journal, &with(&[wish("server-1")]), 1);
    assert_eq!(ends(&journal), []);
    settle(&mut journal, &with(&[wish("server-1"), wish("local-1")]), 2);
    assert_eq!(ends(&journal), [("server-1".to_owned(), "canceled")]);
    let go = drain(DrainStatus::NotSupported, Requester::Nobody);
    settle(&mut journal, &Facts { drain: go, ..with(&[]) }, 3);
    // After the boot nobody has read the wishes yet, and another comes.
    let booted = Facts { boot_id: "boot-2".to_owned(), ..with(&[wish("local-2")]) };
    settle(&mut journal, &booted, 4);
    let [canceled, done] = [("server-1", "canceled"), ("local-1", "done")];
    let all = [canceled, done].map(|(id, end)| (id.to_owned(), end));
    assert_eq!(ends(&journal), all, "one that was done stays done");
    // What is still wished for is not forgotten, and the rest is in the end.
    for number in 3..30 {
        let wishes = [wish("server-1"), wish(&format!("local-{number}"))];
        settle(&mut journal, &with(&wishes), number);
    }
    assert_eq!(ends(&journal).first(), Some(&("server-1".to_owned(), "canceled")));
    assert_eq!(journal.replaced.len(), 8);
    let old = r#"{"device_operation":null,"update":null,"past":["a"]}"#;
    assert_eq!(serde_json::from_str::<Journal>(old).unwrap().past, ["a"], "of an older version");
}

#[test]
fn a_wish_that_stays_is_remembered_however_many_come_after_it() {
    let go = Facts { drain: drain(DrainStatus::NotSupported, Requester::Nobody), ..facts() };
    let mut journal = Journal::default();
    for boot in 0..100 {
        let wishes = vec![wish("first"), wish(&format!("op-{boot}"))];
        let facts =
            Facts { boot_id: format!("boot-{boot}"), device_operations: wishes, ..go.clone() };
        settle(&mut journal, &facts, boot);
        assert_eq!(journal.device_operation.as_ref().unwrap().id, format!("op-{boot}"));
        assert!(journal.knows("first") && journal.past.len() <= 34, "{journal:?}");
    }
}

#[test]
fn a_base_os_is_installed_once_its_command_is_through_and_active_after_the_boot() {
    let facts = Facts {
        device_operations: Vec::new(),
        updates: update("os-2", Image::Loaded),
        drain: drain(DrainStatus::NotSupported, Requester::Nobody),
        ..facts()
    };
    let mut journal = Journal::default();
    let state = |journal: &Journal| base_os_state(&Image::Loaded, journal.update.as_ref().unwrap());
    settle(&mut journal, &facts, 1);
    assert_eq!(state(&journal), Some((SwState::Loaded, false)));
    apply(&mut journal, Outcome::Commanded, at(2));
    assert_eq!(state(&journal), Some((SwState::Installed, false)));
    settle(&mut journal, &Facts { boot_id: "boot-2".to_owned(), ..facts }, 3);
    assert_eq!(state(&journal), Some((SwState::Installed, true)));
}

#[test]
fn what_is_said_of_a_base_os_follows_its_job_and_the_image_only_until_that_is_over() {
    let (boot_id, since, request) = (BOOT.to_owned(), at(0), None);
    let preparing = Phase::Preparing { request };
    let commanding = Phase::Commanding { boot_id: boot_id.clone(), since, request };
    let leaving = Phase::Leaving { boot_id, since, request };
    let failed = Phase::Failed { at: at(0), reason: "exit 1".to_owned() };
    let bad = Image::Failed("the checksum differs".to_owned());
    // The image of a job that is over is not kept in mind, and looks as if it were not there yet.
    let rows = [
        (preparing.clone(), Image::Fetching, Some((SwState::Downloading, false))),
        (preparing.clone(), Image::Loading, Some((SwState::Loading, false))),
        (preparing, bad.clone(), Some((SwState::Failed, false))),
        (Phase::deferred(None), Image::Loaded, Some((SwState::Loaded, false))),
        (commanding, Image::Installed, Some((SwState::Installed, false))),
        (leaving, Image::Fetching, Some((SwState::Installed, false))),
        (Phase::Done { at: at(0) }, Image::Fetching, Some((SwState::Installed, true))),
        (failed.clone(), Image::Fetching, Some((SwState::Failed, false))),
        (failed, bad, Some((SwState::Failed, false))),
        (Phase::Canceled { at: at(0) }, Image::Fetching, None),
    ];
    for (phase, image, expected) in rows {
        let job = Job { id: "os-2".to_owned(), kind: Kind::Update, phase };
        assert_eq!(base_os_state(&image, &job), expected, "{job:?} {image:?}");
    }
}

#[test]
fn what_a_node_was_updated_to_is_said_again_when_the_next_update_is_canceled() {
    let with = |boot: &str, wishes| Facts {
        boot_id: boot.to_owned(),
        device_operations: Vec::new(),
        updates: wishes,
        drain: drain(DrainStatus::NotSupported, Requester::Nobody),
        ..facts()
    };
    let mut journal = Journal::default();
    settle(&mut journal, &with("boot-1", update("os-2", Image::Loaded)), 1);
    apply(&mut journal, Outcome::Commanded, at(2));
    let next = update("os-3", Image::Fetching);
    let canceled = UpdateWish { canceled: true, ..next[0].clone() };
    let said = |journal: &Journal| journal.base_os().map(|job| job.id.clone());
    settle(&mut journal, &with("boot-2", Vec::new()), 3);
    assert_eq!((said(&journal).as_deref(), phase(&journal.update)), (Some("os-2"), "done"));
    settle(&mut journal, &with("boot-2", next), 4);
    assert_eq!(said(&journal).as_deref(), Some("os-3"), "the last one");
    settle(&mut journal, &with("boot-2", vec![canceled]), 5);
    assert_eq!((said(&journal).as_deref(), phase(&journal.update)), (Some("os-2"), "canceled"));
    // Also after another one that came to nothing.
    let fourth = update("os-4", Image::Fetching);
    let canceled = UpdateWish { canceled: true, ..fourth[0].clone() };
    settle(&mut journal, &with("boot-2", fourth), 6);
    settle(&mut journal, &with("boot-2", vec![canceled]), 7);
    assert_eq!(said(&journal).as_deref(), Some("os-2"));
}

#[test]
fn what_a_node_took_over_and_forgot_is_not_done_again_after_a_boot() {
    let go = drain(DrainStatus::NotSupported, Requester::Nobody);
    let look = |wishes: Vec<Wish>, updates: Vec<UpdateWish>| {
        let facts = Facts { device_operations: wishes, updates, drain: go, ..facts() };
        let mut journal = Journal::default();
        let effects = settle(&mut journal, &facts, 1);
        assert_eq!(settle(&mut journal, &facts, 2).len(), effects.len(), "{journal:?}");
        let ended =
            journal.replaced.iter().map(|job| phase(&Some(job.clone()))).collect::<Vec<_>>();
        (effects.len(), ended)
    };
    let before = Some("boot-0".to_owned());
    for power in [Power::Reboot, Power::Shutdown] {
        let new = Wish { power, ..wish("op-1") };
        let here = Wish { taken_in: Some(BOOT.to_owned()), ..new.clone() };
        let elsewhere = Wish { taken_in: before.clone(), ..new.clone() };
        let canceled = Wish { canceled: true, ..elsewhere.clone() };
        assert_eq!(look(vec![new], Vec::new()), (1, vec![]));
        assert_eq!(look(vec![here], Vec::new()), (1, vec![]), "it is still up");
        assert_eq!(look(vec![elsewhere], Vec::new()), (0, vec!["done"]));
        assert_eq!(look(vec![canceled], Vec::new()), (0, vec![]));
    }
    // One that waits here is not disturbed.
    let elsewhere = Wish { taken_in: before, ..wish("op-1") };
    assert_eq!(look(vec![wish("local-1"), elsewhere], Vec::new()), (1, vec!["done"]));
    for boot_id in ["boot-0", BOOT] {
        let mut updates = update("os-2", Image::Loaded);
        updates[0].taken_in = Some(boot_id.to_owned());
        assert_eq!(look(Vec::new(), updates), (0, vec!["failed"]), "its command may have run");
    }
    // Who remembers goes on, however often the node was booted.
    let mut journal = Journal::default();
    settle(&mut journal, &facts(), 1);
    let elsewhere = Wish { taken_in: Some(BOOT.to_owned()), ..wish("op-1") };
    let booted = Facts {
        boot_id: "boot-2".to_owned(),
        device_operations: vec![elsewhere],
        drain: go,
        ..facts()
    };
    assert_eq!(settle(&mut journal, &booted, 2), [leave("op-1", Power::Reboot)]);
}

#[test]
fn a_node_that_does_not_go_down_is_given_back() {
    let go = Facts { drain: drain(DrainStatus::NotSupported, Requester::Nobody), ..facts() };
    let mut journal = Journal::default();
    settle(&mut journal, &go, 0);
    let ordered = Facts { ordered: Some("op-1".to_owned()), ..go };
    settle(&mut journal, &ordered, 899);
    assert_eq!(phase(&journal.device_operation), "leaving");
    settle(&mut journal, &ordered, 900);
    assert_eq!(phase(&journal.device_operation), "failed");
    assert!(journal.requests().is_empty());
    // The order came to nothing. The next operation gives its own.
    let next = Facts { device_operations: reboot("op-2"), ..ordered };
    assert_eq!(settle(&mut journal, &next, 901), [leave("op-2", Power::Reboot)]);
}

#[test]
fn after_an_update_that_did_not_go_down_the_operation_that_waited_gives_its_own_order() {
    let go = drain(DrainStatus::NotSupported, Requester::Nobody);
    let update =
        Facts { device_operations: Vec::new(), updates: update("os-2", Image::Loaded), ..facts() };
    let mut journal = Journal::default();
    settle(&mut journal, &Facts { drain: go, ..update.clone() }, 0);
    apply(&mut journal, Outcome::Commanded, at(0));
    let ordered = Some("os-2".to_owned());
    let both = Facts { device_operations: reboot("op-1"), drain: go, ordered, ..update };
    assert_eq!(settle(&mut journal, &both, 1), [], "the node is going down already");
    assert_eq!(phase(&journal.device_operation), "paused");
    assert_eq!(settle(&mut journal, &both, 900), [leave("op-1", Power::Reboot)]);
}

#[test]
fn a_journal_is_read_as_it_was_stored() {
    let mut journal = Journal::default();
    let facts = Facts { updates: update("os-2", Image::Loaded), ..facts() };
    settle(&mut journal, &facts, 1);
    let stored = serde_json::to_string(&journal).unwrap();
    assert_eq!(serde_json::from_str::<Journal>(&stored).unwrap(), journal);
}
