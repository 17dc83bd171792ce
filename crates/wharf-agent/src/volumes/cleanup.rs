//! The deletion of a storage cluster, on this node: its volumes are cut off and taken away by force.
//!
//! The storage may be gone, and what hangs there with it. So nothing waits for it, and a step that fails
//! does not keep the others from being tried. The next round goes on with what is left.

use std::{collections::BTreeSet, path::Path, time::Duration};

use tokio::time::sleep;
use tracing::{info, warn};
use wharf_core::{
    volume::{
        cleanup::{Facts, Object, Progress, Step, decide_cleanup, progress},
        journal::Journal,
        record::{Entry, Record},
    },
    words::chain,
};
use wharf_kube::{Cluster, volumes::PersistentVolume};

use super::{
    Shared, Volumes, kernel, side_by_side,
    storage::Device,
    work::{VolumeError, use_of},
};
use crate::{
    device,
    health::Reporter,
    kube,
    tasks::{Context, Ended},
};

/// Each round makes the facts of the next.
const MOST_ROUNDS: usize = 6;
/// What could not be done is tried again, and a change that nobody told of is seen.
const LOOK_EVERY: Duration = Duration::from_secs(30);
const SUBJECT: &str = "volumes of deleted storage clusters";

/// Looks when storage clusters change. A task of its own: others wait for storage that hangs.
pub async fn run(context: Context, reporter: Reporter, shared: Shared) -> Ended {
    let Some(node) = context.stop.run_until_cancelled(device::node_name(&context)).await else {
        return Ok(());
    };
    let volumes = shared.volumes(&node)?;
    let mut reader = shared.reader.clone();
    let work = async {
        loop {
            let api = kube::cluster(&mut reader).await.with_turns(volumes.turns.clone());
            let mut changes = api.watch_storage_clusters();
            while !reader.has_changed().unwrap_or(true) {
                match volumes.clean_up(&api).await {
                    Ok(()) => reporter.clear(SUBJECT),
                    Err(error) => reporter.fault(SUBJECT, &chain(&error)),
                }
                reporter.ok();
                tokio::select! {
                    () = sleep(LOOK_EVERY) => {}
                    change = changes.next() => {
                        if change.is_err() {
                            sleep(LOOK_EVERY).await;
                        }
                    }
                }
            }
        }
    };
    context.stop.run_until_cancelled(work).await;
    Ok(())
}

impl Volumes {
    /// Takes the volumes of deleted storage clusters off this node.
    pub async fn clean_up(&self, api: &Cluster) -> Result<(), VolumeError> {
        let clusters = api.storage_clusters().await?;
        let is_over = |name: &str| clusters.iter().any(|one| one.name == name && one.deleting);
        let (mut over, mut done) = (Vec::new(), Ok(()));
        for name in self.journals.names().map_err(VolumeError::Journal)? {
            match self.load(&name) {
                Ok(journal) => over.extend(journal.filter(|it| is_over(&it.storage_cluster))),
                Err(error) => done = done.and(Err(error)),
            }
        }
        let cleaned = side_by_side(over.iter().map(|it| self.clean_up_alone(api, it))).await;
        cleaned.into_iter().fold(done, Result::and)
    }

    /// Nobody else works on the volume meanwhile.
    async fn clean_up_alone(&self, api: &Cluster, journal: &Journal) -> Result<(), VolumeError> {
        let _held = self.lock_by_force(journal).await?;
        // Whoever had it has changed it.
        match self.load(&journal.volume)? {
            Some(journal) => self.clean_up_volume(api, journal).await,
            None => Ok(()),
        }
    }

    async fn clean_up_volume(&self, api: &Cluster, journal: Journal) -> Result<(), VolumeError> {
        let mut journal = journal;
        let name = journal.volume.clone();
        for round in 0.. {
            let seen = Seen::look(self, api, &journal).await?;
            let facts = seen.facts(&journal);
            match progress(&facts) {
                Progress::Clean => break,
                unclean if round == MOST_ROUNDS => {
                    return Err(VolumeError::Unclean(unclean.to_string()));
                }
                Progress::RecordAway | Progress::Detaching | Progress::SysfsAway => {}
            }
            for step in decide_cleanup(&facts) {
                info!(volume = name, ?step, "clean-up of a deleted storage cluster");
                match self.clean_up_step(api, &journal, &seen, &step).await {
                    Ok(()) if step == Step::Cut => self.note_cut(&mut journal).await?,
                    Ok(()) => {}
                    Err(error) => warn!(volume = name, reason = chain(&error), "it is tried again"),
                }
            }
        }
        info!(volume = name, "the volume of a deleted storage cluster is off this node");
        journal.pods.clear();
        self.journals.store(&journal).map_err(VolumeError::Journal)
    }

