//! An agent: the lease, and one piece of work at a time, by the decisions of the product.

mod claim;
mod lease;
mod survey;
mod work;

use std::collections::BTreeMap;

use wharf_core::volume::{
    attach::{Policy, RwoScope, Takeover},
    journal::Journal,
    lease::{Standing, Tenure, Terms},
};

use super::{
    Plant, Tally,
    machine::Machine,
    network::{Network, Order, Packet},
    server::{Answer, Ask},
    storage::Image,
};
use crate::chance::Chance;

use work::Work;
pub use work::note;

/// What all nodes share.
pub struct Shared {
    pub now: u64,
    pub chance: Chance,
    pub network: Network,
    pub images: Vec<Image>,
    pub terms: Terms,
    pub plant: Option<Plant>,
    pub rwo_scope: RwoScope,
    /// Machines that cannot cut something off are forced down when their lease ends.
    pub forces: bool,
    pub tally: Tally,
    /// The first accident.
    pub accident: Option<String>,
}

impl Shared {
    pub fn policy(&self) -> Policy {
        let takeover = match self.plant {
            Some(Plant::GrantByName) => Takeover::ByName,
            _ => Takeover::ByProof,
        };
        Policy { takeover, rwo_scope: self.rwo_scope, skew: self.terms.skew, ..Policy::default() }
    }

    fn ask(&mut self, node: usize, ask: Ask) -> Waiting {
        let id = self.network.next_id();
        let packet = Packet::ToServer { node, id, ask };
        self.network.send(self.now, packet, &mut self.chance);
        Waiting { id, until: self.now + PATIENCE }
    }

    fn order(&mut self, node: usize, order: Order) -> Waiting {
        let id = self.network.next_id();
        let packet = Packet::ToStorage { node, id, order };
        self.network.send(self.now, packet, &mut self.chance);
        Waiting { id, until: self.now + PATIENCE }
    }

    /// Something that goes wrong now and then, while anything does.
    fn mishap(&mut self, one_in: u64) -> bool {
        !self.network.calm && self.chance.one_in(one_in)
    }
}

/// An answer is waited for so long, in milliseconds.
const PATIENCE: u64 = 1_500;

#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    id: u64,
    until: u64,
}

pub struct Agent {
    pub up: bool,
    /// Its process is stopped until then.
    pub stopped_until: u64,
    tenure: Option<Tenure>,
    lease: lease::Lane,
    work: Option<Work>,
    /// The lease of each node as last seen: tenure and stamp, and when it was first seen so.
    sightings: BTreeMap<usize, (super::server::Lease, u64)>,
    tidy_at: BTreeMap<usize, u64>,
    survey_at: u64,
    /// What the sweep of each volume has raised and fenced so far.
    sweeps: BTreeMap<usize, survey::Sweep>,
}

impl Agent {
    pub fn new() -> Self {
        Self {
            up: true,
            stopped_until: 0,
            tenure: None,
            lease: lease::Lane::default(),
            work: None,
            sightings: BTreeMap::new(),
            tidy_at: BTreeMap::new(),
            survey_at: 0,
            sweeps: BTreeMap::new(),
        }
    }

    /// All that it remembers is on the machine's disk.
    pub fn kill(&mut self) {
        *self = Self { up: false, ..Self::new() };
    }

    pub fn start(&mut self) {
        *self = Self::new();
    }

    pub fn is_running(&self, now: u64) -> bool {
        self.up && now >= self.stopped_until
    }

    pub fn works_elsewhere(&self, volume: usize) -> bool {
        self.work.as_ref().is_some_and(|work| work.volume != volume)
    }

    pub fn receive(&mut self, id: u64, answer: Answer) {
        self.lease.receive(id, &answer);
        if let Some(work) = &mut self.work {
            work.receive(id, answer);
        }
    }

    pub fn step(&mut self, machine: &mut Machine, shared: &mut Shared) {
        self.keep_lease(machine, shared);
        // What needs no answer takes no time.
        for _ in 0..2 {
            match self.work.take() {
                Some(work) => self.go_on(work, machine, shared),
                None => self.work = self.next_work(machine, shared),
            }
        }
    }

    fn standing(&self, machine: &Machine, shared: &Shared) -> Standing {
        let now = machine.since_boot(shared.now);
        if shared.plant == Some(Plant::NoSelfFencing) && self.tenure.is_some() {
            return Standing::Held { renew_at: now };
        }
        self.tenure.map_or(Standing::Over, |tenure| tenure.standing(now, &shared.terms))
    }
}

/// The journal of a volume that has none yet.
fn new_journal(volume: usize, machine: &Machine, shared: &Shared) -> Journal {
    Journal {
        volume: super::server::volume_name(volume),
        storage_cluster: "main".to_owned(),
        image: super::server::volume_name(volume),
        backend: shared.images[volume].backend,
        parameters: BTreeMap::new(),
        fs_type: String::new(),
        mount_options: String::new(),
        boot_id: machine.boot_id(),
        device: wharf_core::volume::journal::DeviceStage::Absent,
        cut: false,
        pods: Vec::new(),
    }
}
