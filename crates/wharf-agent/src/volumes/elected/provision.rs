//! Images and PersistentVolumes for claims, their growth and their end.

use std::{collections::BTreeMap, sync::Arc};

use tracing::{info, warn};
use wharf_core::{
    volume::{
        attach::ClusterFacts,
        provision::{Plan, Removal, Unclaimed, Unprovided, decide_provision, decide_removal},
    },
    words::chain,
};
use wharf_kube::{
    Cluster,
    volumes::{ClaimSeen, PersistentVolume, StorageClass, StorageCluster, bytes},
};

use super::rounds::Picture;
use crate::volumes::{
    Volumes, side_by_side,
    storage::{self, Storage},
    work::VolumeError,
};

/// What was done for each claim, by its UID.
#[derive(Default)]
pub struct Told {
    /// What was last said to it: an event for every look would only be noise.
    said: BTreeMap<String, String>,
    /// How large its image is at least. Kubernetes' own word is no proof: it believes that a driver
    /// without an answer has done it.
    sizes: BTreeMap<String, u64>,
}

/// Looks at all claims and volumes of a storage once, side by side: making a large image, or deleting
/// one, may take long. What fails for one is told after all others had their turn.
pub async fn provide(
    volumes: &Volumes,
    api: &Cluster,
    picture: &Picture,
    storage: &str,
    told: &mut Told,
) -> Result<(), VolumeError> {
    let work = Provider { volumes, api, picture, cluster: picture.cluster(storage) };
    let claims = || picture.claims.iter().filter(|claim| !claim.deleting);
    let is_new = |claim: &&ClaimSeen| {
        claim.volume.is_empty() && picture.storage_of_class(&claim.class) == storage
    };
    let said = &told.said;
    let given =
        side_by_side(claims().filter(is_new).map(|claim| work.give(claim, said.get(uid(claim)))));
    told.said.extend(given.await.into_iter().flatten());

    let bound = claims().filter_map(|claim| Some((claim, picture.volume(&claim.volume)?)));
    let of_storage = bound.filter(|(_, volume)| volume.facts.storage_cluster == storage);
    let sizes = &told.sizes;
    let grown = side_by_side(of_storage.map(|(claim, volume)| {
        work.grow(claim, volume, sizes.get(uid(claim)).copied().unwrap_or_default())
    }));
    let mut done = Ok(());
    for one in grown.await {
        match one {
            Ok(size) => told.sizes.extend(size),
            Err(error) => done = Err(error),
        }
    }

    let is_there = |known: &String| picture.claims.iter().any(|claim| uid(claim) == known);
    told.said.retain(|uid, _| is_there(uid));
    told.sizes.retain(|uid, _| is_there(uid));

    let is_held =
        |volume: &PersistentVolume| picture.records.iter().any(|(name, _)| *name == volume.name);
    let facts = work.cluster.map(facts_of);
    let is_over = |volume: &&PersistentVolume| {
        let removal = decide_removal(&unclaimed(volume, is_held(volume)), facts.as_ref());
        volume.facts.storage_cluster == storage && removal != Removal::Nothing
    };
    let over = picture.volumes.iter().filter(is_over);
    let removed = side_by_side(over.map(|volume| work.remove(volume))).await;
    removed.into_iter().fold(done, Result::and)
}

fn facts_of(cluster: &StorageCluster) -> ClusterFacts {
    ClusterFacts { backend: cluster.backend, deleting: cluster.deleting }
}

fn unclaimed(volume: &PersistentVolume, is_held: bool) -> Unclaimed {
    Unclaimed {
        is_provisioned: volume.is_provisioned,
        is_released: volume.phase == "Released",
        deletes_image: volume.deletes_image,
        is_held,
        is_deleting: volume.facts.deleting,
    }
}

fn uid(claim: &ClaimSeen) -> &String {
    &claim.claim.uid
}

struct Provider<'a> {
    volumes: &'a Volumes,
    api: &'a Cluster,
    picture: &'a Picture,
    /// `None` where only a class names it.
    cluster: Option<&'a StorageCluster>,
}

