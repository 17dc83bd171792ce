//! Every case of a mount: all kinds of volumes and requests beside all kinds of holders.

use super::*;
use crate::{
    drain::PodRef,
    volume::fence::NodeObject,
    volume::lease::{Sighting, SinceBoot},
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

const NOW: i64 = 1_000;
const HELD: Standing = Standing::Held { renew_at: SinceBoot(Duration::ZERO) };

/// A pod `default/db` on node `here`, a PV `pv` at generation 7, nobody else.
fn plain() -> Snapshot {
    let owned = str::to_owned;
    let node = HolderNode { node: Some(node_object("here", "boot")), ..HolderNode::default() };
    Snapshot {
        request: Request {
            volume: owned("pv"),
            pod: PodRef { namespace: owned("default"), name: owned("db"), uid: owned("u-1") },
            mount_dir: owned("/pods/u-1/pv"),
            storage_cluster: owned("main"),
            image: owned("img"),
            ..Request::default()
        },
        own: Own {
            node: owned("here"),
            node_uid: owned("here"),
            boot_id: owned("boot"),
            tenure: 5,
        },
        standing: HELD,
        identity: owned("client"),
        pod: Some(PodFacts { uid: owned("u-1"), node: owned("here"), finished: false }),
        volume: Some(VolumeFacts {
            storage_cluster: owned("main"),
            image: owned("img"),
            modes: vec![AccessMode::ReadWriteOnce],
            generation: Generation(7),
            epoch: Generation(0),
            deleting: false,
        }),
        cluster: Some(ClusterFacts { backend: Backend::Loopfile, deleting: false }),
        record: None,
        nodes: BTreeMap::from([(owned("here"), node)]),
        raised: None,
        fenced: Vec::new(),
    }
}

fn node_object(uid: &str, boot_id: &str) -> NodeObject {
    NodeObject { uid: uid.to_owned(), boot_id: boot_id.to_owned(), out_of_service: false }
}

/// Does what the decisions say until they say something else, and notes it.
fn run(mut snapshot: Snapshot, policy: &Policy) -> (Decision, Vec<Step>, Snapshot) {
    let mut steps = Vec::new();
    loop {
        let decision = decide_attach(&snapshot, at(NOW), policy);
        let Decision::Do(step) = decision else { return (decision, steps, snapshot) };
        carry_out(&mut snapshot, &step);
        steps.push(step);
        assert!(steps.len() < 8, "it never ends: {steps:?}");
    }
}

fn carry_out(snapshot: &mut Snapshot, step: &Step) {
    match step {
        Step::Raise { from, to } => {
            let volume = snapshot.volume.as_mut().unwrap();
            assert_eq!(volume.generation, *from);
            assert!(to > from);
            volume.generation = *to;
            snapshot.raised = Some(*to);
        }
        Step::Write { version, entries } => {
            let known = snapshot.record.as_ref().map(|record| record.version.clone());
            assert_eq!(*version, known);
            let version = format!("{}+", known.unwrap_or_default());
            snapshot.record =
                Some(Record { version, entries: entries.clone(), ..Record::default() });
        }
        Step::Fence { holders, generation } => {
            let record = snapshot.record.as_ref().unwrap();
            for holder in holders {
                assert_eq!(record.find(&holder.key()), Some(holder));
                assert_eq!(holder.phase, Phase::Fencing, "marked before it is fenced");
                assert!(holder.generation < *generation);
                snapshot.fenced.push(holder.key());
            }
        }
        Step::NoteGarbage { node, entries } => {
            let node = snapshot.nodes.entry(node.clone()).or_default();
            node.garbage.extend(entries.iter().cloned());
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Retry,
    /// The same pod here, from before our lease ended.
    EarlierTenure,
    /// The same pod here, from before the machine was booted.
    EarlierBoot,
    OtherPodHere,
    NamesakeElsewhere,
    OtherElsewhere,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum There {
    Unread,
    Gone,
    Recreated,
    Rebooted,
    Tainted,
    Well,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseSeen {
    Missing,
    Live,
    Ended,
    NextTenure,
}

#[derive(Debug, Clone, Copy)]
struct Holder {
    who: Who,
    read_only: bool,
    phase: Phase,
    self_fence: bool,
    there: There,
    lease: LeaseSeen,
}

#[derive(Debug, Clone, Copy)]
struct Ask {
    backend: Backend,
    modes: &'static [AccessMode],
    read_only: bool,
    scope: RwoScope,
    takeover: Takeover,
}

impl Holder {
    fn is_here(self) -> bool {
        matches!(self.who, Who::Retry | Who::EarlierTenure | Who::EarlierBoot | Who::OtherPodHere)
    }

    /// The PV is at 7 and the holder at 6: as long as nothing is attached, one who writes is too old.
    fn is_grant(self) -> bool {
        match self.phase {
            Phase::Attached => true,
            Phase::Attaching => self.read_only,
            Phase::Fencing | Phase::Released => false,
        }
    }

    fn entry(self) -> Entry {
        let (node, pod, uid) = match self.who {
            Who::Retry | Who::EarlierTenure | Who::EarlierBoot => ("here", "db", "u-1"),
            Who::OtherPodHere => ("here", "web", "u-2"),
            Who::NamesakeElsewhere => ("there", "db", "u-3"),
            Who::OtherElsewhere => ("there", "web", "u-4"),
        };
        let boot = match self.who {
            Who::Retry | Who::EarlierTenure | Who::OtherPodHere => "boot",
            Who::EarlierBoot => "boot-0",
            Who::NamesakeElsewhere | Who::OtherElsewhere => "boot-there",
        };
        let tenure = match self.who {
            Who::EarlierTenure | Who::EarlierBoot => 4,
            Who::Retry | Who::OtherPodHere | Who::NamesakeElsewhere | Who::OtherElsewhere => 5,
        };
        Entry {
            node: node.to_owned(),
            pod_namespace: "default".to_owned(),
            pod: pod.to_owned(),
            mount_dir: format!("/pods/{uid}/pv"),
            pod_uid: uid.to_owned(),
            read_only: self.read_only,
            node_uid: node.to_owned(),
            boot_id: boot.to_owned(),
            generation: Generation(6),
            phase: self.phase,
            self_fence: self.self_fence,
            tenure,
            ..Entry::default()
        }
    }

    fn put(self, snapshot: &mut Snapshot) {
        snapshot.record = Some(Record {
            version: "1".to_owned(),
            entries: vec![self.entry()],
            ..Record::default()
        });
        let lease = |tenure, renewed| {
            let duration = Duration::from_secs(20);
            Some(Sighting {
                tenure,
                renewed: at(renewed),
                duration,
                unchanged_for: Duration::from_secs(u64::try_from(NOW - renewed).unwrap()),
            })
        };
        snapshot.nodes.get_mut("here").unwrap().lease = lease(5, NOW);
        let node = match self.there {
            There::Unread => return,
            There::Gone => None,
            There::Recreated => Some(node_object("there-2", "boot-there")),
            There::Rebooted => Some(node_object("there", "boot-2")),
            There::Tainted => {
                let node = node_object("there", "boot-there");
                Some(NodeObject { out_of_service: true, ..node })
            }
            There::Well => Some(node_object("there", "boot-there")),
        };
        let lease = match self.lease {
            LeaseSeen::Missing => None,
            LeaseSeen::Live => lease(5, NOW - 10),
            LeaseSeen::Ended => lease(5, NOW - 24),
            LeaseSeen::NextTenure => lease(6, NOW),
        };
        let there = HolderNode { node, lease, garbage: Vec::new() };
        snapshot.nodes.insert("there".to_owned(), there);
    }
}

/// What the rules say, in other words than the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Refused,
    /// The entry that is there is the grant.
    AsItIs,
    /// Beside the holder.
    Beside,
    /// In place of the holder, which may still write if nothing stops it.
    Instead,
    /// In place of our own entry.
    Anew,
    Blocked,
}

fn rule(ask: Ask, holder: Option<Holder>) -> Rule {
    let has = |mode| ask.modes.contains(&mode);
    let many = has(AccessMode::ReadWriteMany);
    if many && ask.backend != Backend::Dir {
        return Rule::Refused;
    }
    let Some(holder) = holder else { return Rule::Beside };
    let once = has(AccessMode::ReadWriteOnce) || has(AccessMode::ReadWriteOncePod);
    let reads = ask.read_only || (!once && !many);
    let open = matches!(holder.phase, Phase::Attaching | Phase::Attached);
    let lapsed = holder.who == Who::EarlierTenure && holder.self_fence;
    match holder.who {
        Who::Retry | Who::EarlierTenure if !open => return Rule::Blocked,
        Who::Retry | Who::EarlierTenure
            if !lapsed && holder.read_only == reads && holder.is_grant() =>
        {
            return Rule::AsItIs;
        }
        Who::Retry | Who::EarlierTenure => return Rule::Anew,
        Who::EarlierBoot => return over(ask, holder),
        Who::OtherPodHere | Who::NamesakeElsewhere | Who::OtherElsewhere => {}
    }
    let may_read = has(AccessMode::ReadOnlyMany) && reads;
    let shares = holder.is_here() && open && !has(AccessMode::ReadWriteOncePod);
    let serves = if holder.read_only { reads } else { holder.is_grant() };
    let shares = shares && ask.scope == RwoScope::Node && serves;
    match () {
        () if many || shares => Rule::Beside,
        () if may_read && holder.read_only => Rule::Beside,
        () if holder.is_here() => Rule::Blocked,
        () => over(ask, holder),
    }
}

fn over(ask: Ask, holder: Holder) -> Rule {
    let fences = matches!(ask.backend, Backend::Proxy | Backend::Rbd);
    let namesake = matches!(holder.who, Who::NamesakeElsewhere | Who::EarlierBoot);
    // After a boot the lease of this node is in its next tenure, and the Node shows the new boot.
    let own = holder.who == Who::EarlierBoot;
    let known = own || holder.there != There::Unread;
    let ended = own || matches!(holder.lease, LeaseSeen::Ended | LeaseSeen::NextTenure);
    let silent = own || ended || !matches!(holder.there, There::Well | There::Unread);
    let may = match holder.phase {
        Phase::Released | Phase::Fencing => true,
        Phase::Attaching | Phase::Attached => {
            (ask.takeover == Takeover::ByName && namesake)
                || (fences && known && silent)
                || (!fences && known && ended && holder.self_fence)
        }
    };
    if may { Rule::Instead } else { Rule::Blocked }
}

const MODES: [&[AccessMode]; 6] = [
    &[AccessMode::ReadWriteOnce],
    &[AccessMode::ReadWriteOncePod],
    &[AccessMode::ReadOnlyMany],
    &[AccessMode::ReadWriteMany],
    &[AccessMode::ReadWriteOnce, AccessMode::ReadOnlyMany],
    &[AccessMode::ReadWriteOnce, AccessMode::ReadWriteMany],
];

fn asks() -> Vec<Ask> {
    let mut asks = Vec::new();
    for backend in Backend::ALL {
        for modes in MODES {
            for read_only in [false, true] {
                for scope in [RwoScope::Pod, RwoScope::Node] {
                    for takeover in [Takeover::ByProof, Takeover::ByName] {
                        asks.push(Ask { backend, modes, read_only, scope, takeover });
                    }
                }
            }
        }
    }
    asks
}

fn holders() -> Vec<Holder> {
    use {LeaseSeen as L, There as T, Who as W};
    let mut holders = Vec::new();
    let phases = [Phase::Attaching, Phase::Attached, Phase::Fencing, Phase::Released];
    let all_there = [T::Unread, T::Gone, T::Recreated, T::Rebooted, T::Tainted, T::Well];
    let all_leases = [L::Missing, L::Live, L::Ended, L::NextTenure];
    for who in [
        W::Retry,
        W::EarlierTenure,
        W::EarlierBoot,
        W::OtherPodHere,
        W::NamesakeElsewhere,
        W::OtherElsewhere,
    ] {
        for phase in phases {
            for flags in 0..4 {
                let (read_only, self_fence) = (flags & 1 != 0, flags & 2 != 0);
                for there in all_there {
                    for lease in all_leases {
                        holders.push(Holder { who, read_only, phase, self_fence, there, lease });
                    }
                }
            }
        }
    }
    // What is elsewhere does not matter for holders here.
    holders.retain(|one| !one.is_here() || (one.there == T::Well && one.lease == L::Live));
    holders
}

#[test]
fn every_request_beside_every_holder_is_decided_by_the_rules() {
    let holders: Vec<Option<Holder>> =
        [None].into_iter().chain(holders().into_iter().map(Some)).collect();
    let mut cases = 0;
    for ask in asks() {
        for holder in &holders {
            check(ask, *holder);
            cases += 1;
        }
    }
    assert_eq!(cases, 192 * (1 + 4 * 16 + 2 * 16 * 24));
}

fn check(ask: Ask, holder: Option<Holder>) {
    let mut snapshot = plain();
    snapshot.cluster = Some(ClusterFacts { backend: ask.backend, deleting: false });
    snapshot.volume.as_mut().unwrap().modes = ask.modes.to_vec();
    snapshot.request.read_only = ask.read_only;
    if let Some(holder) = holder {
        holder.put(&mut snapshot);
    }
    let policy = Policy { takeover: ask.takeover, rwo_scope: ask.scope, ..Policy::default() };
    let case = || format!("{ask:?} {holder:?}");
    let (decision, steps, after) = run(snapshot, &policy);
    let rule = rule(ask, holder);
    match &decision {
        Decision::Refuse(refusal) => {
            assert_eq!(rule, Rule::Refused, "{} {refusal}", case());
            assert!(steps.is_empty());
        }
        Decision::Wait { blocked, .. } => {
            assert_eq!(rule, Rule::Blocked, "{} {decision}", case());
            assert_eq!(blocked.len(), 1);
            assert!(steps.is_empty(), "nothing is touched before it is sure: {}", case());
        }
        Decision::Granted(entry) => {
            check_grant(ask, holder.as_ref(), rule, entry, &steps, &after);
        }
        Decision::Do(_) => unreachable!(),
    }
}

fn check_grant(
    ask: Ask,
    holder: Option<&Holder>,
    rule: Rule,
    entry: &Entry,
    steps: &[Step],
    after: &Snapshot,
) {
    let case = format!("{ask:?} {holder:?} {rule:?} {steps:?}");
    let record = after.record.as_ref().unwrap();
    let held = holder.map(|holder| holder.entry());
    let is_there = held.as_ref().is_some_and(|held| record.find(&held.key()).is_some());
    assert_eq!(record.find(&entry.key()), Some(entry));
    match rule {
        Rule::AsItIs => assert!(steps.is_empty() && record.entries.len() == 1, "{case}"),
        Rule::Beside => assert_eq!(record.entries.len(), 1 + usize::from(held.is_some()), "{case}"),
        Rule::Instead | Rule::Anew => assert!(record.entries.len() == 1 && !is_there, "{case}"),
        Rule::Refused | Rule::Blocked => panic!("granted: {case}"),
    }
    let fences = ask.backend.refuses_old_clients();
    if let (Rule::Instead, Some(held)) = (rule, held) {
        assert_eq!(after.fenced.contains(&held.key()), fences, "{case}");
        let garbage = &after.nodes[&held.node].garbage;
        assert!(garbage.iter().any(|one| one.is_of("pv", &held)), "{case}");
    }
    if rule != Rule::AsItIs {
        let raised = entry.generation > Generation(7);
        let joined = rule == Rule::Beside
            && holder.is_some_and(|holder| holder.is_here() && holder.is_grant());
        assert!(entry.read_only || joined || raised, "{case}");
        assert_eq!(entry.self_fence, !fences);
        let write = steps.iter().position(|step| matches!(step, Step::Write { .. }));
        let raise = steps.iter().position(|step| matches!(step, Step::Raise { .. }));
        assert!(raise.is_none() || raise < write, "{case}");
        assert_eq!(entry.phase, Phase::Attaching);
    }
    let volume = after.volume.as_ref().unwrap();
    assert!(volume.generation >= Generation(7));
}

#[test]
fn what_cannot_be_is_refused_with_a_sentence() {
    type Change<'a> = &'a dyn Fn(&mut Snapshot);
    let sentence = |change: Change<'_>| {
        let mut snapshot = plain();
        change(&mut snapshot);
        match decide_attach(&snapshot, at(NOW), &Policy::default()) {
            Decision::Refuse(refusal) => refusal.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let late = Standing::Late { cut_at: SinceBoot(Duration::ZERO) };
    let cases: [(Change<'_>, &str); 15] = [
        (&|s| s.standing = late, "the agent could not renew its lease, so nothing new is attached"),
        (
            &|s| s.standing = Standing::Over,
            "the agent's lease has ended, so its volumes are cut off",
        ),
        (
            &|s| {
                let node = s.nodes.get_mut("here").unwrap();
                node.node.as_mut().unwrap().out_of_service = true;
            },
            "node here is tainted as out of service; take the taint off when it is back",
        ),
        (&|s| s.pod = None, "pod default/db is gone"),
        (&|s| s.pod.as_mut().unwrap().uid = "u-9".to_owned(), "pod default/db is gone"),
        (&|s| s.pod.as_mut().unwrap().node = "x".to_owned(), "pod default/db runs on node x"),
        (&|s| s.pod.as_mut().unwrap().finished = true, "pod default/db has finished"),
        (
            &|s| s.volume = None,
            "there is no PersistentVolume pv; volumes written into a pod itself are not supported, \
             use a claim",
        ),
        (
            &|s| s.volume.as_mut().unwrap().deleting = true,
            "the PersistentVolume pv is being deleted",
        ),
        (
            &|s| s.volume.as_mut().unwrap().modes.clear(),
            "the PersistentVolume pv has no access mode",
        ),
        (
            &|s| s.request.image = "other".to_owned(),
            "the image is other by the call and img by the PersistentVolume",
        ),
        (&|s| s.cluster = None, "there is no StorageCluster main"),
        (
            &|s| s.cluster.as_mut().unwrap().deleting = true,
            "the StorageCluster main is being deleted",
        ),
        (
            &|s| s.request.fs_type = "ntfs".to_owned(),
            "the file system \"ntfs\" is not supported; there are ext4 and xfs",
        ),
        (
            &|s| s.volume.as_mut().unwrap().modes = vec![AccessMode::ReadWriteMany],
            "ReadWriteMany is not possible on loopfile, which has room for one writer; a storage \
             cluster of backend dir can",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(sentence(change), expected);
    }
}

#[test]
fn settings_and_access_modes_have_their_usual_words() {
    let word = |value: serde_json::Value| value.as_str().unwrap().to_owned();
    assert_eq!(word(serde_json::to_value(Takeover::ByName).unwrap()), "by_name");
    assert_eq!(word(serde_json::to_value(RwoScope::Pod).unwrap()), "pod");
    assert_eq!(word(serde_json::to_value(AccessMode::ReadOnlyMany).unwrap()), "ReadOnlyMany");
}

#[test]
fn who_holds_it_and_what_helps_is_said() {
    let holder = Holder {
        who: Who::OtherElsewhere,
        read_only: false,
        phase: Phase::Attached,
        self_fence: true,
        there: There::Gone,
        lease: LeaseSeen::Live,
    };
    let said = |holder: Holder| {
        let mut snapshot = plain();
        holder.put(&mut snapshot);
        let decision = decide_attach(&snapshot, at(NOW), &Policy::default());
        let Decision::Wait { wake_at, .. } = decision else { panic!("{decision:?}") };
        (decision.to_string(), wake_at)
    };
    let who = "pod default/web on node there holds the volume: ";
    let alive = "its agent is alive and has to release it; if it falls silent, the volume can be \
                 taken over after 1970-01-12T14:03:33Z";
    assert_eq!(said(holder), (format!("{who}{alive}"), Some(at(NOW + 13))));
    let (text, wake_at) = said(Holder { lease: LeaseSeen::Missing, ..holder });
    assert_eq!(text, format!("{who}whether its agent is alive is not known"));
    assert_eq!(wake_at, None);
    let (text, _) = said(Holder { self_fence: false, lease: LeaseSeen::Ended, ..holder });
    assert!(text.ends_with("say `wharf volume detach --force`"), "{text}");
    let (text, _) = said(Holder { who: Who::OtherPodHere, read_only: true, ..holder });
    let expected = "pod default/web on node here reads the volume: it has to be unmounted there \
                    first";
    assert_eq!(text, expected);
}

#[test]
fn an_entry_that_a_late_write_brought_back_is_no_grant_when_others_have_passed_it() {
    let holder = Holder {
        who: Who::Retry,
        read_only: false,
        phase: Phase::Attaching,
        self_fence: true,
        there: There::Well,
        lease: LeaseSeen::Live,
    };
    let mut snapshot = plain();
    holder.put(&mut snapshot);
    let (decision, _, _) = run(snapshot.clone(), &Policy::default());
    let Decision::Granted(entry) = decision else { panic!("{decision:?}") };
    assert_eq!(entry.generation, Generation(8));
    // Of the present generation it is.
    snapshot.volume.as_mut().unwrap().generation = Generation(6);
    let (_, steps, _) = run(snapshot.clone(), &Policy::default());
    assert!(steps.is_empty(), "{steps:?}");
    // So it is when another pod of this node uses the volume by it.
    snapshot.volume.as_mut().unwrap().generation = Generation(7);
    let other = Holder { who: Who::OtherPodHere, phase: Phase::Attached, ..holder }.entry();
    snapshot.record.as_mut().unwrap().entries.push(other);
    let node_wide = Policy { rwo_scope: RwoScope::Node, ..Policy::default() };
    let (decision, steps, _) = run(snapshot, &node_wide);
    assert!(steps.is_empty() && matches!(decision, Decision::Granted(_)), "{steps:?}");
}

#[test]
fn a_raise_that_others_have_passed_grants_nothing() {
    let mut snapshot = plain();
    snapshot.raised = Some(Generation(6));
    let decided = run(snapshot.clone(), &Policy::default());
    let (Decision::Granted(entry), ..) = decided else { panic!("{decided:?}") };
    assert_eq!(entry.generation, Generation(8));
    // So it is when they passed it before our entry came into the record.
    let ours = Entry { generation: Generation(6), ..*entry };
    snapshot.record =
        Some(Record { version: "1".to_owned(), entries: vec![ours], ..Record::default() });
    let decided = run(snapshot, &Policy::default());
    let (Decision::Granted(entry), _, after) = decided else { panic!("{decided:?}") };
    assert_eq!(entry.generation, Generation(8));
    assert_eq!(after.record.unwrap().entries, [*entry]);
}

#[test]
fn a_pod_does_not_join_an_entry_that_a_late_write_brought_back() {
    let late = Holder {
        who: Who::OtherPodHere,
        read_only: false,
        phase: Phase::Attaching,
        self_fence: true,
        there: There::Well,
        lease: LeaseSeen::Live,
    };
    let node_wide = Policy { rwo_scope: RwoScope::Node, ..Policy::default() };
    let decide = |holder: Holder, generation| {
        let mut snapshot = plain();
        holder.put(&mut snapshot);
        snapshot.volume.as_mut().unwrap().generation = generation;
        run(snapshot, &node_wide)
    };
    let (decision, steps, _) = decide(late, Generation(7));
    let Decision::Wait { blocked, .. } = decision else { panic!("{decision:?}") };
    assert_eq!((blocked[0].why.clone(), steps), (Obstacle::Here, Vec::new()));
    // Others have not passed it, or the volume is in use by it.
    let attached = Holder { phase: Phase::Attached, ..late };
    for (holder, generation) in [(late, Generation(6)), (attached, Generation(7))] {
        let (decision, ..) = decide(holder, generation);
        let Decision::Granted(entry) = decision else { panic!("{decision:?}") };
        assert_eq!(entry.generation, Generation(6));
    }
}

#[test]
fn a_pv_that_was_made_anew_does_not_begin_below_its_image_or_its_holder() {
    let mut snapshot = plain();
    let volume = snapshot.volume.as_mut().unwrap();
    volume.generation = Generation(0);
    volume.epoch = Generation(40);
    let (decision, ..) = run(snapshot.clone(), &Policy::default());
    let Decision::Granted(entry) = decision else { panic!("{decision:?}") };
    assert_eq!(entry.generation, Generation(41));
    // The holder is at 6; to shut it out takes more.
    snapshot.volume.as_mut().unwrap().epoch = Generation(0);
    snapshot.cluster = Some(ClusterFacts { backend: Backend::Rbd, deleting: false });
    let holder = Holder {
        who: Who::OtherElsewhere,
        read_only: false,
        phase: Phase::Attached,
        self_fence: false,
        there: There::Gone,
        lease: LeaseSeen::Missing,
    };
    holder.put(&mut snapshot);
    let (decision, ..) = run(snapshot.clone(), &Policy::default());
    let Decision::Granted(entry) = decision else { panic!("{decision:?}") };
    assert_eq!(entry.generation, Generation(7));
    // So it is when this attempt raised before the holder came.
    snapshot.volume.as_mut().unwrap().generation = Generation(6);
    snapshot.raised = Some(Generation(5));
    let (decision, ..) = run(snapshot, &Policy::default());
    let Decision::Granted(entry) = decision else { panic!("{decision:?}") };
    assert_eq!(entry.generation, Generation(7));
}

#[test]
fn of_two_that_race_one_is_granted_and_the_other_waits() {
    let mut first = plain();
    let mut second = plain();
    second.own.node = "there".to_owned();
    second.request.pod.uid = "u-2".to_owned();
    second.pod =
        Some(PodFacts { uid: "u-2".to_owned(), node: "there".to_owned(), finished: false });
    let policy = Policy::default();
    let step = |snapshot: &mut Snapshot| {
        let Decision::Do(step) = decide_attach(snapshot, at(NOW), &policy) else { panic!() };
        carry_out(snapshot, &step);
    };
    step(&mut first);
    second.volume.clone_from(&first.volume);
    step(&mut second);
    // Both have raised, both would create; the second one creates, and the first one's fails.
    step(&mut second);
    assert_eq!(second.record.as_ref().unwrap().entries[0].generation, Generation(9));
    first.record.clone_from(&second.record);
    first.volume.clone_from(&second.volume);
    let decision = decide_attach(&first, at(NOW), &policy);
    assert!(matches!(decision, Decision::Wait { .. }), "{decision:?}");
    let decision = decide_attach(&second, at(NOW), &policy);
    assert!(matches!(decision, Decision::Granted(_)), "{decision:?}");
}
