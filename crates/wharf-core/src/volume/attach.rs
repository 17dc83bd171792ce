//! Whether a pod may have a volume, and the next step to give it one.
//!
//! Flow: the shell reads the facts, asks [`decide_attach`], does the one step that it says, and
//! reads the facts again, until the answer is a grant, a wait or a refusal. Every step is a write
//! that fails when the facts have changed, or may be done twice.
//!
//! **Guarantee:** an entry comes into the record only when every entry that excludes it has left by
//! itself or was pushed out by [proof](super::fence::decide_proof), and, where the backend can,
//! after that holder was shut out. A writable one has a generation that nobody had before.

mod say;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    backend::Backend,
    fence::{HolderNode, NoProof, Proof, decide_proof},
    garbage::GarbageEntry,
    lease::Standing,
    push_out::{PushOut, Pushed},
    record::{Entry, EntryKey, Generation, Own, Phase, Record},
    request::Request,
};

/// The facts of one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub request: Request,
    pub own: Own,
    /// What our own lease allows.
    pub standing: Standing,
    /// The client that the backend will see; empty where it is known only after mapping.
    pub identity: String,
    /// `None` when there is no such pod.
    pub pod: Option<PodFacts>,
    /// `None` when there is no such PV.
    pub volume: Option<VolumeFacts>,
    /// `None` when there is no such storage cluster.
    pub cluster: Option<ClusterFacts>,
    pub record: Option<Record>,
    /// Of every node that the record names, and of this one. One that could not be read is missing.
    pub nodes: BTreeMap<String, HolderNode>,
    /// The generation that this attempt raised the PV to.
    pub raised: Option<Generation>,
    /// The holders that this attempt fenced, for that generation.
    pub fenced: Vec<EntryKey>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodFacts {
    pub uid: String,
    pub node: String,
    pub finished: bool,
}

/// The PV.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeFacts {
    pub storage_cluster: String,
    pub image: String,
    pub modes: Vec<AccessMode>,
    pub generation: Generation,
    /// The highest generation that the storage has seen for the image, where it can be asked.
    pub epoch: Generation,
    pub deleting: bool,
}

/// The words are those of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessMode {
    ReadWriteOnce,
    ReadWriteOncePod,
    ReadOnlyMany,
    ReadWriteMany,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterFacts {
    pub backend: Backend,
    pub deleting: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub takeover: Takeover,
    pub rwo_scope: RwoScope,
    /// Whether our entries promise to cut themselves off. `None`: only where the backend cannot
    /// shut us out.
    pub self_fence: Option<bool>,
    /// The clocks of two nodes differ by less.
    pub skew: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            takeover: Takeover::ByProof,
            rwo_scope: RwoScope::Pod,
            self_fence: None,
            skew: super::lease::Terms::default().skew,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Takeover {
    ByProof,
    /// Unsafe: a pod of the same name breaks the lock, though the old one may still write.
    ByName,
}

/// What "once" of ReadWriteOnce means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RwoScope {
    Pod,
    Node,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The entry stands in the record: the device may be mapped.
    Granted(Box<Entry>),
    Do(Step),
    /// Others hold it; asking again later may help.
    Wait {
        blocked: Vec<Blocked>,
        wake_at: Option<Timestamp>,
    },
    /// Asking again does not help until somebody changes something.
    Refuse(Refusal),
}

/// One step on the way to a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Write the generation on the PV, if it still has the other.
    Raise { from: Generation, to: Generation },
    /// Write the record, if it still has this version; without a version, create it.
    Write { version: Option<String>, entries: Vec<Entry> },
    /// Let the data path refuse these holders and everything below the generation: clients that are
    /// in, and those that come later. A holder that was stopped between its claim and its mapping
    /// has no client yet.
    Fence { holders: Vec<Entry>, generation: Generation },
    /// Put these on the garbage list of the node.
    NoteGarbage { node: String, entries: Vec<GarbageEntry> },
}

