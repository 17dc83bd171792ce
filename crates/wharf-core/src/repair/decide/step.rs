//! What happens to one entry.

use jiff::Timestamp;

use super::{
    BACKGROUND_HOOKS, BACKGROUND_SECONDS, Candidate, Due, Effect, Pass, Wait, Write, cordon_owner,
};
use crate::{
    disruption::{Disruption, Kind},
    repair::{
        command::Command,
        config::{OnRestart, Operation, Step, later},
        entry::{Entry, Phase},
        observation::Probe,
    },
};

/// A drain ends at its deadline by itself. One that says nothing for so long after it is ended from
/// here.
const DRAIN_GRACE_SECONDS: u64 = 60;

/// What is known of a machine's health.
enum Health {
    /// Nothing that counts.
    Unknown,
    /// As of a health check that was begun at this time.
    Ill(Timestamp),
    /// Healthy, but not for long enough; it will be at this time.
    Stabilising(Timestamp),
    Stable,
}

impl<'a> Pass<'a> {
    /// An entry that is to be deleted goes as soon as nothing runs for it. A command is not cut
    /// off: half a firmware update is worse than a late deletion.
    pub(super) fn dequeue(&mut self, entry: &'a Entry) {
        if self.seen.commands.contains(&entry.index) {
            return self.wait(entry, Wait::Command);
        }
        let effect = self.seen.drains.contains_key(&entry.index).then_some(Effect::StopDrain);
        self.act(entry.index, Write::Remove, effect);
    }

    pub(super) fn fail_without_procedure(&mut self, entry: &'a Entry) {
        if self.seen.commands.contains(&entry.index) {
            return self.wait(entry, Wait::Command);
        }
        let mut entry = entry.clone();
        let reason = format!(
            "the configuration has no operation {} for machine type {}",
            entry.operation, entry.machine_type
        );
        entry.end(false, &reason, self.now);
        self.put_stopping_drain(entry);
    }

    /// An entry that has its machine in hand.
    pub(super) fn advance(&mut self, entry: &'a Entry, operation: &'a Operation) {
        if entry.phase.command_begun().is_some() && self.seen.commands.contains(&entry.index) {
            return self.wait(entry, Wait::Command);
        }
        match entry.phase {
            Phase::Commanding { attempt, .. } => self.command_lost(entry, operation, attempt),
            Phase::Fencing { since } => self.tend_fencing(entry, since),
            Phase::Succeeding { begun: None } => self.succeed(entry, operation),
            Phase::Failing { begun: None } => {
                let reason = entry.reason.clone();
                self.fail(entry.clone(), operation, &reason);
            }
            Phase::Succeeding { begun: Some(_) } => self.success_lost(entry, operation),
            Phase::Failing { begun: Some(_) } => {
                let mut entry = entry.clone();
                let reason = format!("{}; the failure command was cut off", entry.reason);
                entry.end(false, &reason, self.now);
                self.put(entry, None);
            }
            Phase::Stepping { .. }
            | Phase::Draining { .. }
            | Phase::Drained { .. }
            | Phase::Pausing { .. }
            | Phase::Watching { .. } => self.tend(entry, operation),
            Phase::Queued | Phase::Waiting | Phase::Succeeded { .. } | Phase::Failed { .. } => {}
        }
    }

    /// An entry that has no machine in hand.
    pub(super) fn consider(&mut self, candidate: Candidate<'a>) {
        let Candidate { entry, operation, probe, .. } = candidate;
        let first = *self.first.entry(&entry.address).or_insert(entry.index);
        if first != entry.index {
            return self.wait(entry, Wait::SameMachine(first));
        }
        match health_of(probe, operation, None) {
            Health::Stable => return self.succeed_in_turn(entry, operation),
            Health::Stabilising(until) => {
                self.probe_by(entry, operation, until);
                return self.wait(entry, Wait::Stabilising(until));
            }
            Health::Ill(_) | Health::Unknown => {}
        }
        if let Some(wait) = self.gate(candidate) {
            self.probe_later(candidate);
            return self.wait(entry, wait);
        }
        let critical = candidate.is_critical();
        self.guard.begin(&entry.address, Disruption { kind: Kind::Repair, critical });
        self.begin_step(entry.clone(), entry, operation, false);
    }

