//! The journal of a volume on its node, and what to do next by it.
//!
//! Mounting and unmounting are rows of steps. Each is written into the journal, and the journal to the
//! disk, before it is done; what has really happened is then looked up in the kernel's tables
//! ([`Seen`]), never remembered. So there is no difference between going on and starting again
//! after a crash, and [`decide_next`] is both.
//!
//! The journal holds all that unmounting needs. API server, PV, StorageClass and storage cluster may
//! be gone: the device leaves the node all the same, and only the entry in the record has to wait.
//!
//! **Guarantee:** an entry is given up only after the device is verified to be gone, or while
//! another pod of this node has it by right. A mount that nobody finishes is undone.
//!
//! **Assumption:** one at a time works on the journal of a volume.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};

use super::{
    backend::Backend,
    lease::Standing,
    record::{Entry, EntryKey, Own, Phase, Record},
};

/// The parameters of storage clusters that say where the images are. Others say how they are reached, and may
/// change while volumes are in use.
const PLACES: [&str; 4] = ["directory", "server", "monitors", "pool"];

/// What this node has, or may have, of one volume. It ends with its last pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    pub volume: String,
    pub storage_cluster: String,
    pub image: String,
    pub backend: Backend,
    /// The storage cluster's, as they were.
    pub parameters: BTreeMap<String, String>,
    pub fs_type: String,
    /// Of the PV, as its first pod here came with them.
    #[serde(default)]
    pub mount_options: String,
    /// The boot in which this was written; after another, nothing of it is there any more.
    pub boot_id: String,
    pub device: DeviceStage,
    /// Nothing that is written reaches the storage any more.
    pub cut: bool,
    pub pods: Vec<PodUse>,
}

/// The last step with the device that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceStage {
    Absent,
    Mapping,
    /// Begun only when the device was blank, so that it may be begun again.
    Formatting,
    Formatted,
    /// Mounting it in a directory of ours, from which pods get their binds.
    Staging,
    Cutting,
    Unstaging,
    Unmapping,
}

/// One pod that uses the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodUse {
    pub mount_dir: String,
    pub pod_uid: String,
    pub stage: PodStage,
    /// The grant, once it is known.
    pub entry: Option<Entry>,
}

/// The last step with a pod that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodStage {
    Claiming,
    Claimed,
    Binding,
    Bound,
    /// There is no way back; a new mount begins after the end of this one.
    Leaving,
}

/// What the kernel's tables and the API server say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    pub device: Found,
    /// The file system is mounted in our directory.
    pub staged: bool,
    /// The directories of pods in which this volume is mounted.
    pub bound: BTreeSet<String>,
    /// The directories of pods that are gone for good: the API server does not know the pod, kubelet
    /// does not either, and so nobody is going to ask for the unmount. It happens when the pod is
    /// deleted while its mount is cut off by a crash.
    pub orphaned: BTreeSet<String>,
    /// An access to the device did not come back in time.
    pub hung: bool,
    /// What is mounted was cut off, whether the journal knows it or not: the guard works by itself.
    pub spoiled: bool,
    /// The record, `None` while it cannot be read. What was read in an earlier tenure of the lease
    /// counts as not read.
    pub record: Option<Option<Record>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Found {
    /// Sysfs could not be read.
    #[default]
    Unknown,
    Absent,
    Present(Signature),
}

/// What is on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signature {
    Blank,
    /// The file system that is wanted, or a shared directory that needs none.
    Ready,
    /// Something else, by name. It is never written over.
    Foreign(String),
}

/// Why the volume is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// Somebody waits for this directory to be mounted.
    Mount { dir: &'a str },
    /// Somebody waits for it to be unmounted.
    Unmount { dir: &'a str },
    /// Nobody waits: after a start, after a failure, and regularly.
    Tidy,
}

/// Every action may be done twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Run [`decide_attach`](super::attach::decide_attach) to its end, then [`Journal::claimed`].
    Claim {
        dir: String,
    },
    Map,
    /// Make the file system, then [`Journal::formatted`].
    Format,
    Stage,
    Bind {
        dir: String,
    },
    /// Say in the record that it is attached, see [`Record::attached`].
    Report {
        key: EntryKey,
    },
    /// Shut the file system down or abort its connection, then [`Journal::was_cut`].
    Cut,
    Unbind {
        dir: String,
    },
    Unstage,
    Unmap,
    /// Take the entry out of the record, see [`Record::without`].
    GiveUp {
        key: EntryKey,
    },
    /// All is gone: store the journal, or remove it with its last pod.
    Forget,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Store the note first, then act, then look again.
    Do {
        note: Box<Journal>,
        action: Action,
    },
    Wait(Wait),
    /// The mount cannot go on. Answer so, and look again with [`Purpose::Tidy`], which undoes it.
    Fail(Fault),
    /// What is wanted is there, and nothing else.
    Settled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The device is gone from this node, but the record cannot be changed now. An unmount has
    /// succeeded by then.
    RecordAway,
    SysfsAway,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The lease does not allow it.
    Lease(Standing),
    RecordAway,
    /// An earlier mount has ended, and [`Journal::begin`] has not been called again.
    NotBegun,
    /// The entry is not there any more, or counts for nothing.
    RightLost,
    Foreign {
        found: String,
    },
    BlankAndReadOnly,
}

