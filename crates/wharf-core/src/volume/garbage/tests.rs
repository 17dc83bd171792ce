use std::time::Duration;

use super::*;
use crate::volume::{fence::NodeObject, journal::DeviceStage, lease::Sighting};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn own() -> Own {
    let owned = str::to_owned;
    Own { node: owned("a"), node_uid: owned("n-1"), boot_id: owned("b-1"), tenure: 1 }
}

fn entry(generation: u64) -> Entry {
    let Own { node, node_uid, boot_id, tenure } = own();
    let generation = Generation(generation);
    Entry { node, node_uid, boot_id, tenure, generation, self_fence: true, ..Entry::default() }
}

fn record(entries: Vec<Entry>) -> Record {
    Record { version: "1".to_owned(), entries, ..Record::default() }
}

#[test]
fn an_agent_cleans_what_is_left_and_never_what_it_holds_by_right() {
    let garbage = GarbageEntry::new("pv", &entry(4), at(0), "its node is gone".to_owned());
    let left = |devices: &[u64], journal: Option<u64>, entries: Vec<Entry>| Left {
        devices: Some(devices.iter().copied().map(Generation).collect()),
        journal: journal.map(Generation),
        record: Some(Some(record(entries))),
    };
    let elsewhere = Entry { node: "b".to_owned(), ..entry(5) };
    let fenced = Entry { phase: Phase::Fencing, ..entry(4) };
    for (left, expected) in [
        (left(&[], None, vec![]), Clean::Drop(Why::NothingThere)),
        (left(&[4], None, vec![elsewhere.clone()]), Clean::Detach(Generation(4))),
        (left(&[4], Some(4), vec![elsewhere.clone()]), Clean::Tidy),
        (left(&[], Some(4), vec![elsewhere]), Clean::Tidy),
        // The mount that wrote it lost its race: we never lost the volume.
        (left(&[4], Some(4), vec![entry(4)]), Clean::Drop(Why::HeldByRight)),
        (left(&[4], Some(4), vec![fenced]), Clean::Tidy),
        // It moved back, with a new generation.
        (left(&[6], Some(6), vec![entry(6)]), Clean::Drop(Why::HeldByRight)),
        (left(&[4, 6], Some(6), vec![entry(6)]), Clean::Detach(Generation(4))),
        (Left { devices: None, ..left(&[], None, vec![]) }, Clean::Keep),
        (Left { record: None, ..left(&[4], None, vec![]) }, Clean::Keep),
    ] {
        assert_eq!(decide_garbage(&garbage, &left, &own()), expected, "{left:?}");
    }
}

#[test]
fn after_a_boot_or_on_another_machine_of_the_same_name_nothing_of_it_can_be_left() {
    let garbage = GarbageEntry::new("pv", &entry(4), at(0), String::new());
    for own in [
        Own { boot_id: "b-2".to_owned(), ..own() },
        Own { boot_id: "b-2".to_owned(), node_uid: "n-2".to_owned(), ..own() },
    ] {
        // What is mapped now was mapped by right.
        let left = Left { devices: Some(vec![Generation(4)]), ..Left::default() };
        assert_eq!(decide_garbage(&garbage, &left, &own), Clean::Drop(Why::OtherBoot));
    }
    // Its Node was deleted and came back without a boot: the machine still has the device.
    let own = Own { node_uid: "n-2".to_owned(), ..own() };
    let left = Left {
        devices: Some(vec![Generation(4)]),
        journal: Some(Generation(4)),
        record: Some(Some(record(vec![entry(4)]))),
    };
    assert_eq!(decide_garbage(&garbage, &left, &own), Clean::Tidy);
}

#[test]
fn the_list_is_that_of_the_resource() {
    let image = "one".to_owned();
    let entry = Entry { device: Some("/dev/loop0".to_owned()), image, ..entry(4) };
    let json =
        serde_json::to_value(GarbageEntry::new("pv", &entry, at(0), "x".to_owned())).unwrap();
    let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["bootID", "device", "generation", "image", "mountDir", "reason", "since", "volume"]
    );
}

#[test]
fn an_entry_of_this_boot_that_nothing_here_knows_is_a_stray() {
    let journal = Journal {
        volume: "pv".to_owned(),
        storage_cluster: String::new(),
        image: String::new(),
        backend: Backend::Dir,
        parameters: BTreeMap::new(),
        fs_type: String::new(),
        mount_options: String::new(),
        boot_id: "b-1".to_owned(),
        device: DeviceStage::Absent,
        cut: false,
        pods: Vec::new(),
    };
    let mut busy = journal.clone();
    busy.begin("/pods/u/pv", "");
    let stray = entry(4);
    assert!(is_stray(&stray, &own(), None, Some(false)));
    assert!(is_stray(&stray, &own(), Some(&journal), Some(false)));
    assert!(!is_stray(&stray, &own(), Some(&busy), Some(false)), "its mount is under way");
    assert!(!is_stray(&stray, &own(), None, Some(true)), "its device is there");
    assert!(!is_stray(&stray, &own(), None, None));
    for other in [
        Entry { node: "b".to_owned(), ..entry(4) },
        Entry { boot_id: "b-0".to_owned(), ..entry(4) },
    ] {
        assert!(!is_stray(&other, &own(), None, Some(false)), "{other:?}");
    }
}

