//! What is done without anybody asking: mounts that were left half done are undone, the garbage list of
//! this node is worked off, and entries that nothing here knows of are taken out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tracing::{info, warn};
use wharf_block::loops;
use wharf_core::{
    volume::{
        garbage::{Clean, GarbageEntry, Left, decide_garbage, is_stray},
        journal::Journal,
        record::{Generation, Own, Record},
    },
    words::chain,
};
use wharf_kube::{
    Cluster,
    volumes::{Written, bytes},
};

use super::{
    Shared, Volumes, kernel,
    storage::{Tag, agent_of, every_device},
    work::VolumeError,
};
use crate::{
    device,
    health::Reporter,
    tasks::{Context, Ended},
};

const TIDY_EVERY: Duration = Duration::from_secs(30);
/// Asking for all records is dear.
const STRAYS_EVERY: Duration = Duration::from_secs(600);
/// A write that nobody answered may still be carried out for so long.
const LATE: Duration = Duration::from_secs(600);
/// kubelet unmounts what it knows of in this time, also after its own restart.
const ORPHANED_AFTER: Duration = Duration::from_secs(60);

pub async fn run(context: Context, reporter: Reporter, shared: Shared) -> Ended {
    let Some(node) = context.stop.run_until_cancelled(device::node_name(&context)).await else {
        return Ok(());
    };
    let volumes = shared.volumes(&node)?;
    let mut round =
        Round { volumes, reporter, unknown: BTreeMap::new(), strays_at: Instant::now() };
    loop {
        let turn = async {
            round.turn().await;
            sleep(TIDY_EVERY).await;
        };
        if context.stop.run_until_cancelled(turn).await.is_none() {
            return Ok(());
        }
    }
}

struct Round {
    volumes: Arc<Volumes>,
    reporter: Reporter,
    /// Directories of pods that the API server does not know, and since when.
    unknown: BTreeMap<String, Instant>,
    strays_at: Instant,
}

impl Round {
    /// Whose devices are ours.
    fn agent(&self) -> String {
        agent_of(&self.volumes.boot_id, &self.volumes.places.state_dir)
    }

    async fn turn(&mut self) {
        let names = match self.volumes.journals.names() {
            Ok(names) => names,
            Err(error) => return self.reporter.fault("journals", &error.to_string()),
        };
        self.reporter.clear("journals");
        let orphans = self.orphans(&names).await;
        for name in names {
            let of_volume = orphans.get(&name).cloned().unwrap_or_default();
            self.told(&name, self.volumes.tidy(&name, of_volume).await);
        }
        let node = self.volumes.node_identity.borrow().clone();
        if let Some(node) = node {
            let deleted = self.volumes.stranded.delete(&node).await;
            self.told("pods whose volumes were cut off", deleted.map_err(VolumeError::from));
        }
        if let Some(api) = self.volumes.cluster() {
            let done = self.grow_all(&api).await;
            self.told("sizes", done);
            let done = self.clean_garbage(&api).await;
            self.told("the garbage list", done);
            let all = Instant::now() >= self.strays_at;
            let done = self.take_strays(&api, all).await;
            if all && done.is_ok() {
                self.strays_at = Instant::now() + STRAYS_EVERY;
            }
            self.told("records", done);
        }
        self.reporter.ok();
    }

    fn told(&self, subject: &str, done: Result<(), VolumeError>) {
        match done {
            Ok(()) => self.reporter.clear(subject),
            Err(error) => self.reporter.fault(subject, &chain(&error)),
        }
    }

