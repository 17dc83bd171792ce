//! What people are told about a volume: who holds it and by what right, what a pod waits for, what
//! is left where, and what to do next.
//!
//! Nothing here grants anything. The agents decide by what they see themselves; this says what they
//! would find, from one look of somebody who trusts his own clock.

mod say;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    attach::{AccessMode, ClusterFacts, Obstacle, Policy, VolumeFacts},
    backend::Backend,
    fence::{HolderNode, NoProof, NodeObject, Proof, decide_proof, judge_lease},
    garbage::GarbageEntry,
    lease::{Ended, Sighting},
    record::{Entry, EntryKey, Phase, Record},
};
use crate::drain::PodRef;

/// What is known of one volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeSeen {
    pub volume: String,
    /// `None` when there is no such PersistentVolume: only its record is left.
    pub facts: Option<VolumeFacts>,
    /// `None` when there is no such storage cluster.
    pub cluster: Option<ClusterFacts>,
    pub record: Option<Record>,
    /// Of every node that the record names.
    pub nodes: BTreeMap<String, HolderNode>,
    /// Pods that are bound to a node, need the volume and do not run yet.
    pub pending: Vec<Pending>,
    /// What is left of earlier holders, with the node that has it.
    pub garbage: Vec<(String, GarbageEntry)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pending {
    pub pod: PodRef,
    pub node: String,
}

/// How a volume is, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Nobody holds it.
    Free,
    Held,
    /// Who holds it may be pushed out by whoever needs it.
    Leaving,
    /// A pod waits for a holder that is alive, or for its own agent.
    Waiting,
    /// Nothing proves that a holder does not write, and nothing will by itself.
    Stuck,
}

/// One holder, judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder<'a> {
    pub entry: &'a Entry,
    pub judged: Result<Proof, NoProof>,
    pub node: NodeState,
    pub lease: LeaseState,
}

/// How the Node of a holder is, seen from the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    Same,
    Gone,
    /// Another Node of the same name.
    Recreated,
    Rebooted,
    OutOfService,
}

/// How the lease of a holder's agent is, seen from the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// It lasts at least until then.
    Lasts(Timestamp),
    Ended,
    Missing,
}

/// A pod that waits for the volume, and what stands in its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter<'a> {
    pub pending: &'a Pending,
    pub blocked: Vec<(&'a Entry, Obstacle)>,
}

/// How a lease looks to somebody who reads it once: what is stamped is believed, so that an agent
/// that fell silent an hour ago is not called alive. Whoever takes over watches for himself.
pub fn sighting(
    tenure: u64,
    renewed: Timestamp,
    duration: std::time::Duration,
    now: Timestamp,
) -> Sighting {
    let age = now.duration_since(renewed).try_into().unwrap_or_default();
    Sighting { tenure, renewed, duration, unchanged_for: age }
}

