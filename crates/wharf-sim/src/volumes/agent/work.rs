//! One piece of work: a mount, an unmount, or tidying up.

use std::{collections::BTreeSet, rc::Rc};

use wharf_core::volume::{
    attach::{Decision, Step},
    journal::{Action, Journal, Next, Purpose, Seen, decide_next},
    lease::Standing,
    record::{EntryKey, Generation, Record},
};

use super::{Agent, Machine, Shared, Waiting, new_journal};
use crate::volumes::{
    Plant,
    machine::{Device, PodState},
    network::{Order, TICK},
    server::{Answer, Ask, Facts},
    storage::Writer,
};

pub struct Work {
    pub volume: usize,
    kind: Kind,
    journal: Journal,
    pub(super) doing: Doing,
    answer: Option<Answer>,
    /// What a mount reads before the record, and the tenure of the agent then. It counts where there is
    /// no record.
    early: Option<(Rc<Facts>, u64)>,
    /// The record, and the tenure of the agent before it was read. `None`: not read yet.
    record: Option<(Option<Record>, u64)>,
    /// What was read for this look, and the tenure in which that began. `None`: not read yet.
    facts: Option<Result<(Rc<Facts>, u64), ()>>,
    claiming: bool,
    /// By the planted defect; the record is not looked at any more.
    gave_up_first: bool,
    pub raised: Option<Generation>,
    pub fenced: Vec<EntryKey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Mount { uid: String, name: String },
    Unmount { uid: String },
    Tidy,
    Survey,
}

pub(super) enum Doing {
    Look,
    Reading(Waiting),
    Claiming(Waiting, Step),
    Mapping(Waiting, Generation),
    Changing(Waiting),
    Acting(Action, u64),
    /// The last step of a survey; another one follows soon.
    Sweeping(Waiting, Option<(usize, Step)>),
}

/// How often a volume that has a journal is tidied up, in milliseconds.
const TIDY_EVERY: u64 = 4_000;

impl Work {
    fn new(volume: usize, kind: Kind, journal: Journal) -> Self {
        Self {
            volume,
            kind,
            journal,
            doing: Doing::Look,
            answer: None,
            early: None,
            record: None,
            facts: None,
            claiming: false,
            gave_up_first: false,
            raised: None,
            fenced: Vec::new(),
        }
    }

    pub fn receive(&mut self, id: u64, answer: Answer) {
        let waiting = match &self.doing {
            Doing::Look | Doing::Acting(..) => return,
            Doing::Reading(waiting)
            | Doing::Claiming(waiting, _)
            | Doing::Mapping(waiting, _)
            | Doing::Changing(waiting)
            | Doing::Sweeping(waiting, _) => waiting,
        };
        if waiting.id == id {
            self.answer = Some(answer);
        }
    }

    /// The pod's UID and name.
    pub fn pod(&self) -> (&str, &str) {
        match &self.kind {
            Kind::Mount { uid, name } => (uid, name),
            Kind::Unmount { uid } => (uid, ""),
            Kind::Tidy | Kind::Survey => ("", ""),
        }
    }

    pub fn dir(&self) -> String {
        dir(self.pod().0)
    }
}

fn dir(uid: &str) -> String {
    format!("/pods/{uid}")
}