/// Decides the next step.
pub fn decide_next(
    journal: &Journal,
    seen: &Seen,
    purpose: Purpose<'_>,
    own: &Own,
    standing: &Standing,
) -> Next {
    let mut look = Look { journal: journal.clone(), seen, own, standing };
    look.mark(purpose);
    if let Some(next) = look.clear() {
        return next;
    }
    match purpose {
        Purpose::Mount { dir } => look.advance(dir),
        Purpose::Unmount { .. } | Purpose::Tidy => look.report().unwrap_or(Next::Settled),
    }
}

impl Journal {
    /// Notes that a pod is going to use the volume. One that is there already goes on. To be called
    /// before every look of a mount: what an earlier one left ends first.
    pub fn begin(&mut self, mount_dir: &str, pod_uid: &str) {
        if !self.pods.iter().any(|pod| pod.mount_dir == mount_dir) {
            self.pods.push(PodUse {
                mount_dir: mount_dir.to_owned(),
                pod_uid: pod_uid.to_owned(),
                stage: PodStage::Claiming,
                entry: None,
            });
        }
    }

    /// Whether it is of the image that is asked for. A volume may have been deleted and made anew under the same
    /// name, and so may its storage cluster.
    pub fn is_of(
        &self,
        storage_cluster: &str,
        image: &str,
        backend: Backend,
        parameters: &BTreeMap<String, String>,
    ) -> bool {
        let same = (self.storage_cluster.as_str(), self.image.as_str(), self.backend)
            == (storage_cluster, image, backend);
        same && PLACES.iter().all(|key| self.parameters.get(*key) == parameters.get(*key))
    }

    /// Where else this pod has the volume. An entry of the record is of one pod: two directories would
    /// take it from each other.
    pub fn other_dir(&self, mount_dir: &str, pod_uid: &str) -> Option<&str> {
        let is_other = |pod: &&PodUse| pod.pod_uid == pod_uid && pod.mount_dir != mount_dir;
        self.pods.iter().find(is_other).map(|pod| pod.mount_dir.as_str())
    }

    /// Notes a grant. Claims are of the present boot.
    pub fn claimed(&mut self, mount_dir: &str, entry: &Entry) {
        self.boot_id.clone_from(&entry.boot_id);
        for pod in self.pods.iter_mut().filter(|pod| pod.mount_dir == mount_dir) {
            pod.entry = Some(entry.clone());
            pod.stage = PodStage::Claimed;
        }
    }

    pub fn formatted(&mut self) {
        if self.device == DeviceStage::Formatting {
            self.device = DeviceStage::Formatted;
        }
    }

    pub fn was_cut(&mut self) {
        self.cut = true;
    }

    /// Whether an unmount of the directory has done all that it is answered for.
    pub fn is_unmounted(&self, dir: &str, seen: &Seen) -> bool {
        let is_other = |pod: &PodUse| pod.mount_dir != dir && pod.stage != PodStage::Leaving;
        let is_gone = seen.device == Found::Absent && !seen.staged;
        !seen.bound.contains(dir) && (is_gone || self.pods.iter().any(is_other))
    }
}

/// What is known of a pod's right to the volume.
struct Right<'a> {
    entry: Known<'a>,
    /// It may be used, as far as is known.
    valid: bool,
}

enum Known<'a> {
    Unread,
    Absent,
    There(&'a Entry),
}

struct Look<'a> {
    journal: Journal,
    seen: &'a Seen,
    own: &'a Own,
    standing: &'a Standing,
}

