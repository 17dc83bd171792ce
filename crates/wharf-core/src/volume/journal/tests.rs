//! A node that is killed at every point of mounting and unmounting, and one on which everything
//! goes wrong in turn.

use super::*;
use crate::volume::{
    lease::SinceBoot,
    record::{Change, Generation},
};

const HELD: Standing = Standing::Held { renew_at: SinceBoot(std::time::Duration::ZERO) };

/// The same seed makes the same world.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn one_in(&mut self, number: u64) -> bool {
        self.below(number) == 0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    BeforeNote,
    AfterNote,
    AfterAction,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Settled,
    Waiting,
    Failed(Fault),
    ActionFailed,
    Crashed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Mount(usize),
    Unmount(usize),
    Tidy,
}

const DIRS: [&str; 2] = ["/pods/u-0/pv", "/pods/u-1/pv"];

struct World {
    disk: Option<Journal>,
    device: bool,
    signature: Signature,
    /// It was mounted once.
    has_data: bool,
    staged: bool,
    bound: BTreeSet<String>,
    record: Option<Record>,
    generation: Generation,
    api: bool,
    boot: u64,
    tenure: u64,
    standing: Standing,
    hung: bool,
    orphaned: BTreeSet<String>,
    /// Another node holds the volume.
    elsewhere: bool,
    /// The device was cut off and not mapped since.
    cut: bool,
    /// Steps that were begun.
    steps: usize,
    crash: Option<(usize, Point)>,
    /// One in so many actions fails.
    failing: Option<(Chance, u64)>,
}

impl World {
    fn new() -> Self {
        Self {
            disk: None,
            device: false,
            signature: Signature::Blank,
            has_data: false,
            staged: false,
            bound: BTreeSet::new(),
            record: None,
            generation: Generation(0),
            api: true,
            boot: 0,
            tenure: 1,
            standing: HELD,
            hung: false,
            orphaned: BTreeSet::new(),
            elsewhere: false,
            cut: false,
            steps: 0,
            crash: None,
            failing: None,
        }
    }

    fn own(&self) -> Own {
        Own {
            node: "a".to_owned(),
            node_uid: "n".to_owned(),
            boot_id: format!("boot-{}", self.boot),
            tenure: self.tenure,
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            device: match self.device {
                true => Found::Present(self.signature.clone()),
                false => Found::Absent,
            },
            staged: self.staged,
            bound: self.bound.clone(),
            orphaned: self.orphaned.clone(),
            hung: self.hung,
            spoiled: self.staged && self.cut,
            record: self.api.then(|| self.record.clone()),
        }
    }

    fn blank_journal(&self) -> Journal {
        Journal {
            volume: "pv".to_owned(),
            storage_cluster: "main".to_owned(),
            image: "img".to_owned(),
            backend: Backend::Loopfile,
            parameters: BTreeMap::new(),
            fs_type: "ext4".to_owned(),
            mount_options: String::new(),
            boot_id: self.own().boot_id,
            device: DeviceStage::Absent,
            cut: false,
            pods: Vec::new(),
        }
    }

    /// One call, from its first look to its answer.
    fn call(&mut self, call: Call) -> End {
        let Some(mut journal) = self.disk.clone().or_else(|| match call {
            Call::Mount(_) => Some(self.blank_journal()),
            Call::Unmount(_) | Call::Tidy => None,
        }) else {
            return End::Settled;
        };
        for _ in 0..40 {
            let purpose = match call {
                Call::Mount(pod) => {
                    journal.begin(DIRS[pod], &format!("u-{pod}"));
                    Purpose::Mount { dir: DIRS[pod] }
                }
                Call::Unmount(pod) => Purpose::Unmount { dir: DIRS[pod] },
                Call::Tidy => Purpose::Tidy,
            };
            let seen = self.seen();
            let next = decide_next(&journal, &seen, purpose, &self.own(), &self.standing);
            let (note, action) = match next {
                Next::Do { note, action } => (*note, action),
                Next::Wait(wait) => {
                    if let (Wait::RecordAway, Call::Unmount(pod)) = (wait, call) {
                        assert!(journal.is_unmounted(DIRS[pod], &seen));
                    }
                    return End::Waiting;
                }
                Next::Fail(fault) => return End::Failed(fault),
                Next::Settled => return End::Settled,
            };
            journal = note;
            if let Some(end) = self.step(&mut journal, &action) {
                return end;
            }
        }
        panic!("it never ends: {journal:?} {:?}", self.seen());
    }

