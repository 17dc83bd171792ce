//! A machine: its kernel, its pods, kubelet, and the guard that outlives the agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use wharf_core::volume::{
    backend::Backend,
    guard::is_open,
    journal::{Found, Journal, Signature},
    lease::SinceBoot,
    record::{Generation, Own},
};

use super::server::node_name;

pub struct Machine {
    pub node: usize,
    pub up: bool,
    /// Stopped as a whole until then.
    pub stopped_until: u64,
    pub boot: u64,
    booted: u64,
    /// How far its clock is off, in milliseconds.
    pub offset: i64,
    pub devices: BTreeMap<usize, Device>,
    /// On its disk.
    pub journals: BTreeMap<usize, Journal>,
    /// On its disk: the last tenure of its agent, and the highest that was ever begun.
    pub tenure: u64,
    pub kept: u64,
    /// The UID of its Node, as last seen.
    pub node_uid: String,
    /// When the agent's last renewal was sent; the guard counts from it. Lost by a boot.
    pub renewed: Option<SinceBoot>,
    /// The guard has begun to cut and ends then.
    pub cut_done: Option<u64>,
    pub pods: BTreeMap<String, PodHere>,
    /// Whether it reaches the API server and the storage.
    pub api: bool,
    pub storage: bool,
    /// When it reaches the API server again at the latest.
    pub back_at: u64,
    /// Until then the API server's answers take long.
    pub slow_until: u64,
    /// When it last lacked anything.
    pub unwell_at: u64,
}

#[derive(Debug, Clone)]
pub struct Device {
    pub generation: Generation,
    pub self_fence: bool,
    pub staged: bool,
    pub bound: BTreeSet<String>,
    pub cut: bool,
    /// Something is written that has not reached the storage.
    pub dirty: bool,
    /// Something is on its way to a storage that is away, and lands when it is back.
    pub queued: bool,
    /// Since when pods have it although it is cut off, and the agent takes it for good.
    pub useless_since: Option<u64>,
}

impl Device {
    /// Cuts it off. What is on its way has to arrive first, where the device is a file of the storage: it
    /// says whether that is so.
    pub fn try_cut(&mut self, backend: Backend, reaches: bool) -> bool {
        self.cut |= reaches || backend.refuses_old_clients();
        self.cut
    }
}

/// A pod as kubelet knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodHere {
    pub name: String,
    pub volume: usize,
    pub state: PodState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodState {
    /// Kubelet asks for its volume.
    Starting,
    Running,
    /// Its processes have ended; kubelet asks to unmount.
    Stopped,
}

impl Machine {
    pub fn new(node: usize, offset: i64) -> Self {
        Self {
            node,
            up: true,
            stopped_until: 0,
            boot: 0,
            booted: 0,
            offset,
            devices: BTreeMap::new(),
            journals: BTreeMap::new(),
            tenure: 0,
            kept: 0,
            node_uid: String::new(),
            renewed: None,
            cut_done: None,
            pods: BTreeMap::new(),
            api: true,
            storage: true,
            back_at: 0,
            slow_until: 0,
            unwell_at: 0,
        }
    }

    pub fn own(&self) -> Own {
        Own {
            node: node_name(self.node),
            node_uid: self.node_uid.clone(),
            boot_id: self.boot_id(),
            tenure: self.tenure,
        }
    }

    pub fn boot_id(&self) -> String {
        format!("boot-{}-{}", self.node, self.boot)
    }

    pub fn is_running(&self, now: u64) -> bool {
        self.up && now >= self.stopped_until
    }

    pub fn since_boot(&self, now: u64) -> SinceBoot {
        SinceBoot(Duration::from_millis(now - self.booted))
    }

    /// So long after the last renewal of the lease, or now.
    pub fn after_renewal(&self, now: u64, time: u64) -> u64 {
        let renewed = self.renewed.map_or(0, |it| it.0.as_millis() as u64);
        (self.booted + renewed + time).max(now)
    }

    pub fn clock(&self, now: u64) -> Timestamp {
        let millis = i64::try_from(now).unwrap_or_default() + self.offset;
        Timestamp::from_millisecond(1_000_000_000 + millis).unwrap_or(Timestamp::MAX)
    }

    pub fn crash(&mut self) {
        self.up = false;
        self.devices.clear();
        self.renewed = None;
        self.cut_done = None;
    }

    /// Comes up again: kubelet starts the pods that it had anew.
    pub fn boot(&mut self, now: u64) {
        self.up = true;
        self.boot += 1;
        self.booted = now;
        for pod in self.pods.values_mut().filter(|pod| pod.state == PodState::Running) {
            pod.state = PodState::Starting;
        }
    }

    /// What sysfs shows; whether it is formatted, the storage knows.
    pub fn found(&self, volume: usize, formatted: bool) -> Found {
        match self.devices.get(&volume) {
            None => Found::Absent,
            Some(_) if formatted => Found::Present(Signature::Ready),
            Some(_) => Found::Present(Signature::Blank),
        }
    }

    /// Nothing that promised to be cut off reaches the storage, as the agent has noted.
    pub fn is_cut_off(&self) -> bool {
        let boot_id = self.boot_id();
        !self.journals.values().any(|journal| is_open(journal, &boot_id))
    }

    /// The same by what the guard sees.
    pub fn has_open_device(&self) -> bool {
        self.devices.values().any(|device| device.self_fence && !device.cut)
    }
}