impl Agent {
    pub(super) fn next_work(&mut self, machine: &mut Machine, shared: &mut Shared) -> Option<Work> {
        let open = |volume: usize, machine: &Machine, shared: &Shared| {
            let known = machine.journals.get(&volume).cloned();
            known.unwrap_or_else(|| new_journal(volume, machine, shared))
        };
        let over = self.standing(machine, shared) == Standing::Over;
        if shared.plant != Some(Plant::NoTidying) {
            let volumes: Vec<usize> = machine.journals.keys().copied().collect();
            for volume in volumes {
                // Whoever has lost its lease does not wait for the next round.
                let pause = if over { 5 * TICK } else { TIDY_EVERY };
                let is_due = |at: &u64| shared.now >= *at || *at > shared.now + pause;
                if self.tidy_at.get(&volume).is_none_or(is_due) {
                    self.tidy_at.insert(volume, shared.now + pause);
                    return Some(Work::new(volume, Kind::Tidy, open(volume, machine, shared)));
                }
            }
            if shared.now >= self.survey_at {
                self.survey_at = shared.now + TIDY_EVERY;
                return Some(Work::new(0, Kind::Survey, new_journal(0, machine, shared)));
            }
        }
        let mut asked: Vec<(String, String, usize, PodState)> = Vec::new();
        for (uid, pod) in &machine.pods {
            if pod.state != PodState::Running {
                asked.push((uid.clone(), pod.name.clone(), pod.volume, pod.state));
            }
        }
        if asked.is_empty() || !shared.chance.one_in(2) {
            return None;
        }
        let (uid, name, volume, state) = asked.swap_remove(shared.chance.index(asked.len()));
        let kind = match state {
            PodState::Stopped => Kind::Unmount { uid },
            PodState::Starting | PodState::Running => Kind::Mount { uid, name },
        };
        Some(Work::new(volume, kind, open(volume, machine, shared)))
    }

    pub(super) fn go_on(&mut self, mut work: Work, machine: &mut Machine, shared: &mut Shared) {
        let waited = match &work.doing {
            Doing::Look | Doing::Acting(..) => None,
            Doing::Reading(waiting)
            | Doing::Claiming(waiting, _)
            | Doing::Mapping(waiting, _)
            | Doing::Changing(waiting)
            | Doing::Sweeping(waiting, _) => Some(waiting.until),
        };
        if waited.is_some_and(|until| work.answer.is_none() && shared.now < until) {
            self.work = Some(work);
            return;
        }
        let answer = work.answer.take();
        let goes_on = match std::mem::replace(&mut work.doing, Doing::Look) {
            Doing::Look => self.look(&mut work, machine, shared),
            Doing::Reading(_) => {
                self.take_facts(&mut work, answer, machine, shared);
                work.kind != Kind::Survey || matches!(work.doing, Doing::Sweeping(..))
            }
            Doing::Claiming(_, step) => Self::take_step(&mut work, &step, answer.as_ref()),
            Doing::Mapping(_, generation) => {
                let is_open = matches!(answer, Some(Answer::Done));
                Self::map(&work, generation, is_open, machine);
                is_open
            }
            Doing::Changing(_) => {
                work.facts = None;
                answer.is_some()
            }
            Doing::Sweeping(_, step) => {
                self.take_sweep(step, answer.as_ref());
                false
            }
            Doing::Acting(action, at) if shared.now < at => {
                work.doing = Doing::Acting(action, at);
                true
            }
            Doing::Acting(action, _) => Self::act(&mut work, &action, machine, shared),
        };
        if goes_on {
            self.work = Some(work);
        } else if matches!(work.kind, Kind::Mount { .. }) {
            // Whatever failed, the mount is undone.
            self.tidy_at.insert(work.volume, shared.now);
        }
    }

    fn take_facts(
        &mut self,
        work: &mut Work,
        answer: Option<Answer>,
        machine: &mut Machine,
        shared: &mut Shared,
    ) {
        let (early, record) = (work.early.take(), work.record.take());
        let (mut facts, record, tenure) = match (answer, early, record) {
            (Some(Answer::Facts(facts)), _, Some((record, tenure))) => (facts, record, tenure),
            (Some(Answer::Facts(facts)), None, None) => {
                work.early = Some((facts, machine.tenure));
                return;
            }
            (Some(Answer::Record(None)), Some((facts, tenure)), _) => (facts, None, tenure),
            (Some(Answer::Record(record)), early, _) => {
                work.record = Some((record, early.map_or(machine.tenure, |(_, tenure)| tenure)));
                return;
            }
            (Some(Answer::Survey(survey)), ..) => {
                return self.look_through(work, &survey, machine, shared);
            }
            _ => {
                work.facts = Some(Err(()));
                return;
            }
        };
        Rc::make_mut(&mut facts).record = record;
        if let Some(node) = facts.nodes.get(&machine.node) {
            machine.node_uid.clone_from(&node.uid);
        }
        self.watch_leases(&facts, shared.now);
        work.facts = Some(Ok((facts, tenure)));
    }