    /// Directories, by volume, of pods that are gone for good: the API server has not known them for a
    /// while, and no container has the volume any more.
    async fn orphans(&mut self, names: &[String]) -> BTreeMap<String, BTreeSet<String>> {
        let mut orphans: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let journals: Vec<Journal> =
            names.iter().filter_map(|name| self.volumes.load(name).ok().flatten()).collect();
        let Some(api) = self.volumes.cluster().filter(|_| !journals.is_empty()) else {
            return orphans;
        };
        let Ok(known) = api.pod_uids(&self.volumes.node).await else { return orphans };
        let mut still = BTreeMap::new();
        for journal in &journals {
            for pod in journal.pods.iter().filter(|pod| !known.contains(&pod.pod_uid)) {
                let since = self.unknown.get(&pod.mount_dir).copied().unwrap_or_else(Instant::now);
                still.insert(pod.mount_dir.clone(), since);
                if since.elapsed() >= ORPHANED_AFTER && !self.is_used(journal).await {
                    orphans
                        .entry(journal.volume.clone())
                        .or_default()
                        .insert(pod.mount_dir.clone());
                }
            }
        }
        self.unknown = still;
        orphans
    }

    /// File systems follow volumes that have grown.
    async fn grow_all(&self, api: &Cluster) -> Result<(), VolumeError> {
        let mut done = Ok(());
        for name in self.volumes.journals.names().map_err(VolumeError::Journal)? {
            done = done.and(self.grow(api, &name).await);
        }
        done
    }

    async fn grow(&self, api: &Cluster, name: &str) -> Result<(), VolumeError> {
        if let Some(volume) = api.volume(name).await?
            && let Some(wanted) = bytes(&volume.capacity)
            && self.volumes.grow(name, wanted).await?
            && let Some((namespace, claim, _)) = &volume.claim
        {
            api.set_claim_capacity(namespace, claim, &volume.capacity).await?;
        }
        Ok(())
    }

    async fn is_used(&self, journal: &Journal) -> bool {
        let staging = self.volumes.places.staging(&journal.volume);
        let looked = tokio::task::spawn_blocking(move || {
            let mounts = kernel::mounts()?;
            let staged = mounts.into_iter().find(|mount| mount.point == staging);
            Ok::<_, kernel::KernelError>(staged.is_some_and(|it| kernel::is_in_a_container(&it)))
        });
        // What cannot be seen counts as used.
        looked.await.is_ok_and(|looked| looked.unwrap_or(true))
    }

    async fn clean_garbage(&self, api: &Cluster) -> Result<(), VolumeError> {
        let seen = api.garbage(&self.volumes.node).await?;
        if seen.entries.is_empty() {
            return Ok(());
        }
        let node_uid = self.volumes.node_uid(api).await?;
        let own = self.volumes.own(&node_uid);
        let mut kept = Vec::new();
        let mut done = Ok(());
        for entry in &seen.entries {
            let cleaned = self.clean_entry(api, entry, &own).await;
            if !matches!(cleaned, Ok(true)) {
                kept.push(entry.clone());
            }
            done = done.and(cleaned.map(drop));
        }
        if kept.len() < seen.entries.len() {
            // Whoever was faster made it longer: the next round sees it.
            api.write_garbage(&self.volumes.node, &seen, &kept).await?;
        }
        done
    }

    /// Whether nothing is left of an entry of the garbage list.
    async fn clean_entry(
        &self,
        api: &Cluster,
        entry: &GarbageEntry,
        own: &Own,
    ) -> Result<bool, VolumeError> {
        let lock = self.volumes.lock(&entry.volume);
        let _held = lock.lock().await;
        let left = self.left(api, entry).await?;
        match decide_garbage(entry, &left, own) {
            Clean::Drop(why) => {
                info!(volume = entry.volume, %why, "struck off the garbage");
                Ok(true)
            }
            Clean::Detach(generation) => {
                self.detach(&entry.volume, generation).await?;
                Ok(false)
            }
            // The journal is tidied in every round.
            Clean::Tidy | Clean::Keep => Ok(false),
        }
    }

