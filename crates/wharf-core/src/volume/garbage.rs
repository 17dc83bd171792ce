//! What is left of holders that were pushed out: which entries become garbage, and what the agent
//! of their node may clean.
//!
//! An entry goes to the list of its node before it leaves its record, by the mount that takes over
//! or by the scan ([`decide_stale`]). The agent of the node looks at each thing on its list
//! ([`decide_garbage`]): what it holds by right is never touched, and what is gone is struck off.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    attach::{Policy, Step, Takeover},
    backend::Backend,
    fence::{HolderNode, NoProof, decide_proof},
    journal::Journal,
    push_out::{PushOut, Pushed},
    record::{Change, Entry, EntryKey, Generation, Own, Phase, Record},
};
use crate::drain::PodRef;

/// One thing on the garbage list of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GarbageEntry {
    pub volume: String,
    pub generation: Generation,
    #[serde(rename = "bootID")]
    pub boot_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// By it a device that does not answer is told from others. Empty where nobody said it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
    pub mount_dir: String,
    pub since: Timestamp,
    pub reason: String,
}

impl GarbageEntry {
    pub fn new(volume: &str, entry: &Entry, since: Timestamp, reason: String) -> Self {
        Self {
            volume: volume.to_owned(),
            generation: entry.generation,
            boot_id: entry.boot_id.clone(),
            device: entry.device.clone(),
            image: entry.image.clone(),
            mount_dir: entry.mount_dir.clone(),
            since,
            reason,
        }
    }

    /// Whether it was made of this entry of the volume.
    pub fn is_of(&self, volume: &str, entry: &Entry) -> bool {
        self.volume == volume
            && self.generation == entry.generation
            && self.boot_id == entry.boot_id
            && self.mount_dir == entry.mount_dir
    }
}

/// What the node says about one thing on its list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Left {
    /// The generations of this volume's devices, by their tags. `None` when sysfs cannot be read, or one
    /// that does not answer may be of this volume.
    pub devices: Option<Vec<Generation>>,
    /// The generation that the journal of this volume has.
    pub journal: Option<Generation>,
    /// `None` while it cannot be read.
    pub record: Option<Option<Record>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clean {
    /// Strike it off.
    Drop(Why),
    /// The journal knows it: let [`decide_next`](super::journal::decide_next) tidy it up.
    Tidy,
    /// Nothing but the device is left: cut it off, unmount it and detach it.
    Detach(Generation),
    /// It cannot be told yet.
    Keep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The node was booted since, or is another machine of the same name.
    OtherBoot,
    /// The volume came back: this very entry, or a later one, holds it.
    HeldByRight,
    NothingThere,
}

/// Decides about one thing on the list of this node.
pub fn decide_garbage(garbage: &GarbageEntry, left: &Left, own: &Own) -> Clean {
    if garbage.boot_id != own.boot_id {
        return Clean::Drop(Why::OtherBoot);
    }
    let (Some(devices), Some(record)) = (&left.devices, &left.record) else { return Clean::Keep };
    let is_there = devices.contains(&garbage.generation);
    let in_journal = left.journal == Some(garbage.generation);
    if !is_there && !in_journal {
        return Clean::Drop(match left.journal {
            Some(later) if later > garbage.generation => Why::HeldByRight,
            Some(_) | None => Why::NothingThere,
        });
    }
    let entries = record.iter().flat_map(|record| &record.entries);
    let mut rights = entries.filter(|entry| entry.is_right_of(own));
    if rights.any(|entry| entry.generation == garbage.generation) {
        return Clean::Drop(Why::HeldByRight);
    }
    if in_journal { Clean::Tidy } else { Clean::Detach(garbage.generation) }
}

/// What the scan knows of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned {
    pub volume: String,
    pub backend: Backend,
    pub record: Record,
    /// Of every node that the record names. One that could not be read is missing.
    pub nodes: BTreeMap<String, HolderNode>,
    /// On the PV, `None` when that is gone.
    pub generation: Option<Generation>,
    pub raised: Option<Generation>,
    pub fenced: Vec<EntryKey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scan {
    Do(Step),
    /// The stale entries may leave the record.
    TakeOut(Change),
    /// Stale, but nothing proves that these do not write.
    Stuck(Vec<(Entry, NoProof)>),
    Clean,
}

/// Decides what the scan does about one volume.
///
/// Only what was given up for good is stale: by a node that is gone, created anew or out of service,
/// or that has been booted since and whose agent is back. An agent that is silent for a while, or a
/// pod that is missing, is not: nobody waits for the volume, and to shut out a node that works would
/// be the greater harm.
pub fn decide_stale(scanned: &Scanned, now: Timestamp, policy: &Policy) -> Scan {
    let stale = scanned.record.entries.iter().filter(|entry| is_stale(entry, &scanned.nodes));
    decide_scan(scanned, stale, false, now, policy)
}