    /// It has its own end and is not cut off, as a command is not.
    fn tend_fencing(&mut self, entry: &'a Entry, since: Timestamp) {
        let until = later(since, self.config.fence_timeout_seconds);
        if !self.seen.commands.contains(&entry.index) {
            let node = entry.nodename.clone();
            let effect = Effect::FenceVolumes { node, since, until };
            self.act(entry.index, Write::Nothing, Some(effect));
        }
        self.wait(entry, Wait::Volumes(until));
    }

    /// Between commands: health first, then the phase's own business.
    fn tend(&mut self, entry: &'a Entry, operation: &'a Operation) {
        let watching = match entry.phase {
            Phase::Watching { since } => Some(since),
            Phase::Queued
            | Phase::Waiting
            | Phase::Stepping { .. }
            | Phase::Draining { .. }
            | Phase::Drained { .. }
            | Phase::Fencing { .. }
            | Phase::Commanding { .. }
            | Phase::Pausing { .. }
            | Phase::Succeeding { .. }
            | Phase::Failing { .. }
            | Phase::Succeeded { .. }
            | Phase::Failed { .. } => None,
        };
        let health = self.health(entry, operation, watching);
        match health {
            Health::Stable => return self.succeed(entry, operation),
            Health::Stabilising(until) => {
                self.probe_by(entry, operation, until);
                return self.wait(entry, Wait::Stabilising(until));
            }
            Health::Ill(_) | Health::Unknown => {}
        }
        match entry.phase {
            Phase::Draining { since } => self.tend_drain(entry, operation, since),
            Phase::Drained { since } => self.tend_drained(entry, operation, since),
            Phase::Pausing { attempt, until } => {
                self.tend_pause(entry, operation, attempt, until);
            }
            Phase::Watching { since } => self.tend_watch(entry, operation, since, &health),
            Phase::Stepping { .. } if !self.queue.head.enabled => {
                self.probe_by(entry, operation, Timestamp::MAX);
                self.wait(entry, Wait::Disabled);
            }
            Phase::Stepping { .. } => self.begin_step(entry.clone(), entry, operation, false),
            Phase::Queued
            | Phase::Waiting
            | Phase::Fencing { .. }
            | Phase::Commanding { .. }
            | Phase::Succeeding { .. }
            | Phase::Failing { .. }
            | Phase::Succeeded { .. }
            | Phase::Failed { .. } => {}
        }
    }

    fn tend_drain(&mut self, entry: &'a Entry, operation: &'a Operation, since: Timestamp) {
        if !self.queue.head.enabled {
            return self.give_back(entry);
        }
        let Some(machine) = self.machine(entry) else {
            let mut left = entry.clone();
            left.nodename.clear();
            let reason = "the machine has left the cluster, so there is nothing to drain";
            left.move_to(Phase::Drained { since: self.now }, reason, self.now);
            return self.put_stopping_drain(left);
        };
        let running = self.seen.drains.contains_key(&entry.index);
        let deadline = later(since, self.config.eviction_timeout_seconds);
        let overdue = later(deadline, DRAIN_GRACE_SECONDS);
        if running && self.now >= overdue {
            let mut late = entry.clone();
            let reason = "the drain did not end by its deadline";
            late.back_off(self.config.backoff_base_seconds, reason, self.now);
            return self.put_stopping_drain(late);
        }
        if !running {
            let effect = self.start_drain(entry, &machine.node, since);
            self.act(entry.index, Write::Nothing, Some(effect));
        }
        self.wake(overdue);
        self.probe_by(entry, operation, Timestamp::MAX);
        self.wait(entry, Wait::Drain);
    }

    fn tend_drained(&mut self, entry: &'a Entry, operation: &'a Operation, since: Timestamp) {
        if !self.queue.head.enabled {
            return self.give_back(entry);
        }
        if let Some(wait) = self.etcd_guard(entry, self.machine(entry)) {
            self.probe_by(entry, operation, Timestamp::MAX);
            return self.wait(entry, wait);
        }
        // A machine that recovered during the drain is not reset.
        if !self.is_ill(entry, operation, Some(since)) {
            return self.wait(entry, Wait::HealthCheck);
        }
        match operation.repair_steps.get(entry.step) {
            Some(step) => self.run(entry.clone(), step, 1),
            None => self.fail_without_step(entry, operation),
        }
    }

