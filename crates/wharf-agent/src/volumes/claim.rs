//! Asking for a volume: the facts of the decision, and its steps as calls.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use jiff::Timestamp;
use tracing::{info, warn};
use wharf_core::{
    volume::{
        attach::{ClusterFacts, Decision, PodFacts, Snapshot, Step, decide_attach},
        fence::HolderNode,
        garbage::GarbageEntry,
        lease::Sighting,
        record::{Entry, EntryKey, Generation, Record},
        request::Request,
    },
    words::chain,
};
use wharf_kube::{
    Cluster, KubeError,
    volumes::{AgentLease, PersistentVolume, StorageCluster, Written},
};

use super::{Volumes, storage::Storage, work::VolumeError};

/// Every step is refused when the facts have changed. Whoever is refused so often meets somebody who
/// does nothing else.
const MOST_STEPS: usize = 40;

/// What the API server says about a mount.
pub struct Gathered {
    pub record: Option<Record>,
    pub volume: Option<PersistentVolume>,
    pub cluster: Option<StorageCluster>,
    pod: Option<PodFacts>,
    nodes: BTreeMap<String, HolderNode>,
    /// The tenure in which this was read.
    pub tenure: u64,
    pub node_uid: String,
}

impl Volumes {
    /// Reads all facts, side by side. Whether others have passed an entry of the record is seen on the
    /// volume: where there is a record, the volume is read once more after it. Where there is none,
    /// one that came meanwhile is seen by the next write, which holds only for what was read.
    pub async fn gather(&self, api: &Cluster, request: &Request) -> Result<Gathered, KubeError> {
        let tenure = self.own("").tenure;
        let (record, pod, mut volume, cluster, own) = tokio::try_join!(
            api.attachment(&request.volume),
            api.pod_facts(&request.pod.namespace, &request.pod.name),
            api.volume(&request.volume),
            api.storage_cluster(&request.storage_cluster),
            api.node_object(&self.node),
        )?;
        let node_uid = own.as_ref().map(|node| node.uid.clone()).unwrap_or_default();
        let own = HolderNode { node: own, ..HolderNode::default() };
        let mut nodes = BTreeMap::from([(self.node.clone(), own)]);
        if let Some(record) = &record {
            let holders: BTreeSet<&String> = record.entries.iter().map(|it| &it.node).collect();
            let looked = holders.into_iter().map(|node| self.holder(api, node));
            let looked = futures_util::future::try_join_all(looked);
            let (after, looked) = tokio::try_join!(api.volume(&request.volume), looked)?;
            volume = after;
            nodes.extend(looked);
        }
        Ok(Gathered { record, volume, cluster, pod, nodes, tenure, node_uid })
    }

    /// What is known of a node that holds a volume.
    pub async fn holder(
        &self,
        api: &Cluster,
        node: &str,
    ) -> Result<(String, HolderNode), KubeError> {
        let asked = Instant::now();
        let (object, lease, garbage) =
            tokio::try_join!(api.node_object(node), api.agent_lease(node), api.garbage(node))?;
        let lease = lease.map(|lease| self.sight(node, &lease, asked));
        let holder = HolderNode { node: object, lease, garbage: garbage.entries };
        Ok((node.to_owned(), holder))
    }

    /// A lease that was asked for then, with how long we have watched it.
    pub fn sight(&self, node: &str, lease: &AgentLease, asked: Instant) -> Sighting {
        let renewal = (lease.tenure, lease.renewed);
        Sighting {
            tenure: lease.tenure,
            renewed: lease.renewed,
            duration: lease.duration,
            unchanged_for: self.sightings.note(node, renewal, asked, Instant::now()),
        }
    }

    /// Begins to ask for the volume: raises its generation, if that comes first. Nobody has to undo that,
    /// so that the journal may be written meanwhile.
    pub async fn begin_claim(
        &self,
        api: &Cluster,
        request: &Request,
        storage: &Arc<dyn Storage>,
        facts: &mut Gathered,
    ) -> Result<Attempt, VolumeError> {
        let mut attempt = Attempt::default();
        if facts.cluster.as_ref().is_some_and(StorageCluster::is_held) {
            let decided = self.decide(request, storage, facts, &mut attempt).await?;
            if let Decision::Do(step @ Step::Raise { .. }) = decided {
                self.proceed(api, request, storage, facts, &mut attempt, step).await?;
            }
        }
        Ok(attempt)
    }

    /// Asks for the volume until it is granted or refused. The record in `facts` is then the one with
    /// the grant. The journal knows of it already.
    pub async fn claim(
        &self,
        api: &Cluster,
        request: &Request,
        storage: &Arc<dyn Storage>,
        facts: &mut Gathered,
        mut attempt: Attempt,
    ) -> Result<Entry, VolumeError> {
        for _ in 0..MOST_STEPS {
            // Only what is held is attached: otherwise its deletion could go by unnoticed.
            if let Some(cluster) = &facts.cluster
                && !cluster.deleting
                && !cluster.is_held()
            {
                api.hold(cluster).await?;
                *facts = self.gather(api, request).await?;
                continue;
            }
            let step = match self.decide(request, storage, facts, &mut attempt).await? {
                Decision::Granted(entry) => return Ok(*entry),
                Decision::Do(step) => step,
                refused @ (Decision::Wait { .. } | Decision::Refuse(_)) => {
                    return Err(VolumeError::refused(refused));
                }
            };
            self.proceed(api, request, storage, facts, &mut attempt, step).await?;
        }
        Err(VolumeError::Contested)
    }

