//! Entries of nodes that are gone for good leave their records.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tracing::{info, warn};
use wharf_core::volume::{
    attach::Step,
    backend::Backend,
    fence::HolderNode,
    garbage::{Scan, Scanned, decide_ending, decide_stale, has_stale},
    record::{Entry, EntryKey, Generation, Record},
};
use wharf_kube::{
    Cluster,
    volumes::{PersistentVolume, StorageCluster, Written},
};

use super::rounds::Picture;
use crate::volumes::{Volumes, side_by_side, storage, work::VolumeError};

/// How far the sweep of each volume is.
#[derive(Default)]
pub struct Sweeps(BTreeMap<String, Sweep>);

#[derive(Default)]
struct Sweep {
    raised: Option<Generation>,
    fenced: Vec<EntryKey>,
}

/// A volume takes a handful of steps.
const MOST_STEPS: usize = 10;

/// Looks at all records of a storage once.
pub async fn sweep(
    volumes: &Volumes,
    api: &Cluster,
    picture: &Picture,
    storage: &str,
    sweeps: &mut Sweeps,
) -> Result<(), VolumeError> {
    let is_of = |(name, record): &&(String, Record)| picture.storage_of(name, record) == storage;
    let records: Vec<_> = picture.records.iter().filter(is_of).collect();
    let entries = records.iter().flat_map(|(_, record)| &record.entries);
    let nodes = holders(volumes, api, entries).await?;
    // One that is being deleted, or gone, can shut nobody out, and nobody needs that.
    let cluster = picture.cluster(storage).filter(|cluster| !cluster.deleting);
    let mut stale: BTreeMap<&String, &Record> =
        records.into_iter().map(|(name, record)| (name, record)).collect();
    stale.retain(|_, record| cluster.is_none() || has_stale(record, &nodes));
    sweeps.0.retain(|name, _| stale.contains_key(name));
    let backend = picture.cluster(storage).map(|cluster| cluster.backend);
    for name in stale.keys() {
        sweeps.0.entry((*name).clone()).or_default();
    }
    let work = sweeps.0.iter_mut().filter_map(|(volume, sweep)| {
        let record = (*stale.get(volume)?).clone();
        let one = One { volumes, api, cluster, backend, volume };
        Some(async move { one.sweep(record, sweep).await })
    });
    side_by_side(work).await.into_iter().collect()
}

/// The nodes that entries name, each asked for once.
pub async fn holders<'a>(
    volumes: &Volumes,
    api: &Cluster,
    entries: impl IntoIterator<Item = &'a Entry>,
) -> Result<BTreeMap<String, HolderNode>, VolumeError> {
    let names: BTreeSet<&String> = entries.into_iter().map(|entry| &entry.node).collect();
    let mut nodes = BTreeMap::new();
    for name in names {
        nodes.extend([volumes.holder(api, name).await?]);
    }
    Ok(nodes)
}

struct One<'a> {
    volumes: &'a Volumes,
    api: &'a Cluster,
    /// `None` when it is being deleted, or is gone.
    cluster: Option<&'a StorageCluster>,
    /// `None` when nobody knows it any more.
    backend: Option<Backend>,
    volume: &'a str,
}

impl One<'_> {
    async fn sweep(&self, record: Record, sweep: &mut Sweep) -> Result<(), VolumeError> {
        let mut record = record;
        for _ in 0..MOST_STEPS {
            let seen = self.api.volume(self.volume).await?;
            let scanned = self.scanned(record.clone(), seen.as_ref(), sweep).await?;
            let (now, policy) = (Timestamp::now(), &self.volumes.policy);
            let decided = match self.cluster {
                Some(_) => decide_stale(&scanned, now, policy),
                None => decide_ending(&scanned, now, policy),
            };
            let step = match decided {
                Scan::Clean => return Ok(()),
                Scan::Stuck(entries) => {
                    for (entry, why) in entries {
                        warn!(volume = self.volume, node = entry.node, %why, "a stale entry stays");
                    }
                    return Ok(());
                }
                Scan::TakeOut(change) => {
                    info!(volume = self.volume, "entries of a lost node are taken out");
                    self.api.change_attachment(self.volume, &change).await?;
                    *sweep = Sweep::default();
                    return Ok(());
                }
                Scan::Do(step) => step,
            };
            self.take(step, seen.as_ref(), sweep).await?;
            let Some(now) = self.api.attachment(self.volume).await? else { return Ok(()) };
            record = now;
        }
        Ok(())
    }

    async fn scanned(
        &self,
        record: Record,
        volume: Option<&PersistentVolume>,
        sweep: &Sweep,
    ) -> Result<Scanned, VolumeError> {
        let nodes = holders(self.volumes, self.api, &record.entries).await?;
        Ok(Scanned {
            volume: self.volume.to_owned(),
            backend: self.backend.unwrap_or_else(|| record.backend()),
            record,
            nodes,
            generation: volume.map(|volume| volume.facts.generation),
            raised: sweep.raised,
            fenced: sweep.fenced.clone(),
        })
    }

    /// One step; whoever was faster makes the next look see it.
    async fn take(
        &self,
        step: Step,
        volume: Option<&PersistentVolume>,
        sweep: &mut Sweep,
    ) -> Result<(), VolumeError> {
        match step {
            Step::Raise { to, .. } => {
                if let Some(volume) = volume
                    && let Written::Is(_) = self.api.raise_generation(volume, to).await?
                {
                    sweep.raised = Some(to);
                }
            }
            Step::Write { version, entries } => {
                self.api.write_attachment(self.volume, version.as_deref(), &entries).await?;
            }
            Step::NoteGarbage { node, entries } => {
                self.volumes.note_garbage(self.api, &node, &entries).await?;
            }
            Step::Fence { holders, generation } => {
                let Some(StorageCluster { backend, parameters, .. }) = self.cluster else {
                    return Ok(());
                };
                let (places, hints) = (&self.volumes.places, &self.volumes.hints);
                let storage = storage::open(*backend, parameters, places, hints)?;
                let by_holder = || holders.first().map(|holder| holder.image.clone());
                let image = volume.map(|volume| volume.facts.image.clone()).or_else(by_holder);
                let image = image.unwrap_or_default();
                let (name, out) = (self.volume.to_owned(), holders.clone());
                let fence = move || Ok(storage.fence(&name, &image, &out, generation)?);
                self.volumes.blocking(self.volume, "shut a holder out", fence).await?;
                sweep.fenced.extend(holders.iter().map(Entry::key));
            }
        }
        Ok(())
    }
}
