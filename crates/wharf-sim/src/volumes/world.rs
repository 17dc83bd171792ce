//! The world: what happens to machines, pods and the network, and what must hold.

use std::time::Duration;

use wharf_core::volume::{
    attach::RwoScope,
    backend::Backend,
    fence::NodeObject,
    guard::{Duty, Watch, decide_duty},
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

/// In milliseconds: so long everything goes wrong, and so long all is well afterwards.
const CHAOS: u64 = 90_000;
const CALM: u64 = 90_000;
/// How often in a tick packets arrive and agents act.
const ROUNDS: u64 = 2;

/// Makes the world of a seed and lets it run to its end.
pub fn run(seed: u64, plant: Option<Plant>) -> Result<Tally, Violation> {
    let mut world = World::new(seed, plant);
    while world.shared.now < CHAOS + CALM {
        world.shared.now += TICK;
        if world.shared.now <= CHAOS {
            world.disturb();
        } else {
            world.heal();
        }
        world.tick();
        if let Some(what) = world.shared.accident.take() {
            return Err(Violation { seed, at: world.shared.now, what });
        }
        if world.shared.now > CHAOS && world.is_empty() {
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
        let offset = |chance: &mut Chance| i64::try_from(chance.below(1_000)).unwrap_or(0) - 500;
        let nodes = (0..3).map(|node| (Machine::new(node, offset(&mut chance)), Agent::new()));
        let nodes = nodes.collect();
        let seconds = Duration::from_secs;
        let terms = Terms {
            duration: seconds(8),
            renew_every: seconds(2),
            cut_within: seconds(2),
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
            shared.network.send(shared.now, packet, &mut shared.chance);
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
        // As by one network for both; the way to the API server is back about when the lease ends.
        if self.shared.forces && self.shared.chance.one_in(2) {
            machine.storage = false;
            machine.back_at = self.shared.now + self.shared.chance.between(25, 45) * TICK;
        }
        let running = machine.pods.values().find(|pod| pod.state == PodState::Running);
        let Some(PodHere { name, volume, .. }) = running.cloned() else { return };
        self.server.pods.retain(|_, pod| pod.volume != volume);
        self.pods += 1;
        let other = (node + 1 + self.shared.chance.index(nodes - 1)) % nodes;
        let pod = Pod { name, node: other, volume, deleting: false };
        self.server.pods.insert(format!("u{}", self.pods), pod);
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

    /// All is well again, and all pods are to go.
    fn heal(&mut self) {
        let now = self.shared.now;
        self.shared.network.calm = true;
        for (machine, agent) in &mut self.nodes {
            machine.api = true;
            machine.storage = true;
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
        for pod in self.server.pods.values_mut() {
            pod.deleting = true;
        }
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
