use std::time::Duration;

use super::*;
use crate::volume::{backend::Backend, condition::Condition, record::Generation};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn entry(node: &str, pod: &str) -> Entry {
    Entry {
        node: node.to_owned(),
        pod_namespace: "shop".to_owned(),
        pod: pod.to_owned(),
        pod_uid: format!("uid-{pod}"),
        node_uid: format!("n-{node}"),
        boot_id: "boot".to_owned(),
        generation: Generation(4),
        phase: Phase::Attached,
        tenure: 3,
        ..Entry::default()
    }
}

fn node(name: &str) -> NodeObject {
    NodeObject { uid: format!("n-{name}"), boot_id: "boot".to_owned(), out_of_service: false }
}

/// A node whose agent renewed its lease at the second zero.
fn holder(node: Option<NodeObject>, lease: bool, now: Timestamp) -> HolderNode {
    let lease = lease.then(|| sighting(3, at(0), Duration::from_secs(20), now));
    HolderNode { node, lease, garbage: Vec::new() }
}

fn seen(backend: Backend, entries: Vec<Entry>, nodes: &[(&str, HolderNode)]) -> VolumeSeen {
    let facts = VolumeFacts { modes: vec![AccessMode::ReadWriteOnce], ..VolumeFacts::default() };
    VolumeSeen {
        volume: "pv".to_owned(),
        facts: Some(facts),
        cluster: Some(ClusterFacts { backend, deleting: false }),
        record: Some(Record { version: "1".to_owned(), entries, ..Record::default() }),
        nodes: nodes.iter().map(|(name, holder)| ((*name).to_owned(), holder.clone())).collect(),
        ..VolumeSeen::default()
    }
}

fn pending(node: &str, pod: &str) -> Pending {
    let (namespace, name, uid) = ("shop".to_owned(), pod.to_owned(), format!("uid-{pod}"));
    Pending { pod: PodRef { namespace, name, uid }, node: node.to_owned() }
}

#[test]
fn the_state_follows_from_the_holders_and_from_who_waits() {
    let trusting = entry("a", "db-0");
    let promised = Entry { self_fence: true, ..trusting.clone() };
    let released = Entry { phase: Phase::Released, ..trusting.clone() };
    let there = Some(node("a"));
    let gone = None;
    let off = Some(NodeObject { out_of_service: true, ..node("a") });
    // Backend, entry, its Node, whether there is a lease, now, who waits, what is expected.
    for (backend, one, object, lease, now, waits, expected) in [
        (Backend::Loopfile, &promised, &there, true, 5, false, State::Held),
        (Backend::Loopfile, &promised, &there, true, 5, true, State::Waiting),
        (Backend::Loopfile, &promised, &there, true, 99, false, State::Leaving),
        (Backend::Loopfile, &promised, &there, true, 99, true, State::Waiting),
        (Backend::Loopfile, &trusting, &there, true, 99, false, State::Stuck),
        (Backend::Loopfile, &trusting, &gone, true, 99, true, State::Stuck),
        (Backend::Loopfile, &released, &gone, true, 99, false, State::Leaving),
        (Backend::Loopfile, &promised, &gone, false, 5, false, State::Stuck),
        (Backend::Rbd, &trusting, &there, true, 5, false, State::Held),
        (Backend::Rbd, &trusting, &there, true, 99, false, State::Leaving),
        (Backend::Rbd, &trusting, &gone, false, 5, false, State::Leaving),
        (Backend::Rbd, &trusting, &off, true, 5, false, State::Leaving),
        (Backend::Rbd, &trusting, &there, false, 5, false, State::Stuck),
    ] {
        let holder = holder(object.clone(), lease, at(now));
        let mut volume = seen(backend, vec![one.clone()], &[("a", holder)]);
        volume.pending.extend(waits.then(|| pending("b", "db-0-new")));
        let state = volume.state(at(now), &Policy::default());
        assert_eq!(state, expected, "{backend} {one:?} {object:?} {lease} {now} {waits}");
    }
    let nobody = VolumeSeen { record: None, ..seen(Backend::Rbd, Vec::new(), &[]) };
    assert_eq!(nobody.state(at(0), &Policy::default()), State::Free);
    assert_eq!(nobody.sentences(at(0), &Policy::default()), ["nobody holds the volume"]);
}

