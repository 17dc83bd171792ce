//! What stays on Nodes when entries are done with them.

use std::collections::{HashMap, HashSet};

use super::{NodeAction, Pass, owned_machine};
use crate::repair::entry::{Phase, Status};

/// What the entries of one machine want of its Node.
#[derive(Default, Clone, Copy)]
struct Wish {
    in_hand: bool,
    fenced: bool,
    volumes_fenced: bool,
    /// The last repair failed, and its cordon is to stay.
    kept: bool,
}

impl Pass<'_> {
    /// A cordon or a taint of ours goes as soon as no entry wants it, whatever became of the entry:
    /// it failed, was given back, was deleted, or was forgotten by a crash.
    pub(super) fn tidy_nodes(&mut self) {
        let wishes = self.wishes();
        let wish = |address: &str| wishes.get(address).copied().unwrap_or_default();
        let draining: HashSet<&str> = self.seen.drains.values().map(String::as_str).collect();
        let mut actions = Vec::new();
        for (address, _) in wishes.iter().filter(|(_, wish)| wish.fenced) {
            let machine = self.seen.machines.get(*address).filter(|machine| !machine.fenced);
            actions.extend(machine.map(|it| NodeAction::Fence { node: it.node.clone() }));
        }
        for (address, machine) in &self.seen.machines {
            let node = || machine.node.clone();
            if machine.fenced && !wish(address).fenced {
                actions.push(NodeAction::Unfence { node: node() });
            }
            if machine.volumes_fenced && !wish(address).volumes_fenced {
                actions.push(NodeAction::UnfenceVolumes { node: node() });
            }
            // The owner names the machine, which may have another address by now.
            let Some(owner) = machine.cordoned_by.as_deref() else { continue };
            let Some(owned) = owned_machine(&self.queue.head, owner) else { continue };
            let Wish { in_hand, kept, .. } = wish(owned);
            if !in_hand && !kept && !draining.contains(owned) {
                actions.push(NodeAction::Uncordon { node: node(), owner: owner.to_owned() });
            }
        }
        actions.sort_by(|a, b| a.node().cmp(b.node()));
        self.decision.nodes = actions;
    }

    fn wishes(&self) -> HashMap<&str, Wish> {
        let mut wishes: HashMap<&str, Wish> = HashMap::new();
        let keep = self.config.keep_cordon_on_failure;
        // One that has done nothing wants nothing.
        for entry in &self.begun {
            let wish = wishes.entry(&entry.address).or_default();
            let in_hand = entry.phase.holds();
            wish.in_hand |= in_hand;
            let lives = !entry.deleted && !entry.is_finished();
            wish.fenced |= entry.fenced && lives;
            wish.volumes_fenced |= entry.volumes_fenced && lives;
            // By index, so that the last one decides.
            if entry.is_finished() && entry.started.is_some() {
                let failed = entry.status() == Status::Failed;
                wish.kept = keep && failed && !entry.deleted;
            } else if matches!(entry.phase, Phase::Waiting) {
                wish.kept = false;
            }
        }
        for address in &self.taken {
            wishes.entry(address).or_default().in_hand = true;
        }
        wishes
    }
}

impl NodeAction {
    pub fn node(&self) -> &str {
        match self {
            NodeAction::Uncordon { node, .. }
            | NodeAction::Fence { node }
            | NodeAction::Unfence { node }
            | NodeAction::UnfenceVolumes { node } => node,
        }
    }
}
