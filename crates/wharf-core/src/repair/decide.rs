//! One pass over the queue: what is to be done next for every entry.
//!
//! Entries that have a machine in hand go on first. Then those that wait for a slot: the ones that
//! were begun before, then the ones that were not, controlplane machines before others in both, and
//! by index. Every rule that keeps an entry from going on is a [`Wait`].
//!
//! Start reading at [`decide`]; what happens to a single entry is in `decide/step.rs`.

mod node;
mod step;

use jiff::Timestamp;

use super::{
    command::Command,
    config::{Operation, RepairConfig, later},
    entry::{Entry, Phase},
    observation::{Etcd, Machine, Machines, Observation, Probe},
    queue::{Queue, QueueHead, is_within},
    wait::Wait,
};
use crate::{
    disruption::{Disruption, Guard, Kind},
    drain,
    quick::{QuickMap, QuickSet},
};

/// Health checks of entries that only wait: so many at once, so that a long queue does not start
/// thousands of processes. Those of machines in hand come on top.
pub const BACKGROUND_PROBES: usize = 64;
/// Success commands of machines that were healthy before anything was begun: so many at once, for
/// the same reason.
pub const BACKGROUND_HOOKS: usize = 64;
/// How often a machine is looked at while its entry only waits.
const BACKGROUND_SECONDS: u64 = 60;
/// A closed window, and whatever else changes without anybody telling, is looked at again.
const LOOK_AGAIN_SECONDS: u64 = 60;

/// What to do next. The shell stores each write by compare-and-swap, and only then begins the
/// effect that comes with it; a write that fails is no harm, for the next pass decides anew.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    pub actions: Vec<Action>,
    pub nodes: Vec<NodeAction>,
    /// Why entries do not go on.
    pub waits: Vec<(u64, Wait)>,
    /// When to decide again if nothing happens before.
    pub wake_at: Option<Timestamp>,
    /// So many machines are unhealthy that nothing is begun; the shell keeps the time of it.
    pub storm: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    pub index: u64,
    pub write: Write,
    pub effect: Option<Effect>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    Nothing,
    Put(Box<Entry>),
    /// Take it out of the queue, see [`Queue::remove`].
    Remove,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Run the health check; its end goes to the observation.
    Probe(Command),
    /// Begin to drain, or go on after a restart.
    StartDrain {
        node: String,
        policy: Box<drain::Policy>,
    },
    /// End the drain; nothing is applied for it. A cordon that it leaves goes by a later pass.
    StopDrain,
    /// Mark the Node and wait until its volumes are taken from it, by [`super::decide_fencing`].
    FenceVolumes {
        node: String,
        since: Timestamp,
        until: Timestamp,
    },
    Run(Command),
}

/// What is done to a Node apart from drains. All may be done twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeAction {
    /// Take back the cordon of this owner.
    Uncordon {
        node: String,
        owner: String,
    },
    /// Taint the Node as out of service: its machine is off.
    Fence {
        node: String,
    },
    Unfence {
        node: String,
    },
    /// Let the node have volumes again.
    UnfenceVolumes {
        node: String,
    },
}

/// Who cordons for repairs of a machine. It is the machine and not the entry, so that a later entry
/// joins what an earlier one left; and it is the queue, since a cluster may be in the care of more
/// than one installation.
pub fn cordon_owner(head: &QueueHead, address: &str) -> String {
    format!("{}{address}", owner_prefix(head))
}

/// The machine that a cordon of this queue is for; `None` if it is not of this queue.
fn owned_machine<'a>(head: &QueueHead, owner: &'a str) -> Option<&'a str> {
    owner.strip_prefix(&owner_prefix(head)).filter(|machine| !machine.contains(' '))
}

fn owner_prefix(head: &QueueHead) -> String {
    match head.id.as_str() {
        "" => "repair ".to_owned(),
        id => format!("repair {id} "),
    }
}

/// Notes the machines that entries have in hand, for all who ask the guard.
pub fn note_repairs(guard: &mut Guard, queue: &Queue, machines: &Machines) {
    for entry in queue.entries.values().filter(|entry| entry.phase.holds()) {
        note_repair(guard, entry, machines);
    }
}

fn note_repair(guard: &mut Guard, entry: &Entry, machines: &Machines) {
    let critical = machines.get(&entry.address).is_some_and(Machine::is_critical);
    guard.begin(&entry.address, Disruption { kind: Kind::Repair, critical });
}