    /// Reads what is not read, and does what is next. False when the work has ended.
    fn look(&mut self, work: &mut Work, machine: &mut Machine, shared: &mut Shared) -> bool {
        let node = machine.node;
        if work.kind == Kind::Survey {
            work.doing = Doing::Reading(shared.ask(node, Ask::Survey { node }));
            return true;
        }
        let Some(facts) = work.facts.clone() else {
            let (volume, pod) = (work.volume, work.pod().0.to_owned());
            // A mount reads both at once, so that it may see the record last. Where there is one, the rest
            // is read again.
            let is_mount = matches!(work.kind, Kind::Mount { .. });
            let ask = match (&work.early, &work.record) {
                (None, None) if is_mount => Ask::Read { volume, pod },
                (_, None) => Ask::ReadRecord { volume },
                (_, Some(_)) => Ask::Read { volume, pod },
            };
            work.doing = Doing::Reading(shared.ask(node, ask));
            return true;
        };
        let facts = facts.ok().filter(|(_, tenure)| *tenure == machine.tenure);
        let facts = facts.map(|(facts, _)| facts);
        if work.claiming {
            let Some(facts) = facts else { return false };
            return self.claim(work, &facts, machine, shared);
        }
        if let Some(key) = Self::planted_key(work, facts.as_deref(), machine, shared) {
            Self::give_up(work, &key, facts.as_deref(), machine, shared);
            work.gave_up_first = true;
            return true;
        }
        let facts = facts.filter(|_| !work.gave_up_first);
        let seen = Self::seen(work.volume, facts.as_deref(), machine, shared);
        let standing = self.standing(machine, shared);
        let dir = work.dir();
        let purpose = match &work.kind {
            Kind::Mount { uid, .. } => {
                work.journal.begin(&dir, uid);
                Purpose::Mount { dir: &dir }
            }
            Kind::Unmount { .. } => Purpose::Unmount { dir: &dir },
            Kind::Tidy | Kind::Survey => Purpose::Tidy,
        };
        match decide_next(&work.journal, &seen, purpose, &machine.own(), &standing) {
            Next::Do { note, action } => {
                work.journal = *note;
                Self::store(work, machine);
                self.begin(work, action, facts.as_deref(), machine, shared);
                true
            }
            Next::Settled => {
                Self::finish(work, machine, shared);
                false
            }
            Next::Wait(_) => {
                if work.journal.is_unmounted(&dir, &seen) {
                    Self::finish(work, machine, shared);
                }
                false
            }
            Next::Fail(_) => false,
        }
    }

    fn seen(volume: usize, facts: Option<&Facts>, machine: &Machine, shared: &Shared) -> Seen {
        let device = machine.devices.get(&volume);
        let staged = device.is_some_and(|device| device.staged);
        Seen {
            device: machine.found(volume, shared.images[volume].formatted),
            staged,
            bound: device.map(|device| device.bound.clone()).unwrap_or_default(),
            orphaned: facts.map(|facts| orphans(machine, device, facts)).unwrap_or_default(),
            hung: staged && !machine.storage && device.is_some_and(|device| !device.cut),
            spoiled: staged
                && device.is_some_and(|device| device.cut)
                && shared.plant != Some(Plant::LateRenewal),
            record: facts.map(|facts| facts.record.clone()),
        }
    }

    fn store(work: &Work, machine: &mut Machine) {
        if work.journal.pods.is_empty() {
            machine.journals.remove(&work.volume);
        } else {
            machine.journals.insert(work.volume, work.journal.clone());
        }
    }

