//! The gate and its requesters in generated worlds: wishes come and go, tries fail, the cluster falls
//! silent, people force and uncordon, and the agent is killed between any two writes. What must
//! hold is checked at every step.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::{
    gate::{self, Api, CORDON_OWNER, Forced, Guard, Later, Published, Requests, Worker},
    requester::{self, Image, Journal, Power, UpdateWish, Wish},
    status::{DrainStatus, Requester},
};
use crate::drain::{Cordon, NodeFacts};

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

struct World {
    chance: Chance,
    chaos: bool,
    now: i64,
    boot: u32,
    // What is on the disk.
    record: gate::Record,
    journal: Journal,
    force: Option<Forced>,
    /// For whom alone a person forced the end that holds.
    named: Option<Requester>,
    // The files in memory: lost at a boot.
    requests: Requests,
    published: Published,
    // The agent: lost when it is killed.
    worker: Worker,
    worker_until: i64,
    commanding: Option<i64>,
    ordered: Option<(String, i64)>,
    // The node and its cluster.
    clustered: bool,
    answers: bool,
    cordon: Option<Cordon>,
    by_a_person: bool,
    empty: bool,
    ready_at: i64,
    // What people want.
    device: Option<Wish>,
    update: Option<UpdateWish>,
    ids: u32,
    // What was done, and how the gate stood at that moment.
    reboots: BTreeMap<String, u32>,
    commands: BTreeMap<String, u32>,
    completions: BTreeSet<String>,
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            chance: Chance(seed),
            chaos: true,
            now: 0,
            boot: 1,
            record: gate::Record::new("boot-1"),
            journal: Journal::default(),
            force: None,
            named: None,
            requests: Requests::default(),
            published: Published {
                status: DrainStatus::NotSupported,
                requested_by: Requester::Nobody,
            },
            worker: Worker::Idle,
            worker_until: 0,
            commanding: None,
            ordered: None,
            clustered: true,
            answers: true,
            cordon: None,
            by_a_person: false,
            empty: false,
            ready_at: 0,
            device: None,
            update: None,
            ids: 0,
            reboots: BTreeMap::new(),
            commands: BTreeMap::new(),
            completions: BTreeSet::new(),
        }
    }

    fn policy() -> gate::Policy {
        gate::Policy {
            drain_retry: Duration::from_secs(20),
            drain_timeout: Duration::from_secs(200),
            api_skip: Duration::from_secs(30),
            ..gate::Policy::default()
        }
    }

    fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }

    fn tick(&mut self) {
        self.now += 1;
        if self.chaos {
            self.disturb();
        }
        self.finish();
        for _ in 0..6 {
            let gate = self.run_gate();
            let jobs = gate.and_then(|()| self.run_jobs());
            if jobs.is_err() {
                self.kill();
            }
        }
        self.check();
    }

    fn disturb(&mut self) {
        let id = format!("wish-{}", self.ids);
        match self.chance.below(60) {
            0 => {
                let power = if self.chance.one_in(2) { Power::Reboot } else { Power::Shutdown };
                self.device = Some(Wish { id, power, canceled: false, taken_in: None });
                self.ids += 1;
            }
            1 => {
                let image = Image::Fetching;
                let taken_in = None;
                self.update =
                    Some(UpdateWish { id, image, activate: true, canceled: false, taken_in });
                self.ids += 1;
            }
            2 => self.device.iter_mut().for_each(|wish| wish.canceled = true),
            3 => self.update.iter_mut().for_each(|wish| wish.canceled = true),
            4..=9 => {
                if let Some(wish) = &mut self.update {
                    wish.image = match wish.image {
                        Image::Fetching => Image::Loading,
                        Image::Loading => Image::Loaded,
                        Image::Loaded => Image::Installed,
                        Image::Installed | Image::Failed(_) => wish.image.clone(),
                    };
                }
            }
            10 => self.kill(),
            11 => self.answers = self.chance.one_in(2),
            12 => self.clustered = !self.chance.one_in(3),
            13 => {
                let status = DrainStatus::ALL[self.chance.below(10) as usize];
                let requested_by = Requester::from_number(1 + self.chance.below(3) as u8).unwrap();
                self.force = Some(Forced { status, requested_by });
            }
            14 => self.force = None,
            15 => {
                // A person makes the node schedulable, or not.
                self.by_a_person = self.chance.one_in(2);
                self.cordon = None;
                self.empty = false;
            }
            16 => self.boot(),
            _ => {}
        }
    }

    fn kill(&mut self) {
        self.worker = Worker::Idle;
        self.commanding = None;
        self.ordered = None;
    }

    fn boot(&mut self) {
        self.kill();
        self.boot += 1;
        self.requests = Requests::default();
        self.empty = false;
        self.ready_at = self.now + 5;
    }

    fn finish(&mut self) {
        let policy = Self::policy();
        let now = at(self.now);
        if self.worker != Worker::Idle && self.now >= self.worker_until {
            let ours = self.cordon.as_ref().is_some_and(|one| one.owner == CORDON_OWNER);
            let outcome = match self.worker {
                Worker::Cordoning if !self.answers || (self.chaos && self.chance.one_in(3)) => {
                    Some(gate::Outcome::CordonFailed("conflict".to_owned()))
                }
                Worker::Cordoning => {
                    let before = self.by_a_person;
                    let owner = CORDON_OWNER.to_owned();
                    self.cordon = Some(Cordon { owner, before });
                    None
                }
                Worker::Draining if !ours => {
                    Some(gate::Outcome::DrainGivenUp("uncordoned".to_owned()))
                }
                Worker::Draining if !self.answers || (self.chaos && self.chance.one_in(3)) => {
                    Some(gate::Outcome::DrainBroken("500".to_owned()))
                }
                Worker::Draining => {
                    self.empty = true;
                    Some(gate::Outcome::Drained)
                }
                // A person may have been faster.
                Worker::Uncordoning => {
                    let taken = self.cordon.take_if(|_| self.answers);
                    self.empty &= taken.is_none();
                    None
                }
                Worker::Idle => None,
            };
            self.worker = Worker::Idle;
            if let Some(outcome) = outcome {
                gate::apply(&mut self.record, outcome, &self.requests, now, &policy);
            }
        }
        if self.commanding.is_some_and(|until| self.now >= until) {
            self.commanding = None;
            let failed = self.chaos && self.chance.one_in(4);
            let outcome = if failed {
                requester::Outcome::CommandFailed("exit 1".to_owned())
            } else {
                requester::Outcome::Commanded
            };
            requester::apply(&mut self.journal, outcome, now);
        }
        if self.ordered.as_ref().is_some_and(|(_, until)| self.now >= *until) {
            self.boot();
        }
    }

    fn gate_facts(&self) -> gate::Facts {
        let ready = self.now >= self.ready_at;
        let node = NodeFacts {
            name: "n1".to_owned(),
            unschedulable: self.cordon.is_some() || self.by_a_person,
            cordon: self.cordon.clone(),
            unready_since: (!ready).then(|| at(self.now)),
        };
        gate::Facts {
            boot_id: self.boot_id(),
            clustered: self.clustered,
            requests: self.requests.clone(),
            later: if self.journal.waits() { Later::Asks } else { Later::Nobody },
            force: self.force,
            guard: Guard::Open,
            api: if self.answers { Api::Answers } else { Api::Silent("refused".to_owned()) },
            node: self.answers.then_some(node),
            worker: self.worker,
        }
    }

    /// An error is a kill after a write and before what it was for.
    fn run_gate(&mut self) -> Result<(), ()> {
        let facts = self.gate_facts();
        let decision = gate::decide_gate(&self.record, &facts, at(self.now), &Self::policy());
        if let Some(record) = decision.record {
            self.record = record;
        }
        let forced = self.force.filter(|forced| forced.status == DrainStatus::Complete);
        self.named = match &self.record.phase {
            gate::Phase::Complete { how: gate::How::ForcedForOne, .. } => {
                forced.map(|forced| forced.requested_by).or(self.named)
            }
            _ => None,
        };
        if self.chaos && self.chance.one_in(200) {
            return Err(());
        }
        self.published = decision.publish;
        if matches!(self.record.phase, gate::Phase::Complete { how: gate::How::Drained { .. }, .. })
        {
            self.completions.insert(self.boot_id());
        }
        for effect in decision.effects {
            match effect {
                gate::Effect::Cordon => {
                    assert_eq!(self.worker, Worker::Idle);
                    assert!(self.cordon.is_none(), "another's cordon is not taken");
                    self.worker = Worker::Cordoning;
                    self.worker_until = self.now + 1;
                }
                gate::Effect::Drain { .. } => {
                    assert_eq!(self.worker, Worker::Idle, "one drain at a time");
                    self.worker = Worker::Draining;
                    self.worker_until = self.now + 1 + self.chance.below(20) as i64;
                }
                gate::Effect::StopDrain => self.worker = Worker::Idle,
                gate::Effect::Uncordon => {
                    assert_eq!(self.cordon.as_ref().unwrap().owner, CORDON_OWNER);
                    assert!(self.now >= self.ready_at, "a node that is not ready gets pods");
                    self.worker = Worker::Uncordoning;
                    self.worker_until = self.now + 1 + self.chance.below(5) as i64;
                }
                gate::Effect::RemoveForceFile => self.force = None,
            }
        }
        Ok(())
    }

    fn run_jobs(&mut self) -> Result<(), ()> {
        let facts = requester::Facts {
            boot_id: self.boot_id(),
            device_operations: self.device.iter().cloned().collect(),
            updates: self.update.iter().cloned().collect(),
            drain: self.published,
            commanding: self.commanding.is_some(),
            ordered: self.ordered.as_ref().map(|(id, _)| id.clone()),
        };
        let before = self.journal.clone();
        let retry = Self::policy().drain_retry;
        let decision = requester::decide_jobs(&self.journal, &facts, at(self.now), retry);
        if let Some(journal) = decision.journal {
            self.check_beginnings(&before, &journal);
            self.journal = journal;
        }
        if self.chaos && self.chance.one_in(200) {
            return Err(());
        }
        self.requests = decision.requests;
        for effect in decision.effects {
            match effect {
                requester::Effect::Leave { id, .. } => {
                    assert!(self.ordered.is_none(), "ordered twice");
                    self.ordered = Some((id, self.now + 3));
                }
                requester::Effect::Command { id } => {
                    *self.commands.entry(id).or_default() += 1;
                    assert!(self.commanding.is_none(), "two commands at once");
                    self.commanding = Some(self.now + 4);
                }
            }
        }
        Ok(())
    }

    /// A job that goes does so once, and only when the gate says so.
    fn check_beginnings(&mut self, before: &Journal, after: &Journal) {
        let jobs = |journal: &Journal| {
            let all = journal.update.iter().chain(&journal.device_operation);
            let gone = all.filter(|job| !job.is_waiting() && !job.is_over());
            gone.map(|job| job.id.clone()).collect::<BTreeSet<_>>()
        };
        for id in jobs(after).difference(&jobs(before)) {
            let times = self.reboots.entry(id.clone()).or_default();
            *times += 1;
            assert_eq!(*times, 1, "{id} goes twice");
            let status = self.published.status;
            assert!(
                matches!(
                    status,
                    DrainStatus::Complete | DrainStatus::NotSupported | DrainStatus::Unknown
                ),
                "{id} goes in {status:?}"
            );
            let drained = matches!(
                self.record.phase,
                gate::Phase::Complete { how: gate::How::Drained { .. }, .. }
            );
            // What a person said of one of the two is not the other's.
            if let Some(named) = self.named.filter(|_| status == DrainStatus::Complete) {
                let is_update = after.update.as_ref().is_some_and(|job| job.id == *id);
                let me = if is_update { Requester::Update } else { Requester::DeviceOperation };
                assert_eq!(me, named, "{id} goes by another one's end");
            }
            // Unless a person filled it again behind our back.
            if status == DrainStatus::Complete && drained && self.cordon.is_some() {
                assert!(self.empty, "{id} goes on a node that is not empty");
            }
        }
    }

    fn is_at_rest(&self) -> bool {
        let mut jobs = self.journal.update.iter().chain(&self.journal.device_operation);
        let jobs = jobs.all(requester::Job::is_over) && self.requests.is_empty();
        jobs && self.cordon.is_none() && !self.record.phase.status().is_failure()
    }

    fn check(&self) {
        for (id, times) in &self.commands {
            assert_eq!(*times, 1, "the command of {id} is begun twice");
        }
        if let Some(cordon) = &self.cordon {
            assert_eq!(cordon.owner, CORDON_OWNER);
        }
    }
}

#[test]
fn in_no_world_an_operation_goes_twice_or_before_the_gate_opens() {
    let (mut gone, mut commands, mut completions) = (0, 0, 0);
    for seed in 0..40 {
        let mut world = World::new(seed);
        for _ in 0..1000 {
            world.tick();
        }
        // Then all is well, and what is wanted happens.
        world.chaos = false;
        (world.answers, world.clustered, world.force) = (true, true, None);
        if let Some(wish) = &mut world.update {
            wish.image = Image::Loaded;
        }
        // The longest pause between two drains is an hour.
        for _ in 0..8000 {
            world.tick();
            if world.is_at_rest() {
                break;
            }
        }
        assert!(world.is_at_rest(), "seed {seed}: {:?} at {:?}", world.journal, world.record);
        gone += world.reboots.len();
        commands += world.commands.len();
        completions += world.completions.len();
    }
    assert!(gone > 300, "only {gone} operations: the worlds are too calm");
    assert!(commands > 50 && completions > 100, "{commands} commands, {completions} drains");
}
