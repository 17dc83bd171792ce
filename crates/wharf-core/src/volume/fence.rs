//! Proof that a holder does not write any more, or cannot once it is fenced; and what an agent must
//! cut off by itself.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;

use super::{
    attach::{Policy, Takeover},
    backend::Backend,
    garbage::GarbageEntry,
    lease::{Ended, Sighting, Standing},
    record::{Entry, EntryKey, Own, Phase, Record},
};
use crate::drain::PodRef;

/// What is known of the node of a holder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HolderNode {
    /// `None` when there is no such Node; an answer of the API server, not a failure to get one.
    pub node: Option<NodeObject>,
    /// Its agent's lease. It is kept when the Node goes. `None` when there is none.
    pub lease: Option<Sighting>,
    /// Its garbage list.
    pub garbage: Vec<GarbageEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeObject {
    pub uid: String,
    /// Empty until kubelet has said it.
    pub boot_id: String,
    /// Tainted `node.kubernetes.io/out-of-service`.
    pub out_of_service: bool,
}

impl NodeObject {
    pub(super) fn is_rebooted_since(&self, entry: &Entry) -> bool {
        !self.boot_id.is_empty() && self.boot_id != entry.boot_id
    }
}

/// Why a holder may be pushed out.
///
/// Each but the first two says only that the holder is no longer wanted or no longer heard of. It
/// becomes a proof by the fence, or by the holder's own promise to cut itself off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Proof {
    /// A person answers for it.
    Released,
    /// Somebody had proof before and began to fence.
    Fencing,
    NodeGone,
    NodeRecreated,
    Rebooted,
    OutOfService,
    LeaseEnded,
    /// Not a proof at all: the policy that breaks the lock for a pod of the same name.
    ByName,
}

/// Why a holder may not be pushed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoProof {
    /// The agent of the holder is alive; it must release first.
    Alive { until: Timestamp },
    /// It is silent, but no lease says for how long.
    Unknown,
    /// The backend cannot shut it out, and it has not promised to cut itself off.
    CannotBeFenced { backend: Backend },
}

/// Judges one holder that stands in the way of `pod`.
pub fn decide_proof(
    entry: &Entry,
    nodes: &BTreeMap<String, HolderNode>,
    backend: Backend,
    pod: &PodRef,
    now: Timestamp,
    policy: &Policy,
) -> Result<Proof, NoProof> {
    match entry.phase {
        Phase::Released => return Ok(Proof::Released),
        Phase::Fencing => return Ok(Proof::Fencing),
        Phase::Attaching | Phase::Attached => {}
    }
    let is_namesake = entry.pod_namespace == pod.namespace && entry.pod == pod.name;
    if policy.takeover == Takeover::ByName && is_namesake {
        return Ok(Proof::ByName);
    }
    let Some(holder) = nodes.get(&entry.node) else { return Err(NoProof::Unknown) };
    let backend = storage_of(entry, backend);
    let ended = holder.lease.map(|lease| judge_lease(&lease, entry, backend, now, policy));
    if !backend.refuses_old_clients() {
        return promised_end(entry, ended, backend);
    }
    match (&holder.node, ended) {
        (None, _) => Ok(Proof::NodeGone),
        (Some(node), _) if node.uid != entry.node_uid => Ok(Proof::NodeRecreated),
        (Some(node), _) if node.is_rebooted_since(entry) => Ok(Proof::Rebooted),
        (Some(node), _) if node.out_of_service => Ok(Proof::OutOfService),
        (_, Some(Ended::Yes)) => Ok(Proof::LeaseEnded),
        (_, Some(Ended::NotBefore(until))) => Err(NoProof::Alive { until }),
        (_, None) => Err(NoProof::Unknown),
    }
}

/// What an entry is judged by. Its storage cluster may have been made anew since, of another kind: that
/// shuts nobody out of where the entry's bytes are.
fn storage_of(entry: &Entry, backend: Backend) -> Backend {
    entry.backend.filter(|own| !own.refuses_old_clients()).unwrap_or(backend)
}

