//! Pods that waited for a volume, and do so no more.

use wharf_core::volume::{
    condition::{Condition, WAITING},
    record::Record,
};
use wharf_kube::Cluster;

use super::rounds::Picture;
use crate::volumes::{side_by_side, work::VolumeError};

/// Takes back what records of a storage say of pods that are gone or served. The agent that said so may
/// be gone too, and kubelet does not ask again for a pod that it does not have.
pub async fn forget(api: &Cluster, picture: &Picture, storage: &str) -> Result<(), VolumeError> {
    let mut waiting = Vec::new();
    for (name, record) in &picture.records {
        if picture.storage_of(name, record) == storage {
            let of_record = record.conditions.iter().filter(|one| one.kind == WAITING);
            waiting.extend(of_record.map(|one| forget_one(api, name, record, one)));
        }
    }
    side_by_side(waiting).await.into_iter().collect()
}

async fn forget_one(
    api: &Cluster,
    volume: &str,
    record: &Record,
    waiting: &Condition,
) -> Result<(), VolumeError> {
    let Condition { pod_namespace, pod, node, .. } = waiting;
    // An older agent does not say who waits.
    let facts = match pod.is_empty() {
        true => None,
        false => api.pod_facts(pod_namespace, pod).await?,
    };
    if record.is_over(waiting, facts.as_ref()) {
        api.unsay(volume, WAITING, node).await?;
    }
    Ok(())
}