/// Decides the same for a volume whose storage cluster is being deleted, or is gone.
///
/// The storage may be gone too, so that it is asked for nothing. A node whose agent has fallen silent is not
/// waited for either: it finds that it has lost the volume when it is back.
pub fn decide_ending(scanned: &Scanned, now: Timestamp, policy: &Policy) -> Scan {
    let Scanned { nodes, backend, .. } = scanned;
    let nobody = PodRef::default();
    let is_proven =
        |entry: &Entry| decide_proof(entry, nodes, *backend, &nobody, now, policy).is_ok();
    let is_over = |entry: &&Entry| is_stale(entry, nodes) || is_proven(entry);
    let entries = scanned.record.entries.iter().filter(is_over);
    decide_scan(scanned, entries, true, now, policy)
}

fn decide_scan<'a>(
    scanned: &'a Scanned,
    stale: impl Iterator<Item = &'a Entry>,
    is_over: bool,
    now: Timestamp,
    policy: &Policy,
) -> Scan {
    let by_proof = Policy { takeover: Takeover::ByProof, ..*policy };
    let nobody = PodRef::default();
    let (mut pushed, mut stuck): (Vec<Pushed<'_>>, Vec<_>) = (Vec::new(), Vec::new());
    for entry in stale {
        match decide_proof(entry, &scanned.nodes, scanned.backend, &nobody, now, &by_proof) {
            Ok(proof) => pushed.push((entry, proof)),
            Err(why) => stuck.push((entry.clone(), why)),
        }
    }
    if pushed.is_empty() {
        return if stuck.is_empty() { Scan::Clean } else { Scan::Stuck(stuck) };
    }
    let push = PushOut {
        volume: &scanned.volume,
        backend: scanned.backend,
        record: Some(&scanned.record),
        nodes: &scanned.nodes,
        generation: scanned.generation,
        epoch: Generation::default(),
        raised: scanned.raised,
        fenced: &scanned.fenced,
        is_over,
    };
    if let Some(step) = push.next_step(&pushed, now) {
        return Scan::Do(step);
    }
    let entries: Vec<Entry> = push.staying(&pushed).cloned().collect();
    let version = scanned.record.version.clone();
    Scan::TakeOut(if entries.is_empty() {
        Change::Delete { version }
    } else {
        Change::Replace { version, entries }
    })
}

/// Whether there is anything to decide about a record.
pub fn has_stale(record: &Record, nodes: &BTreeMap<String, HolderNode>) -> bool {
    record.entries.iter().any(|entry| is_stale(entry, nodes))
}

fn is_stale(entry: &Entry, nodes: &BTreeMap<String, HolderNode>) -> bool {
    if matches!(entry.phase, Phase::Fencing | Phase::Released) {
        return true;
    }
    nodes.get(&entry.node).is_some_and(|holder| {
        let is_back = holder.lease.is_some_and(|lease| lease.tenure > entry.tenure);
        holder.node.as_ref().is_none_or(|node| {
            let rebooted = node.is_rebooted_since(entry);
            node.uid != entry.node_uid || node.out_of_service || (rebooted && is_back)
        })
    })
}

/// What the API server keeps of a node beside its Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remains {
    /// There is a Node of this name.
    pub has_node: bool,
    /// An entry of a record names it.
    pub is_named: bool,
    /// When it was last heard of: the renewal of its lease, and what was put on its garbage list.
    pub last: Option<Timestamp>,
}

/// A machine that comes back without a boot does so sooner, and after a boot nothing of it is left.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Whether what is kept of a node may go: its lease, by which entries are judged, and its garbage list.
pub fn is_forgotten(remains: &Remains, now: Timestamp) -> bool {
    let silence = remains.last.map(|last| now.duration_since(last));
    let is_silent = silence.is_none_or(|silence| {
        Duration::try_from(silence).is_ok_and(|silence| silence >= FORGOTTEN_AFTER)
    });
    !remains.has_node && !remains.is_named && is_silent
}

/// Whether an entry is of this very node and boot, but nothing here knows of it: a write of ours
/// that came late brought it back after it was given up. Its agent takes it out.
///
/// `journal` is that of the volume; a mount that is under way has one. `device` says whether sysfs
/// shows a device of the volume, `None` when it cannot be read.
pub fn is_stray(entry: &Entry, own: &Own, journal: Option<&Journal>, device: Option<bool>) -> bool {
    let is_ours = entry.node == own.node && entry.boot_id == own.boot_id;
    let mut pods = journal.into_iter().flat_map(|journal| &journal.pods);
    is_ours && device == Some(false) && !pods.any(|pod| pod.pod_uid == entry.pod_uid)
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::OtherBoot => "the node was booted since",
            Why::HeldByRight => "the node holds the volume by right",
            Why::NothingThere => "nothing of it is left",
        })
    }
}