impl Provider<'_> {
    /// A claim without a volume gets one, or is told why not. Says what it was told, with its UID.
    async fn give(&self, claim: &ClaimSeen, said: Option<&String>) -> Option<(String, String)> {
        let class = self.picture.class(&claim.class)?;
        let facts = self.cluster.map(facts_of);
        let (warning, reason, message) =
            match (decide_provision(&claim.claim, &class.class, facts.as_ref()), self.cluster) {
                (Err(Unprovided::Waits), _) | (Ok(_), None) => return None,
                (Err(refused), _) => (true, "ProvisioningFailed", refused.to_string()),
                (Ok(plan), Some(cluster)) => match self.make(&plan, claim, class, cluster).await {
                    Ok(()) => {
                        info!(volume = plan.name, "a claim got its volume");
                        let message = format!("made PersistentVolume {}", plan.name);
                        (false, "ProvisioningSucceeded", message)
                    }
                    Err(error) => (true, "ProvisioningFailed", chain(&error)),
                },
            };
        if said != Some(&message) {
            let emitted = self.api.emit_on_claim(&claim.claim, warning, reason, &message).await;
            if let Err(error) = emitted {
                warn!(reason = chain(&error), "an event could not be left");
            }
        }
        Some((uid(claim).clone(), message))
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
    /// system follow. Says how large the image is then, with the claim's UID.
    async fn grow(
        &self,
        claim: &ClaimSeen,
        volume: &PersistentVolume,
        known: u64,
    ) -> Result<Option<(String, u64)>, VolumeError> {
        let expands = self.picture.class(&claim.class).is_some_and(|class| class.expands);
        let (Some(wanted), Some(has)) = (bytes(&claim.wanted), bytes(&volume.capacity)) else {
            return Ok(None);
        };
        let Some(cluster) = self.cluster.filter(|_| expands && known < wanted) else {
            return Ok(None);
        };
        let storage = self.open(cluster)?;
        let image = volume.facts.image.clone();
        let grow = move || Ok(storage.grow(&image, wanted)?);
        self.volumes.blocking(&volume.name, "grow the image", grow).await?;
        if has < wanted {
            info!(volume = volume.name, size = claim.wanted, "a volume grows");
            self.api.set_capacity(&volume.name, &claim.wanted).await?;
        }
        Ok(Some((uid(claim).clone(), wanted)))
    }

    /// The claim is gone, and so is its image. What was seen may be minutes old by now, and the storage
    /// cluster be on its way out: it is asked for last, as the decision wants it.
    async fn remove(&self, volume: &PersistentVolume) -> Result<(), VolumeError> {
        let (held, now) =
            tokio::try_join!(self.api.attachment(&volume.name), self.api.volume(&volume.name))?;
        let Some(volume) = now else { return Ok(()) };
        let cluster = self.api.storage_cluster(&volume.facts.storage_cluster).await?;
        let facts = cluster.as_ref().map(facts_of);
        let removal = decide_removal(&unclaimed(&volume, held.is_some()), facts.as_ref());
        match (removal, &cluster) {
            (Removal::Nothing, _) => return Ok(()),
            (Removal::ImageAndVolume, Some(cluster)) => {
                let storage = self.open(cluster)?;
                let (name, image) = (volume.name.clone(), volume.facts.image.clone());
                let delete = move || Ok(storage.delete(&name, &image)?);
                self.volumes.blocking(&volume.name, "delete the image", delete).await?;
            }
            (Removal::ImageAndVolume | Removal::VolumeAlone, _) => {}
        }
        info!(volume = volume.name, "a volume that nobody claims is deleted");
        Ok(self.api.delete_volume(&volume.name).await?)
    }

    fn open(&self, cluster: &StorageCluster) -> Result<Arc<dyn Storage>, VolumeError> {
        let (places, hints) = (&self.volumes.places, &self.volumes.hints);
        let opened = storage::open(cluster.backend, &cluster.parameters, places, hints)?;
        Ok(opened.into())
    }
}
