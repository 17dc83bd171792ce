//! The end of storage clusters: they are held until no node has anything of them.

use tracing::info;
use wharf_core::volume::{
    cleanup::{ClusterVolume, Finalizer, Object, Step, decide_finalizer, decide_unheld},
    record::{Entry, Record},
};
use wharf_kube::{
    Cluster,
    volumes::{PersistentVolume, StorageCluster},
};

use crate::volumes::work::VolumeError;

/// Looks at all storage clusters once. What fails for one is told after all others had their turn.
pub async fn end(api: &Cluster) -> Result<(), VolumeError> {
    let mut done = Ok(());
    for cluster in api.storage_clusters().await? {
        done = done.and(match (cluster.deleting, cluster.is_held()) {
            (false, false) => api.hold(&cluster).await.map_err(VolumeError::from),
            (true, true) => finish(api, &cluster).await,
            (false, true) | (true, false) => Ok(()),
        });
    }
    done
}

/// Deletes what no node holds, and says what is left, or lets the cluster go.
async fn finish(api: &Cluster, cluster: &StorageCluster) -> Result<(), VolumeError> {
    let left = left(api, cluster).await?;
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
    api: &Cluster,
    cluster: &StorageCluster,
) -> Result<Vec<(ClusterVolume, Option<PersistentVolume>)>, VolumeError> {
    let mut left = Vec::new();
    // The volumes first: who gets one of those meanwhile is seen in the records.
    let volumes = api.volumes().await?;
    let records = api.attachments().await?;
    let entries = |record: Option<&Record>| {
        let entries = record.into_iter().flat_map(|record| &record.entries);
        Some(entries.map(|entry| (entry.clone(), None)).collect())
    };
    // Somebody may have deleted a PersistentVolume while a node has it.
    for (name, record) in &records {
        let is_ours = |entry: &Entry| entry.storage_cluster == cluster.name;
        if record.entries.iter().any(is_ours) && !volumes.iter().any(|one| one.name == *name) {
            let volume = ClusterVolume {
                volume: name.clone(),
                claim: Object::Gone,
                pv: Object::Gone,
                entries: entries(Some(record)),
            };
            left.push((volume, None));
        }
    }
    for pv in volumes.into_iter().filter(|pv| pv.facts.storage_cluster == cluster.name) {
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
