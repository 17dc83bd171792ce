//! Volumes: agents on machines that crash, stop and lose their network, around one API server and
//! one storage.
//!
//! What is checked is what the storage sees: of the writes that it takes, none is of an older grant
//! than one before it, and no grant is used by two nodes. When all is well again, the newest pod of each
//! volume must be able to write; and at the end, when all pods are gone, nothing may be left on any
//! machine or in the API server.
//!
//! A machine that is stopped as a whole and goes on later is simulated only for storage that refuses
//! old clients: for the other kind nothing can help, and the documentation says so. One that loses its
//! storage has writes under way that land when the storage is back, and cannot cut anything off
//! meanwhile; for storage that does not refuse old clients that is simulated only where such a machine is
//! forced down when its lease ends, because nothing else helps there either.

mod agent;
mod machine;
mod network;
mod server;
mod storage;
mod world;

use std::fmt;

pub use world::run;

/// A defect that is put in on purpose, to see that the simulation finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// Agents take every lease of others for ended.
    IgnoreLeases,
    /// Agents give the record up before they detach.
    GiveUpFirst,
    /// Agents grant a volume to a pod of the same name, without proof.
    GrantByName,
    /// Nothing cuts volumes off when a lease ends.
    NoSelfFencing,
    /// The garbage and the leftovers of journals are not cleaned.
    NoTidying,
    /// Agents take a cut for done that did not reach the device.
    UnverifiedCut,
    /// What could not be cut off when the lease ends is left to itself.
    NoForcing,
    /// A lease that was renewed when its volumes were being cut off goes on, and nobody looks at them.
    LateRenewal,
}

impl Plant {
    pub const ALL: [Plant; 8] = [
        Plant::IgnoreLeases,
        Plant::GiveUpFirst,
        Plant::GrantByName,
        Plant::NoSelfFencing,
        Plant::NoTidying,
        Plant::UnverifiedCut,
        Plant::NoForcing,
        Plant::LateRenewal,
    ];
}

/// What happened in a world in which nothing was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    pub mounts: u64,
    pub unmounts: u64,
    pub takeovers: u64,
    pub writes: u64,
    /// Writes that the storage refused.
    pub refused: u64,
    pub cuts: u64,
    pub crashes: u64,
    /// Machines that were forced down, because they could not cut something off.
    pub forced: u64,
    /// Writes that were under way while the storage was away, and landed later.
    pub late: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.mounts += other.mounts;
        self.unmounts += other.unmounts;
        self.takeovers += other.takeovers;
        self.writes += other.writes;
        self.refused += other.refused;
        self.cuts += other.cuts;
        self.crashes += other.crashes;
        self.forced += other.forced;
        self.late += other.late;
    }
}

/// What must never happen, with the seed that makes it happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub seed: u64,
    /// Milliseconds since the world began.
    pub at: u64,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} at {} ms: {}", self.seed, self.at, self.what)
    }
}