/// A holder that stands in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    pub holder: Entry,
    pub why: Obstacle,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// On this very node: it leaves by our own doing, or not at all.
    Here,
    NoProof(NoProof),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    Lease(Standing),
    OutOfService {
        node: String,
    },
    NoVolume {
        volume: String,
    },
    VolumeDeleted {
        volume: String,
    },
    OtherVolume {
        what: &'static str,
        asked: String,
        is: String,
    },
    NoCluster {
        cluster: String,
    },
    ClusterDeleted {
        cluster: String,
    },
    PodGone {
        pod: String,
    },
    PodElsewhere {
        pod: String,
        node: String,
    },
    PodFinished {
        pod: String,
    },
    FsType {
        fs_type: String,
    },
    /// Several writers on a backend that has room for one.
    SharedWriting {
        backend: Backend,
    },
    NoAccessMode {
        volume: String,
    },
}

/// How a volume is going to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    ReadMany,
    OnePod,
    OneNode,
    /// No use excludes another.
    Many {
        read_only: bool,
    },
}

/// The file systems that are made and mounted; empty stands for the default.
const FS_TYPES: [&str; 3] = ["", "ext4", "xfs"];

/// Decides the next step of a mount.
pub fn decide_attach(snapshot: &Snapshot, now: Timestamp, policy: &Policy) -> Decision {
    let (volume, backend, access) = match admit(snapshot, policy) {
        Ok(admitted) => admitted,
        Err(refusal) => return Decision::Refuse(refusal),
    };
    if let Some(entry) = standing_entry(snapshot, volume, access) {
        return Decision::Granted(Box::new(entry.clone()));
    }
    let attach = Attach { snapshot, volume, backend, access, policy };
    match attach.judge(now) {
        Ok(pushed) => Decision::Do(attach.next_step(&pushed, now)),
        Err(blocked) => {
            let ends = blocked.iter().filter_map(|one| match one.why {
                Obstacle::NoProof(NoProof::Alive { until }) => Some(until),
                Obstacle::NoProof(NoProof::Unknown | NoProof::CannotBeFenced { .. })
                | Obstacle::Here => None,
            });
            let wake_at = ends.max();
            Decision::Wait { blocked, wake_at }
        }
    }
}

/// Everything that can be said without looking at others.
fn admit<'a>(
    snapshot: &'a Snapshot,
    policy: &Policy,
) -> Result<(&'a VolumeFacts, Backend, Access), Refusal> {
    let Snapshot { request, own, .. } = snapshot;
    if !matches!(snapshot.standing, Standing::Held { .. }) {
        return Err(Refusal::Lease(snapshot.standing));
    }
    // Others may take over at once what a node holds that is out of service.
    let node = snapshot.nodes.get(&own.node).and_then(|node| node.node.as_ref());
    if node.is_some_and(|node| node.out_of_service) {
        return Err(Refusal::OutOfService { node: own.node.clone() });
    }
    admit_pod(snapshot)?;
    let name = || request.volume.clone();
    let volume = snapshot.volume.as_ref().ok_or_else(|| Refusal::NoVolume { volume: name() })?;
    if volume.deleting {
        return Err(Refusal::VolumeDeleted { volume: name() });
    }
    for (what, asked, is) in [
        ("storage cluster", &request.storage_cluster, &volume.storage_cluster),
        ("image", &request.image, &volume.image),
    ] {
        if asked != is {
            let (asked, is) = (asked.clone(), is.clone());
            return Err(Refusal::OtherVolume { what, asked, is });
        }
    }
    let cluster = || request.storage_cluster.clone();
    match snapshot.cluster {
        None => Err(Refusal::NoCluster { cluster: cluster() }),
        Some(facts) if facts.deleting => Err(Refusal::ClusterDeleted { cluster: cluster() }),
        Some(_) if !FS_TYPES.contains(&request.fs_type.as_str()) => {
            Err(Refusal::FsType { fs_type: request.fs_type.clone() })
        }
        Some(facts) => {
            let access = access(request, volume, facts.backend, policy)?;
            Ok((volume, facts.backend, access))
        }
    }
}

/// A late call for a pod that has gone would leave an entry behind that nobody takes out.
fn admit_pod(snapshot: &Snapshot) -> Result<(), Refusal> {
    let wanted = &snapshot.request.pod;
    let name = wanted.to_string();
    match &snapshot.pod {
        None => Err(Refusal::PodGone { pod: name }),
        Some(pod) if pod.uid != wanted.uid => Err(Refusal::PodGone { pod: name }),
        Some(pod) if pod.node != snapshot.own.node => {
            Err(Refusal::PodElsewhere { pod: name, node: pod.node.clone() })
        }
        Some(pod) if pod.finished => Err(Refusal::PodFinished { pod: name }),
        Some(_) => Ok(()),
    }
}

