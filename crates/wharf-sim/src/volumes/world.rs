//! The world: what happens to machines, pods and the network, and what must hold.

use std::{collections::BTreeMap, time::Duration};

use wharf_core::volume::{
    attach::RwoScope,
    backend::Backend,
    fence::NodeObject,
    guard::{Duty, Watch, decide_duty},
    journal::PodStage,
    lease::{Tenure, Terms},
};

use super::{
    Plant, Tally, Violation,
    agent::{Agent, Shared, note},
    machine::{Machine, PodHere, PodState},
    network::{Network, Order, Packet, TICK},
    server::{Answer, Pod, Server, node_name},
    storage::{Image, Writer},
};
use crate::chance::Chance;

/// In milliseconds: so long everything goes wrong, so long all is well afterwards and pods have their
/// volumes, and so long it takes until nothing is left when they go.
const CHAOS: u64 = 110_000;
const USE: u64 = 60_000;
const CALM: u64 = 90_000;
/// An agent notices within this time that a volume was cut off.
const NOTICED: u64 = 10_000;
/// How often in a tick packets arrive and agents act.
const ROUNDS: u64 = 2;

/// Makes the world of a seed and lets it run to its end.
pub fn run(seed: u64, plant: Option<Plant>) -> Result<Tally, Violation> {
    let mut world = World::new(seed, plant);
    while world.shared.now < CHAOS + USE + CALM {
        world.shared.now += TICK;
        let now = world.shared.now;
        match now {
            ..=CHAOS => world.disturb(),
            _ => world.heal(),
        }
        if now > CHAOS && now <= CHAOS + USE {
            world.keep_newest();
        } else if now > CHAOS + USE {
            world.end_pods();
        }
        world.tick();
        let waits = (now == CHAOS + USE).then(|| world.who_cannot_write()).flatten();
        let useless = world.what_is_useless();
        if let Some(what) = world.shared.accident.take().or(waits).or(useless) {
            return Err(Violation { seed, at: now, what });
        }
        if now > CHAOS + USE && world.is_empty() {
            return Ok(world.shared.tally);
        }
    }
    match world.left() {
        Some(what) => Err(Violation { seed, at: world.shared.now, what }),
        None => Ok(world.shared.tally),
    }
}

struct World {
    shared: Shared,
    server: Server,
    nodes: Vec<(Machine, Agent)>,
    pods: u64,
    node_uids: u64,
}

impl World {
    fn new(seed: u64, plant: Option<Plant>) -> Self {
        let mut chance = Chance::new(seed);
        let kinds: &[Backend] = match chance.below(4) {
            0 | 1 => &[Backend::Loopfile],
            2 => &[Backend::Proxy, Backend::Rbd],
            _ => &[Backend::Loopfile, Backend::Rbd],
        };
        // Where storage shuts nobody out no clock is compared, and any may be wrong by minutes.
        let is_watched = kinds.iter().all(|backend| !backend.refuses_old_clients());
        let off = if is_watched { 600_000 } else { 1_000 };
        let offset =
            |chance: &mut Chance| i64::try_from(chance.below(off)).unwrap_or(0) - off as i64 / 2;
        let nodes = (0..3).map(|node| (Machine::new(node, offset(&mut chance)), Agent::new()));
        let nodes = nodes.collect();
        let seconds = Duration::from_secs;
        let terms = Terms {
            duration: seconds(10),
            renew_every: seconds(2),
            cut_within: seconds(4),
            skew: seconds(1),
        };
        let rwo_scope = if chance.one_in(4) { RwoScope::Node } else { RwoScope::Pod };
        let forces = chance.one_in(2);
        let shared = Shared {
            now: 0,
            chance,
            network: Network::default(),
            images: kinds.iter().map(|backend| Image::new(*backend)).collect(),
            terms,
            plant,
            rwo_scope,
            forces,
            tally: Tally::default(),
            accident: None,
        };
        Self { shared, server: Server::default(), nodes, pods: 0, node_uids: 0 }
    }