fn scanned(backend: Backend, node: Option<NodeObject>, renewed: i64) -> Scanned {
    let lease = Sighting {
        tenure: 1,
        renewed: at(renewed),
        duration: Duration::from_secs(20),
        unchanged_for: Duration::from_secs(u64::try_from(100 - renewed).unwrap()),
    };
    let holder = HolderNode { node, lease: Some(lease), garbage: Vec::new() };
    Scanned {
        volume: "pv".to_owned(),
        backend,
        record: record(vec![entry(4)]),
        nodes: BTreeMap::from([("a".to_owned(), holder)]),
        generation: Some(Generation(4)),
        raised: None,
        fenced: Vec::new(),
    }
}

/// Does what the scan says and names the steps.
fn scan(scanned: Scanned) -> Vec<&'static str> {
    scan_by(decide_stale, scanned)
}

fn scan_by(
    decide: fn(&Scanned, Timestamp, &Policy) -> Scan,
    mut scanned: Scanned,
) -> Vec<&'static str> {
    let mut steps = Vec::new();
    for _ in 0..9 {
        match decide(&scanned, at(100), &Policy::default()) {
            Scan::Do(Step::Raise { to, .. }) => {
                scanned.raised = Some(to);
                steps.push("raise");
            }
            Scan::Do(Step::Write { entries, .. }) => {
                scanned.record.entries = entries;
                steps.push("mark");
            }
            Scan::Do(Step::Fence { holders, .. }) => {
                scanned.fenced.extend(holders.iter().map(Entry::key));
                steps.push("fence");
            }
            Scan::Do(Step::NoteGarbage { entries, .. }) => {
                scanned.nodes.get_mut("a").unwrap().garbage.extend(entries);
                steps.push("note");
            }
            Scan::TakeOut(change) => {
                assert_eq!(change, Change::Delete { version: "1".to_owned() });
                steps.push("take out");
                return steps;
            }
            Scan::Stuck(_) => {
                steps.push("stuck");
                return steps;
            }
            Scan::Clean => {
                steps.push("clean");
                return steps;
            }
        }
    }
    panic!("it never ends: {steps:?}");
}

#[test]
fn the_scan_moves_what_was_given_up_for_good_and_leaves_the_rest() {
    let node = |uid: &str, boot: &str, out_of_service| {
        Some(NodeObject { uid: uid.to_owned(), boot_id: boot.to_owned(), out_of_service })
    };
    let all = ["raise", "mark", "fence", "note", "take out"];
    let (ended, live) = (0, 95);
    let cases: [(Backend, Option<NodeObject>, i64, &[&str]); 10] = [
        (Backend::Proxy, None, live, &all),
        (Backend::Proxy, node("n-2", "b-1", false), live, &all),
        (Backend::Proxy, node("n-1", "b-1", true), live, &all),
        (Backend::Proxy, node("n-1", "b-1", false), ended, &["clean"]),
        (Backend::Proxy, node("n-1", "b-2", false), ended, &["clean"]),
        (Backend::Loopfile, None, live, &["stuck"]),
        (Backend::Loopfile, None, ended, &["note", "take out"]),
        (Backend::Loopfile, node("n-2", "b-2", false), ended, &["note", "take out"]),
        (Backend::Loopfile, node("n-1", "b-1", true), live, &["stuck"]),
        (Backend::Loopfile, node("n-1", "b-1", false), ended, &["clean"]),
    ];
    for (backend, node, renewed, expected) in cases {
        let facts = scanned(backend, node, renewed);
        assert_eq!(scan(facts.clone()), expected, "{facts:?}");
    }
    // A Node that does not say its boot yet says nothing about it.
    let mut silent = scanned(Backend::Proxy, node("n-1", "", false), live);
    silent.nodes.get_mut("a").unwrap().lease.as_mut().unwrap().tenure = 2;
    assert_eq!(scan(silent), ["clean"]);
    let mut back = scanned(Backend::Proxy, node("n-1", "b-2", false), live);
    back.nodes.get_mut("a").unwrap().lease.as_mut().unwrap().tenure = 2;
    assert_eq!(scan(back.clone()), all, "the node is back and does not know of it");
    let local = Scanned { backend: Backend::Loopfile, ..back };
    assert_eq!(scan(local), ["note", "take out"]);
    let without_pv = Scanned { generation: None, ..scanned(Backend::Proxy, None, live) };
    assert_eq!(scan(without_pv), ["mark", "fence", "note", "take out"]);
    let late = Scanned { raised: Some(Generation(4)), ..scanned(Backend::Proxy, None, live) };
    assert_eq!(scan(late), all, "a raise that the holder has passed shuts out nobody");
    let mut by_a_person = scanned(Backend::Loopfile, node("n-1", "b-1", false), live);
    by_a_person.record.entries[0].phase = Phase::Released;
    assert_eq!(scan(by_a_person), ["note", "take out"]);
    let mut unread = scanned(Backend::Loopfile, None, ended);
    unread.nodes.clear();
    assert_eq!(scan(unread), ["clean"]);
}