    fn tend_pause(
        &mut self,
        entry: &'a Entry,
        operation: &'a Operation,
        attempt: u32,
        until: Timestamp,
    ) {
        if !self.queue.head.enabled || self.now < until {
            self.probe_by(entry, operation, until);
            let disabled = !self.queue.head.enabled;
            return self.wait(entry, if disabled { Wait::Disabled } else { Wait::Pause(until) });
        }
        if !self.is_ill(entry, operation, None) {
            return self.wait(entry, Wait::HealthCheck);
        }
        match operation.repair_steps.get(entry.step) {
            Some(step) => self.run(entry.clone(), step, attempt),
            None => self.fail_without_step(entry, operation),
        }
    }

    /// The watch ends with a health check that was begun at its end, so that a step without a
    /// watch has one too.
    fn tend_watch(
        &mut self,
        entry: &'a Entry,
        operation: &'a Operation,
        since: Timestamp,
        health: &Health,
    ) {
        let step = operation.repair_steps.get(entry.step);
        let end = later(since, step.map_or(0, |step| step.watch_seconds));
        let looked_at_the_end = matches!(health, Health::Ill(begun) if *begun >= end);
        if !looked_at_the_end {
            match health {
                Health::Unknown => self.probe_at(entry, operation, since),
                Health::Ill(_) | Health::Stabilising(_) | Health::Stable => {
                    self.probe_by(entry, operation, end);
                }
            }
            return self.wait(entry, Wait::Watching(end));
        }
        let next = entry.step + 1;
        if next >= operation.repair_steps.len() {
            return self.fail(
                entry.clone(),
                operation,
                "the machine is not healthy after all steps",
            );
        }
        if !self.queue.head.enabled {
            self.probe_by(entry, operation, Timestamp::MAX);
            return self.wait(entry, Wait::Disabled);
        }
        let mut moved = entry.clone();
        moved.step = next;
        let reason = format!("the machine is not healthy after step {}", entry.step);
        moved.move_to(Phase::Stepping { since: self.now }, &reason, self.now);
        self.begin_step(moved, entry, operation, true);
    }

    /// Begins the entry's step, with a drain if it needs one. `changed` says that the entry differs
    /// from the stored one already.
    fn begin_step(
        &mut self,
        mut entry: Entry,
        stored: &'a Entry,
        operation: &'a Operation,
        changed: bool,
    ) {
        self.taken.push(&stored.address);
        let Some(step) = operation.repair_steps.get(entry.step) else {
            return self.fail_without_step(stored, operation);
        };
        let mut wait = self.etcd_guard(&entry, self.machine(&entry));
        if wait.is_some() {
            self.probe_by(stored, operation, Timestamp::MAX);
        } else if !self.is_ill(stored, operation, None) {
            wait = Some(Wait::HealthCheck);
        }
        if let Some(wait) = wait {
            self.wait(stored, wait);
            if changed {
                self.put(entry, None);
            }
            return;
        }
        let node = self.machine(&entry).map(|machine| machine.node.as_str());
        node.unwrap_or_default().clone_into(&mut entry.nodename);
        match node.filter(|_| step.need_drain) {
            Some(node) => {
                entry.started.get_or_insert(self.now);
                let reason = format!("step {} begins with a drain", entry.step);
                entry.move_to(Phase::Draining { since: self.now }, &reason, self.now);
                let effect = self.start_drain(&entry, node, self.now);
                self.put(entry, Some(effect));
            }
            None => self.run(entry, step, 1),
        }
    }

    fn start_drain(&self, entry: &Entry, node: &str, since: Timestamp) -> Effect {
        let policy =
            self.config.drain_policy(&cordon_owner(&self.queue.head, &entry.address), since);
        Effect::StartDrain { node: node.to_owned(), policy: Box::new(policy) }
    }