    fn tick(&mut self) {
        let first = self.shared.chance.index(self.nodes.len());
        let order: Vec<usize> =
            (0..self.nodes.len()).map(|turn| (first + turn) % self.nodes.len()).collect();
        for node in &order {
            let machine = &mut self.nodes[*node].0;
            machine.api |= machine.back_at != 0 && self.shared.now >= machine.back_at;
            if machine.api {
                machine.back_at = 0;
            }
            if machine.is_running(self.shared.now) {
                self.land(*node);
                self.run_kubelet(*node);
                self.run_guard(*node);
                self.run_pods(*node);
            }
        }
        // A quick answer comes within the tick.
        for _ in 0..ROUNDS {
            for packet in self.shared.network.arriving(self.shared.now) {
                self.deliver(packet);
            }
            for node in &order {
                self.run_agent(*node);
            }
        }
    }

    fn run_agent(&mut self, node: usize) {
        let (machine, agent) = &mut self.nodes[node];
        if !machine.is_running(self.shared.now) {
            return;
        }
        if agent.is_running(self.shared.now) {
            agent.step(machine, &mut self.shared);
        } else if !agent.up && self.shared.chance.one_in(8 * ROUNDS) {
            agent.start();
        }
    }

    fn deliver(&mut self, packet: Packet) {
        let shared = &mut self.shared;
        let answer = match packet {
            Packet::ToServer { node, id, ask } if self.nodes[node].0.api => {
                Some((node, id, self.server.answer(&ask)))
            }
            Packet::ToStorage { node, id, order } if self.nodes[node].0.storage => {
                let answer = match order {
                    Order::Open { volume, generation } => {
                        match shared.images[volume].open(node, generation) {
                            true => Answer::Done,
                            false => Answer::Conflict,
                        }
                    }
                    Order::Fence { volume, generation } => {
                        shared.images[volume].fence(generation);
                        Answer::Done
                    }
                };
                Some((node, id, answer))
            }
            Packet::Data { node, volume, writer } if self.nodes[node].0.storage => {
                let taken = shared.images[volume].write(writer);
                note(shared, taken);
                None
            }
            Packet::ToAgent { node, id, answer } => {
                let (machine, agent) = &mut self.nodes[node];
                if machine.up && agent.up {
                    agent.receive(id, answer);
                }
                None
            }
            Packet::ToServer { .. } | Packet::ToStorage { .. } | Packet::Data { .. } => None,
        };
        if let Some((node, id, answer)) = answer {
            let packet = Packet::ToAgent { node, id, answer };
            if shared.now < self.nodes[node].0.slow_until {
                shared.network.send_slowly(shared.now, packet, &mut shared.chance);
            } else {
                shared.network.send(shared.now, packet, &mut shared.chance);
            }
        }
    }

    /// Kubelet keeps its Node, starts what is assigned to it, and ends what is deleted.
    fn run_kubelet(&mut self, node: usize) {
        let machine = &mut self.nodes[node].0;
        if !machine.api || !self.shared.chance.one_in(3) {
            return;
        }
        let uids = &mut self.node_uids;
        let object = self.server.nodes.entry(node).or_insert_with(|| {
            *uids += 1;
            NodeObject { uid: format!("uid-{uids}"), ..NodeObject::default() }
        });
        object.boot_id = machine.boot_id();
        machine.node_uid.clone_from(&object.uid);
        for (uid, pod) in &self.server.pods {
            if pod.node == node && !pod.deleting && !machine.pods.contains_key(uid) {
                let (name, volume) = (pod.name.clone(), pod.volume);
                let here = PodHere { name, volume, state: PodState::Starting };
                machine.pods.insert(uid.clone(), here);
            }
        }
        let server = &self.server;
        let wanted = |uid: &String| server.pods.get(uid).is_some_and(|pod| !pod.deleting);
        // Kubelet does not unmount what it never mounted.
        machine.pods.retain(|uid, pod| wanted(uid) || pod.state != PodState::Starting);
        for (uid, pod) in &mut machine.pods {
            if !wanted(uid) {
                pod.state = PodState::Stopped;
            }
        }
        let here = &machine.pods;
        self.server
            .pods
            .retain(|uid, pod| pod.node != node || !pod.deleting || here.contains_key(uid));
    }

