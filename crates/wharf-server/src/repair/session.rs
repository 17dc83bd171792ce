//! A queue that is being worked on.
//!
//! Flow: take in what was written, what ended and what was seen; decide; store each write by
//! compare-and-swap; begin the effect of those that were stored; wait for the next thing to happen.
//! A write that somebody got ahead of is dropped, and the next pass decides anew.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use wharf_core::{
    disruption::{Disruption, Kind},
    repair::{
        Action, Decision, Effect, Entry, Machine, Machines, NodeAction, Observation, Phase, Probed,
        Write, decide,
    },
};
use wharf_store::{Change, Revision, StoreError, Watch};

use super::{
    board::Counted,
    effects::{Begun, Effects, Ended},
    engine::Engine,
    facts::{self, Facts},
    records::{Held, prefix},
    write::{Written, apply_outcome, put_entry, remove_entries},
};
use crate::engine::FencedError;

/// How long the first look at the cluster is waited for. A machine must not be taken for a stranger
/// because a list has not arrived; and a stranger is repaired although the cluster does not answer.
const FIRST_LOOK: Duration = Duration::from_secs(3);
/// Between two passes: changes that come together are decided on together.
const PAUSE: Duration = Duration::from_millis(20);
/// Entries that are written at the same time, so that they share the disk's turns.
const WRITES_AT_ONCE: usize = 16;
/// How often `/metrics` learns of a change: counting a long queue takes a while.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Before what could not be done to a Node is tried again.
const NODE_RETRY: Duration = Duration::from_secs(5);
/// Before a store that failed is asked again.
const RETRY: Duration = Duration::from_secs(1);
/// Even when nothing seems to happen.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// How long a cluster that does not answer is waited for when nothing but its nodes is left to tidy
/// up; it is asked again later.
const TIDY_PATIENCE: Duration = Duration::from_secs(60);

/// What follows a pass.
enum Next {
    /// The next one, when nothing happens before.
    At(Instant),
    /// Nothing is left to do; `tidy`: not even on nodes.
    Rest { tidy: bool },
}

pub(super) struct Session<'a> {
    engine: &'a Engine,
    held: Held,
    watch: Watch,
    seen: Observation,
    facts: watch::Receiver<Facts>,
    guard: watch::Receiver<u64>,
    effects: Effects,
    ends: mpsc::UnboundedReceiver<Ended>,
    /// Ends that were received and are not written yet.
    ended: Vec<Ended>,
    /// Nodes that something is being done to, or was in vain until this time.
    nodes: HashMap<String, Option<Instant>>,
    last_storm: Option<Timestamp>,
    counted: Option<Instant>,
    /// The queue has changed since.
    uncounted: bool,
    /// All that was committed up to here is in the queue.
    revision: Revision,
    begun: Instant,
    _facts: AbortOnDropHandle<()>,
}

impl<'a> Session<'a> {
    pub fn begin(
        engine: &'a Engine,
        (held, revision): (Held, Revision),
        watch: Watch,
        last_storm: Option<Timestamp>,
    ) -> Self {
        let (facts, receiver) = watch::channel(Facts::default());
        let keep = facts::keep(engine.app.clone(), engine.cluster.clone(), facts);
        let (effects, ends) = Effects::new(engine.app.clone(), engine.said().clone());
        Self {
            engine,
            held,
            watch,
            seen: Observation::default(),
            facts: receiver,
            guard: engine.app.disruptions.changed(&engine.cluster),
            effects,
            ends,
            ended: Vec::new(),
            nodes: HashMap::new(),
            last_storm,
            counted: None,
            uncounted: false,
            revision,
            begun: Instant::now(),
            _facts: AbortOnDropHandle::new(tokio::spawn(keep)),
        }
    }

    /// Works until nothing is left to do, or it is told to stop; whether nothing is left on nodes.
    pub async fn run(&mut self, stop: &CancellationToken) -> Result<bool, FencedError> {
        tokio::select! {
            () = stop.cancelled() => return Ok(false),
            () = self.first_look() => {}
        }
        loop {
            let begun = Instant::now();
            let next = tokio::select! {
                () = stop.cancelled() => return Ok(false),
                next = self.turn() => next?,
            };
            let wake = match next {
                Next::At(wake) => wake,
                Next::Rest { tidy } => return Ok(tidy),
            };
            tokio::select! {
                () = stop.cancelled() => return Ok(false),
                () = self.wait(wake) => {}
            }
            tokio::time::sleep_until(begun + PAUSE).await;
        }
    }

