//! The end of storage clusters: they are held until no node has anything of them.

use tracing::info;
use wharf_core::volume::{
    cleanup::{ClusterVolume, Finalizer, Object, decide_finalizer},
    record::Entry,
};
use wharf_kube::{Cluster, volumes::StorageCluster};

use crate::volumes::work::VolumeError;

/// Looks at all storage clusters once.
pub async fn end(api: &Cluster) -> Result<(), VolumeError> {
    for cluster in api.storage_clusters().await? {
        match (cluster.deleting, cluster.is_held()) {
            (false, false) => api.hold(&cluster).await?,
            (true, true) => finish(api, &cluster).await?,
            (false, true) | (true, false) => {}
        }
    }
    Ok(())
}

/// Says what is left, or lets the cluster go.
async fn finish(api: &Cluster, cluster: &StorageCluster) -> Result<(), VolumeError> {
    let mut left = Vec::new();
    let records = api.attachments().await?;
    let volumes = api.volumes().await?;
    // Somebody may have deleted a PersistentVolume while a node has it.
    for (name, record) in &records {
        let is_ours = |entry: &Entry| entry.storage_cluster == cluster.name;
        if record.entries.iter().any(is_ours) && !volumes.iter().any(|one| one.name == *name) {
            left.push(ClusterVolume {
                volume: name.clone(),
                claim: Object::Gone,
                pv: Object::Gone,
                entries: Some(record.entries.iter().map(|entry| (entry.clone(), None)).collect()),
            });
        }
    }
    for volume in volumes {
        if volume.facts.storage_cluster != cluster.name {
            continue;
        }
        let record = records.iter().find(|(name, _)| *name == volume.name);
        let entries = record.map(|(_, record)| record.entries.clone()).unwrap_or_default();
        let claim = match &volume.claim {
            Some((namespace, name, uid)) => api.claim_state(namespace, name, uid).await?,
            None => Object::Gone,
        };
        left.push(ClusterVolume {
            volume: volume.name,
            claim,
            pv: if volume.facts.deleting { Object::Deleting } else { Object::There },
            entries: Some(entries.into_iter().map(|entry| (entry, None)).collect()),
        });
    }
    match decide_finalizer(&left) {
        Finalizer::Remove => {
            info!(cluster = cluster.name, "nothing of the storage cluster is left on any node");
            Ok(api.let_go(cluster).await?)
        }
        Finalizer::Keep(sentences) => Ok(api.tell_of_deletion(cluster, &sentences).await?),
    }
}