    /// Cuts off what promised it when the lease ends, whatever the agent does.
    fn run_guard(&mut self, node: usize) {
        let (machine, agent) = &mut self.nodes[node];
        if self.shared.plant == Some(Plant::NoSelfFencing) {
            return;
        }
        let (now, terms) = (self.shared.now, self.shared.terms);
        let Some(renewed) = machine.renewed else { return };
        let tenure = Tenure { number: machine.tenure, renewed };
        let ends_at = renewed.after(terms.duration);
        let watch = Watch { cut_at: tenure.cut_at(&terms), ends_at };
        let duty = decide_duty(&watch, machine.since_boot(now));
        if !matches!(duty, Duty::Rest(_)) && machine.cut_done.is_none() && machine.has_open_device()
        {
            // It may be what has ended; if not, it goes on beside the guard.
            if self.shared.chance.one_in(2) {
                agent.kill();
            }
            let within = u64::try_from(terms.cut_within.as_millis()).unwrap_or(0);
            let ticks = self.shared.chance.below((within / TICK).max(1));
            machine.cut_done = Some(now + ticks * TICK);
        }
        if machine.cut_done.is_some_and(|done| now >= done) {
            machine.cut_done = None;
            self.shared.tally.cuts += 1;
            let images = &self.shared.images;
            // Now and then something else keeps it from being done.
            let fails = self.shared.forces && self.shared.chance.one_in(8);
            let open = machine.devices.iter_mut().filter(|(_, device)| device.self_fence && !fails);
            for (volume, device) in open {
                device.try_cut(images[*volume].backend, machine.storage);
            }
        }
        let is_forced = self.shared.forces && self.shared.plant != Some(Plant::NoForcing);
        if duty == Duty::LastCall && machine.has_open_device() && is_forced {
            self.shared.tally.forced += 1;
            self.crash(node);
        }
    }

    /// What was on its way to the storage lands, whoever writes there by now.
    fn land(&mut self, node: usize) {
        let machine = &mut self.nodes[node].0;
        if !machine.storage {
            return;
        }
        for (volume, device) in machine.devices.iter_mut().filter(|(_, device)| device.queued) {
            device.queued = false;
            self.shared.tally.late += 1;
            let writer = Writer { node, generation: device.generation };
            let taken = self.shared.images[*volume].write(writer);
            note(&mut self.shared, taken);
        }
    }

    fn crash(&mut self, node: usize) {
        let (machine, agent) = &mut self.nodes[node];
        machine.crash();
        self.shared.network.end_data(node, None);
        agent.kill();
    }

    fn run_pods(&mut self, node: usize) {
        let machine = &mut self.nodes[node].0;
        let shared = &mut self.shared;
        for (uid, pod) in machine.pods.iter_mut().filter(|(_, pod)| pod.state == PodState::Running)
        {
            let dir = format!("/pods/{uid}");
            let device = machine.devices.get_mut(&pod.volume);
            let usable = device.filter(|device| device.bound.contains(&dir) && !device.cut);
            let Some(device) = usable else {
                // It fails, and is started again.
                pod.state = PodState::Starting;
                continue;
            };
            if !shared.chance.one_in(3) {
                continue;
            }
            if !machine.storage {
                // Storage that refuses old clients refuses this one later, too.
                device.queued |= !shared.images[pod.volume].backend.refuses_old_clients();
                continue;
            }
            device.dirty = true;
            let writer = Writer { node, generation: device.generation };
            let remote = shared.images[pod.volume].backend.refuses_old_clients();
            if remote && shared.chance.one_in(4) {
                let packet = Packet::Data { node, volume: pod.volume, writer };
                shared.network.send(shared.now, packet, &mut shared.chance);
            } else {
                let taken = shared.images[pod.volume].write(writer);
                note(shared, taken);
            }
        }
    }

