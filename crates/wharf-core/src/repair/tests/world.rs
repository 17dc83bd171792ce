//! Whole queues in generated worlds: people add, delete and switch, machines fall ill and recover,
//! drains are refused, and the server is killed between any two writes. What must hold is checked
//! at every step.

use std::collections::{BTreeSet, HashMap};

use super::*;

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

const MACHINES: u64 = 8;
/// Of these, so many are controlplane machines with etcd.
const CONTROLPLANES: u64 = 3;
const LIMIT: usize = 3;

fn world_config() -> RepairConfig {
    let step = |command: &str, drain: bool, restart: &str| {
        json!({ "repair_command": [command], "need_drain": drain, "watch_seconds": 4,
                "on_restart": restart, "command_retries": 1, "command_interval": 2,
                "fence_volumes": command == "off" })
    };
    config_of(&json!({
        "max_concurrent_repairs": LIMIT,
        "backoff_base_seconds": 3,
        "eviction_timeout_seconds": 20,
        "repair_procedures": [{ "machine_types": ["a"], "repair_operations": [
            { "operation": "fix", "health_check_command": ["check"], "success_command": ["yes"],
              "health_check_interval_seconds": 2, "stable_seconds": 2,
              "repair_steps": [step("off", false, "watch"), step("on", true, "rerun")] },
            { "operation": "short", "health_check_command": ["check"], "failure_command": ["no"],
              "health_check_interval_seconds": 1,
              "repair_steps": [step("cycle", true, "watch")] },
        ]}],
    }))
}

