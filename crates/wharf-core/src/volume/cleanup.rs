//! The deletion of a storage cluster: its volumes leave every node, by force.
//!
//! The storage may be gone already, so that nothing here waits for it: I/O is cut first, and what
//! hangs comes loose by that. The order is claim, device, volume, mounts; a step that fails does not
//! keep the others from being done, except where the kernel demands an order. Only volumes of the
//! deleted cluster are ever in the facts.

use std::fmt;

use super::{
    fence::NoProof,
    record::{Entry, EntryKey},
};

/// One volume of the cluster, as one node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    pub volume: String,
    pub claim: Object,
    pub pv: Object,
    /// `None` when sysfs cannot be read.
    pub device: Option<bool>,
    /// Where it is mounted on this node, pods and our own directory.
    pub mounts: Vec<String>,
    /// Nothing reaches the storage any more.
    pub cut: bool,
    /// Our entries in the record; `None` while it cannot be read.
    pub entries: Option<Vec<EntryKey>>,
}

/// An object of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Object {
    /// It cannot be read now.
    #[default]
    Unread,
    Gone,
    /// Its deletion is asked for. Kubernetes keeps it until no pod uses it, which is not waited for.
    Deleting,
    There,
}

/// Every step may be done twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    DeleteClaim,
    /// Unmap by force: let nothing more reach the storage, and free what hangs.
    Cut,
    DeleteVolume,
    Unmount(String),
    Unmap,
    GiveUp(EntryKey),
}

/// What is left to do for a volume. All of it may be tried in this look; then look again.
pub fn decide_cleanup(facts: &Facts) -> Vec<Step> {
    let mut steps = Vec::new();
    let is_gone = facts.device == Some(false);
    if facts.claim == Object::There {
        steps.push(Step::DeleteClaim);
    }
    let is_here = !is_gone || !facts.mounts.is_empty();
    if is_here && !facts.cut {
        steps.push(Step::Cut);
    }
    if facts.pv == Object::There {
        steps.push(Step::DeleteVolume);
    }
    if facts.cut || is_gone {
        steps.extend(facts.mounts.iter().cloned().map(Step::Unmount));
    }
    if facts.cut && facts.mounts.is_empty() && facts.device == Some(true) {
        steps.push(Step::Unmap);
    }
    if is_gone && facts.mounts.is_empty() {
        steps.extend(facts.entries.iter().flatten().cloned().map(Step::GiveUp));
    }
    steps
}

/// How far the clean-up of a volume is on a node, for the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Clean,
    /// The node is free of it; the API server does not answer.
    RecordAway,
    Detaching,
    SysfsAway,
}

pub fn progress(facts: &Facts) -> Progress {
    let unread = facts.entries.is_none() || [facts.claim, facts.pv].contains(&Object::Unread);
    match facts.device {
        None => Progress::SysfsAway,
        Some(_) if !decide_cleanup(facts).is_empty() => Progress::Detaching,
        Some(_) if unread => Progress::RecordAway,
        Some(_) => Progress::Clean,
    }
}

/// One volume of the cluster, as the elected agent sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterVolume {
    pub volume: String,
    pub claim: Object,
    pub pv: Object,
    /// The entries that are left in its record, with what keeps them where the scan is stuck. `None`
    /// while it cannot be read.
    pub entries: Option<Vec<(Entry, Option<NoProof>)>>,
}

/// What the elected agent does for a volume that no node holds: no agent has it in its journals, so that
/// nobody else would. Where a node holds it, that node's agent cuts it off before its objects go.
pub fn decide_unheld(volume: &ClusterVolume) -> Vec<Step> {
    let is_unheld = volume.entries.as_ref().is_some_and(Vec::is_empty);
    let of_claim = (volume.claim == Object::There).then_some(Step::DeleteClaim);
    let of_volume = (volume.pv == Object::There).then_some(Step::DeleteVolume);
    of_claim.into_iter().chain(of_volume).filter(|_| is_unheld).collect()
}

/// Whether the storage cluster's resource may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finalizer {
    Remove,
    /// One sentence for each volume that keeps it.
    Keep(Vec<String>),
}

/// The resource is held until no node has anything of the cluster.
pub fn decide_finalizer(volumes: &[ClusterVolume]) -> Finalizer {
    let sentences: Vec<String> = volumes.iter().filter_map(keeps).collect();
    if sentences.is_empty() { Finalizer::Remove } else { Finalizer::Keep(sentences) }
}

fn keeps(volume: &ClusterVolume) -> Option<String> {
    let name = &volume.volume;
    match (&volume.entries, volume.claim, volume.pv) {
        (None, ..) => Some(format!("the record of volume {name} cannot be read")),
        (Some(entries), ..) if !entries.is_empty() => {
            let nodes: Vec<String> =
                entries.iter().map(|(entry, why)| on_node(entry, why)).collect();
            Some(format!("volume {name} is still on {}", nodes.join(" and ")))
        }
        (_, Object::There | Object::Unread, _) => {
            Some(format!("the claim of volume {name} is not deleted yet"))
        }
        (_, _, Object::There | Object::Unread) => {
            Some(format!("the PersistentVolume {name} is not deleted yet"))
        }
        (_, Object::Gone | Object::Deleting, Object::Gone | Object::Deleting) => None,
    }
}