    pub fn last_storm(&self) -> Option<Timestamp> {
        self.last_storm
    }

    /// Ends everything that it began; the revision up to which it knows the queue.
    pub async fn end(mut self) -> Revision {
        self.effects.end().await;
        self.revision
    }

    async fn first_look(&mut self) {
        let look = async { drop(self.facts.wait_for(Facts::is_looked_at).await) };
        // An error means that the cluster does not answer.
        let _ = tokio::time::timeout(FIRST_LOOK, look).await;
        // Until all that was out of service is known, nobody knows what else may be.
        self.engine.app.disruptions.opened(&self.engine.cluster).await;
    }

    /// One pass with all that follows from it.
    async fn turn(&mut self) -> Result<Next, FencedError> {
        self.take_ends().await?;
        let facts = self.facts.borrow_and_update().clone();
        self.guard.mark_unchanged();
        if facts.deleting {
            // The entries go with the cluster.
            self.effects.end().await;
            return std::future::pending().await;
        }
        self.seen.machines = facts.machines();
        self.seen.fleet = facts.fleet();
        self.seen.fleet.last_storm = self.last_storm;
        self.seen.etcd.clone_from(&facts.etcd);
        self.effects.cluster.clone_from(&facts.cluster);
        let now = Timestamp::now();
        let Decision { actions, nodes, waits, wake_at, storm } = self.decide(now);
        if storm {
            self.last_storm = Some(now);
        }
        self.engine.said().set_waits(waits.into_iter().collect());
        let wrote = self.carry_out(actions).await?;
        self.uncounted |= wrote;
        let retry = self.tidy(nodes);
        let tidy = retry.is_none() && (facts.seen.is_some() || facts.unreachable);
        let patient = self.begun.elapsed() < TIDY_PATIENCE;
        if !wrote && self.held.is_at_rest() && self.effects.is_empty() && (tidy || !patient) {
            self.engine.said().count(Counted::of(&self.held.queue));
            return Ok(Next::Rest { tidy });
        }
        let now = Instant::now();
        let wake = if wrote { Some(now) } else { wake_at.map(instant_of) };
        let all = [wake, retry, self.count(now)];
        let soonest = all.into_iter().flatten().min();
        Ok(Next::At(soonest.unwrap_or(now + LOOK_AGAIN).min(now + LOOK_AGAIN)))
    }

    /// Decides under the lock of the disruption guard, so that nobody else takes a machine out
    /// between the look and the note.
    fn decide(&mut self, now: Timestamp) -> Decision {
        let Self { engine, held, seen, .. } = self;
        engine.app.disruptions.decide_repairs(&engine.cluster, |guard| {
            seen.guard = guard.clone();
            let decision = decide(&held.config, &held.queue, seen, now);
            let repairs = in_hand(held, &decision.actions, &seen.machines);
            (decision, repairs)
        })
    }