    fn step(&mut self, journal: &mut Journal, action: &Action) -> Option<End> {
        self.steps += 1;
        let crash = self.crash.filter(|(step, _)| *step == self.steps).map(|(_, point)| point);
        if crash == Some(Point::BeforeNote) {
            return Some(End::Crashed);
        }
        self.disk = Some(journal.clone()).filter(|journal| !journal.pods.is_empty());
        if crash == Some(Point::AfterNote) {
            return Some(End::Crashed);
        }
        let fails = self.failing.as_mut().is_some_and(|(chance, of)| chance.one_in(*of));
        if fails || self.act(journal, action).is_err() {
            return Some(End::ActionFailed);
        }
        (crash == Some(Point::AfterAction)).then_some(End::Crashed)
    }

    fn act(&mut self, journal: &mut Journal, action: &Action) -> Result<(), ()> {
        match action {
            Action::Claim { dir } => self.claim(journal, dir)?,
            Action::Map => {
                self.check_right();
                self.device = true;
                self.cut = false;
            }
            Action::Format => {
                self.check_right();
                assert!(self.device && !self.has_data, "data are overwritten");
                self.signature = Signature::Ready;
                journal.formatted();
            }
            Action::Stage => {
                self.check_right();
                assert!(self.device && self.signature == Signature::Ready && !self.cut);
                self.staged = true;
                self.has_data = true;
            }
            Action::Bind { dir } => {
                self.check_right();
                assert!(self.staged && !self.cut);
                self.bound.insert(dir.clone());
            }
            Action::Report { key } => {
                let record = self.record.clone().filter(|_| self.api).ok_or(())?;
                self.change(record.attached(key, "/dev/x", "client"));
            }
            Action::Cut => {
                self.cut = true;
                self.hung = false;
                journal.was_cut();
            }
            Action::Unbind { dir } => assert!(self.bound.remove(dir)),
            Action::Unstage => {
                assert!(!self.hung, "unmounting hangs");
                assert!(self.bound.is_empty());
                self.staged = false;
            }
            Action::Unmap => {
                assert!(!self.staged);
                self.device = false;
            }
            Action::GiveUp { key } => {
                let in_use = self.bound.iter().any(|dir| !dir.contains(&key.pod_uid));
                assert!(!self.device || in_use, "given up before the device is gone");
                let record = self.record.clone().filter(|_| self.api).ok_or(())?;
                self.change(record.without(key));
            }
            Action::Forget => {}
        }
        Ok(())
    }

    fn check_right(&self) {
        let record = self.record.as_ref().unwrap();
        assert!(record.entries.iter().any(|entry| entry.is_right_of(&self.own())));
        assert!(!self.elsewhere && self.standing == HELD);
    }