    /// Its pods are ended at once: their containers keep the device, and nobody else would end them.
    async fn note_cut(&self, journal: &mut Journal) -> Result<(), VolumeError> {
        journal.was_cut();
        self.stranded.add(journal).map_err(VolumeError::Journal)?;
        self.journals.store(journal).map_err(VolumeError::Journal)?;
        if let Err(error) = self.end_stranded().await {
            info!(reason = chain(&error), "its pods are ended when the node is tidied");
        }
        Ok(())
    }

    async fn clean_up_step(
        &self,
        api: &Cluster,
        journal: &Journal,
        seen: &Seen,
        step: &Step,
    ) -> Result<(), VolumeError> {
        let volume = &journal.volume;
        match step {
            Step::DeleteClaim => {
                if let Some((namespace, name, uid)) =
                    seen.pv.as_ref().and_then(|pv| pv.claim.as_ref())
                {
                    api.delete_claim(namespace, name, uid).await?;
                }
            }
            Step::DeleteVolume => api.delete_volume(volume).await?,
            Step::GiveUp(key) => {
                if let Some(change) = seen.record.as_ref().and_then(|record| record.without(key)) {
                    api.change_attachment(volume, &change).await?;
                }
            }
            Step::Unmount(dir) => {
                let dir = dir.clone();
                let unmount = move || Ok(kernel::unmount_all(Path::new(&dir), true)?);
                self.by_force(volume, "unmount by force", unmount).await?;
            }
            Step::Cut | Step::Unmap => {
                let device = seen.device.clone().flatten();
                let storage = self.storage(journal)?;
                let used = use_of(journal, &self.boot_id, &self.places);
                let is_cut = *step == Step::Cut;
                let act = move || {
                    match device {
                        device if is_cut => storage.cut(&used, device.as_ref())?,
                        Some(device) => storage.unmap(&used, &device)?,
                        None => {}
                    }
                    Ok(())
                };
                self.by_force(volume, "take the device away", act).await?;
            }
        }
        Ok(())
    }
}

/// What is there of one volume.
struct Seen {
    /// `None` when it cannot be seen, because the storage does not answer.
    device: Option<Option<Device>>,
    mounts: Vec<String>,
    record: Option<Record>,
    pv: Option<PersistentVolume>,
    claim: Object,
    node: String,
}

impl Seen {
    async fn look(
        volumes: &Volumes,
        api: &Cluster,
        journal: &Journal,
    ) -> Result<Self, VolumeError> {
        let (record, pv) =
            tokio::try_join!(api.attachment(&journal.volume), api.volume(&journal.volume))?;
        // Somebody may have made another one of the same name since, on other storage.
        let pv = pv.filter(|pv| pv.facts.storage_cluster == journal.storage_cluster);
        let claim = match pv.as_ref().and_then(|pv| pv.claim.as_ref()) {
            Some((namespace, name, uid)) => api.claim_state(namespace, name, uid).await?,
            None => Object::Gone,
        };
        let storage = volumes.storage(journal)?;
        let used = use_of(journal, &volumes.boot_id, &volumes.places);
        let mut places: BTreeSet<String> =
            journal.pods.iter().map(|pod| pod.mount_dir.clone()).collect();
        places.insert(used.staging.display().to_string());
        let mounted = kernel::mounts()?;
        let is_mounted = |dir: &String| mounted.iter().any(|mount| mount.point == Path::new(dir));
        let mounts = places.into_iter().filter(is_mounted).collect();
        let look = move || Ok(storage.find(&used)?);
        let device = match volumes.observe(&journal.volume, "look at the device", look).await {
            Ok(device) => Some(device),
            Err(why) if why.is_silence() => None,
            Err(error) => return Err(error),
        };
        Ok(Self { device, mounts, record, pv, claim, node: volumes.node.clone() })
    }

    fn facts(&self, journal: &Journal) -> Facts {
        let entries = self.record.iter().flat_map(|record| &record.entries);
        // An older agent does not say of which storage its entry is.
        let storages = [journal.storage_cluster.as_str(), ""];
        let is_ours =
            |entry: &&Entry| entry.node == self.node && storages.contains(&&*entry.storage_cluster);
        let ours = entries.filter(is_ours);
        Facts {
            volume: journal.volume.clone(),
            claim: self.claim,
            pv: match &self.pv {
                None => Object::Gone,
                Some(pv) if pv.facts.deleting => Object::Deleting,
                Some(_) => Object::There,
            },
            device: self.device.as_ref().map(Option::is_some),
            mounts: self.mounts.clone(),
            cut: journal.cut,
            entries: Some(ours.map(Entry::key).collect()),
        }
    }
}