struct World {
    config: RepairConfig,
    /// What the store holds.
    queue: Queue,
    /// What the server knows; lost at a crash.
    seen: Observation,
    now: i64,
    chance: Chance,
    healthy: HashMap<String, bool>,
    drains: HashMap<u64, i64>,
    commands: HashMap<u64, (i64, Command)>,
    fencings: HashMap<u64, (i64, Timestamp)>,
    probes: HashMap<u64, (i64, Timestamp)>,
    /// Commands that were begun, by entry, step and attempt.
    begun: BTreeSet<(u64, usize, u32)>,
    chaos: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut seen = Observation::default();
        let mut healthy = HashMap::new();
        for number in 0..MACHINES {
            let critical = number < CONTROLPLANES;
            let node = Machine {
                controlplane: critical,
                etcd: critical,
                ..machine(&format!("n{number}"))
            };
            // The last one is no node.
            if number + 1 < MACHINES {
                seen.machines.insert(address(number), node);
            }
            healthy.insert(address(number), number % 2 == 0);
        }
        seen.etcd = Etcd::Members((0..CONTROLPLANES).map(|n| (address(n), true)).collect());
        Self {
            config: world_config(),
            queue: Queue::default(),
            seen,
            now: 0,
            chance: Chance(seed),
            healthy,
            drains: HashMap::new(),
            commands: HashMap::new(),
            fencings: HashMap::new(),
            probes: HashMap::new(),
            begun: BTreeSet::new(),
            chaos: true,
        }
    }

    fn tick(&mut self) {
        self.now += 1;
        if self.chaos {
            self.disturb();
        }
        self.finish_effects();
        // Effects of one pass are facts of the next; a second pass in the same second is usual.
        for _ in 0..2 {
            if self.pass().is_err() {
                self.crash();
            }
            self.check();
        }
    }

    fn disturb(&mut self) {
        let number = self.chance.below(MACHINES);
        match self.chance.below(40) {
            0..=3 => {
                let operation = if self.chance.one_in(2) { "fix" } else { "short" };
                let request = Request {
                    operation: operation.to_owned(),
                    machine_type: "a".to_owned(),
                    address: address(number),
                    serial: String::new(),
                };
                let now = at(self.now);
                self.queue.add(&self.config, &request, "", now).unwrap();
            }
            4..=6 => {
                let healthy = self.chance.one_in(3);
                self.healthy.insert(address(number), healthy);
            }
            7 => self.queue.head.enabled = !self.queue.head.enabled,
            8 => drop(self.queue.reset_backoff()),
            9 => drop(self.queue.delete_finished()),
            10 => {
                let index = self.chance.below(self.queue.head.next_index.max(1)).to_string();
                // There may be no such entry any more.
                let _ = self.queue.delete(&index);
            }
            11 => self.crash(),
            _ => {}
        }
    }

    fn crash(&mut self) {
        self.drains.clear();
        self.commands.clear();
        self.fencings.clear();
        self.probes.clear();
        self.seen.probes.clear();
        self.seen.drains.clear();
        self.seen.commands.clear();
    }

    fn finish_effects(&mut self) {
        let now = self.now;
        let over: Vec<u64> =
            self.drains.iter().filter(|(_, end)| **end <= now).map(|(index, _)| *index).collect();
        for index in over {
            self.drains.remove(&index);
            let address = self.seen.drains.remove(&index).unwrap();
            let failed = self.chance.one_in(3);
            if failed {
                self.uncordon(&address);
            }
            let failure = crate::drain::Failure::Deadline { waiting: vec![] };
            let outcome = if failed { Outcome::DrainFailed(failure) } else { Outcome::Drained };
            self.apply(index, outcome);
        }
        let over: Vec<u64> =
            self.commands.iter().filter(|(_, run)| run.0 <= now).map(|(index, _)| *index).collect();
        for index in over {
            let (_, command) = self.commands.remove(&index).unwrap();
            self.seen.commands.remove(&index);
            let end = ended(i32::from(self.chance.one_in(4)));
            self.apply(index, Outcome::CommandEnded { begun: command.begun, end });
        }
        let over: Vec<u64> =
            self.fencings.iter().filter(|(_, run)| run.0 <= now).map(|(index, _)| *index).collect();
        for index in over {
            let (_, since) = self.fencings.remove(&index).unwrap();
            self.seen.commands.remove(&index);
            self.apply(index, Outcome::VolumesFenced { since, left: Vec::new() });
        }
        let over: Vec<u64> =
            self.probes.iter().filter(|(_, run)| run.0 <= now).map(|(index, _)| *index).collect();
        for index in over {
            let (_, begun) = self.probes.remove(&index).unwrap();
            let entry = self.queue.entries.get(&index);
            let healthy = entry.is_some_and(|entry| self.healthy[&entry.address]);
            self.seen.probes.entry(index).or_default().note(Probed { begun, healthy });
        }
    }

    fn apply(&mut self, index: u64, outcome: Outcome) {
        if let Some(entry) = self.queue.entries.get_mut(&index) {
            apply(&self.config, entry, outcome, at(self.now));
        }
    }

    /// An error is a crash after a write and before its effect.
    fn pass(&mut self) -> Result<(), ()> {
        let decision = super::super::decide(&self.config, &self.queue, &self.seen, at(self.now));
        for action in decision.actions {
            let before = self.queue.entries.get(&action.index).cloned();
            let begins = matches!(action.write, Write::Put(_));
            match action.write {
                Write::Nothing => {}
                Write::Remove => drop(self.queue.remove(action.index)),
                Write::Put(entry) => {
                    let before = before.unwrap();
                    assert!(!before.is_finished(), "{before:?} is touched again");
                    drop(self.queue.entries.insert(action.index, *entry));
                }
            }
            if self.chaos && self.chance.one_in(60) {
                return Err(());
            }
            if let Some(effect) = action.effect {
                self.begin(action.index, effect, begins);
            }
        }
        for action in decision.nodes {
            self.carry_out(action);
        }
        Ok(())
    }

    fn begin(&mut self, index: u64, effect: Effect, begins: bool) {
        let enabled = self.queue.head.enabled;
        let end = self.now + 1 + self.chance.below(4) as i64;
        match effect {
            Effect::Probe(command) => {
                let known = self.probes.insert(index, (self.now + 1, command.begun));
                assert!(known.is_none(), "two health checks for {index} at once");
                self.seen.probes.entry(index).or_default().in_flight = true;
            }
            Effect::StartDrain { policy, .. } => {
                assert!(enabled, "a drain of {index} begins in a disabled queue");
                let entry = &self.queue.entries[&index];
                assert!(matches!(entry.phase, Phase::Draining { .. }), "{entry:?}");
                let machine = self.seen.machines.get_mut(&entry.address).unwrap();
                machine.cordoned_by = Some(policy.owner.clone());
                self.seen.drains.insert(index, entry.address.clone());
                self.drains.insert(index, end);
            }
            Effect::StopDrain => {
                self.drains.remove(&index);
                if let Some(address) = self.seen.drains.remove(&index) {
                    self.uncordon(&address);
                }
            }
            Effect::FenceVolumes { node, since, .. } => {
                let entry = &self.queue.entries[&index];
                assert_eq!(entry.phase, Phase::Fencing { since }, "the intent is stored");
                let machine = self.seen.machines.get_mut(&entry.address).unwrap();
                assert_eq!(machine.node, node);
                machine.volumes_fenced = true;
                assert!(self.seen.commands.insert(index), "two at once");
                self.fencings.insert(index, (end, since));
            }
            Effect::Run(command) => {
                assert!(begins, "a command without an intent");
                let entry = &self.queue.entries[&index];
                assert_eq!(
                    entry.phase.command_begun(),
                    Some(command.begun),
                    "the intent is stored"
                );
                if let CommandKind::Repair { attempt } = command.kind {
                    assert!(enabled, "a command of {index} begins in a disabled queue");
                    let machine = self.seen.machines.get(&entry.address);
                    let fenced = machine.is_some_and(|machine| machine.fenced);
                    assert!(!fenced, "a command on a machine whose volumes are free for others");
                    let operation = self.config.operation("a", &entry.operation).unwrap();
                    let step = &operation.repair_steps[entry.step];
                    let marked = machine.is_none_or(|machine| machine.volumes_fenced);
                    assert!(marked || !step.fence_volumes, "the node has its volumes yet");
                    let first = self.begun.insert((index, entry.step, attempt));
                    assert!(first || step.on_restart == OnRestart::Rerun, "repeated: {entry:?}");
                }
                self.seen.commands.insert(index);
                assert!(self.commands.insert(index, (end, command)).is_none(), "two at once");
            }
        }
    }

    fn carry_out(&mut self, action: NodeAction) {
        let machines = self.seen.machines.values_mut();
        let machine = machines.into_iter().find(|one| one.node == action.node()).unwrap();
        match action {
            NodeAction::Uncordon { owner, .. } => {
                assert_eq!(machine.cordoned_by.as_ref(), Some(&owner));
                machine.cordoned_by = None;
            }
            NodeAction::Fence { .. } => machine.fenced = true,
            NodeAction::Unfence { .. } => machine.fenced = false,
            NodeAction::UnfenceVolumes { .. } => machine.volumes_fenced = false,
        }
    }

    fn uncordon(&mut self, address: &str) {
        if let Some(machine) = self.seen.machines.get_mut(address) {
            machine.cordoned_by = None;
        }
    }

    fn check(&self) {
        let entries = || self.queue.entries.values();
        // A machine that is found healthy succeeds without a slot.
        let in_hand = || {
            entries().filter(|entry| {
                entry.phase.holds() && !matches!(entry.phase, Phase::Succeeding { .. })
            })
        };
        assert!(in_hand().count() <= LIMIT, "more than the limit");
        let critical = |entry: &&Entry| {
            self.seen.machines.get(&entry.address).is_some_and(Machine::is_critical)
        };
        assert!(in_hand().filter(critical).count() <= 1, "two controlplane machines at once");
        let mut running = BTreeSet::new();
        for entry in entries().filter(|entry| entry.status() == Status::Processing) {
            assert!(running.insert(&entry.address), "{} has two running entries", entry.address);
        }
    }
}