    /// Writes down that the command is begun, and begins it.
    fn run(&mut self, mut entry: Entry, step: &Step, attempt: u32) {
        // The command may switch the machine on. Its volumes must not be free for others then, so
        // that the proof of its being off is taken back first.
        if entry.fenced || self.machine(&entry).is_some_and(|machine| machine.fenced) {
            self.wait(&entry, Wait::Fenced);
            if std::mem::take(&mut entry.fenced) {
                self.put(entry, None);
            }
            return;
        }
        entry.started.get_or_insert(self.now);
        if step.fence_volumes && !entry.volumes_fenced && self.machine(&entry).is_some() {
            return self.fence_volumes(entry);
        }
        entry.commands_begun = entry.commands_begun.saturating_add(1);
        let node = self.machine(&entry).map(|machine| machine.node.as_str());
        node.unwrap_or_default().clone_into(&mut entry.nodename);
        let reason = format!(
            "the command of step {} runs, attempt {attempt} of {}",
            entry.step,
            step.command_retries.saturating_add(1)
        );
        entry.move_to(Phase::Commanding { attempt, begun: self.now }, &reason, self.now);
        let command = Command::repair(&entry, step, attempt, self.now);
        self.put(entry, Some(Effect::Run(command)));
    }

    /// Writes down that the node's volumes are to be taken from it, and begins with it.
    fn fence_volumes(&mut self, mut entry: Entry) {
        let node = self.machine(&entry).map(|machine| machine.node.clone()).unwrap_or_default();
        node.clone_into(&mut entry.nodename);
        entry.volumes_fenced = true;
        let since = self.now;
        let reason =
            format!("the volumes of the node are taken from it before step {}", entry.step);
        entry.move_to(Phase::Fencing { since }, &reason, self.now);
        let until = later(since, self.config.fence_timeout_seconds);
        self.put(entry, Some(Effect::FenceVolumes { node, since, until }));
    }

    /// The command was begun, and nobody runs it: the server stopped, or another took over.
    fn command_lost(&mut self, entry: &'a Entry, operation: &'a Operation, attempt: u32) {
        let Some(step) = operation.repair_steps.get(entry.step) else {
            return self.fail_without_step(entry, operation);
        };
        match step.on_restart {
            OnRestart::Watch => {
                let mut entry = entry.clone();
                let reason = "the server stopped while the command ran; it is not repeated, and the \
                              machine is watched";
                entry.move_to(Phase::Watching { since: self.now }, reason, self.now);
                self.put(entry, None);
            }
            OnRestart::Rerun if !self.queue.head.enabled => self.wait(entry, Wait::Disabled),
            OnRestart::Rerun => match self.health(entry, operation, None) {
                Health::Stable => self.succeed(entry, operation),
                Health::Ill(_) | Health::Unknown | Health::Stabilising(_) => {
                    if self.is_ill(entry, operation, None) {
                        self.run(entry.clone(), step, attempt);
                    } else {
                        self.wait(entry, Wait::HealthCheck);
                    }
                }
            },
        }
    }

    /// What a half-run success command has done is not known, so it is not claimed to be done.
    fn success_lost(&mut self, entry: &'a Entry, operation: &'a Operation) {
        let step = operation.repair_steps.get(entry.step);
        if step.is_some_and(|step| step.on_restart == OnRestart::Rerun) {
            return self.succeed(entry, operation);
        }
        let mut entry = entry.clone();
        let reason = "the machine is healthy, but the server stopped while the success command ran; \
                      it is not repeated";
        entry.end(false, reason, self.now);
        self.put(entry, None);
    }

    fn succeed_in_turn(&mut self, entry: &'a Entry, operation: &'a Operation) {
        if !operation.success_command.is_empty() {
            if self.commands >= BACKGROUND_HOOKS {
                return self.wait(entry, Wait::Hooks);
            }
            self.commands += 1;
        }
        self.succeed(entry, operation);
    }

    fn succeed(&mut self, entry: &'a Entry, operation: &'a Operation) {
        let mut entry = entry.clone();
        entry.blocking_pods.clear();
        if operation.success_command.is_empty() {
            entry.end(true, "the machine is healthy", self.now);
            return self.put_stopping_drain(entry);
        }
        let was_draining = self.seen.drains.contains_key(&entry.index);
        if was_draining {
            self.act(entry.index, Write::Nothing, Some(Effect::StopDrain));
        }
        let reason = "the machine is healthy; the success command runs";
        entry.move_to(Phase::Succeeding { begun: Some(self.now) }, reason, self.now);
        let command = Command::success(&entry, operation, self.now);
        self.put(entry, Some(Effect::Run(command)));
    }