/// Decides about the whole queue.
pub fn decide(
    config: &RepairConfig,
    queue: &Queue,
    seen: &Observation,
    now: Timestamp,
) -> Decision {
    let mut pass = Pass::new(config, queue, seen, now);
    let mut waiting = Vec::with_capacity(queue.entries.len());
    for entry in queue.entries.values() {
        match pass.operation(entry) {
            _ if entry.deleted => pass.dequeue(entry),
            _ if entry.is_finished() => {}
            None => pass.fail_without_procedure(entry),
            Some(operation) if entry.phase.holds() => pass.advance(entry, operation),
            Some(operation) => waiting.push(pass.candidate(entry, operation)),
        }
    }
    waiting.sort_unstable_by_key(|candidate| candidate.turn);
    for candidate in waiting {
        pass.consider(candidate);
    }
    pass.probe_in_background();
    pass.stop_orphaned_drains();
    pass.tidy_nodes();
    pass.decision
}

/// An entry that has no machine in hand, with what is known of it. There may be ten thousand, so
/// that all is looked up once.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    entry: &'a Entry,
    operation: &'a Operation,
    machine: Option<&'a Machine>,
    probe: Option<&'a Probe>,
    /// Whose turn it is: smaller comes first.
    turn: (bool, bool, u64),
}

impl Candidate<'_> {
    fn is_critical(&self) -> bool {
        self.machine.is_some_and(Machine::is_critical)
    }
}

struct Due<'a> {
    /// The time of the last check, if there was one, and the index: smaller comes first.
    turn: (Option<Timestamp>, u64),
    entry: &'a Entry,
    operation: &'a Operation,
}

struct Pass<'a> {
    config: &'a RepairConfig,
    queue: &'a Queue,
    seen: &'a Observation,
    now: Timestamp,
    /// The entries that are not in their first phase: few, where the queue is long.
    begun: Vec<&'a Entry>,
    operations: QuickMap<(&'a str, &'a str), &'a Operation>,
    /// The last one that was looked for: most entries are of a kind.
    last_operation: Option<(&'a Entry, Option<&'a Operation>)>,
    /// What is out of service, with the machines that entries have in hand.
    guard: Guard,
    /// The entry that comes first for each machine.
    first: QuickMap<&'a str, u64>,
    /// How often each machine was repaired lately; empty without a flap guard.
    repairs: QuickMap<&'a str, u64>,
    excluded: QuickSet<&'a str>,
    /// A rule that holds back all entries that have done nothing yet.
    closed: Option<Wait>,
    /// All members of etcd are healthy, as they are as a rule.
    etcd_is_well: bool,
    /// So many commands run, with those that begin in this pass for machines that were healthy.
    commands: usize,
    /// Machines that an entry took in hand in this pass.
    taken: Vec<&'a str>,
    /// Entries that only wait and whose health check is due.
    due: Vec<Due<'a>>,
    decision: Decision,
}

impl<'a> Pass<'a> {
    fn new(
        config: &'a RepairConfig,
        queue: &'a Queue,
        seen: &'a Observation,
        now: Timestamp,
    ) -> Self {
        let mut pass = Self {
            config,
            queue,
            seen,
            now,
            begun: Vec::new(),
            operations: operations(config),
            last_operation: None,
            guard: seen.guard.clone(),
            first: QuickMap::default(),
            repairs: QuickMap::default(),
            excluded: config.excluded_machines.iter().map(String::as_str).collect(),
            closed: None,
            etcd_is_well: seen.etcd.is_well(),
            commands: seen.commands.len(),
            taken: Vec::new(),
            due: Vec::new(),
            decision: Decision::default(),
        };
        pass.closed = pass.closed_for_all();
        pass.begun = queue.entries.values().filter(|one| one.phase != Phase::Queued).collect();
        pass.repairs = pass.count_repairs();
        // Those that wait come in their turn; these are before all of them.
        for entry in pass.begun.iter().filter(|entry| entry.phase.holds()) {
            note_repair(&mut pass.guard, entry, &seen.machines);
            pass.first.insert(&entry.address, entry.index);
        }
        pass.first.reserve(queue.entries.len());
        pass
    }