impl<'a> Look<'a> {
    /// Says which pods are leaving: the one that is to be unmounted, every one without a right, and,
    /// when nobody waits, every one that was not finished.
    fn mark(&mut self, purpose: Purpose<'_>) {
        let stages: Vec<PodStage> =
            self.journal.pods.iter().map(|pod| self.stage(pod, purpose)).collect();
        for (pod, stage) in self.journal.pods.iter_mut().zip(stages) {
            pod.stage = stage;
        }
        if self.journal.boot_id != self.own.boot_id {
            self.journal.device = DeviceStage::Absent;
            self.journal.cut = false;
        }
    }

    fn stage(&self, pod: &PodUse, purpose: Purpose<'_>) -> PodStage {
        let is_bound = self.seen.bound.contains(&pod.mount_dir);
        let is_meant = |dir: &str| dir == pod.mount_dir;
        match (pod.stage, purpose) {
            (PodStage::Leaving, _) => PodStage::Leaving,
            (_, Purpose::Unmount { dir }) if is_meant(dir) => PodStage::Leaving,
            _ if self.seen.orphaned.contains(&pod.mount_dir) => PodStage::Leaving,
            (PodStage::Claiming, Purpose::Mount { dir }) if is_meant(dir) => PodStage::Claiming,
            (PodStage::Claimed | PodStage::Binding | PodStage::Bound, _)
                if !self.right(pod).valid =>
            {
                PodStage::Leaving
            }
            (PodStage::Binding, _) if is_bound => PodStage::Bound,
            (PodStage::Bound, Purpose::Mount { dir }) if !is_bound && is_meant(dir) => {
                PodStage::Claimed
            }
            (stage, Purpose::Mount { dir }) if is_meant(dir) => stage,
            (PodStage::Bound, _) if is_bound => PodStage::Bound,
            (PodStage::Claiming | PodStage::Claimed | PodStage::Binding | PodStage::Bound, _) => {
                PodStage::Leaving
            }
        }
    }

