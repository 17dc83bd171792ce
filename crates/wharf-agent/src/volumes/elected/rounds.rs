//! Rounds of the elected agent's work: one for each storage, beside each other.
//!
//! Storage that does not answer keeps its own round busy and nobody else's. A storage whose round has not
//! ended gets its next one afterwards.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use wharf_core::{volume::record::Record, words::chain};
use wharf_kube::{
    Cluster, KubeError,
    volumes::{ClaimSeen, PersistentVolume, StorageClass, StorageCluster, StorageWatch},
};

use super::{cluster, forgotten, provision, stale, waiting};
use crate::{
    health::Reporter,
    volumes::{Volumes, work::VolumeError},
};

/// They are gone for days before they are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(3600);
/// Changes come in groups.
const SETTLE: Duration = Duration::from_millis(200);
/// What faults are told of, beside each storage.
const CLUSTERS: &str = "storage clusters";
const LONG_GONE: &str = "nodes that are long gone";

pub struct Rounds {
    volumes: Arc<Volumes>,
    /// For what the watch does not tell: leases of agents, pods that wait no more, and what a watch that
    /// failed has missed.
    every: Duration,
    reporter: Reporter,
    /// How far each storage is, by its name: also of those that only a class or a record names.
    storages: BTreeMap<String, Arc<Mutex<Progress>>>,
    /// Each ends with the name of its storage.
    running: JoinSet<String>,
    /// The storages whose round had not ended when the next was due.
    late: BTreeSet<String>,
    /// When nodes that are long gone are looked for again.
    forget_at: Instant,
}

/// What is known of a storage from earlier rounds.
#[derive(Default)]
struct Progress {
    told: provision::Told,
    sweeps: stale::Sweeps,
}

/// What the API server says of all storages.
pub struct Picture {
    pub classes: Vec<StorageClass>,
    pub claims: Vec<ClaimSeen>,
    pub clusters: Vec<StorageCluster>,
    pub volumes: Vec<PersistentVolume>,
    pub records: Vec<(String, Record)>,
}

impl Rounds {
    pub fn new(volumes: Arc<Volumes>, every: Duration, reporter: Reporter) -> Self {
        Self {
            volumes,
            every,
            reporter,
            storages: BTreeMap::new(),
            running: JoinSet::new(),
            late: BTreeSet::new(),
            forget_at: Instant::now(),
        }
    }

    /// Looks at everything when something changes, and regularly. Does not end by itself.
    pub async fn run(&mut self, api: &Cluster) {
        // The election itself waits for nobody.
        let api = &api.with_turns(self.volumes.turns.clone());
        let mut watch = api.watch_storage();
        loop {
            let begun = self.begin(api).await;
            tell(&self.reporter, CLUSTERS, begun);
            if Instant::now() >= self.forget_at {
                let forgotten = forgotten::forget(api).await;
                tell(&self.reporter, LONG_GONE, forgotten);
                self.forget_at = Instant::now() + FORGET_EVERY;
            }
            self.wait(&mut watch).await;
        }
    }

    /// What is under way is cut off; another agent does it, and tells what fails.
    pub async fn stop(&mut self) {
        // None of them tells anything afterwards.
        self.running.shutdown().await;
        self.late.clear();
        let storages = self.storages.keys().map(|name| subject(name));
        for told in storages.chain([CLUSTERS, LONG_GONE].map(str::to_owned)) {
            self.reporter.clear(&told);
        }
    }

    async fn wait(&mut self, watch: &mut StorageWatch) {
        let due = Instant::now() + self.every;
        loop {
            tokio::select! {
                () = sleep_until(due) => return,
                change = watch.next() => if change.is_ok() {
                    sleep(SETTLE).await;
                    return;
                },
                Some(ended) = self.running.join_next() => if let Ok(storage) = ended
                    && self.late.remove(&storage)
                {
                    return;
                },
            }
        }
    }

    /// Begins a round for each storage that has none under way.
    async fn begin(&mut self, api: &Cluster) -> Result<(), VolumeError> {
        // One whose end is refused keeps nobody else's work waiting.
        let ended = cluster::end(&self.volumes, api).await;
        let picture = Arc::new(Picture::read(api).await?);
        let names = picture.storages();
        self.storages.retain(|name, _| {
            let is_named = names.contains(name);
            if !is_named {
                self.reporter.clear(&subject(name));
            }
            is_named
        });
        for name in names {
            let progress = self.storages.entry(name.clone()).or_default().clone();
            let Ok(mut progress) = progress.try_lock_owned() else {
                self.late.insert(name);
                continue;
            };
            let (volumes, api) = (self.volumes.clone(), api.clone());
            let (picture, reporter) = (picture.clone(), self.reporter.clone());
            self.running.spawn(async move {
                let Progress { told, sweeps } = &mut *progress;
                let provided = provision::provide(&volumes, &api, &picture, &name, told).await;
                let swept = stale::sweep(&volumes, &api, &picture, &name, sweeps).await;
                let forgot = waiting::forget(&api, &picture, &name).await;
                tell(&reporter, &subject(&name), provided.and(swept).and(forgot));
                name
            });
        }
        ended
    }
}

fn subject(storage: &str) -> String {
    format!("storage {storage}")
}

fn tell(reporter: &Reporter, subject: &str, done: Result<(), VolumeError>) {
    match done {
        Ok(()) => reporter.clear(subject),
        Err(error) => reporter.fault(subject, &chain(&error)),
    }
}

impl Picture {
    async fn read(api: &Cluster) -> Result<Self, KubeError> {
        let classes = api.storage_classes().await?;
        Ok(Self {
            claims: api.claims_of(&classes).await?,
            classes,
            clusters: api.storage_clusters().await?,
            volumes: api.volumes().await?,
            records: api.attachments().await?,
        })
    }

    fn storages(&self) -> BTreeSet<String> {
        let of_clusters = self.clusters.iter().map(|cluster| cluster.name.as_str());
        let of_claims = self.claims.iter().map(|claim| self.storage_of_class(&claim.class));
        let of_records = self.records.iter().map(|(name, record)| self.storage_of(name, record));
        of_clusters.chain(of_claims).chain(of_records).map(str::to_owned).collect()
    }

    pub fn cluster(&self, storage: &str) -> Option<&StorageCluster> {
        self.clusters.iter().find(|one| one.name == storage)
    }

    pub fn class(&self, name: &str) -> Option<&StorageClass> {
        self.classes.iter().find(|one| one.class.name == name)
    }

    pub fn volume(&self, name: &str) -> Option<&PersistentVolume> {
        self.volumes.iter().find(|one| one.name == name)
    }

    /// Empty where the class names none: its claims are told so.
    pub fn storage_of_class(&self, class: &str) -> &str {
        let class = self.class(class);
        class.and_then(|one| one.class.parameters.get("storageCluster")).map_or("", String::as_str)
    }

    /// The volume may be gone; its holders say the same.
    pub fn storage_of<'a>(&'a self, volume: &str, record: &'a Record) -> &'a str {
        let by_volume = self.volume(volume).map(|volume| &volume.facts.storage_cluster);
        let by_holder = || record.entries.first().map(|entry| &entry.storage_cluster);
        by_volume.or_else(by_holder).map_or("", String::as_str)
    }
}