    /// The planted defect: the entry of a pod that is unmounted goes first.
    fn planted_key(
        work: &Work,
        facts: Option<&Facts>,
        machine: &Machine,
        shared: &Shared,
    ) -> Option<EntryKey> {
        let Kind::Unmount { uid } = &work.kind else { return None };
        let planted = shared.plant == Some(Plant::GiveUpFirst);
        let record = facts?.record.as_ref().filter(|_| planted)?;
        let own = machine.own();
        let mut mine = record.entries.iter().filter(|entry| entry.is_right_of(&own));
        mine.find(|entry| entry.pod_uid == *uid).map(wharf_core::volume::record::Entry::key)
    }

    fn claim(
        &mut self,
        work: &mut Work,
        facts: &Facts,
        machine: &mut Machine,
        shared: &mut Shared,
    ) -> bool {
        match self.decide_claim(work, facts, machine, shared) {
            Decision::Granted(entry) => {
                work.claiming = false;
                work.journal.claimed(&work.dir(), &entry);
                true
            }
            Decision::Do(step) => {
                let waiting = Self::send_step(work.volume, &step, machine, shared);
                if matches!(step, Step::NoteGarbage { .. }) {
                    shared.tally.takeovers += 1;
                }
                work.doing = Doing::Claiming(waiting, step);
                true
            }
            Decision::Wait { .. } | Decision::Refuse(_) => false,
        }
    }

    fn take_step(work: &mut Work, step: &Step, answer: Option<&Answer>) -> bool {
        let facts = work.facts.take();
        match (answer, step) {
            (Some(Answer::Done), Step::Raise { to, .. }) => {
                work.raised = Some(*to);
                // What else has changed meanwhile is not looked at.
                let raised =
                    |facts: Rc<Facts>| Rc::new(Facts { generation: *to, ..(*facts).clone() });
                work.facts =
                    facts.map(|facts| facts.map(|(facts, tenure)| (raised(facts), tenure)));
            }
            (Some(Answer::Done), Step::Fence { holders, .. }) => {
                work.fenced.extend(holders.iter().map(wharf_core::volume::record::Entry::key));
            }
            (Some(_), _) => {}
            (None, _) => return false,
        }
        true
    }

    fn begin(
        &mut self,
        work: &mut Work,
        action: Action,
        facts: Option<&Facts>,
        machine: &Machine,
        shared: &mut Shared,
    ) {
        match action {
            Action::Claim { .. } => work.claiming = true,
            Action::Map => {
                let grants = work.journal.pods.iter().filter_map(|pod| pod.entry.as_ref());
                let generation = grants.map(|entry| entry.generation).max().unwrap_or_default();
                let order = Order::Open { volume: work.volume, generation };
                work.doing = Doing::Mapping(shared.order(machine.node, order), generation);
            }
            Action::GiveUp { key } => Self::give_up(work, &key, facts, machine, shared),
            Action::Report { key } => {
                let record = facts.and_then(|facts| facts.record.as_ref());
                if let Some(change) = record.and_then(|it| it.attached(&key, "/dev/x", "client")) {
                    let ask = Ask::Change { volume: work.volume, change };
                    work.doing = Doing::Changing(shared.ask(machine.node, ask));
                }
            }
            Action::Format
            | Action::Stage
            | Action::Bind { .. }
            | Action::Cut
            | Action::Unbind { .. }
            | Action::Unstage
            | Action::Unmap
            | Action::Forget => {
                // Now and then the kernel takes its time, most of all when data are written back.
                let slow = !shared.network.calm && shared.chance.one_in(8);
                let ticks =
                    if slow { shared.chance.between(5, 60) } else { shared.chance.below(2) };
                let at = shared.now + ticks * TICK;
                work.doing = Doing::Acting(action, at);
            }
        }
    }

    fn give_up(
        work: &mut Work,
        key: &EntryKey,
        facts: Option<&Facts>,
        machine: &Machine,
        shared: &mut Shared,
    ) {
        let record = facts.and_then(|facts| facts.record.as_ref());
        if let Some(change) = record.and_then(|record| record.without(key)) {
            let ask = Ask::Change { volume: work.volume, change };
            work.doing = Doing::Changing(shared.ask(machine.node, ask));
        }
    }