    fn fail(&mut self, mut entry: Entry, operation: &'a Operation, reason: &str) {
        if operation.failure_command.is_empty() {
            entry.end(false, reason, self.now);
            return self.put_stopping_drain(entry);
        }
        entry.move_to(Phase::Failing { begun: Some(self.now) }, reason, self.now);
        let command = Command::failure(&entry, operation, self.now);
        self.put(entry, Some(Effect::Run(command)));
    }

    fn fail_without_step(&mut self, entry: &'a Entry, operation: &'a Operation) {
        let reason = format!("the configuration has no step {} any more", entry.step);
        self.fail(entry.clone(), operation, &reason);
    }

    /// The queue was disabled: the drain is abandoned, and begun anew when it is enabled. It is not
    /// the machine's fault, so the next try does not have to wait longer.
    fn give_back(&mut self, entry: &'a Entry) {
        let mut entry = entry.clone();
        entry.give_back("the repair queue was disabled during the drain", self.now);
        self.put_stopping_drain(entry);
    }

    fn put_stopping_drain(&mut self, entry: Entry) {
        let effect = self.seen.drains.contains_key(&entry.index).then_some(Effect::StopDrain);
        self.put(entry, effect);
    }

    /// Health, by checks that were begun at `bound` or later.
    fn health(&self, entry: &Entry, operation: &Operation, bound: Option<Timestamp>) -> Health {
        health_of(self.seen.probes.get(&entry.index), operation, bound)
    }

    /// Whether a health check of just now says so; if there is none it is asked for.
    fn is_ill(
        &mut self,
        entry: &'a Entry,
        operation: &Operation,
        bound: Option<Timestamp>,
    ) -> bool {
        let oldest = self.now.saturating_sub(std::time::Duration::from_secs(
            operation.health_check_interval_seconds,
        ));
        let oldest = oldest.unwrap_or(Timestamp::MIN).max(bound.unwrap_or(Timestamp::MIN));
        match self.health(entry, operation, Some(oldest)) {
            Health::Ill(_) => true,
            Health::Unknown | Health::Stabilising(_) | Health::Stable => {
                self.probe_at(entry, operation, self.now);
                false
            }
        }
    }

    /// Looks at the machine when the interval since the last look is over, or at `latest`.
    fn probe_by(&mut self, entry: &'a Entry, operation: &Operation, latest: Timestamp) {
        let last = self.last_probe(entry);
        let due = last.map_or(self.now, |last| {
            let next = later(last, operation.health_check_interval_seconds);
            // A time that has been looked at is over.
            if last < latest { next.min(latest) } else { next }
        });
        self.probe_at(entry, operation, due);
    }

    fn probe_at(&mut self, entry: &'a Entry, operation: &Operation, due: Timestamp) {
        if self.seen.probes.get(&entry.index).is_some_and(|probe| probe.in_flight) {
            return;
        }
        if self.now < due {
            return self.wake(due);
        }
        let command = Command::health_check(entry, operation, self.now);
        self.act(entry.index, Write::Nothing, Some(Effect::Probe(command)));
    }

    /// For entries that only wait: rarely, and a few at a time.
    fn probe_later(&mut self, candidate: Candidate<'a>) {
        if candidate.probe.is_some_and(|probe| probe.in_flight) {
            return;
        }
        let last = candidate.probe.and_then(|probe| probe.last).map(|last| last.begun);
        let interval = candidate.operation.health_check_interval_seconds.max(BACKGROUND_SECONDS);
        let due = last.map_or(self.now, |last| later(last, interval));
        if self.now < due {
            return self.wake(due);
        }
        let Candidate { entry, operation, .. } = candidate;
        self.due.push(Due { turn: (last, entry.index), entry, operation });
    }

    fn last_probe(&self, entry: &Entry) -> Option<Timestamp> {
        Some(self.seen.probes.get(&entry.index)?.last?.begun)
    }
}

fn health_of(probe: Option<&Probe>, operation: &Operation, bound: Option<Timestamp>) -> Health {
    let bound = bound.unwrap_or(Timestamp::MIN);
    let last = probe.and_then(|probe| probe.last).filter(|last| last.begun >= bound);
    let Some(last) = last else { return Health::Unknown };
    if !last.healthy {
        return Health::Ill(last.begun);
    }
    let since = probe.and_then(|probe| probe.healthy_since).unwrap_or(last.begun).max(bound);
    let until = later(since, operation.stable_seconds);
    if last.begun >= until { Health::Stable } else { Health::Stabilising(until) }
}