fn on_node(entry: &Entry, why: &Option<NoProof>) -> String {
    match why {
        None => format!("node {}", entry.node),
        Some(why) => format!("node {} ({why})", entry.node),
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Progress::Clean => "clean",
            Progress::RecordAway => "detached; the API server does not answer",
            Progress::Detaching => "being cut off, unmounted and detached",
            Progress::SysfsAway => "whether the device is there cannot be seen",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::record::Generation;

    fn key() -> EntryKey {
        EntryKey { node: "a".to_owned(), generation: Generation(1), ..EntryKey::default() }
    }

    fn mounted() -> Facts {
        Facts {
            volume: "pv".to_owned(),
            claim: Object::There,
            pv: Object::There,
            device: Some(true),
            mounts: vec!["/pods/u/pv".to_owned(), "/staging/pv".to_owned()],
            cut: false,
            entries: Some(vec![key()]),
        }
    }

    fn carry_out(facts: &mut Facts, step: &Step) {
        match step {
            Step::DeleteClaim => facts.claim = Object::Deleting,
            Step::Cut => facts.cut = true,
            Step::DeleteVolume => facts.pv = Object::Gone,
            Step::Unmount(dir) => {
                assert!(facts.cut, "unmounting would hang");
                facts.mounts.retain(|one| one != dir);
            }
            Step::Unmap => {
                assert!(facts.mounts.is_empty());
                facts.device = Some(false);
            }
            Step::GiveUp(key) => {
                assert_eq!(facts.device, Some(false), "given up before it is gone");
                facts.entries.as_mut().unwrap().retain(|one| one != key);
            }
        }
    }

    #[test]
    fn the_order_is_that_of_the_document_and_the_record_goes_last() {
        let mut facts = mounted();
        let mut done = Vec::new();
        while let Some(step) = decide_cleanup(&facts).into_iter().next() {
            carry_out(&mut facts, &step);
            done.push(step);
        }
        let [pod, staging] = ["/pods/u/pv", "/staging/pv"].map(|dir| Step::Unmount(dir.to_owned()));
        let expected = [
            Step::DeleteClaim,
            Step::Cut,
            Step::DeleteVolume,
            pod,
            staging,
            Step::Unmap,
            Step::GiveUp(key()),
        ];
        assert_eq!(done, expected);
        assert_eq!(progress(&facts), Progress::Clean);
    }

    /// Any of the steps may fail at any time, and the agent may be killed: each look is made anew.
    #[test]
    fn whatever_fails_meanwhile_the_node_ends_clean() {
        for seed in 0..500_u64 {
            let mut facts = mounted();
            let mut luck = seed;
            for _ in 0..200 {
                for step in decide_cleanup(&facts) {
                    luck = luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    let is_due = decide_cleanup(&facts).contains(&step);
                    if is_due && (luck >> 33) % 3 == 0 {
                        carry_out(&mut facts, &step);
                    }
                }
            }
            assert_eq!(progress(&facts), Progress::Clean);
        }
    }

    #[test]
    fn without_the_api_the_node_is_freed_and_the_rest_waits() {
        let mut facts =
            Facts { claim: Object::Unread, pv: Object::Unread, entries: None, ..mounted() };
        assert_eq!(progress(&facts), Progress::Detaching);
        while let Some(step) = decide_cleanup(&facts).into_iter().next() {
            carry_out(&mut facts, &step);
        }
        assert_eq!((facts.device, facts.mounts.len()), (Some(false), 0));
        assert_eq!(progress(&facts), Progress::RecordAway);
        let unseen = Facts { device: None, mounts: Vec::new(), cut: true, ..mounted() };
        let blind = decide_cleanup(&unseen);
        assert_eq!(blind, [Step::DeleteClaim, Step::DeleteVolume], "nothing is given up unseen");
    }

    #[test]
    fn the_cluster_is_held_until_every_node_is_clean_and_says_by_what() {
        let volume =
            |claim, pv, entries| ClusterVolume { volume: "pv".to_owned(), claim, pv, entries };
        let entry = |node: &str| Entry { node: node.to_owned(), ..Entry::default() };
        let gone = || volume(Object::Deleting, Object::Gone, Some(Vec::new()));
        assert_eq!(decide_finalizer(&[gone(), gone()]), Finalizer::Remove);
        let held = vec![(entry("a"), None), (entry("b"), Some(NoProof::Unknown))];
        for (volume, sentence) in [
            (volume(Object::Gone, Object::Gone, None), "the record of volume pv cannot be read"),
            (
                volume(Object::Gone, Object::Gone, Some(held)),
                "volume pv is still on node a and node b (whether its agent is alive is not known)",
            ),
            (
                volume(Object::There, Object::Gone, Some(Vec::new())),
                "the claim of volume pv is not deleted yet",
            ),
            (
                volume(Object::Gone, Object::Unread, Some(Vec::new())),
                "the PersistentVolume pv is not deleted yet",
            ),
        ] {
            let expected = Finalizer::Keep(vec![sentence.to_owned()]);
            assert_eq!(decide_finalizer(&[gone(), volume]), expected);
        }
    }

    #[test]
    fn what_no_node_holds_is_deleted_by_the_elected_agent_and_nothing_else_is() {
        let volume =
            |claim, pv, entries| ClusterVolume { volume: "pv".to_owned(), claim, pv, entries };
        let entry = Entry { node: "a".to_owned(), ..Entry::default() };
        let (there, none) = (Object::There, || Some(Vec::new()));
        for (volume, steps) in [
            (volume(there, there, none()), &[Step::DeleteClaim, Step::DeleteVolume][..]),
            (volume(Object::Gone, there, none()), &[Step::DeleteVolume]),
            (volume(Object::Deleting, Object::Deleting, none()), &[]),
            (volume(Object::Unread, Object::Unread, none()), &[]),
            (volume(there, there, Some(vec![(entry, None)])), &[]),
            (volume(there, there, None), &[]),
        ] {
            assert_eq!(decide_unheld(&volume), steps, "{volume:?}");
        }
    }
}
