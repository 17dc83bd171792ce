//! The end of storage clusters: they are held until no node has anything of them.

use tracing::info;
use wharf_core::volume::{
    cleanup::{ClusterVolume, Finalizer, Object, decide_finalizer},
    record::Entry,
};
use wharf_kube::{Cluster, volumes::StorageCluster};

use crate::volumes::work::VolumeError;

/// So we hold a storage cluster.
const FINALIZER: &str = "wharf.dev/volumes";

/// Looks at all storage clusters once.
pub async fn end(api: &Cluster) -> Result<(), VolumeError> {
    for cluster in api.storage_clusters().await? {
        let is_held = cluster.finalizers.iter().any(|one| one == FINALIZER);
        if !cluster.deleting {
            if !is_held {
                let all = [&cluster.finalizers[..], &[FINALIZER.to_owned()]].concat();
                api.write_finalizers(&cluster, &all, &[]).await?;
            }
        } else if is_held {
            finish(api, &cluster).await?;
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
            let mut others = cluster.finalizers.clone();
            others.retain(|one| one != FINALIZER);
            api.write_finalizers(cluster, &others, &[]).await?;
        }
        Finalizer::Keep(sentences) => {
            api.write_finalizers(cluster, &cluster.finalizers, &sentences).await?;
        }
    }
    Ok(())
}