#[test]
fn a_pod_is_told_who_stands_in_its_way_and_until_when() {
    let now = at(5);
    let nodes = [("a", holder(Some(node("a")), true, now))];
    let promised = Entry { self_fence: true, ..entry("a", "db-0") };
    let mut volume = seen(Backend::Loopfile, vec![promised], &nodes);
    volume.pending = vec![pending("b", "db-1"), pending("a", "db-2"), pending("a", "db-0")];
    let said = volume.sentences(now, &Policy::default());
    let end = at(23);
    assert_eq!(
        said,
        [
            format!(
                "pod shop/db-0 on node a holds the volume (Attached, generation 4): by right, its \
                 agent is alive; if that falls silent, the volume can be taken over after {end:.0}"
            ),
            format!(
                "pod shop/db-1 waits for it on node b: pod shop/db-0 on node a holds the volume: \
                 its agent is alive and has to release it; if it falls silent, the volume can be \
                 taken over after {end:.0}"
            ),
            "pod shop/db-2 waits for it on node a: pod shop/db-0 on node a holds the volume: it \
             has to be unmounted there first"
                .to_owned(),
        ],
        "who holds it does not wait for it"
    );
    let advice = volume.advice("demo", now, &Policy::default());
    assert_eq!(advice.len(), 1);
    assert!(advice[0].starts_with("end pod shop/db-0 if it is no longer wanted"), "{advice:?}");
}

#[test]
fn a_holder_that_nothing_proves_to_be_gone_is_named_with_the_way_out() {
    let now = at(99);
    let volume =
        seen(Backend::Loopfile, vec![entry("a", "db-0")], &[("a", holder(None, true, now))]);
    let said = volume.sentences(now, &Policy::default()).join("\n");
    assert!(said.contains("a client of loopfile cannot be shut out"), "{said}");
    assert!(said.contains("its node is gone, which alone proves nothing"), "{said}");
    let advice = volume.advice("demo", now, &Policy::default()).join("\n");
    let command = "wharf volume detach demo pv --node a --force --reason";
    assert!(advice.contains(command), "{advice}");
}

#[test]
fn readers_and_shared_writers_keep_nobody_out() {
    let now = at(5);
    let nodes = [("a", holder(Some(node("a")), true, now))];
    let reader = Entry { read_only: true, ..entry("a", "web-0") };
    for (backend, mode, entry, free) in [
        (Backend::Rbd, AccessMode::ReadOnlyMany, reader.clone(), true),
        (Backend::Rbd, AccessMode::ReadOnlyMany, entry("a", "web-0"), false),
        (Backend::Dir, AccessMode::ReadWriteMany, entry("a", "web-0"), true),
        (Backend::Rbd, AccessMode::ReadWriteMany, entry("a", "web-0"), false),
        (Backend::Rbd, AccessMode::ReadWriteOnce, reader, false),
    ] {
        let mut volume = seen(backend, vec![entry], &nodes);
        volume.facts.as_mut().unwrap().modes = vec![mode];
        volume.pending = vec![pending("b", "web-1")];
        let waiters = volume.waiters(now, &Policy::default());
        assert_eq!(waiters[0].blocked.is_empty(), free, "{backend} {mode:?}");
    }
}