    async fn left(&self, api: &Cluster, entry: &GarbageEntry) -> Result<Left, VolumeError> {
        let journal = self.volumes.load(&entry.volume)?;
        let grants = journal.iter().flat_map(|journal| &journal.pods);
        let journal = grants.filter_map(|pod| pod.entry.as_ref()).map(|entry| entry.generation);
        let volume = entry.volume.clone();
        let tag = Tag::new(&self.agent(), &volume, Generation::default());
        let listed =
            self.volumes.blocking(&volume, "look for devices", move || Ok(every_device(&tag).ok()));
        Ok(Left {
            devices: listed.await?.map(|devices| devices.into_iter().map(|(_, it)| it).collect()),
            journal: journal.max(),
            record: Some(api.attachment(&volume).await?),
        })
    }

    /// A device that no journal knows: cut off, unmounted, taken away.
    async fn detach(&self, volume: &str, generation: Generation) -> Result<(), VolumeError> {
        let tag = Tag::new(&self.agent(), volume, generation);
        warn!(volume, %generation, "a device that nobody knows is taken away");
        let take_away = move || {
            let devices = every_device(&tag)?;
            for (device, _) in devices.iter().filter(|(_, of)| *of == generation) {
                loops::cut(device).map_err(super::storage::StorageError::from)?;
                let number = format!("7:{}", device.number);
                for mount in kernel::mounts()?.iter().filter(|mount| mount.device == number) {
                    kernel::unmount_all(&mount.point, true)?;
                }
                loops::detach(device).map_err(super::storage::StorageError::from)?;
            }
            Ok(())
        };
        self.volumes.blocking(volume, "take the device away", take_away).await
    }

    /// A write of ours that came late may have brought an entry back after it was given up: looks at
    /// all records, or at those of which it is to be feared.
    async fn take_strays(&self, api: &Cluster, all: bool) -> Result<(), VolumeError> {
        let mut suspects = self.volumes.unanswered.names();
        if all {
            let is_ours = |record: &Record| {
                record.entries.iter().any(|entry| entry.node == self.volumes.node)
            };
            let records = api.attachments().await?.into_iter();
            suspects.extend(records.filter(|(_, it)| is_ours(it)).map(|(volume, _)| volume));
        }
        if suspects.is_empty() {
            return Ok(());
        }
        let node_uid = self.volumes.node_uid(api).await?;
        let own = self.volumes.own(&node_uid);
        for volume in &suspects {
            self.take_stray(api, volume, &own).await?;
        }
        Ok(())
    }

    async fn take_stray(&self, api: &Cluster, volume: &str, own: &Own) -> Result<(), VolumeError> {
        let lock = self.volumes.lock(volume);
        let _held = lock.lock().await;
        let journal = self.volumes.load(volume)?;
        let tag = Tag::new(&self.agent(), volume, Generation::default());
        let listed =
            self.volumes.blocking(volume, "look for devices", move || Ok(every_device(&tag).ok()));
        let device = listed.await?.map(|devices| !devices.is_empty());
        let Some(record) = api.attachment(volume).await? else { return Ok(()) };
        let is_ours = |entry: &&_| is_stray(entry, own, journal.as_ref(), device);
        let Some(stray) = record.entries.iter().find(is_ours) else { return Ok(()) };
        if let Some(change) = record.without(&stray.key())
            && let Written::Is(_) = api.change_attachment(volume, &change).await?
        {
            warn!(volume, "an entry that nothing here knows of was taken out");
        }
        Ok(())
    }
}

/// Volumes with a write of ours to their record that was not answered, and since when.
#[derive(Default)]
pub struct Unanswered(Mutex<BTreeMap<String, Instant>>);

impl Unanswered {
    /// To be said before the write: whoever waits for it may give up at any time. Whether there is
    /// no other one, so that its answer settles everything.
    pub fn note(&self, volume: &str) -> bool {
        self.all().insert(volume.to_owned(), Instant::now()).is_none()
    }

    pub fn forget(&self, volume: &str) {
        self.all().remove(volume);
    }

    fn names(&self) -> BTreeSet<String> {
        let mut all = self.all();
        all.retain(|_, since| since.elapsed() < LATE);
        all.keys().cloned().collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