    fn claim(&mut self, journal: &mut Journal, dir: &str) -> Result<(), ()> {
        if !self.api || self.elsewhere {
            return Err(());
        }
        let own = self.own();
        let pod_uid = journal.pods.iter().find(|pod| pod.mount_dir == dir).unwrap().pod_uid.clone();
        let record = self.record.get_or_insert_with(Record::default);
        let known =
            record.entries.iter().find(|entry| entry.pod_uid == pod_uid && entry.is_right_of(&own));
        let entry = match known {
            Some(entry) => entry.clone(),
            None => {
                let here = record.entries.iter().find(|entry| entry.is_right_of(&own));
                self.generation = self.generation.next();
                let entry = Entry {
                    node: own.node.clone(),
                    node_uid: own.node_uid.clone(),
                    boot_id: own.boot_id.clone(),
                    tenure: own.tenure,
                    self_fence: true,
                    pod_uid: pod_uid.clone(),
                    mount_dir: dir.to_owned(),
                    generation: here.map_or(self.generation, |here| here.generation),
                    ..Entry::default()
                };
                record.entries.retain(|entry| entry.pod_uid != pod_uid);
                record.entries.push(entry.clone());
                entry
            }
        };
        journal.claimed(dir, &entry);
        Ok(())
    }

    fn change(&mut self, change: Option<Change>) {
        match change {
            None => {}
            Some(Change::Replace { version, entries }) => {
                self.record = Some(Record { version, entries, ..Record::default() });
            }
            Some(Change::Delete { .. }) => self.record = None,
        }
    }

    fn reboot(&mut self) {
        self.boot += 1;
        self.tenure += 1;
        self.device = false;
        self.staged = false;
        self.hung = false;
        self.cut = false;
        self.bound.clear();
    }

    /// Another node takes the volume by proof: this one was cut off, or cannot write.
    fn lose(&mut self) {
        self.record = Some(Record {
            version: String::new(),
            entries: vec![Entry { node: "b".to_owned(), ..Entry::default() }],
            ..Record::default()
        });
        self.elsewhere = true;
    }

    /// Everything or nothing is there for each pod, and nothing is left over.
    fn check_whole(&self) {
        let own = self.own();
        let entries = self.record.iter().flat_map(|record| &record.entries);
        let ours: Vec<&Entry> = entries.filter(|entry| entry.node == "a").collect();
        let pods = self.disk.iter().flat_map(|journal| &journal.pods);
        let bound: BTreeSet<String> = pods
            .map(|pod| {
                assert_eq!(pod.stage, PodStage::Bound, "{pod:?}");
                pod.mount_dir.clone()
            })
            .collect();
        assert_eq!(self.bound, bound);
        let by_record: BTreeSet<String> = ours
            .iter()
            .map(|entry| {
                assert!(entry.is_right_of(&own) && entry.phase == Phase::Attached, "{entry:?}");
                entry.mount_dir.clone()
            })
            .collect();
        assert_eq!(by_record, bound);
        assert_eq!((self.device, self.staged), (!bound.is_empty(), !bound.is_empty()));
        assert!(bound.is_empty() || !self.cut);
    }
}

const ROWS: [&[Call]; 3] = [
    &[Call::Mount(0)],
    &[Call::Mount(0), Call::Unmount(0)],
    &[
        Call::Mount(0),
        Call::Mount(1),
        Call::Unmount(0),
        Call::Mount(0),
        Call::Unmount(1),
        Call::Unmount(0),
    ],
];

/// What happens between the crash and the next start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    Reboot,
    TakenOver,
    LeaseLost,
    Hangs,
}

#[test]
fn what_the_guard_has_cut_off_is_noticed_taken_away_and_mounted_anew() {
    let mut world = World::new();
    assert_eq!(world.call(Call::Mount(0)), End::Settled);
    world.cut = true;
    assert_eq!(world.call(Call::Tidy), End::Settled);
    assert!(world.bound.is_empty() && !world.staged && !world.device, "{:?}", world.disk);
    assert_eq!((&world.disk, &world.record), (&None, &None));
    assert_eq!(world.call(Call::Mount(0)), End::Settled);
    assert!(!world.cut && world.bound.len() == 1);
}

