//! Entries of nodes that are gone for good leave their records.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tracing::{info, warn};
use wharf_core::volume::{
    attach::Step,
    fence::HolderNode,
    garbage::{Scan, Scanned, decide_stale, has_stale},
    record::{Entry, EntryKey, Generation, Record},
};
use wharf_kube::{
    Cluster,
    volumes::{PersistentVolume, StorageCluster, Written},
};

use crate::volumes::{Volumes, storage, work::VolumeError};

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

/// Looks at all records once. Storage that does not answer keeps only its own volumes waiting.
pub async fn sweep(
    volumes: &Volumes,
    api: &Cluster,
    sweeps: &mut Sweeps,
) -> Result<(), VolumeError> {
    let records = api.attachments().await?;
    let entries = records.iter().flat_map(|(_, record)| &record.entries);
    let nodes = holders(volumes, api, entries).await?;
    let stale: BTreeMap<String, Record> =
        records.into_iter().filter(|(_, record)| has_stale(record, &nodes)).collect();
    sweeps.0.retain(|name, _| stale.contains_key(name));
    if stale.is_empty() {
        return Ok(());
    }
    let clusters = api.storage_clusters().await?;
    let mut done = Ok(());
    for (volume, record) in stale {
        let sweep = sweeps.0.entry(volume.clone()).or_default();
        let one = One { volumes, api, clusters: &clusters, volume: &volume };
        done = done.and(one.sweep(record, sweep).await);
    }
    done
}

/// The nodes that entries name, each asked for once.
async fn holders<'a>(
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
    clusters: &'a [StorageCluster],
    volume: &'a str,
}

impl One<'_> {
    async fn sweep(&self, record: Record, sweep: &mut Sweep) -> Result<(), VolumeError> {
        let mut record = record;
        for _ in 0..MOST_STEPS {
            let seen = self.api.volume(self.volume).await?;
            // The volume may be gone; its holders say the same.
            let by_volume = seen.as_ref().map(|volume| &volume.facts.storage_cluster);
            let by_holder = || record.entries.first().map(|entry| &entry.storage_cluster);
            let named = by_volume.or_else(by_holder);
            let cluster = self.clusters.iter().find(|one| Some(&one.name) == named);
            // Without its cluster nobody knows how to shut a holder out.
            let Some(cluster) = cluster else { return Ok(()) };
            let scanned = self.scanned(record.clone(), seen.as_ref(), cluster, sweep).await?;
            let step = match decide_stale(&scanned, Timestamp::now(), &self.volumes.policy) {
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
            self.take(step, seen.as_ref(), cluster, sweep).await?;
            let Some(now) = self.api.attachment(self.volume).await? else { return Ok(()) };
            record = now;
        }
        Ok(())
    }

    async fn scanned(
        &self,
        record: Record,
        volume: Option<&PersistentVolume>,
        cluster: &StorageCluster,
        sweep: &Sweep,
    ) -> Result<Scanned, VolumeError> {
        let nodes = holders(self.volumes, self.api, &record.entries).await?;
        Ok(Scanned {
            volume: self.volume.to_owned(),
            backend: cluster.backend,
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
        cluster: &StorageCluster,
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
                let (places, hints) = (&self.volumes.places, &self.volumes.hints);
                let storage = storage::open(cluster.backend, &cluster.parameters, places, hints)?;
                let by_holder = || holders.first().map(|holder| holder.image.clone());
                let image = volume.map(|volume| volume.facts.image.clone()).or_else(by_holder);
                let image = image.unwrap_or_default();
                let out = holders.clone();
                let fence = move || Ok(storage.fence(&image, &out, generation)?);
                self.volumes.blocking(self.volume, "shut a holder out", fence).await?;
                sweep.fenced.extend(holders.iter().map(Entry::key));
            }
        }
        Ok(())
    }
}