fn access(
    request: &Request,
    volume: &VolumeFacts,
    backend: Backend,
    policy: &Policy,
) -> Result<Access, Refusal> {
    let has = |mode| volume.modes.contains(&mode);
    if has(AccessMode::ReadWriteMany) {
        return match backend.shares_writing() {
            true => Ok(Access::Many { read_only: request.read_only }),
            false => Err(Refusal::SharedWriting { backend }),
        };
    }
    if has(AccessMode::ReadWriteOncePod) {
        return Ok(Access::OnePod);
    }
    let once = has(AccessMode::ReadWriteOnce);
    match (once, has(AccessMode::ReadOnlyMany), policy.rwo_scope) {
        (false, false, _) => Err(Refusal::NoAccessMode { volume: request.volume.clone() }),
        (_, true, _) if request.read_only || !once => Ok(Access::ReadMany),
        (_, _, RwoScope::Pod) => Ok(Access::OnePod),
        (_, _, RwoScope::Node) => Ok(Access::OneNode),
    }
}

/// The entry by which this pod has the volume already: the call is a retry.
fn standing_entry<'a>(
    snapshot: &'a Snapshot,
    volume: &VolumeFacts,
    access: Access,
) -> Option<&'a Entry> {
    let entries = || snapshot.record.iter().flat_map(|record| &record.entries);
    let mut rights = entries().filter(|entry| entry.is_right_of(&snapshot.own));
    let read_only = access.is_read_only(&snapshot.request);
    let entry = rights.find(|entry| is_mine(entry, snapshot) && entry.read_only == read_only)?;
    let is_joined = || {
        let mut others = entries().filter(|other| !is_mine(other, snapshot));
        others.any(|it| it.generation == entry.generation && is_grant(it, snapshot, volume))
    };
    (is_grant(entry, snapshot, volume) || is_joined()).then_some(entry)
}

/// Whether this node has the volume by an entry.
///
/// A write of ours that came late may have made an entry whose generation others have passed
/// meanwhile. It is no grant, neither for its pod nor for one that would join it: generations never
/// fall. Once an entry stands, nobody is granted the volume over it: the PV that is compared has to be
/// read after the record.
fn is_grant(entry: &Entry, snapshot: &Snapshot, volume: &VolumeFacts) -> bool {
    let is_fresh =
        entry.read_only || entry.phase == Phase::Attached || entry.generation == volume.generation;
    entry.is_right_of(&snapshot.own) && is_fresh
}

fn is_mine(entry: &Entry, snapshot: &Snapshot) -> bool {
    entry.pod_uid == snapshot.request.pod.uid && entry.node == snapshot.own.node
}

impl Access {
    fn is_read_only(self, request: &Request) -> bool {
        match self {
            Access::ReadMany => true,
            Access::Many { read_only } => read_only,
            Access::OnePod | Access::OneNode => request.read_only,
        }
    }

    /// Whether it cannot be beside another pod's entry. `shared` says that this node has the volume
    /// already in a way that serves both.
    fn excludes(self, entry: &Entry, shared: bool) -> bool {
        match self {
            Access::Many { .. } => false,
            Access::OnePod => true,
            Access::OneNode => !shared,
            Access::ReadMany => !entry.read_only && !shared,
        }
    }
}

struct Attach<'a> {
    snapshot: &'a Snapshot,
    volume: &'a VolumeFacts,
    backend: Backend,
    access: Access,
    policy: &'a Policy,
}

impl<'a> Attach<'a> {
    fn entries(&self) -> impl Iterator<Item = &'a Entry> + use<'a> {
        self.snapshot.record.iter().flat_map(|record| &record.entries)
    }

    /// An entry of our own pod and boot that counts for nothing any more is replaced; its device is
    /// this agent's own, and gone.
    fn is_replaced(&self, entry: &Entry) -> bool {
        let open = matches!(entry.phase, Phase::Attaching | Phase::Attached);
        is_mine(entry, self.snapshot) && entry.boot_id == self.snapshot.own.boot_id && open
    }

    fn is_grant(&self, entry: &Entry) -> bool {
        is_grant(entry, self.snapshot, self.volume)
    }