    fn disturb(&mut self) {
        let node = self.shared.chance.index(self.nodes.len());
        let now = self.shared.now;
        let chance = &mut self.shared.chance;
        let stoppable = self.shared.images.iter().all(|image| image.backend.refuses_old_clients());
        let can_lose_storage = stoppable || self.shared.forces;
        let (machine, agent) = &mut self.nodes[node];
        match chance.below(300) {
            0 if machine.up => {
                self.shared.tally.crashes += 1;
                self.crash(node);
            }
            1..=12 if !machine.up => {
                machine.boot(now);
                agent.start();
            }
            13..=15 => agent.kill(),
            16..=17 => agent.stopped_until = now + chance.between(1, 75) * TICK,
            18..=20 if stoppable => machine.stopped_until = now + chance.between(1, 100) * TICK,
            21..=22 => {
                machine.api = false;
                machine.back_at = now + chance.between(1, 150) * TICK;
            }
            33 if can_lose_storage => machine.storage = false,
            34..=40 => machine.storage = true,
            41 => drop(self.server.nodes.remove(&node)),
            42 => self.taint(node, true),
            43..=48 => self.taint(node, false),
            50..=56 => self.move_pod(),
            60..=64 => self.cut_off_a_writer(),
            65..=67 => self.delay_a_renewal(),
            _ => {}
        }
    }

    /// The worst case: a node that writes loses the API server, and its pod is made anew elsewhere. It
    /// comes back about when the other one takes over.
    fn cut_off_a_writer(&mut self) {
        let nodes = self.nodes.len();
        let writes = |(machine, _): &&mut (Machine, Agent)| {
            machine.pods.values().any(|pod| pod.state == PodState::Running)
        };
        let Some((machine, _)) = self.nodes.iter_mut().find(writes) else { return };
        let node = machine.node;
        machine.api = false;
        machine.back_at = self.shared.now + self.shared.chance.between(20, 90) * TICK;
        // As by one network for both; the way to the API server is back when volumes have to be cut off, and
        // the lease has not ended.
        if self.shared.forces && self.shared.chance.one_in(2) {
            machine.storage = false;
            let after = self.shared.chance.between(30, 48) * TICK;
            machine.back_at = machine.after_renewal(self.shared.now, after);
        }
        let running = machine.pods.values().find(|pod| pod.state == PodState::Running);
        let Some(PodHere { name, volume, .. }) = running.cloned() else { return };
        self.server.pods.retain(|_, pod| pod.volume != volume);
        self.pods += 1;
        let other = (node + 1 + self.shared.chance.index(nodes - 1)) % nodes;
        let pod = Pod { name, node: other, volume, deleting: false };
        self.server.pods.insert(format!("u{}", self.pods), pod);
    }

    /// A renewal of a node that holds volumes is under way when they have to be cut off.
    fn delay_a_renewal(&mut self) {
        let now = self.shared.now;
        let mut holders = self.nodes.iter_mut().map(|(machine, _)| machine);
        let Some(machine) = holders.find(|machine| machine.has_open_device()) else { return };
        machine.api = false;
        let after = self.shared.chance.between(18, 25) * TICK;
        machine.back_at = machine.after_renewal(now, after);
        machine.slow_until = machine.back_at + 20 * TICK;
    }

    fn taint(&mut self, node: usize, out_of_service: bool) {
        if let Some(object) = self.server.nodes.get_mut(&node) {
            object.out_of_service = out_of_service;
        }
    }

    /// A pod is made, deleted or moved; now and then a second one wants the same volume.
    fn move_pod(&mut self) {
        let chance = &mut self.shared.chance;
        let volume = chance.index(self.shared.images.len());
        let by_force = chance.one_in(2);
        let keeps_old = chance.one_in(5);
        if !keeps_old {
            for pod in self.server.pods.values_mut().filter(|pod| pod.volume == volume) {
                pod.deleting = true;
            }
            if by_force {
                self.server.pods.retain(|_, pod| pod.volume != volume);
            }
        }
        self.pods += 1;
        let name = if keeps_old { format!("other{}", self.pods) } else { format!("db{volume}") };
        let node = chance.index(self.nodes.len());
        let pod = Pod { name, node, volume, deleting: false };
        self.server.pods.insert(format!("u{}", self.pods), pod);
    }

