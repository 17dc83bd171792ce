//! The sentences.

use std::fmt;

use jiff::Timestamp;

use super::{Holder, LeaseState, NodeState, State, VolumeSeen, Waiter};
use crate::volume::{
    attach::{Blocked, Policy},
    backend::Backend,
    condition::STORAGE_AWAY,
    fence::NoProof,
    garbage::GarbageEntry,
};

impl VolumeSeen {
    /// Who holds it and by what right, what pods wait for, and what is left where.
    pub fn sentences(&self, now: Timestamp, policy: &Policy) -> Vec<String> {
        let mut said = self.about_its_objects();
        let holders = self.holders(now, policy);
        if holders.is_empty() {
            said.push("nobody holds the volume".to_owned());
        }
        said.extend(holders.iter().map(ToString::to_string));
        said.extend(self.storage_away());
        said.extend(self.waiters(now, policy).iter().map(ToString::to_string));
        said.extend(self.garbage.iter().map(|(node, garbage)| about_garbage(node, garbage)));
        said
    }

    fn about_its_objects(&self) -> Vec<String> {
        let mut said = Vec::new();
        let Some(facts) = &self.facts else {
            said.push(
                "its PersistentVolume is gone; only the record of its holders is left".into(),
            );
            return said;
        };
        if facts.deleting {
            said.push("its PersistentVolume is being deleted: nothing is attached any more".into());
        }
        let name = &facts.storage_cluster;
        match self.cluster {
            None => said.push(format!("there is no StorageCluster {name}")),
            Some(cluster) if cluster.deleting => {
                said.push(format!("its StorageCluster {name} is being deleted, and it with it"));
            }
            Some(_) => {}
        }
        said
    }

    /// What agents of holders say of their way to the storage.
    fn storage_away(&self) -> impl Iterator<Item = String> {
        let record = self.record.iter();
        record.flat_map(|record| {
            let is_held = |node: &String| record.entries.iter().any(|entry| entry.node == *node);
            let away = record.conditions.iter().filter(|one| one.kind == STORAGE_AWAY);
            let away = away.filter(move |one| is_held(&one.node));
            away.map(|one| match one.last_transition_time {
                Some(since) => format!("{} (since {since:.0})", one.message),
                None => one.message.clone(),
            })
        })
    }

    /// What a person may do about it. `managed` is the name of the cluster as commands take it.
    pub fn advice(&self, managed: &str, now: Timestamp, policy: &Policy) -> Vec<String> {
        let mut advice = Vec::new();
        if let Some(facts) = &self.facts
            && self.cluster.is_none()
        {
            let name = &facts.storage_cluster;
            advice.push(format!("create the StorageCluster {name} again, or delete the volume"));
        }
        let waits = !self.waiters(now, policy).is_empty();
        for holder in self.holders(now, policy) {
            advice.extend(self.advice_about(&holder, managed, waits));
        }
        advice.dedup();
        advice
    }

    fn advice_about(&self, holder: &Holder<'_>, managed: &str, waits: bool) -> Option<String> {
        let (node, pod) = (&holder.entry.node, holder.entry.pod_ref());
        match &holder.judged {
            Ok(_) => None,
            Err(NoProof::Alive { .. }) if waits => Some(format!(
                "end pod {pod} if it is no longer wanted: the agent of node {node} releases the \
                 volume when its pod has ended"
            )),
            Err(NoProof::Alive { .. }) => None,
            Err(NoProof::Unknown | NoProof::CannotBeFenced { .. }) => Some(format!(
                "bring node {node} and its agent back; or, once its machine is known to be off, \
                 set the volume free: wharf volume detach {managed} {} --node {node} --force \
                 --reason \"the machine is off\"",
                self.volume
            )),
        }
    }