#[test]
fn at_the_end_of_a_storage_cluster_lost_and_silent_nodes_leave_without_a_fence() {
    let same = || {
        let (uid, boot_id) = ("n-1".to_owned(), "b-1".to_owned());
        Some(NodeObject { uid, boot_id, out_of_service: false })
    };
    let out = ["note", "take out"];
    let (ended, live) = (0, 95);
    let cases: [(Backend, Option<NodeObject>, i64, &[&str]); 7] = [
        (Backend::Proxy, None, live, &out),
        (Backend::Proxy, same(), ended, &out),
        (Backend::Proxy, same(), live, &["clean"]),
        (Backend::Rbd, None, live, &out),
        (Backend::Loopfile, same(), ended, &out),
        (Backend::Loopfile, same(), live, &["clean"]),
        // The machine may be writing, and another storage cluster may be made of the same directory.
        (Backend::Loopfile, None, live, &["stuck"]),
    ];
    for (backend, node, renewed, expected) in cases {
        let facts = scanned(backend, node, renewed);
        assert_eq!(scan_by(decide_ending, facts.clone()), expected, "{facts:?}");
    }
    for phase in [Phase::Released, Phase::Fencing] {
        let mut given_up = scanned(Backend::Proxy, same(), live);
        given_up.record.entries[0].phase = phase;
        assert_eq!(scan_by(decide_ending, given_up), out, "{phase:?}");
    }
}

/// Somebody has taken the finalizer of a storage cluster, so that only the entries say what it was.
#[test]
fn where_the_storage_cluster_is_gone_an_entry_leaves_by_the_proof_of_its_own_storage() {
    let out = ["note", "take out"];
    let (ended, live) = (0, 95);
    let cases: [(Option<Backend>, bool, i64, &[&str]); 8] = [
        (Some(Backend::Proxy), false, live, &out),
        (Some(Backend::Rbd), false, ended, &out),
        (Some(Backend::Loopfile), true, ended, &out),
        // Its machine may be writing, and never promised to stop.
        (Some(Backend::Loopfile), false, ended, &["stuck"]),
        (Some(Backend::Dir), false, ended, &["stuck"]),
        (Some(Backend::Loopfile), true, live, &["stuck"]),
        (None, false, ended, &["stuck"]),
        (None, true, ended, &out),
    ];
    for (backend, self_fence, renewed, expected) in cases {
        let entry = Entry { backend, self_fence, ..entry(4) };
        let record = record(vec![entry]);
        let facts = Scanned { record: record.clone(), ..scanned(record.backend(), None, renewed) };
        assert_eq!(scan_by(decide_ending, facts), expected, "{backend:?} {self_fence} {renewed}");
    }
}

/// A storage cluster may be made anew under the same name, on storage of another kind.
#[test]
fn an_entry_on_storage_that_shuts_nobody_out_is_not_judged_by_the_storage_of_others() {
    for (backend, expected) in [
        (Some(Backend::Loopfile), &["stuck"][..]),
        (Some(Backend::Proxy), &["raise", "mark", "fence", "note", "take out"]),
        (None, &["raise", "mark", "fence", "note", "take out"]),
    ] {
        let mut facts = scanned(Backend::Proxy, None, 0);
        facts.record.entries = vec![Entry { backend, self_fence: false, ..entry(4) }];
        assert_eq!(scan(facts), expected, "{backend:?}");
    }
}

#[test]
fn what_is_kept_of_a_node_goes_when_it_is_long_gone_and_nothing_names_it() {
    let week = 7 * 24 * 3600;
    let gone = Remains { last: Some(at(0)), ..Remains::default() };
    assert!(is_forgotten(&gone, at(week)));
    assert!(!is_forgotten(&gone, at(week - 1)));
    assert!(!is_forgotten(&gone, at(-week)), "a stamp from the future says nothing");
    assert!(is_forgotten(&Remains::default(), at(0)), "there is nothing by which it was heard of");
    for kept in [Remains { has_node: true, ..gone }, Remains { is_named: true, ..gone }] {
        assert!(!is_forgotten(&kept, at(week)), "{kept:?}");
    }
}