impl VolumeSeen {
    pub fn holders(&self, now: Timestamp, policy: &Policy) -> Vec<Holder<'_>> {
        self.entries().map(|entry| self.judge(entry, now, policy)).collect()
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.record.iter().flat_map(|record| &record.entries)
    }

    fn judge<'a>(&'a self, entry: &'a Entry, now: Timestamp, policy: &Policy) -> Holder<'a> {
        let holder = self.nodes.get(&entry.node);
        let lease = holder.and_then(|holder| holder.lease);
        // Whose storage nobody knows is judged as if it could not help.
        let backend = self.cluster.map_or(Backend::Loopfile, |cluster| cluster.backend);
        Holder {
            entry,
            judged: self.proof(entry, &PodRef::default(), now, policy),
            node: node_state(entry, holder.and_then(|holder| holder.node.as_ref())),
            lease: match lease.map(|it| judge_lease(&it, entry, backend, now, policy)) {
                Some(Ended::NotBefore(until)) => LeaseState::Lasts(until),
                Some(Ended::Yes) => LeaseState::Ended,
                None => LeaseState::Missing,
            },
        }
    }

    /// Whose storage nobody knows cannot be shut out of it either.
    fn proof(
        &self,
        entry: &Entry,
        pod: &PodRef,
        now: Timestamp,
        policy: &Policy,
    ) -> Result<Proof, NoProof> {
        match self.cluster {
            Some(cluster) => decide_proof(entry, &self.nodes, cluster.backend, pod, now, policy),
            None => match entry.phase {
                Phase::Released => Ok(Proof::Released),
                Phase::Fencing => Ok(Proof::Fencing),
                Phase::Attaching | Phase::Attached => Err(NoProof::Unknown),
            },
        }
    }

    pub fn waiters(&self, now: Timestamp, policy: &Policy) -> Vec<Waiter<'_>> {
        let is_held = |pending: &&Pending| {
            self.entries().any(|entry| entry.pod_uid == pending.pod.uid && is_open(entry))
        };
        let waiting = self.pending.iter().filter(|pending| !is_held(pending));
        let waiter = |pending| Waiter { pending, blocked: self.blocking(pending, now, policy) };
        waiting.map(waiter).collect()
    }

    fn blocking(
        &self,
        pending: &Pending,
        now: Timestamp,
        policy: &Policy,
    ) -> Vec<(&Entry, Obstacle)> {
        let own = self.nodes.get(&pending.node).and_then(|holder| holder.node.as_ref());
        let in_the_way = self.entries().filter(|entry| self.excludes(entry));
        let judged = in_the_way.filter_map(|entry| {
            let here = entry.node == pending.node
                && is_open(entry)
                && own.is_some_and(|own| own.boot_id == entry.boot_id);
            if here {
                return Some((entry, Obstacle::Here));
            }
            let why = self.proof(entry, &pending.pod, now, policy).err()?;
            Some((entry, Obstacle::NoProof(why)))
        });
        judged.collect()
    }

    /// Whether a holder keeps others out.
    fn excludes(&self, entry: &Entry) -> bool {
        let has = |mode| self.facts.as_ref().is_some_and(|facts| facts.modes.contains(&mode));
        let shares = self.cluster.is_some_and(|cluster| cluster.backend.shares_writing());
        let all_write = has(AccessMode::ReadWriteMany) && shares;
        let all_read = has(AccessMode::ReadOnlyMany) && entry.read_only;
        !all_write && !all_read
    }

    pub fn state(&self, now: Timestamp, policy: &Policy) -> State {
        let of_holder = |holder: &Holder<'_>| match holder.judged {
            Ok(_) => State::Leaving,
            Err(NoProof::Alive { .. }) => State::Held,
            Err(NoProof::Unknown | NoProof::CannotBeFenced { .. }) => State::Stuck,
        };
        let worst = self.holders(now, policy).iter().map(of_holder).max().unwrap_or(State::Free);
        let waits = !self.waiters(now, policy).is_empty();
        if waits { worst.max(State::Waiting) } else { worst }
    }
}

fn is_open(entry: &Entry) -> bool {
    matches!(entry.phase, Phase::Attaching | Phase::Attached)
}

fn node_state(entry: &Entry, node: Option<&NodeObject>) -> NodeState {
    match node {
        None => NodeState::Gone,
        Some(node) if node.uid != entry.node_uid => NodeState::Recreated,
        Some(node) if node.is_rebooted_since(entry) => NodeState::Rebooted,
        Some(node) if node.out_of_service => NodeState::OutOfService,
        Some(_) => NodeState::Same,
    }
}

/// Why a holder cannot be set free as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DetachFault {
    #[error("nobody holds the volume")]
    NotHeld,
    #[error("{} does not hold the volume; it is held on: {}", .asked, .nodes.join(", "))]
    NotThere { asked: String, nodes: Vec<String> },
    #[error("the volume is held on several nodes, so say which is meant: {}", .nodes.join(", "))]
    SayWhich { nodes: Vec<String> },
}

/// The holders that a person means who says that they do not write any more. `pod` is a name, or
/// `namespace/name`.
pub fn decide_detach(
    record: Option<&Record>,
    node: Option<&str>,
    pod: Option<&str>,
) -> Result<Vec<EntryKey>, DetachFault> {
    let open = || record.into_iter().flat_map(|record| &record.entries).filter(|one| is_open(one));
    let mut nodes: Vec<String> = open().map(|entry| entry.node.clone()).collect();
    nodes.sort();
    nodes.dedup();
    let node = match (node, nodes.as_slice()) {
        (_, []) => return Err(DetachFault::NotHeld),
        (Some(node), _) => node,
        (None, [only]) => only.as_str(),
        (None, _) => return Err(DetachFault::SayWhich { nodes }),
    };
    let is_pod = |entry: &&Entry| {
        pod.is_none_or(|pod| entry.pod == pod || entry.pod_ref().to_string() == pod)
    };
    let meant = open().filter(|entry| entry.node == node).filter(is_pod);
    let keys: Vec<EntryKey> = meant.map(Entry::key).collect();
    if keys.is_empty() {
        let asked = match pod {
            Some(pod) => format!("pod {pod} on node {node}"),
            None => format!("node {node}"),
        };
        return Err(DetachFault::NotThere { asked, nodes });
    }
    Ok(keys)
}