#[test]
fn no_world_breaks_a_rule_and_every_world_comes_to_rest() {
    let mut begun = 0;
    let mut ends = BTreeSet::new();
    for seed in 0..60 {
        let mut world = World::new(seed);
        for _ in 0..400 {
            world.tick();
        }
        begun += world.begun.len();
        world.chaos = false;
        world.queue.head.enabled = true;
        for healthy in world.healthy.values_mut() {
            *healthy = true;
        }
        for _ in 0..200 {
            world.tick();
        }
        assert!(world.queue.is_settled(), "seed {seed}: {:?}", world.queue.entries);
        for machine in world.seen.machines.values() {
            assert!(machine.cordoned_by.is_none() && !machine.fenced, "seed {seed}: {machine:?}");
            assert!(!machine.volumes_fenced, "seed {seed}: {machine:?}");
        }
        ends.extend(world.queue.entries.values().map(Entry::status));
    }
    assert!(begun > 500, "only {begun} commands were begun: the worlds are too calm");
    assert_eq!(ends.len(), 2, "some succeed and some fail");
}

/// 10,000 entries with all that slows a pass down: many machines, a long list of exclusions, a flap
/// guard, and all health checks due. The bound is for a build without optimisation on a busy
/// machine; it is there to catch a pass that grows with the square of the queue.
#[test]
#[allow(clippy::disallowed_methods, reason = "the time of a pass is what is tested")]
fn a_pass_over_ten_thousand_entries_is_quick() {
    let mut value = base();
    value["max_concurrent_repairs"] = json!(100);
    value["flap_guard"] = json!({ "max_repairs": 3, "window_seconds": 1000 });
    value["excluded_machines"] =
        (0..1000).map(|n| json!(format!("10.200.{}.{}", n / 250, n % 250))).collect();
    let config = config_of(&value);
    let all: Vec<u64> = (0..10_000).collect();
    let watching = Phase::Watching { since: at(0) };
    let phase = |n: u64| if n < 60 { watching } else { Phase::Queued };
    let queue = queue_of(all.iter().map(|n| entry(*n, "drained", phase(*n))).collect());
    let observed = ill(seen(&all), &all, at(5));
    let best = (0..5)
        .map(|_| {
            let begun = std::time::Instant::now();
            let decision = super::super::decide(&config, &queue, &observed, at(10));
            let took = begun.elapsed();
            let starts = words(&decision).iter().filter(|word| word.contains("drain n")).count();
            assert_eq!(starts, 40, "60 of 100 slots are used");
            took
        })
        .min();
    assert!(best.unwrap() < std::time::Duration::from_millis(1500), "{best:?}");
}