#[test]
fn killed_at_every_point_a_volume_ends_mounted_or_unmounted_and_nothing_is_left() {
    let mut points = BTreeSet::new();
    for row in ROWS {
        for step in 1.. {
            let mut crashed = false;
            for point in [Point::BeforeNote, Point::AfterNote, Point::AfterAction] {
                for meanwhile in [
                    Meanwhile::Nothing,
                    Meanwhile::Reboot,
                    Meanwhile::TakenOver,
                    Meanwhile::LeaseLost,
                    Meanwhile::Hangs,
                ] {
                    for flags in 0..4 {
                        let (retry, api) = (flags & 1 != 0, flags & 2 != 0);
                        crashed |= kill(row, step, point, meanwhile, retry, api);
                    }
                }
            }
            if !crashed {
                break;
            }
            points.insert((row.len(), step));
        }
    }
    // Claim, map, format, stage, bind, report; unbind, unstage, unmap, give up, forget.
    assert_eq!(points.iter().filter(|(row, _)| *row == 1).count(), 6);
    assert_eq!(points.iter().filter(|(row, _)| *row == 2).count(), 11);
}

fn kill(
    row: &[Call],
    step: usize,
    point: Point,
    meanwhile: Meanwhile,
    retry: bool,
    api: bool,
) -> bool {
    let mut world = World { crash: Some((step, point)), ..World::new() };
    let mut cut_off = None;
    for call in row {
        match world.call(*call) {
            End::Settled => {}
            End::Crashed => {
                cut_off = Some(*call);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    let Some(call) = cut_off else { return false };
    world.crash = None;
    match meanwhile {
        Meanwhile::Nothing => {}
        Meanwhile::Reboot => world.reboot(),
        Meanwhile::TakenOver => world.lose(),
        Meanwhile::LeaseLost => world.tenure += 1,
        Meanwhile::Hangs => world.hung = world.staged,
    }
    world.api = api;
    let next = if retry { call } else { Call::Tidy };
    let answer = world.call(next);
    if let Call::Unmount(pod) = next {
        let done = matches!(answer, End::Settled | End::Waiting);
        assert!(done && !world.bound.contains(DIRS[pod]), "unmounting needs no API: {answer:?}");
    }
    world.api = true;
    world.call(Call::Tidy);
    world.check_whole();
    if retry && meanwhile != Meanwhile::TakenOver && matches!(call, Call::Mount(_)) {
        assert_eq!(world.call(call), End::Settled, "{step} {point:?} {meanwhile:?}");
        world.check_whole();
    }
    true
}

#[test]
fn whatever_fails_in_any_order_nothing_is_left() {
    let mut mounts = 0;
    for seed in 0..1_000 {
        let mut chance = Chance(seed);
        let mut world = World::new();
        world.failing = Some((Chance(seed + 1), 4));
        for _ in 0..30 {
            disturb(&mut world, &mut chance);
            let pod = if chance.one_in(2) { 0 } else { 1 };
            let call = match chance.below(4) {
                0 | 1 => Call::Mount(pod),
                2 => Call::Unmount(pod),
                _ => Call::Tidy,
            };
            let end = world.call(call);
            mounts += usize::from(end == End::Settled && call == Call::Mount(pod));
            world.crash = None;
        }
        world.failing = None;
        world.api = true;
        world.standing = HELD;
        assert_eq!(world.call(Call::Tidy), End::Settled, "{seed}");
        world.check_whole();
    }
    assert!(mounts > 1_000, "only {mounts} mounts succeeded");
}

fn disturb(world: &mut World, chance: &mut Chance) {
    match chance.below(12) {
        0 => world.reboot(),
        1 => world.api = !world.api,
        2 => {
            // Its own lease ends before another node takes over.
            world.standing = Standing::Over;
            world.call(Call::Tidy);
            world.tenure += 1;
            world.standing = HELD;
            if chance.one_in(2) {
                world.lose();
            }
        }
        3 if world.elsewhere => {
            world.elsewhere = false;
            world.record = None;
        }
        4 => world.hung = world.staged && !world.cut,
        5 | 6 => {
            let points = [Point::BeforeNote, Point::AfterNote, Point::AfterAction];
            let point = points[usize::try_from(chance.below(3)).unwrap()];
            let step = world.steps + 1 + usize::try_from(chance.below(6)).unwrap();
            world.crash = Some((step, point));
        }
        _ => {}
    }
}

#[test]
fn a_foreign_file_system_is_left_alone_and_the_mount_is_undone() {
    let mut world = World::new();
    world.signature = Signature::Foreign("an LVM member".to_owned());
    let End::Failed(fault) = world.call(Call::Mount(0)) else { panic!() };
    let sentence = "there is an LVM member on the volume, which is not the file system that is \
                    wanted; it is left alone";
    assert_eq!(fault.to_string(), sentence);
    assert_eq!(world.call(Call::Tidy), End::Settled);
    world.check_whole();
    assert!(world.disk.is_none() && world.record.is_none());
}

#[test]
fn without_its_lease_an_agent_mounts_nothing_and_a_late_one_keeps_what_it_has() {
    let mut world = World::new();
    let late = Standing::Late { cut_at: SinceBoot::default() };
    world.standing = late;
    assert_eq!(world.call(Call::Mount(0)), End::Failed(Fault::Lease(late)));
    world.standing = HELD;
    assert_eq!(world.call(Call::Mount(0)), End::Settled);
    world.standing = late;
    assert_eq!(world.call(Call::Tidy), End::Settled);
    world.check_whole();
    world.standing = Standing::Over;
    world.api = false;
    assert_eq!(world.call(Call::Tidy), End::Waiting);
    assert!(!world.device && world.bound.is_empty(), "cut off without the API");
}

#[test]
fn what_a_pod_left_that_is_gone_for_good_is_unmounted() {
    let mut world = World::new();
    world.call(Call::Mount(0));
    world.call(Call::Mount(1));
    world.orphaned.insert(DIRS[0].to_owned());
    assert_eq!(world.call(Call::Tidy), End::Settled);
    world.check_whole();
    assert_eq!(world.bound, BTreeSet::from([DIRS[1].to_owned()]));
}

#[test]
fn the_journal_survives_the_way_to_the_disk() {
    let mut world = World::new();
    world.call(Call::Mount(0));
    let journal = world.disk.unwrap();
    let text = serde_json::to_string(&journal).unwrap();
    assert!(text.contains(r#""device":"staging","cut":false"#), "{text}");
    assert_eq!(serde_json::from_str::<Journal>(&text).unwrap(), journal);
}

#[test]
fn a_journal_is_of_one_image_and_not_of_another_under_the_same_name() {
    let parameters = |directory: &str, options: &str| {
        let rows = [("directory", directory), ("mountOptions", options)];
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        rows.map(owned).into_iter().collect::<BTreeMap<_, _>>()
    };
    let journal = Journal {
        volume: "pv".to_owned(),
        storage_cluster: "main".to_owned(),
        image: "one".to_owned(),
        backend: Backend::Loopfile,
        parameters: parameters("/a", "noatime"),
        fs_type: String::new(),
        mount_options: String::new(),
        boot_id: String::new(),
        device: DeviceStage::Absent,
        cut: false,
        pods: Vec::new(),
    };
    for (cluster, image, backend, parameters, is_of) in [
        ("main", "one", Backend::Loopfile, parameters("/a", "noatime"), true),
        ("main", "one", Backend::Loopfile, parameters("/a", ""), true),
        ("main", "two", Backend::Loopfile, parameters("/a", "noatime"), false),
        ("other", "one", Backend::Loopfile, parameters("/a", "noatime"), false),
        ("main", "one", Backend::Dir, parameters("/a", "noatime"), false),
        ("main", "one", Backend::Loopfile, parameters("/b", "noatime"), false),
        ("main", "one", Backend::Loopfile, BTreeMap::new(), false),
    ] {
        assert_eq!(journal.is_of(cluster, image, backend, &parameters), is_of, "{parameters:?}");
    }
}
