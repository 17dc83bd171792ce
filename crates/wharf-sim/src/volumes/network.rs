//! The network: packets that are late, lost and repeated.

use wharf_core::volume::record::Generation;

use super::{
    server::{Answer, Ask},
    storage::Writer,
};
use crate::chance::Chance;

/// Milliseconds of one step of the world.
pub const TICK: u64 = 200;

#[derive(Debug, Clone)]
pub enum Packet {
    ToServer {
        node: usize,
        id: u64,
        ask: Ask,
    },
    ToStorage {
        node: usize,
        id: u64,
        order: Order,
    },
    ToAgent {
        node: usize,
        id: u64,
        answer: Answer,
    },
    /// Data of a client, on its way.
    Data {
        node: usize,
        volume: usize,
        writer: Writer,
    },
}

#[derive(Debug, Clone, Copy)]
pub enum Order {
    Open { volume: usize, generation: Generation },
    Fence { volume: usize, generation: Generation },
}

#[derive(Default)]
pub struct Network {
    packets: Vec<(u64, Packet)>,
    ids: u64,
    /// Nothing is lost, repeated or very late.
    pub calm: bool,
}

impl Network {
    pub fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    pub fn send(&mut self, now: u64, packet: Packet, chance: &mut Chance) {
        if !self.calm && chance.one_in(100) {
            return;
        }
        if !self.calm && chance.one_in(40) {
            self.packets.push((now + chance.between(1, 40) * TICK, packet.clone()));
        }
        let late = !self.calm && chance.one_in(80);
        let ticks = if late { chance.between(4, 40) } else { chance.between(0, 1) };
        self.packets.push((now + ticks * TICK, packet));
    }

    /// As by a server that has much to do; in time for those who wait.
    pub fn send_slowly(&mut self, now: u64, packet: Packet, chance: &mut Chance) {
        self.packets.push((now + chance.between(3, 6) * TICK, packet));
    }

    /// A client that is unmapped has waited for its data, and one that is booted anew sends none of
    /// the old.
    pub fn end_data(&mut self, of_node: usize, of_volume: Option<usize>) {
        self.packets.retain(|(_, packet)| match packet {
            Packet::Data { node, volume, .. } => {
                *node != of_node || of_volume.is_some_and(|it| it != *volume)
            }
            Packet::ToServer { .. } | Packet::ToStorage { .. } | Packet::ToAgent { .. } => true,
        });
    }

    /// What arrives now, in any order.
    pub fn arriving(&mut self, now: u64) -> Vec<Packet> {
        let mut arrived = Vec::new();
        let mut index = 0;
        while let Some((at, _)) = self.packets.get(index) {
            if *at <= now {
                arrived.push(self.packets.swap_remove(index).1);
            } else {
                index += 1;
            }
        }
        arrived
    }
}
