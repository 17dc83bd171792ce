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
    Shared, Volumes, kernel, side_by_side,
    storage::{Files, StorageError, Tag, agent_of, every_device},
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
    let mut round = Round {
        volumes,
        reporter,
        unknown: BTreeMap::new(),
        strays_at: Instant::now(),
        names: Vec::new(),
        claims: Mutex::default(),
    };
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
    /// The volumes of the last round.
    names: Vec<String>,
    /// Which size their claims were told last.
    claims: Mutex<BTreeMap<String, String>>,
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
        // Nothing can be wrong any more with what is not there.
        for gone in self.names.iter().filter(|name| !names.contains(name)) {
            self.reporter.clear(gone);
        }
        self.names.clone_from(&names);
        self.forget_sizes(&names);
        let orphans = self.orphans(&names).await;
        let all = Instant::now() >= self.strays_at;
        let api = self.volumes.cluster();
        let this = &*self;
        // None waits for what hangs in another.
        let (_, _, looked) = tokio::join!(
            this.tidy_all(&names, &orphans),
            this.grow_all(api.as_ref(), &names),
            this.clean_records(api.as_ref(), all),
        );
        if all && looked {
            self.strays_at = Instant::now() + STRAYS_EVERY;
        }
        self.reporter.ok();
    }

    async fn tidy_all(&self, names: &[String], orphans: &BTreeMap<String, BTreeSet<String>>) {
        side_by_side(names.iter().map(|name| self.tidy(name, orphans.get(name)))).await;
        let ended = self.volumes.end_stranded().await;
        self.told("pods whose volumes were cut off", ended.map_err(VolumeError::from));
    }

    async fn tidy(&self, name: &str, orphans: Option<&BTreeSet<String>>) {
        let orphans = orphans.cloned().unwrap_or_default();
        self.told(name, self.volumes.tidy(name, orphans).await);
    }

    /// Works off the garbage list, and takes strays out. Says whether all of those were looked for.
    async fn clean_records(&self, api: Option<&Cluster>, all: bool) -> bool {
        let Some(api) = api else { return false };
        self.told("the garbage list", self.clean_garbage(api).await);
        let taken = self.take_strays(api, all).await;
        let looked = taken.is_ok();
        self.told("records", taken);
        looked
    }

    fn told(&self, subject: &str, done: Result<(), VolumeError>) {
        match done {
            Ok(()) => self.reporter.clear(subject),
            // Whoever works on it is told what is wrong.
            Err(VolumeError::Busy) => {}
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
    async fn grow_all(&self, api: Option<&Cluster>, names: &[String]) {
        let Some(api) = api else { return };
        let grown = side_by_side(names.iter().map(|name| self.grow(api, name))).await;
        self.told("sizes", all_done(grown));
    }

    async fn grow(&self, api: &Cluster, name: &str) -> Result<(), VolumeError> {
        if let Some(volume) = api.volume(name).await?
            && let Some(wanted) = bytes(&volume.capacity)
            && self.volumes.grow(name, wanted).await?
            && let Some((namespace, claim, uid)) = &volume.claim
            && self.claims().get(name) != Some(&volume.capacity)
        {
            api.set_claim_capacity((namespace, claim, uid), &volume.capacity).await?;
            self.claims().insert(name.to_owned(), volume.capacity);
        }
        Ok(())
    }

    fn claims(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of volumes that are not here any more.
    fn forget_sizes(&self, names: &[String]) {
        self.claims().retain(|name, _| names.contains(name));
        let mut grown = self.volumes.grown.lock().unwrap_or_else(PoisonError::into_inner);
        grown.retain(|name, _| names.contains(name));
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
        let own = &own;
        let clean = |entry: GarbageEntry| async move {
            let cleaned = self.clean_entry(api, &entry, own).await;
            (entry, cleaned)
        };
        let cleaned = side_by_side(seen.entries.iter().cloned().map(clean)).await;
        let staying = cleaned.iter().filter(|(_, cleaned)| !matches!(cleaned, Ok(true)));
        let kept: Vec<GarbageEntry> = staying.map(|(entry, _)| entry.clone()).collect();
        if kept.len() < seen.entries.len() {
            // Whoever was faster made it longer: the next round sees it.
            api.write_garbage(&self.volumes.node, &seen, &kept).await?;
        }
        all_done(cleaned.into_iter().map(|(_, cleaned)| cleaned.map(drop)).collect())
    }

    /// Whether nothing is left of an entry of the garbage list.
    async fn clean_entry(
        &self,
        api: &Cluster,
        entry: &GarbageEntry,
        own: &Own,
    ) -> Result<bool, VolumeError> {
        let _held = self.volumes.lock_soon(&entry.volume).await?;
        let left = self.left(api, entry).await?;
        match decide_garbage(entry, &left, own) {
            Clean::Drop(why) => {
                info!(volume = entry.volume, %why, "struck off the garbage");
                Ok(true)
            }
            Clean::Detach(generation) => {
                warn!(volume = entry.volume, %generation, "a device that nobody knows is taken away");
                let images = BTreeSet::from([entry.image.clone()]);
                let devices = self.devices(&entry.volume, images).await?.unwrap_or_default();
                let of_grant = devices.into_iter().filter(|(_, of)| *of == generation);
                self.detach(&entry.volume, of_grant.map(|(device, _)| device).collect()).await?;
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
        let images = BTreeSet::from([entry.image.clone()]);
        let devices = self.devices(&entry.volume, images).await?;
        Ok(Left {
            devices: devices.map(|devices| devices.into_iter().map(|(_, it)| it).collect()),
            journal: journal.max(),
            record: Some(api.attachment(&entry.volume).await?),
        })
    }

    /// The devices of a volume, also where no journal knows of them. `None` while one that does not
    /// answer may be among them.
    async fn devices(
        &self,
        volume: &str,
        images: BTreeSet<String>,
    ) -> Result<Option<Vec<(loops::Device, Generation)>>, VolumeError> {
        let tag = Tag::new(&self.agent(), volume, Generation::default());
        let files = Files::of(&self.volumes.places, volume, images)?;
        let list = move || Ok(every_device(&tag, &files)?);
        match self.volumes.observe(volume, "look for devices", list).await {
            Err(why) if why.is_silence() => Ok(None),
            listed => listed.map(Some),
        }
    }

    /// Devices that no journal knows: cut off, unmounted, taken away.
    async fn detach(&self, volume: &str, devices: Vec<loops::Device>) -> Result<(), VolumeError> {
        let take_away = move || {
            for device in &devices {
                loops::cut(device).map_err(StorageError::from)?;
                let number = format!("7:{}", device.number);
                for mount in kernel::mounts()?.iter().filter(|mount| mount.device == number) {
                    kernel::unmount_all(&mount.point, true)?;
                }
                loops::detach(device).map_err(StorageError::from)?;
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
        let taken = suspects.iter().map(|volume| self.take_stray(api, volume, &own));
        all_done(side_by_side(taken).await)
    }

    async fn take_stray(&self, api: &Cluster, volume: &str, own: &Own) -> Result<(), VolumeError> {
        let _held = self.volumes.lock_soon(volume).await?;
        let journal = self.volumes.load(volume)?;
        let Some(record) = api.attachment(volume).await? else { return Ok(()) };
        let ours = record.entries.iter().filter(|entry| entry.node == own.node);
        let images = ours.map(|entry| entry.image.clone()).collect();
        let devices = self.devices(volume, images).await?;
        let device = devices.map(|devices| !devices.is_empty());
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

/// The first that went wrong, after all had their turn. Whoever meets somebody at work is not wrong.
fn all_done(each: Vec<Result<(), VolumeError>>) -> Result<(), VolumeError> {
    let is_wrong = |done: &Result<(), VolumeError>| !matches!(done, Err(VolumeError::Busy));
    each.into_iter().filter(is_wrong).fold(Ok(()), Result::and)
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