    fn map(work: &Work, generation: Generation, is_open: bool, machine: &mut Machine) {
        let mut grants = work.journal.pods.iter().filter_map(|pod| pod.entry.as_ref());
        let self_fence = grants.any(|entry| entry.self_fence);
        if is_open {
            let device = Device {
                generation,
                self_fence,
                staged: false,
                bound: Default::default(),
                cut: false,
                dirty: false,
                queued: false,
                useless_since: None,
            };
            machine.devices.insert(work.volume, device);
        }
    }

    /// Does what the kernel does. False when it fails.
    fn act(work: &mut Work, action: &Action, machine: &mut Machine, shared: &mut Shared) -> bool {
        if shared.mishap(40) {
            return false;
        }
        let (volume, node) = (work.volume, machine.node);
        let reaches = machine.storage;
        let Some(device) = machine.devices.get_mut(&volume) else {
            return *action == Action::Forget || *action == Action::Unmap;
        };
        let writer = Writer { node, generation: device.generation };
        match action {
            // Making a file system writes, and mounting one replays its journal.
            Action::Format | Action::Stage => {
                if !reaches || device.cut {
                    return false;
                }
                let taken = shared.images[volume].write(writer);
                let is_taken = taken == Ok(true);
                note(shared, taken);
                if is_taken && *action == Action::Stage {
                    device.staged = true;
                } else if is_taken {
                    shared.images[volume].formatted = true;
                    work.journal.formatted();
                }
                return is_taken;
            }
            Action::Bind { dir } => drop(device.bound.insert(dir.clone())),
            Action::Cut => {
                let is_cut = device.try_cut(shared.images[volume].backend, reaches);
                if !is_cut && shared.plant != Some(Plant::UnverifiedCut) {
                    return false;
                }
                work.journal.was_cut();
            }
            Action::Unbind { dir } => drop(device.bound.remove(dir)),
            Action::Unstage => {
                if device.dirty && !device.cut {
                    if !reaches {
                        return false;
                    }
                    let taken = shared.images[volume].write(writer);
                    note(shared, taken);
                }
                device.staged = false;
            }
            Action::Unmap => {
                // It waits for what is on its way.
                if device.queued {
                    return false;
                }
                shared.network.end_data(node, Some(volume));
                machine.devices.remove(&volume);
            }
            Action::Forget
            | Action::Claim { .. }
            | Action::Map
            | Action::Report { .. }
            | Action::GiveUp { .. } => {}
        }
        true
    }

    /// What kubelet is told.
    fn finish(work: &Work, machine: &mut Machine, shared: &mut Shared) {
        match &work.kind {
            Kind::Mount { uid, .. } => {
                if let Some(pod) = machine.pods.get_mut(uid)
                    && pod.state == PodState::Starting
                {
                    pod.state = PodState::Running;
                    shared.tally.mounts += 1;
                }
            }
            Kind::Unmount { uid } => {
                shared.tally.unmounts += 1;
                machine.pods.remove(uid);
            }
            Kind::Tidy | Kind::Survey => {}
        }
    }
}

/// The directories of pods that neither the API server nor kubelet knows.
fn orphans(machine: &Machine, device: Option<&Device>, facts: &Facts) -> BTreeSet<String> {
    let bound = device.into_iter().flat_map(|device| &device.bound);
    let is_known = |uid: &str| facts.pods.contains(uid) || machine.pods.contains_key(uid);
    let orphaned = bound.filter(|dir| !is_known(dir.trim_start_matches("/pods/")));
    orphaned.cloned().collect()
}

/// Counts a write, and keeps the first accident.
pub fn note(shared: &mut Shared, taken: Result<bool, String>) {
    match taken {
        Ok(true) => shared.tally.writes += 1,
        Ok(false) => shared.tally.refused += 1,
        Err(what) => {
            shared.accident.get_or_insert(what);
        }
    }
}