    /// All is well again.
    fn heal(&mut self) {
        let now = self.shared.now;
        self.shared.network.calm = true;
        for (machine, agent) in &mut self.nodes {
            machine.api = true;
            machine.storage = true;
            machine.slow_until = 0;
            machine.stopped_until = machine.stopped_until.min(now);
            agent.stopped_until = agent.stopped_until.min(now);
            if !machine.up {
                machine.boot(now);
                agent.start();
            }
        }
        for object in self.server.nodes.values_mut() {
            object.out_of_service = false;
        }
    }

    /// Of the pods that want a volume the newest may have it.
    fn keep_newest(&mut self) {
        let number = |uid: &str| uid.trim_start_matches('u').parse::<u64>().unwrap_or(0);
        let mut newest: BTreeMap<usize, u64> = BTreeMap::new();
        for (uid, pod) in &self.server.pods {
            let known = newest.entry(pod.volume).or_default();
            *known = number(uid).max(*known);
        }
        for (uid, pod) in &mut self.server.pods {
            pod.deleting |= newest.get(&pod.volume) != Some(&number(uid));
        }
    }

    fn end_pods(&mut self) {
        for pod in self.server.pods.values_mut() {
            pod.deleting = true;
        }
    }

    /// A volume that was cut off, of which the agent of a machine that lacks nothing does not know.
    fn what_is_useless(&mut self) -> Option<String> {
        let now = self.shared.now;
        for (machine, agent) in &mut self.nodes {
            let has_all = machine.api && machine.storage && agent.is_running(now);
            if !has_all || !machine.is_running(now) {
                machine.unwell_at = now;
            }
            for (volume, device) in &mut machine.devices {
                let known = machine.journals.get(volume).into_iter().flat_map(|it| &it.pods);
                // The simulated agent does one thing at a time, which the real one does not.
                let is_useless = device.cut
                    && !agent.works_elsewhere(*volume)
                    && known.into_iter().any(|it| it.stage == PodStage::Bound);
                let since = is_useless.then(|| *device.useless_since.get_or_insert(now));
                device.useless_since = since;
                if since.is_some_and(|since| now - since.max(machine.unwell_at) > NOTICED) {
                    return Some(format!("n{} leaves pv{volume} to its pods", machine.node));
                }
            }
        }
        None
    }

    /// A pod that should have its volume by now, and has none that it can write to.
    fn who_cannot_write(&self) -> Option<String> {
        let mut wanted = self.server.pods.iter().filter(|(_, pod)| !pod.deleting);
        let (uid, pod) = wanted.find(|(uid, pod)| {
            let device = self.nodes[pod.node].0.devices.get(&pod.volume);
            let dir = format!("/pods/{uid}");
            !device.is_some_and(|device| device.bound.contains(&dir) && !device.cut)
        })?;
        let device = self.nodes[pod.node].0.devices.get(&pod.volume);
        Some(format!("pod {uid} of n{} cannot write to pv{}: {device:?}", pod.node, pod.volume))
    }

    fn is_empty(&self) -> bool {
        self.left().is_none()
    }

    /// What should not be there at the end.
    fn left(&self) -> Option<String> {
        for (machine, _) in &self.nodes {
            let name = node_name(machine.node);
            if let Some((volume, device)) = machine.devices.first_key_value() {
                return Some(format!("{name} still has pv{volume}: {device:?}"));
            }
            if let Some((volume, journal)) = machine.journals.first_key_value() {
                return Some(format!("{name} still has the journal of pv{volume}: {journal:?}"));
            }
        }
        if let Some((volume, record)) = self.server.records.first_key_value() {
            return Some(format!("pv{volume} is still held: {record:?}"));
        }
        let mut garbage = self.server.garbage.iter();
        let left = garbage.find(|(_, list)| !list.is_empty());
        left.map(|(node, list)| format!("n{node} still has garbage: {list:?}"))
    }
}