    /// What may be lost when this holder is set free though nothing proves that it does not write.
    pub fn losses(&self, holder: &Holder<'_>) -> Vec<String> {
        let (entry, pod) = (holder.entry, holder.entry.pod_ref());
        let node = &entry.node;
        let mut lost = Vec::new();
        if matches!(holder.judged, Err(NoProof::Alive { .. })) {
            lost.push(format!(
                "the agent of node {node} is alive, so pod {pod} may be using the volume at this \
                 moment: it loses it while it works"
            ));
        }
        if entry.read_only {
            lost.push(format!("pod {pod} only reads; its reads fail once it is shut out"));
            return lost;
        }
        lost.push(format!(
            "what pod {pod} on node {node} has written and not yet brought to the storage is lost"
        ));
        match self.cluster.map(|cluster| cluster.backend) {
            Some(backend) if backend.refuses_old_clients() => lost.push(format!(
                "{backend} shuts the old holder out before somebody else writes, so the file \
                 system stays whole"
            )),
            Some(Backend::Loopfile | Backend::Dir | Backend::Proxy | Backend::Rbd) | None => {
                lost.push(format!(
                    "nothing but its own agent can shut the old holder out: if the machine of node \
                     {node} runs without it, two of them write and the file system is destroyed"
                ));
            }
        }
        lost
    }
}

impl fmt::Display for Holder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = self.entry;
        let does = if entry.read_only { "reads" } else { "holds" };
        write!(f, "pod {} on node {} {does} the volume", entry.pod_ref(), entry.node)?;
        write!(f, " ({:?}, generation {}", entry.phase, entry.generation)?;
        if let Some(device) = &entry.device {
            write!(f, ", {device}")?;
        }
        f.write_str("): ")?;
        match &self.judged {
            Ok(proof) => write!(f, "whoever needs it may take it over, since {proof}")?,
            Err(NoProof::Alive { until }) => write!(
                f,
                "by right, its agent is alive; if that falls silent, the volume can be taken over \
                 {}",
                after(entry.self_fence, *until)
            )?,
            Err(NoProof::Unknown) => f.write_str(
                "whether its agent is alive is not known: there is no lease of it that could end",
            )?,
            Err(why @ NoProof::CannotBeFenced { .. }) => why.fmt(f)?,
        }
        match (self.judged.is_err(), self.node) {
            (false, _) | (true, NodeState::Same) => Ok(()),
            (true, state) => write!(f, "; {state}, which alone proves nothing"),
        }
    }
}

/// A holder that promised to cut itself off has done so by then; from another that time is proof
/// only where the storage can shut it out.
fn after(self_fence: bool, until: Timestamp) -> String {
    let how = if self_fence { "" } else { ", if the storage can shut it out" };
    format!("after {until:.0}{how}")
}

impl fmt::Display for Waiter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pod, node) = (&self.pending.pod, &self.pending.node);
        write!(f, "pod {pod} waits for it on node {node}: ")?;
        if self.blocked.is_empty() {
            return write!(
                f,
                "nothing stands in its way, the agent of node {node} has to attach it"
            );
        }
        let blocked = self.blocked.iter().map(|(holder, why)| {
            Blocked { holder: (*holder).clone(), why: why.clone() }.to_string()
        });
        f.write_str(&blocked.collect::<Vec<_>>().join("; "))
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Free => "free",
            State::Held => "held",
            State::Leaving => "leaving",
            State::Waiting => "waiting",
            State::Stuck => "stuck",
        })
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NodeState::Same => "its node is there",
            NodeState::Gone => "its node is gone",
            NodeState::Recreated => "its node was created anew",
            NodeState::Rebooted => "its node was booted anew",
            NodeState::OutOfService => "its node is out of service",
        })
    }
}

impl fmt::Display for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaseState::Lasts(until) => write!(f, "its agent's lease lasts until {until:.0}"),
            LeaseState::Ended => f.write_str("its agent's lease has ended"),
            LeaseState::Missing => f.write_str("its agent has no lease"),
        }
    }
}

fn about_garbage(node: &str, garbage: &GarbageEntry) -> String {
    let what = garbage.device.as_deref().unwrap_or(&garbage.mount_dir);
    format!(
        "node {node} has something left of generation {}: {what}, since {:.0}, because {}; its \
         agent cleans it up when it is back",
        garbage.generation, garbage.since, garbage.reason
    )
}