    /// Whether another pod on this node and ours can use one device: it is writable already, or
    /// both only read.
    fn is_shared(&self, entry: &Entry) -> bool {
        let own = &self.snapshot.own;
        let writes = |entry: &Entry| !entry.read_only && self.is_grant(entry);
        let only_reads = self.access.is_read_only(&self.snapshot.request) && entry.read_only;
        self.policy.rwo_scope == RwoScope::Node
            && entry.is_right_of(own)
            && (only_reads || self.entries().any(writes))
    }

    fn is_excluded(&self, entry: &Entry) -> bool {
        let mine = is_mine(entry, self.snapshot);
        mine || self.access.excludes(entry, self.is_shared(entry))
    }

    /// Those that have to go, if each may be pushed out.
    fn judge(&self, now: Timestamp) -> Result<Vec<Pushed<'a>>, Vec<Blocked>> {
        let (mut pushed, mut blocked) = (Vec::new(), Vec::new());
        let in_the_way =
            self.entries().filter(|entry| !self.is_replaced(entry) && self.is_excluded(entry));
        for entry in in_the_way {
            match self.proof(entry, now) {
                Ok(proof) => pushed.push((entry, proof)),
                Err(why) => blocked.push(Blocked { holder: entry.clone(), why }),
            }
        }
        if blocked.is_empty() { Ok(pushed) } else { Err(blocked) }
    }

    fn proof(&self, entry: &Entry, now: Timestamp) -> Result<Proof, Obstacle> {
        let Snapshot { own, nodes, request, .. } = self.snapshot;
        if entry.node == own.node && entry.boot_id == own.boot_id {
            return Err(Obstacle::Here);
        }
        decide_proof(entry, nodes, self.backend, &request.pod, now, self.policy)
            .map_err(Obstacle::NoProof)
    }

    fn next_step(&self, pushed: &[Pushed<'_>], now: Timestamp) -> Step {
        // A raise that others have passed since counts for nothing.
        let stands = |raised: &Generation| {
            *raised == self.volume.generation
                && self.entries().all(|entry| entry.generation < *raised)
        };
        let raised = self.snapshot.raised.filter(stands);
        let push = PushOut {
            volume: &self.snapshot.request.volume,
            backend: self.backend,
            record: self.snapshot.record.as_ref(),
            nodes: &self.snapshot.nodes,
            generation: Some(self.volume.generation),
            epoch: self.volume.epoch,
            raised,
            fenced: &self.snapshot.fenced,
            is_over: false,
        };
        let writes = !self.access.is_read_only(&self.snapshot.request);
        let joins = self.joined().filter(|_| !push.fences(pushed));
        if raised.is_none() && writes && joins.is_none() {
            return push.raise(self.volume.generation);
        }
        if let Some(step) = push.next_step(pushed, now) {
            return step;
        }
        let generation = joins.or(raised).unwrap_or(self.volume.generation);
        let stays = push.staying(pushed).filter(|entry| !self.is_replaced(entry));
        let entries = stays.cloned().chain([self.new_entry(generation)]).collect();
        push.write(entries)
    }

    /// The generation with which this node has the volume already.
    fn joined(&self) -> Option<Generation> {
        let mut here = self.entries().filter(|entry| self.is_grant(entry));
        here.find(|entry| !self.is_replaced(entry)).map(|entry| entry.generation)
    }

    fn new_entry(&self, generation: Generation) -> Entry {
        let Snapshot { request, own, identity, .. } = self.snapshot;
        let self_fence = self.policy.self_fence.unwrap_or(!self.backend.refuses_old_clients());
        Entry {
            node: own.node.clone(),
            pod_namespace: request.pod.namespace.clone(),
            pod: request.pod.name.clone(),
            mount_dir: request.mount_dir.clone(),
            pod_uid: request.pod.uid.clone(),
            read_only: self.access.is_read_only(request),
            device: None,
            node_uid: own.node_uid.clone(),
            boot_id: own.boot_id.clone(),
            identity: identity.clone(),
            generation,
            phase: Phase::Attaching,
            storage_cluster: request.storage_cluster.clone(),
            image: request.image.clone(),
            backend: Some(self.backend),
            self_fence,
            tenure: own.tenure,
        }
    }
}