    /// The next step by what was read. The storage is asked once for what was read at once: whoever comes
    /// later with a higher generation is seen when the device is made.
    async fn decide(
        &self,
        request: &Request,
        storage: &Arc<dyn Storage>,
        facts: &Gathered,
        attempt: &mut Attempt,
    ) -> Result<Decision, VolumeError> {
        let epoch = match attempt.epoch {
            Some(epoch) => epoch,
            None => {
                let (asked, image) = (storage.clone(), request.image.clone());
                let ask = move || Ok(asked.epoch(&image)?);
                self.blocking(&request.volume, "ask the storage", ask).await?
            }
        };
        attempt.epoch = Some(epoch);
        let snapshot = self.snapshot(request, facts, epoch, attempt);
        Ok(decide_attach(&snapshot, Timestamp::now(), &self.policy))
    }

    /// Does one step, and reads everything anew if somebody was faster.
    async fn proceed(
        &self,
        api: &Cluster,
        request: &Request,
        storage: &Arc<dyn Storage>,
        facts: &mut Gathered,
        attempt: &mut Attempt,
        step: Step,
    ) -> Result<(), VolumeError> {
        if !self.take_step(api, request, storage, facts, attempt, step).await? {
            *facts = self.gather(api, request).await?;
            attempt.epoch = None;
        }
        Ok(())
    }

    fn snapshot(
        &self,
        request: &Request,
        facts: &Gathered,
        epoch: Generation,
        attempt: &Attempt,
    ) -> Snapshot {
        let volume = facts.volume.as_ref().map(|volume| {
            let mut facts = volume.facts.clone();
            facts.epoch = epoch;
            facts
        });
        let cluster = facts.cluster.as_ref();
        Snapshot {
            request: request.clone(),
            own: self.own(&facts.node_uid),
            // What was read in an earlier tenure says nothing about this one.
            standing: if facts.tenure == self.own("").tenure {
                self.standing()
            } else {
                wharf_core::volume::lease::Standing::Over
            },
            identity: String::new(),
            pod: facts.pod.clone(),
            volume,
            cluster: cluster.map(|cluster| ClusterFacts {
                backend: cluster.backend,
                deleting: cluster.deleting,
            }),
            record: facts.record.clone(),
            nodes: facts.nodes.clone(),
            raised: attempt.raised,
            fenced: attempt.fenced.clone(),
        }
    }

    /// Does one step. False when somebody was faster and all has to be read anew.
    async fn take_step(
        &self,
        api: &Cluster,
        request: &Request,
        storage: &Arc<dyn Storage>,
        facts: &mut Gathered,
        attempt: &mut Attempt,
        step: Step,
    ) -> Result<bool, VolumeError> {
        match step {
            Step::Raise { to, .. } => {
                let Some(seen) = &facts.volume else { return Ok(false) };
                let Written::Is(volume) = api.raise_generation(seen, to).await? else {
                    return Ok(false);
                };
                facts.volume = Some(volume);
                attempt.raised = Some(to);
            }
            Step::Write { version, entries } => {
                let name = &request.volume;
                let is_first = self.unanswered.note(name);
                let written = api.write_attachment(name, version.as_deref(), &entries).await?;
                if is_first {
                    self.unanswered.forget(name);
                }
                let Written::Is(record) = written else { return Ok(false) };
                facts.record = Some(record);
                // Others may have passed the entry before it stood.
                facts.volume = api.volume(name).await?;
            }
            Step::Fence { holders, generation } => {
                let (storage, volume) = (storage.clone(), request.volume.clone());
                let (image, out) = (request.image.clone(), holders.clone());
                let fence = move || Ok(storage.fence(&volume, &image, &out, generation)?);
                self.blocking(&request.volume, "shut a holder out", fence).await?;
                for holder in &holders {
                    warn!(volume = request.volume, node = holder.node, "a holder was shut out");
                }
                attempt.fenced.extend(holders.iter().map(Entry::key));
            }
            Step::NoteGarbage { node, entries } => {
                info!(volume = request.volume, node, "a holder is pushed out");
                let reasons: Vec<&str> = entries.iter().map(|one| one.reason.as_str()).collect();
                let message = format!(
                    "taken from node {node} for pod {}: {}",
                    request.pod,
                    reasons.join(", ")
                );
                let told = api.emit_on_volume(&request.volume, true, "VolumeTakenOver", &message);
                if let Err(error) = told.await {
                    info!(reason = chain(&error), "an event could not be left");
                }
                self.note_garbage(api, &node, &entries).await?;
                if let Some(holder) = facts.nodes.get_mut(&node) {
                    holder.garbage.extend(entries);
                }
            }
        }
        Ok(true)
    }

    /// Puts entries on the garbage list of a node, beside those that are there.
    pub async fn note_garbage(
        &self,
        api: &Cluster,
        node: &str,
        new: &[GarbageEntry],
    ) -> Result<(), VolumeError> {
        for _ in 0..MOST_STEPS {
            let seen = api.garbage(node).await?;
            let mut entries = seen.entries.clone();
            entries.extend(new.iter().filter(|one| !seen.entries.contains(one)).cloned());
            if api.write_garbage(node, &seen, &entries).await? == Written::Is(()) {
                return Ok(());
            }
        }
        Err(VolumeError::Contested)
    }
}

/// What an attempt has done and seen so far.
#[derive(Default)]
pub struct Attempt {
    raised: Option<Generation>,
    fenced: Vec<EntryKey>,
    /// What the storage said; `None` until it is asked, and after all else was read anew.
    epoch: Option<Generation>,
}