    fn operation(&mut self, entry: &'a Entry) -> Option<&'a Operation> {
        if let Some((last, operation)) = self.last_operation
            && last.machine_type == entry.machine_type
            && last.operation == entry.operation
        {
            return operation;
        }
        let key = (entry.machine_type.as_str(), entry.operation.as_str());
        let found = self.operations.get(&key).copied();
        self.last_operation = Some((entry, found));
        found
    }

    fn machine(&self, entry: &Entry) -> Option<&'a Machine> {
        self.seen.machines.get(&entry.address)
    }

    fn candidate(&self, entry: &'a Entry, operation: &'a Operation) -> Candidate<'a> {
        let probe = self.seen.probes.get(&entry.index);
        let machine = self.machine(entry);
        let critical = machine.is_some_and(Machine::is_critical);
        let turn = (entry.phase == Phase::Queued, !critical, entry.index);
        Candidate { entry, operation, machine, probe, turn }
    }

    fn closed_for_all(&mut self) -> Option<Wait> {
        let fleet = self.seen.fleet;
        let storm =
            |breaker: &super::config::Breaker| breaker.is_storm(fleet.unhealthy, fleet.machines);
        self.decision.storm = self.config.breaker.as_ref().is_some_and(storm);
        if self.decision.storm {
            let (unhealthy, machines) = (fleet.unhealthy, fleet.machines);
            return Some(Wait::Storm { unhealthy, machines });
        }
        let cooldown = self.config.breaker.map_or(0, |breaker| breaker.cooldown_seconds);
        let calm = fleet.last_storm.map(|storm| later(storm, cooldown));
        if let Some(calm) = calm.filter(|calm| self.now < *calm && cooldown > 0) {
            return Some(Wait::Cooldown(calm));
        }
        (!self.config.is_open(self.now)).then_some(Wait::OutsideWindows)
    }

    fn count_repairs(&self) -> QuickMap<&'a str, u64> {
        let mut repairs: QuickMap<&str, u64> = QuickMap::default();
        let Some(guard) = self.config.flap_guard else { return repairs };
        let started = self.begun.iter().filter(|entry| entry.commands_begun > 0);
        let here = started.filter_map(|entry| Some((&entry.address, entry.started?)));
        let past = &self.queue.head.past;
        let gone =
            past.iter().flat_map(|(address, times)| times.iter().map(move |t| (address, *t)));
        for (address, time) in here.chain(gone) {
            if is_within(time, guard.window_seconds, self.now) {
                *repairs.entry(address).or_default() += 1;
            }
        }
        repairs
    }

    /// Why an entry that has no machine in hand may not take one.
    fn gate(&self, candidate: Candidate<'_>) -> Option<Wait> {
        let Candidate { entry, machine, .. } = candidate;
        if !self.queue.head.enabled {
            return Some(Wait::Disabled);
        }
        if let Some(end) = entry.drain_backoff_expire.filter(|_| entry.is_backing_off(self.now)) {
            return Some(Wait::Backoff(end));
        }
        // What was begun is brought to its end; these rules are about beginning.
        if entry.commands_begun == 0
            && let Some(wait) = self.gate_to_begin(candidate)
        {
            return Some(wait);
        }
        if let Some(wait) = self.etcd_guard(entry, machine) {
            return Some(wait);
        }
        let wanted = Disruption { kind: Kind::Repair, critical: candidate.is_critical() };
        let admitted = self.guard.admit(&entry.address, wanted, self.config.max_concurrent_repairs);
        admitted.err().map(Wait::Guard)
    }

    fn gate_to_begin(&self, candidate: Candidate<'_>) -> Option<Wait> {
        let Candidate { entry, machine, .. } = candidate;
        let excluded = self.excluded.contains(entry.address.as_str());
        if excluded || machine.is_some_and(|machine| machine.opted_out) {
            return Some(Wait::OptedOut);
        }
        let repairs = self.repairs.get(entry.address.as_str()).copied().unwrap_or_default();
        let limit = self.config.flap_guard.map_or(u64::MAX, |guard| guard.max_repairs);
        if repairs >= limit && !entry.flap_cleared {
            return Some(Wait::Flapping(repairs));
        }
        self.closed.clone()
    }

    /// Nothing is done to a node while etcd cannot lose it. A machine whose own member is ill may
    /// always be repaired: that is the remedy.
    fn etcd_guard(&self, entry: &Entry, machine: Option<&Machine>) -> Option<Wait> {
        let machine = machine.filter(|_| !self.etcd_is_well)?;
        let members = match &self.seen.etcd {
            Etcd::Unknown => return Some(Wait::EtcdUnknown),
            Etcd::Members(members) => members,
        };
        if members.get(&entry.address) == Some(&false) {
            return None;
        }
        let healthy = members.values().filter(|healthy| **healthy).count();
        if !members.is_empty() && healthy * 2 <= members.len() {
            return Some(Wait::EtcdWithoutQuorum);
        }
        let is_member = machine.etcd || members.contains_key(&entry.address);
        let ill = members.iter().find(|(_, healthy)| !**healthy);
        ill.filter(|_| is_member).map(|(address, _)| Wait::EtcdMember(address.clone()))
    }

    fn act(&mut self, index: u64, write: Write, effect: Option<Effect>) {
        self.decision.actions.push(Action { index, write, effect });
    }

    fn put(&mut self, entry: Entry, effect: Option<Effect>) {
        self.act(entry.index, Write::Put(Box::new(entry)), effect);
    }

    fn wait(&mut self, entry: &Entry, wait: Wait) {
        match &wait {
            Wait::Backoff(time)
            | Wait::Cooldown(time)
            | Wait::Pause(time)
            | Wait::Stabilising(time)
            | Wait::Watching(time)
            | Wait::Volumes(time) => self.wake(*time),
            Wait::OutsideWindows | Wait::Flapping(_) => {
                self.wake(later(self.now, LOOK_AGAIN_SECONDS));
            }
            // All of these end with something that is told to the engine.
            Wait::Disabled
            | Wait::SameMachine(_)
            | Wait::OptedOut
            | Wait::Storm { .. }
            | Wait::EtcdUnknown
            | Wait::EtcdWithoutQuorum
            | Wait::EtcdMember(_)
            | Wait::Guard(_)
            | Wait::HealthCheck
            | Wait::Drain
            | Wait::Fenced
            | Wait::Hooks
            | Wait::Command => {}
        }
        self.decision.waits.push((entry.index, wait));
    }

    fn wake(&mut self, time: Timestamp) {
        let sooner = self.decision.wake_at.is_none_or(|known| time < known);
        if sooner && time > self.now {
            self.decision.wake_at = Some(time);
        }
    }

    /// The entries that have not been looked at for longest come first, so that none is forgotten.
    fn probe_in_background(&mut self) {
        let in_flight = self.seen.probes.values().filter(|probe| probe.in_flight).count();
        let room = BACKGROUND_PROBES.saturating_sub(in_flight);
        let mut due = std::mem::take(&mut self.due);
        // Most have to wait for another pass, in any order.
        if due.len() > room {
            due.select_nth_unstable_by_key(room, |due| due.turn);
            due.truncate(room);
        }
        due.sort_unstable_by_key(|due| due.turn);
        for Due { entry, operation, .. } in due {
            let command = Command::health_check(entry, operation, self.now);
            self.act(entry.index, Write::Nothing, Some(Effect::Probe(command)));
        }
    }

    /// Drains that no entry wants any more.
    fn stop_orphaned_drains(&mut self) {
        let wanted = |index: &u64| {
            let entry = self.queue.entries.get(index);
            entry.is_some_and(|entry| matches!(entry.phase, Phase::Draining { .. }))
        };
        let mut orphans: Vec<u64> =
            self.seen.drains.keys().filter(|index| !wanted(index)).copied().collect();
        orphans.sort_unstable();
        for index in orphans {
            self.act(index, Write::Nothing, Some(Effect::StopDrain));
        }
    }
}

/// The first procedure for a machine type is the one, and in it the first operation of a name.
fn operations(config: &RepairConfig) -> QuickMap<(&str, &str), &Operation> {
    let mut operations = QuickMap::default();
    let mut types = QuickSet::default();
    for procedure in &config.repair_procedures {
        for machine_type in &procedure.machine_types {
            if !types.insert(machine_type.as_str()) {
                continue;
            }
            for operation in &procedure.repair_operations {
                let key = (machine_type.as_str(), operation.operation.as_str());
                operations.entry(key).or_insert(operation);
            }
        }
    }
    operations
}