    /// The entry of a pod is found without its generation, which a crash may have kept from the
    /// journal.
    fn right(&self, pod: &PodUse) -> Right<'a> {
        let same_boot = self.journal.boot_id == self.own.boot_id;
        let is_of_pod = |entry: &&Entry| {
            entry.node == self.own.node
                && entry.boot_id == self.journal.boot_id
                && entry.pod_uid == pod.pod_uid
        };
        let entry = match &self.seen.record {
            None => Known::Unread,
            Some(None) => Known::Absent,
            Some(Some(record)) => {
                record.entries.iter().find(is_of_pod).map_or(Known::Absent, Known::There)
            }
        };
        let granted = pod.entry.as_ref();
        let lapsed = granted.is_some_and(|entry| {
            entry.self_fence
                && (*self.standing == Standing::Over || entry.tenure != self.own.tenure)
        });
        let stands = match entry {
            Known::Unread => true,
            Known::Absent => false,
            Known::There(entry) => {
                let granted = granted.map(|granted| granted.generation);
                entry.is_right_of(self.own) && granted == Some(entry.generation)
            }
        };
        Right { valid: same_boot && !lapsed && stands && !self.seen.spoiled, entry }
    }

    /// Takes away what nobody may or wants to use any more.
    fn clear(&self) -> Option<Next> {
        let leaving = || self.journal.pods.iter().filter(|pod| pod.stage == PodStage::Leaving);
        let uses = |pod: &PodUse| {
            matches!(pod.stage, PodStage::Claimed | PodStage::Binding | PodStage::Bound)
        };
        let is_used = self.journal.pods.iter().any(uses);
        let is_there = self.seen.staged || self.seen.device != Found::Absent;
        let voided = leaving().any(|pod| !self.right(pod).valid);
        if !is_used && is_there && (voided || self.seen.hung) && !self.journal.cut {
            return Some(self.step(DeviceStage::Cutting, Action::Cut));
        }
        let bound = |pod: &&PodUse| self.seen.bound.contains(&pod.mount_dir);
        if let Some(pod) = leaving().find(bound) {
            return Some(self.note(Action::Unbind { dir: pod.mount_dir.clone() }));
        }
        if !is_used && self.seen.staged {
            return Some(self.step(DeviceStage::Unstaging, Action::Unstage));
        }
        match self.seen.device {
            Found::Absent => {}
            _ if is_used => {}
            Found::Present(_) => return Some(self.step(DeviceStage::Unmapping, Action::Unmap)),
            Found::Unknown => return Some(Next::Wait(Wait::SysfsAway)),
        }
        leaving().next().map(|pod| self.give_up(pod, is_used))
    }

    /// The device is gone, or others here use it: the pod's entry goes, and then the pod.
    fn give_up(&self, pod: &PodUse, is_used: bool) -> Next {
        let mut after = self.journal.clone();
        if !is_used {
            after.device = DeviceStage::Absent;
            after.cut = false;
        }
        match self.right(pod).entry {
            Known::Unread => Next::Wait(Wait::RecordAway),
            Known::There(entry) => {
                Next::Do { note: Box::new(after), action: Action::GiveUp { key: entry.key() } }
            }
            Known::Absent => {
                after.pods.retain(|one| one != pod);
                Next::Do { note: Box::new(after), action: Action::Forget }
            }
        }
    }

    /// One step closer to the mount.
    fn advance(&self, dir: &str) -> Next {
        let Some(pod) = self.journal.pods.iter().find(|pod| pod.mount_dir == dir) else {
            return Next::Fail(Fault::NotBegun);
        };
        let bound = self.seen.bound.contains(dir);
        match pod.stage {
            PodStage::Bound if bound => return self.report().unwrap_or(Next::Settled),
            PodStage::Leaving => return Next::Fail(Fault::NotBegun),
            PodStage::Claiming | PodStage::Claimed | PodStage::Binding | PodStage::Bound => {}
        }
        if !matches!(self.standing, Standing::Held { .. }) {
            return Next::Fail(Fault::Lease(*self.standing));
        }
        if pod.stage == PodStage::Claiming {
            return self.note(Action::Claim { dir: dir.to_owned() });
        }
        match self.right(pod).entry {
            Known::Unread => Next::Fail(Fault::RecordAway),
            Known::Absent => Next::Fail(Fault::RightLost),
            Known::There(_) => self.prepare(pod),
        }
    }

    fn prepare(&self, pod: &PodUse) -> Next {
        let read_only = pod.entry.as_ref().is_some_and(|entry| entry.read_only);
        let unfinished = self.journal.device == DeviceStage::Formatting;
        match &self.seen.device {
            Found::Unknown => return Next::Wait(Wait::SysfsAway),
            Found::Absent => return self.step(DeviceStage::Mapping, Action::Map),
            Found::Present(_) if self.seen.staged => {}
            Found::Present(_) if unfinished => {
                return self.step(DeviceStage::Formatting, Action::Format);
            }
            Found::Present(Signature::Blank) if read_only => {
                return Next::Fail(Fault::BlankAndReadOnly);
            }
            Found::Present(Signature::Blank) => {
                return self.step(DeviceStage::Formatting, Action::Format);
            }
            Found::Present(Signature::Foreign(found)) => {
                return Next::Fail(Fault::Foreign { found: found.clone() });
            }
            Found::Present(Signature::Ready) => {}
        }
        if !self.seen.staged {
            return self.step(DeviceStage::Staging, Action::Stage);
        }
        let mut note = self.journal.clone();
        for one in note.pods.iter_mut().filter(|one| one.mount_dir == pod.mount_dir) {
            one.stage = PodStage::Binding;
        }
        let dir = pod.mount_dir.clone();
        Next::Do { note: Box::new(note), action: Action::Bind { dir } }
    }

    /// A pod that is bound is shown as attached; that is all that is missing.
    fn report(&self) -> Option<Next> {
        let bound = self.journal.pods.iter().filter(|pod| pod.stage == PodStage::Bound);
        let mut entries = bound.filter_map(|pod| match self.right(pod).entry {
            Known::There(entry) if entry.phase == Phase::Attaching => Some(entry.key()),
            Known::There(_) | Known::Unread | Known::Absent => None,
        });
        entries.next().map(|key| self.note(Action::Report { key }))
    }

    fn note(&self, action: Action) -> Next {
        Next::Do { note: Box::new(self.journal.clone()), action }
    }

    fn step(&self, stage: DeviceStage, action: Action) -> Next {
        let note = Journal { device: stage, ..self.journal.clone() };
        Next::Do { note: Box::new(note), action }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Lease(standing) => standing.fmt(f),
            Fault::RecordAway => f.write_str("the API server does not answer"),
            Fault::NotBegun => f.write_str("an earlier mount of the volume had to end first"),
            Fault::RightLost => f.write_str("the volume was given to another node meanwhile"),
            Fault::Foreign { found } => write!(
                f,
                "there is {found} on the volume, which is not the file system that is wanted; it \
                 is left alone"
            ),
            Fault::BlankAndReadOnly => {
                f.write_str("the volume is blank, and a read-only use does not format it")
            }
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wait::RecordAway => {
                "the volume is detached; its record is given up when the API server answers"
            }
            Wait::SysfsAway => "whether the device is there cannot be seen",
        })
    }
}