#[test]
fn what_may_be_lost_depends_on_whether_the_storage_can_shut_a_client_out() {
    for (backend, read_only, now, expected) in [
        (Backend::Loopfile, false, 5, "may be using the volume at this moment"),
        (Backend::Loopfile, false, 99, "the file system is destroyed"),
        (Backend::Rbd, false, 99, "the file system stays whole"),
        (Backend::Rbd, true, 99, "only reads"),
    ] {
        let entry = Entry { read_only, ..entry("a", "db-0") };
        let nodes = [("a", holder(Some(node("a")), true, at(now)))];
        let volume = seen(backend, vec![entry], &nodes);
        let holders = volume.holders(at(now), &Policy::default());
        let lost = volume.losses(&holders[0]).join("\n");
        assert!(lost.contains(expected), "{backend} {now}: {lost}");
        assert_eq!(lost.contains("not yet brought to the storage"), !read_only, "{lost}");
        assert_eq!(lost.contains("is destroyed"), backend == Backend::Loopfile, "{lost}");
    }
}

#[test]
fn a_person_says_which_holder_is_meant_where_there_are_several() {
    let other = Entry { boot_id: "other".to_owned(), ..entry("b", "web-1") };
    let gone = Entry { phase: Phase::Released, ..entry("c", "web-2") };
    let record = Record {
        version: "1".to_owned(),
        entries: vec![entry("a", "web-0"), other, gone],
        ..Record::default()
    };
    let one =
        Record { version: "1".to_owned(), entries: vec![entry("a", "web-0")], ..Record::default() };
    let nodes = vec!["a".to_owned(), "b".to_owned()];
    let (key_a, key_b) = (entry("a", "web-0").key(), record.entries[1].key());
    let missing =
        |asked: &str| Err(DetachFault::NotThere { asked: asked.to_owned(), nodes: nodes.clone() });
    for (record, node, pod, expected) in [
        (None, None, None, Err(DetachFault::NotHeld)),
        (Some(&one), None, None, Ok(vec![key_a])),
        (Some(&record), None, None, Err(DetachFault::SayWhich { nodes: nodes.clone() })),
        (Some(&record), Some("b"), None, Ok(vec![key_b.clone()])),
        (Some(&record), Some("b"), Some("shop/web-1"), Ok(vec![key_b.clone()])),
        (Some(&record), Some("b"), Some("web-1"), Ok(vec![key_b])),
        (Some(&record), Some("a"), Some("web-1"), missing("pod web-1 on node a")),
        (Some(&record), Some("c"), None, missing("node c")),
    ] {
        assert_eq!(decide_detach(record, node, pod), expected, "{node:?} {pod:?}");
    }
}

#[test]
fn what_is_missing_beside_the_volume_is_said() {
    let gone = VolumeSeen { facts: None, ..seen(Backend::Rbd, Vec::new(), &[]) };
    assert!(gone.sentences(at(0), &Policy::default())[0].contains("PersistentVolume is gone"));
    let mut lost = seen(Backend::Rbd, vec![entry("a", "db-0")], &[]);
    lost.cluster = None;
    lost.facts.as_mut().unwrap().storage_cluster = "main".to_owned();
    assert_eq!(lost.sentences(at(0), &Policy::default())[0], "there is no StorageCluster main");
    assert_eq!(lost.state(at(0), &Policy::default()), State::Stuck);
    let garbage = GarbageEntry::new("pv", &entry("c", "db-9"), at(0), "its node is gone".into());
    lost.garbage.push(("c".to_owned(), garbage));
    let said = lost.sentences(at(0), &Policy::default()).join("\n");
    assert!(said.contains("node c has something left of generation 4"), "{said}");
}

#[test]
fn a_holder_that_does_not_reach_the_storage_is_told_of_as_long_as_it_holds() {
    let holder = holder(Some(node("a")), true, at(5));
    let mut volume = seen(Backend::Proxy, vec![entry("a", "db-0")], &[("a", holder)]);
    let away = |node| Condition::storage_away(node, "Dead", "the server is gone", at(3));
    volume.record.as_mut().unwrap().conditions = vec![away("a"), away("b")];
    let said = volume.sentences(at(5), &Policy::default());
    let expected = "node a does not reach the volume's storage: the server is gone \
                    (since 1970-01-12T13:46:43Z)";
    let said: Vec<&String> = said.iter().filter(|one| one.contains("not reach")).collect();
    assert_eq!(said, [expected]);
}
