//! Claiming a volume: the facts for the decision, and its steps as calls.

use std::{collections::BTreeMap, time::Duration};

use wharf_core::{
    drain::PodRef,
    volume::{
        attach::{AccessMode, ClusterFacts, Decision, Snapshot, Step, VolumeFacts, decide_attach},
        fence::HolderNode,
        lease::Sighting,
        request::Request,
    },
};

use super::{Agent, Machine, Shared, Waiting};
use crate::volumes::{
    Plant,
    network::Order,
    server::{Ask, Facts, node_name, volume_name},
};

use super::work::Work;

impl Agent {
    /// Notes when each lease was first seen as it is.
    pub(super) fn watch_leases(&mut self, facts: &Facts, now: u64) {
        for (node, lease) in &facts.leases {
            let known = self.sightings.entry(*node).or_insert((*lease, now));
            if known.0 != *lease {
                *known = (*lease, now);
            }
        }
    }

    pub(super) fn decide_claim(
        &self,
        work: &Work,
        facts: &Facts,
        machine: &Machine,
        shared: &Shared,
    ) -> Decision {
        let volume = work.volume;
        let pod = work.pod();
        let snapshot = Snapshot {
            request: Request {
                volume: volume_name(volume),
                pod: PodRef {
                    namespace: "default".to_owned(),
                    name: pod.1.to_owned(),
                    uid: pod.0.to_owned(),
                },
                mount_dir: work.dir(),
                storage_cluster: "main".to_owned(),
                image: volume_name(volume),
                ..Request::default()
            },
            own: machine.own(),
            standing: self.standing(machine, shared),
            identity: machine.boot_id(),
            pod: facts.pod.clone(),
            volume: Some(VolumeFacts {
                storage_cluster: "main".to_owned(),
                image: volume_name(volume),
                modes: vec![AccessMode::ReadWriteOnce],
                generation: facts.generation,
                epoch: Default::default(),
                deleting: false,
            }),
            cluster: Some(ClusterFacts { backend: shared.images[volume].backend, deleting: false }),
            record: facts.record.clone(),
            nodes: self.holders(facts, shared),
            raised: work.raised,
            fenced: work.fenced.clone(),
        };
        decide_attach(&snapshot, machine.clock(shared.now), &shared.policy())
    }

    pub(super) fn holders(&self, facts: &Facts, shared: &Shared) -> BTreeMap<String, HolderNode> {
        let nodes = facts.leases.keys().chain(facts.nodes.keys()).copied();
        let holder = |node: usize| {
            let seen = facts.leases.get(&node).zip(self.sightings.get(&node));
            let lease = seen.map(|(lease, (_, since))| Sighting {
                tenure: match shared.plant {
                    Some(Plant::IgnoreLeases) => lease.tenure + 1,
                    _ => lease.tenure,
                },
                renewed: lease.renewed,
                duration: lease.duration,
                unchanged_for: Duration::from_millis(shared.now - since),
            });
            let garbage = facts.garbage.get(&node).cloned().unwrap_or_default();
            HolderNode { node: facts.nodes.get(&node).cloned(), lease, garbage }
        };
        nodes.map(|node| (node_name(node), holder(node))).collect()
    }

    /// Sends one step of a claim.
    pub(super) fn send_step(
        volume: usize,
        step: &Step,
        machine: &Machine,
        shared: &mut Shared,
    ) -> Waiting {
        let node = machine.node;
        match step {
            Step::Raise { from, to } => {
                shared.ask(node, Ask::Raise { volume, from: *from, to: *to })
            }
            Step::Write { version, entries } => {
                let (version, entries) = (version.clone(), entries.clone());
                shared.ask(node, Ask::Write { volume, version, entries })
            }
            Step::NoteGarbage { node: holder, entries } => {
                let holder = holder.trim_start_matches('n').parse().unwrap_or_default();
                shared.ask(node, Ask::NoteGarbage { node: holder, entries: entries.clone() })
            }
            Step::Fence { generation, .. } => {
                shared.order(node, Order::Fence { volume, generation: *generation })
            }
        }
    }
}
