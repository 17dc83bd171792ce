//! Images and PersistentVolumes for claims, their growth and their end.

use std::collections::{BTreeMap, BTreeSet};

use tracing::{info, warn};
use wharf_core::{
    volume::{
        attach::ClusterFacts,
        provision::{Plan, Unprovided, decide_provision},
    },
    words::chain,
};
use wharf_kube::{
    Cluster,
    volumes::{ClaimSeen, PersistentVolume, StorageClass, StorageCluster, bytes},
};

use crate::volumes::{Volumes, storage, work::VolumeError};

/// What was done for each claim, by its UID.
#[derive(Default)]
pub struct Told {
    /// What was last said to it: an event for every look would only be noise.
    said: BTreeMap<String, String>,
    /// How large its image is at least. Kubernetes' own word is no proof: it believes that a driver
    /// without an answer has done it.
    sizes: BTreeMap<String, u64>,
}

/// Looks at all claims and volumes once. What fails for one is told after all others had their turn.
pub async fn provide(volumes: &Volumes, api: &Cluster, told: &mut Told) -> Result<(), VolumeError> {
    let classes = api.storage_classes().await?;
    let claims = api.claims_of(&classes).await?;
    let clusters = api.storage_clusters().await?;
    let known = api.volumes().await?;
    let work = Provider { volumes, api, classes: &classes, clusters: &clusters };
    let mut done = Ok(());
    for claim in claims.iter().filter(|claim| claim.volume.is_empty() && !claim.deleting) {
        work.give(claim, told).await;
    }
    for claim in claims.iter().filter(|claim| !claim.volume.is_empty() && !claim.deleting) {
        if let Some(volume) = known.iter().find(|volume| volume.name == claim.volume) {
            done = done.and(work.grow(claim, volume, told).await);
        }
    }
    let is_there = |uid: &String| claims.iter().any(|claim| claim.claim.uid == *uid);
    told.said.retain(|uid, _| is_there(uid));
    told.sizes.retain(|uid, _| is_there(uid));
    let held: BTreeSet<String> =
        api.attachments().await?.into_iter().map(|(name, _)| name).collect();
    let is_over = |volume: &&PersistentVolume| {
        volume.phase == "Released" && volume.deletes_image && volume.is_provisioned
    };
    for volume in known.iter().filter(is_over).filter(|volume| !held.contains(&volume.name)) {
        done = done.and(work.remove(volume).await);
    }
    done
}

struct Provider<'a> {
    volumes: &'a Volumes,
    api: &'a Cluster,
    classes: &'a [StorageClass],
    clusters: &'a [StorageCluster],
}

impl Provider<'_> {
    /// A claim without a volume gets one, or is told why not.
    async fn give(&self, claim: &ClaimSeen, told: &mut Told) {
        let Some(class) = self.classes.iter().find(|one| one.class.name == claim.class) else {
            return;
        };
        let named = class.class.parameters.get("storageCluster");
        let cluster = self.clusters.iter().find(|one| Some(&one.name) == named);
        let facts =
            cluster.map(|one| ClusterFacts { backend: one.backend, deleting: one.deleting });
        let (warning, reason, message) =
            match (decide_provision(&claim.claim, &class.class, facts.as_ref()), cluster) {
                (Err(Unprovided::Waits), _) => return,
                (Err(refused), _) => (true, "ProvisioningFailed", refused.to_string()),
                (Ok(plan), Some(cluster)) => match self.make(&plan, claim, class, cluster).await {
                    Ok(()) => {
                        info!(volume = plan.name, "a claim got its volume");
                        let message = format!("made PersistentVolume {}", plan.name);
                        (false, "ProvisioningSucceeded", message)
                    }
                    Err(error) => (true, "ProvisioningFailed", chain(&error)),
                },
                (Ok(_), None) => return,
            };
        let uid = claim.claim.uid.clone();
        if told.said.insert(uid, message.clone()).as_ref() == Some(&message) {
            return;
        }
        let emitted = self.api.emit_on_claim(&claim.claim, warning, reason, &message).await;
        if let Err(error) = emitted {
            warn!(reason = chain(&error), "an event could not be left");
        }
    }

    /// The image first: a volume without one could not be mounted.
    async fn make(
        &self,
        plan: &Plan,
        claim: &ClaimSeen,
        class: &StorageClass,
        cluster: &StorageCluster,
    ) -> Result<(), VolumeError> {
        let storage = self.open(cluster)?;
        let (image, size) = (plan.name.clone(), plan.bytes);
        let create = move || Ok(storage.create(&image, size)?);
        self.volumes.blocking(&plan.name, "make the image", create).await?;
        Ok(self.api.create_volume(plan, claim, class).await?)
    }

    /// The image grows, then the volume says so. The agent of its node sees that and lets the file
    /// system follow.
    async fn grow(
        &self,
        claim: &ClaimSeen,
        volume: &PersistentVolume,
        told: &mut Told,
    ) -> Result<(), VolumeError> {
        let expands = self.classes.iter().any(|one| one.class.name == claim.class && one.expands);
        let (Some(wanted), Some(has)) = (bytes(&claim.wanted), bytes(&volume.capacity)) else {
            return Ok(());
        };
        let known = told.sizes.get(&claim.claim.uid).copied().unwrap_or_default();
        if !expands || known >= wanted {
            return Ok(());
        }
        let cluster = self.clusters.iter().find(|one| one.name == volume.facts.storage_cluster);
        let Some(cluster) = cluster else { return Ok(()) };
        let storage = self.open(cluster)?;
        let image = volume.facts.image.clone();
        let grow = move || Ok(storage.grow(&image, wanted)?);
        self.volumes.blocking(&volume.name, "grow the image", grow).await?;
        if has < wanted {
            info!(volume = volume.name, size = claim.wanted, "a volume grows");
            self.api.set_capacity(&volume.name, &claim.wanted).await?;
        }
        told.sizes.insert(claim.claim.uid.clone(), wanted);
        Ok(())
    }

    /// The claim is gone, and so is its image.
    async fn remove(&self, volume: &PersistentVolume) -> Result<(), VolumeError> {
        let cluster = self.clusters.iter().find(|one| one.name == volume.facts.storage_cluster);
        // Storage that is gone has no image any more.
        if let Some(cluster) = cluster {
            let storage = self.open(cluster)?;
            let image = volume.facts.image.clone();
            let delete = move || Ok(storage.delete(&image)?);
            self.volumes.blocking(&volume.name, "delete the image", delete).await?;
        }
        info!(volume = volume.name, "a volume that nobody claims is deleted");
        Ok(self.api.delete_volume(&volume.name).await?)
    }

    fn open(
        &self,
        cluster: &StorageCluster,
    ) -> Result<std::sync::Arc<dyn storage::Storage>, VolumeError> {
        let (places, hints) = (&self.volumes.places, &self.volumes.hints);
        let opened = storage::open(cluster.backend, &cluster.parameters, places, hints)?;
        Ok(opened.into())
    }
}