/// Whether the tenure in which an entry was written has ended. Where nobody shuts the holder out, no clock
/// but our own is believed.
pub(super) fn judge_lease(
    lease: &Sighting,
    entry: &Entry,
    backend: Backend,
    now: Timestamp,
    policy: &Policy,
) -> Ended {
    if backend.refuses_old_clients() {
        lease.ended(entry.tenure, now, policy.skew)
    } else {
        lease.ended_by_watch(entry.tenure, now, policy.skew)
    }
}

/// Nobody can stop the holder but itself: that its Node is gone, new or tainted says nothing about
/// a machine that may still be writing.
fn promised_end(entry: &Entry, ended: Option<Ended>, backend: Backend) -> Result<Proof, NoProof> {
    match ended {
        Some(Ended::NotBefore(until)) => Err(NoProof::Alive { until }),
        Some(Ended::Yes) if entry.self_fence => Ok(Proof::LeaseEnded),
        Some(Ended::Yes) => Err(NoProof::CannotBeFenced { backend }),
        None if entry.self_fence => Err(NoProof::Unknown),
        None => Err(NoProof::CannotBeFenced { backend }),
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Proof::Released => "a person released it",
            Proof::Fencing => "it was being fenced",
            Proof::NodeGone => "its node is gone",
            Proof::NodeRecreated => "its node was created anew",
            Proof::Rebooted => "its node was booted anew",
            Proof::OutOfService => "its node is out of service",
            Proof::LeaseEnded => "the lease of its agent ended",
            Proof::ByName => "a pod of the same name takes over without proof",
        })
    }
}

impl fmt::Display for NoProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoProof::Alive { until } => write!(
                f,
                "its agent is alive and has to release it; if it falls silent, the volume can be \
                 taken over after {until:.0}"
            ),
            NoProof::Unknown => f.write_str("whether its agent is alive is not known"),
            NoProof::CannotBeFenced { backend } => write!(
                f,
                "a client of {backend} cannot be shut out and this one does not cut itself off; \
                 when its machine is known to be off, say `wharf volume detach --force`"
            ),
        }
    }
}

/// A volume that an agent has on its node, by its journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub volume: String,
    pub key: EntryKey,
    pub self_fence: bool,
    /// The tenure in which it was claimed.
    pub tenure: u64,
}

/// Why a volume is cut off by its own agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    LeaseOver,
    /// It was claimed in a tenure that has ended.
    EarlierTenure,
    /// The record does not name us any more, or says that we are fenced.
    RightLost,
}

/// Which volumes this agent must cut off. `records` holds what could be read: a volume that is not
/// in it is left alone, unless the lease says otherwise.
pub fn decide_cuts<'a>(
    held: &'a [Held],
    standing: &Standing,
    own: &Own,
    records: &BTreeMap<String, Option<Record>>,
) -> Vec<(&'a Held, Cut)> {
    held.iter().filter_map(|one| Some((one, cut(one, standing, own, records)?))).collect()
}

fn cut(
    held: &Held,
    standing: &Standing,
    own: &Own,
    records: &BTreeMap<String, Option<Record>>,
) -> Option<Cut> {
    if held.self_fence && *standing == Standing::Over {
        return Some(Cut::LeaseOver);
    }
    if held.self_fence && held.tenure != own.tenure {
        return Some(Cut::EarlierTenure);
    }
    let record = records.get(&held.volume)?;
    let entry = record.as_ref().and_then(|record| record.find(&held.key));
    let is_right = entry.is_some_and(|entry| entry.is_right_of(own));
    (!is_right).then_some(Cut::RightLost)
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cut::LeaseOver => "the agent could not renew its lease",
            Cut::EarlierTenure => "the agent's lease had ended in between",
            Cut::RightLost => "another node holds the volume now",
        })
    }
}

#[cfg(test)]
mod tests;