    /// Stores the writes and begins the effects; whether anything was written, by us or by others.
    async fn carry_out(&mut self, actions: Vec<Action>) -> Result<bool, FencedError> {
        let (mut puts, mut removed, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for Action { index, write, effect } in actions {
            match write {
                Write::Put(entry) => puts.push((entry, effect)),
                Write::Remove => {
                    removed.push(index);
                    plain.extend(effect.map(|effect| (index, effect)));
                }
                Write::Nothing => plain.extend(effect.map(|effect| (index, effect))),
            }
        }
        let wrote = !puts.is_empty() || !removed.is_empty();
        // What is to stop stops first.
        for (index, effect) in plain {
            self.begin_effect(index, effect);
        }
        let (engine, held) = (self.engine, &self.held);
        let writes = puts.into_iter().filter_map(|(entry, effect)| {
            let known = *held.revisions.get(&entry.index)?;
            Some(async move { (put_entry(engine, &entry, known).await, entry, effect) })
        });
        let written: Vec<_> = stream::iter(writes).buffer_unordered(WRITES_AT_ONCE).collect().await;
        for (written, entry, effect) in written {
            let index = entry.index;
            match written? {
                Written::Done(revision) => {
                    self.take(*entry, revision);
                    if let Some(effect) = effect {
                        self.begin_effect(index, effect);
                    }
                }
                Written::Overtaken(now) => self.take_or_drop(index, now.map(|now| *now)),
            }
        }
        if !removed.is_empty() {
            let now = Timestamp::now();
            remove_entries(self.engine, &mut self.held, &removed, now).await?;
            for index in removed {
                if !self.held.queue.entries.contains_key(&index) {
                    self.forget(index);
                }
            }
        }
        Ok(wrote)
    }

    fn begin_effect(&mut self, index: u64, effect: Effect) {
        let Some(entry) = self.held.queue.entries.get(&index) else {
            // A drain that nobody wants any more.
            if matches!(effect, Effect::StopDrain) {
                self.stop_drain(index);
            }
            return;
        };
        let about = Begun { index, node: entry.nodename.clone(), address: entry.address.clone() };
        match effect {
            Effect::Probe(command) => {
                self.seen.probes.entry(index).or_default().in_flight = true;
                self.effects.probe(index, command);
            }
            Effect::Run(command) => {
                self.seen.commands.insert(index);
                self.effects.run(&about, command);
            }
            Effect::StartDrain { node, policy } => {
                self.seen.drains.insert(index, about.address.clone());
                self.effects.drain(Begun { node, ..about }, *policy);
            }
            Effect::StopDrain => self.stop_drain(index),
            Effect::FenceVolumes { node, since, until } => {
                self.seen.commands.insert(index);
                self.effects.fence_volumes(Begun { node, ..about }, since, until);
            }
        }
    }

    fn stop_drain(&mut self, index: u64) {
        self.seen.drains.remove(&index);
        self.effects.stop_drain(index);
    }

    /// Takes in all that has ended.
    async fn take_ends(&mut self) -> Result<(), FencedError> {
        let mut outcomes = Vec::new();
        while let Ok(ended) = self.ends.try_recv() {
            self.ended.push(ended);
        }
        for ended in std::mem::take(&mut self.ended) {
            match ended {
                Ended::Probe { index, probed } => self.note_probe(index, probed),
                Ended::Command { index, outcome } => outcomes.push((index, outcome)),
                Ended::Drain { index, id, outcome } => {
                    // One that was stopped meanwhile says nothing any more.
                    if self.effects.end_drain(index, id) {
                        outcomes.push((index, outcome));
                    }
                }
                Ended::Node { node, done } => match done {
                    true => drop(self.nodes.remove(&node)),
                    false => {
                        self.nodes.insert(node, Some(Instant::now() + NODE_RETRY));
                    }
                },
            }
        }
        let (engine, held) = (self.engine, &self.held);
        let writes = outcomes.into_iter().map(|(index, outcome)| {
            let known =
                held.queue.entries.get(&index).cloned().zip(held.revisions.get(&index).copied());
            async move { (index, apply_outcome(engine, &held.config, known, outcome).await) }
        });
        let written: Vec<_> = stream::iter(writes).buffer_unordered(WRITES_AT_ONCE).collect().await;
        for (index, written) in written {
            self.take_or_drop(index, written?);
            self.seen.commands.remove(&index);
            self.seen.drains.remove(&index);
        }
        Ok(())
    }

    fn note_probe(&mut self, index: u64, probed: Probed) {
        if let Some(probe) = self.seen.probes.get_mut(&index) {
            probe.note(probed);
        }
    }

    fn take(&mut self, entry: Entry, revision: Revision) {
        let (index, finished) = (entry.index, entry.is_finished());
        self.held.put(entry, revision);
        if finished {
            self.forget(index);
        }
    }

    fn take_or_drop(&mut self, index: u64, now: Option<(Entry, Revision)>) {
        match now {
            Some((entry, revision)) => self.take(entry, revision),
            None => {
                self.held.drop_entry(index);
                self.forget(index);
            }
        }
    }

    /// Nothing is remembered of entries that are done.
    fn forget(&mut self, index: u64) {
        self.seen.probes.remove(&index);
    }

    /// Begins what is to be done to Nodes; when to try again what could not be done, if anything is
    /// left to do.
    fn tidy(&mut self, actions: Vec<NodeAction>) -> Option<Instant> {
        let wanted: HashSet<&str> = actions.iter().map(NodeAction::node).collect();
        // What has come about by itself need not be tried again.
        self.nodes.retain(|node, retry| retry.is_none() || wanted.contains(node.as_str()));
        let now = Instant::now();
        for action in actions {
            match self.nodes.get(action.node()) {
                Some(None) => {}
                Some(Some(retry)) if *retry > now => {}
                Some(Some(_)) | None => {
                    self.nodes.insert(action.node().to_owned(), None);
                    self.effects.act_on_node(action);
                }
            }
        }
        let retries = self.nodes.values().map(|retry| retry.unwrap_or(now + NODE_RETRY));
        retries.min()
    }

    /// Tells `/metrics` of the queue, now or a little later.
    fn count(&mut self, now: Instant) -> Option<Instant> {
        let due = self.counted.map_or(now, |last| last + COUNT_EVERY);
        if !self.uncounted {
            return None;
        }
        if due > now {
            return Some(due);
        }
        (self.counted, self.uncounted) = (Some(now), false);
        self.engine.said().count(Counted::of(&self.held.queue));
        None
    }

    /// Returns when there is a reason to decide again.
    async fn wait(&mut self, wake: Instant) {
        tokio::select! {
            changes = self.watch.next() => match changes {
                Ok(changes) => {
                    let cluster = &self.engine.cluster;
                    changes.iter().for_each(|change| self.held.take_in(cluster, change));
                    self.revision = changes.last().map_or(self.revision, Change::revision);
                    self.uncounted = true;
                }
                Err(error) => self.read_anew(error).await,
            },
            Ok(()) = self.facts.changed() => {}
            Ok(()) = self.guard.changed() => {}
            Some(ended) = self.ends.recv() => self.ended.push(ended),
            () = tokio::time::sleep_until(wake) => {}
        }
    }

    /// The watch broke: what was written meanwhile is in the records themselves. What is under way
    /// goes on, for a store that is away for a moment is no reason to cut it off.
    async fn read_anew(&mut self, mut error: StoreError) {
        let (store, cluster) = (&self.engine.app.store, &self.engine.cluster);
        loop {
            if !matches!(error, StoreError::Compacted { .. }) {
                tracing::warn!(?error, cluster, "the repair queue waits for the store");
                tokio::time::sleep(RETRY).await;
            }
            let read = async {
                let (held, revision) = Held::read(store, cluster).await?;
                Ok((held, revision, store.watch(&prefix(cluster), revision).await?))
            };
            match read.await {
                Ok((held, revision, watch)) => {
                    (self.held, self.revision, self.watch) = (held, revision, watch);
                    self.uncounted = true;
                    return;
                }
                Err(failed) => error = failed,
            }
        }
    }
}

/// The machines that entries have in hand once the actions are stored.
fn in_hand(held: &Held, actions: &[Action], machines: &Machines) -> Vec<(String, Disruption)> {
    let written: HashMap<u64, Option<Phase>> = actions
        .iter()
        .filter_map(|action| match &action.write {
            Write::Put(entry) => Some((action.index, Some(entry.phase))),
            Write::Remove => Some((action.index, None)),
            Write::Nothing => None,
        })
        .collect();
    let entries = held.queue.entries.values().filter(|entry| {
        written.get(&entry.index).copied().unwrap_or(Some(entry.phase)).is_some_and(Phase::holds)
    });
    let disruption = |entry: &Entry| {
        let critical = machines.get(&entry.address).is_some_and(Machine::is_critical);
        (entry.address.clone(), Disruption { kind: Kind::Repair, critical })
    };
    entries.map(disruption).collect()
}

fn instant_of(time: Timestamp) -> Instant {
    let left = time.duration_since(Timestamp::now());
    Instant::now() + left.try_into().unwrap_or(Duration::ZERO).min(LOOK_AGAIN)
}
