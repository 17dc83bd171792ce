//! The end of storage clusters: they are held until no node has anything of them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tracing::info;
use wharf_core::{
    drain::PodRef,
    volume::{
        cleanup::{ClusterVolume, Finalizer, Object, Step, decide_finalizer, decide_unheld},
        fence::{HolderNode, NoProof, decide_proof},
        record::{Entry, Record},
    },
};
use wharf_kube::{
    Cluster,
    volumes::{PersistentVolume, StorageCluster},
};

use super::stale::holders;
use crate::volumes::{Volumes, work::VolumeError};

/// Looks at all storage clusters once. What fails for one is told after all others had their turn.
pub async fn end(volumes: &Volumes, api: &Cluster) -> Result<(), VolumeError> {
    let mut done = Ok(());
    for cluster in api.storage_clusters().await? {
        done = done.and(match (cluster.deleting, cluster.is_held()) {
            (false, false) => api.hold(&cluster).await.map_err(VolumeError::from),
            (true, true) => finish(volumes, api, &cluster).await,
            (false, true) | (true, false) => Ok(()),
        });
    }
    done
}

/// Deletes what no node holds, and says what is left, or lets the cluster go.
async fn finish(
    volumes: &Volumes,
    api: &Cluster,
    cluster: &StorageCluster,
) -> Result<(), VolumeError> {
    let left = left(volumes, api, cluster).await?;
    let mut deleted = Ok(());
    for (volume, pv) in &left {
        deleted = deleted.and(delete_unheld(api, volume, pv.as_ref()).await);
    }
    let volumes: Vec<ClusterVolume> = left.into_iter().map(|(volume, _)| volume).collect();
    match decide_finalizer(&volumes) {
        Finalizer::Remove => {
            info!(cluster = cluster.name, "nothing of the storage cluster is left on any node");
            api.let_go(cluster).await?;
        }
        Finalizer::Keep(sentences) => api.tell_of_deletion(cluster, &sentences).await?,
    }
    deleted
}

/// What there is of a storage cluster's volumes.
async fn left(
    volumes: &Volumes,
    api: &Cluster,
    cluster: &StorageCluster,
) -> Result<Vec<(ClusterVolume, Option<PersistentVolume>)>, VolumeError> {
    let mut left = Vec::new();
    // The volumes first: who gets one of those meanwhile is seen in the records.
    let mut pvs = api.volumes().await?;
    pvs.retain(|pv| pv.facts.storage_cluster == cluster.name);
    let records = api.attachments().await?;
    // An older agent does not say of which storage its entry is.
    let is_ours = |entry: &&Entry| [cluster.name.as_str(), ""].contains(&&*entry.storage_cluster);
    let held = records.iter().flat_map(|(_, record)| &record.entries).filter(is_ours);
    let nodes = holders(volumes, api, held).await?;
    let why = |entry: &Entry| lasting(volumes, cluster, &nodes, entry);
    let entries = |record: Option<&Record>| {
        let entries = record.into_iter().flat_map(|record| &record.entries).filter(is_ours);
        Some(entries.map(|entry| (entry.clone(), why(entry))).collect())
    };
    // Somebody may have deleted a PersistentVolume while a node has it, or made another of that name.
    for (name, record) in &records {
        let is_held = record.entries.iter().any(|it| it.storage_cluster == cluster.name);
        if is_held && !pvs.iter().any(|one| one.name == *name) {
            let volume = ClusterVolume {
                volume: name.clone(),
                claim: Object::Gone,
                pv: Object::Gone,
                entries: entries(Some(record)),
            };
            left.push((volume, None));
        }
    }
    for pv in pvs {
        let record = records.iter().find(|(name, _)| *name == pv.name);
        let claim = match &pv.claim {
            Some((namespace, name, uid)) => api.claim_state(namespace, name, uid).await?,
            None => Object::Gone,
        };
        let volume = ClusterVolume {
            volume: pv.name.clone(),
            claim,
            pv: if pv.facts.deleting { Object::Deleting } else { Object::There },
            entries: entries(record.map(|(_, record)| record)),
        };
        left.push((volume, Some(pv)));
    }
    Ok(left)
}

/// What keeps an entry where it is until a person does something. An agent that is alive works on it.
fn lasting(
    volumes: &Volumes,
    cluster: &StorageCluster,
    nodes: &BTreeMap<String, HolderNode>,
    entry: &Entry,
) -> Option<NoProof> {
    let (nobody, now) = (PodRef::default(), Timestamp::now());
    let judged = decide_proof(entry, nodes, cluster.backend, &nobody, now, &volumes.policy);
    judged.err().filter(|why| !matches!(why, NoProof::Alive { .. }))
}

async fn delete_unheld(
    api: &Cluster,
    volume: &ClusterVolume,
    pv: Option<&PersistentVolume>,
) -> Result<(), VolumeError> {
    for step in decide_unheld(volume) {
        info!(volume = volume.volume, ?step, "no node has the volume of a deleted storage cluster");
        match (step, pv.and_then(|pv| pv.claim.as_ref())) {
            (Step::DeleteClaim, Some((namespace, name, uid))) => {
                api.delete_claim(namespace, name, uid).await?;
            }
            (Step::DeleteVolume, _) => api.delete_volume(&volume.volume).await?,
            // A node's own steps, or a claim that nobody knows.
            (
                Step::DeleteClaim | Step::Cut | Step::Unmount(_) | Step::Unmap | Step::GiveUp(_),
                _,
            ) => {}
        }
    }
    Ok(())
}
