//! Mounting, unmounting and tidying up: one volume, one step after the other.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};
use wharf_core::{
    volume::{
        attach::{Decision, Refusal},
        condition::Condition,
        journal::{
            Action, DeviceStage, Fault, Found, Journal, Next, Purpose, Seen, Signature, Wait,
            decide_next,
        },
        options::BadOption,
        record::{Change, EntryKey, Record},
        request::{BadRequest, Request, parse_mount_dir},
    },
    words::chain,
};
use wharf_kube::{Cluster, KubeError, volumes::Written};

use super::{
    Places, Volumes,
    calls::Call,
    claim::Gathered,
    kernel::{self, KernelError},
    limits::STEP,
    step::{Step, what},
    storage::{self, Device, Storage, StorageError, Use, agent_of},
};

/// How long a mount waits for somebody whose lease may end, before kubelet is told why. It asks again by
/// itself, but later and later.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where nobody knows when the holder lets go.
const SHORT_PATIENCE: Duration = Duration::from_secs(3);
/// kubelet waits for two minutes, and so does the driver for it. What is mounted after that nobody knows of,
/// and nobody would unmount it.
const ANSWER: Duration = Duration::from_secs(110);
/// Between two looks at somebody who holds the volume.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A mount from nothing takes ten. A row that does not end is a defect.
const MOST_STEPS: usize = 100;

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("{0}")]
    Bad(BadRequest),
    /// Others hold it; it may be had later.
    #[error("{why}")]
    Blocked { why: String, until: Option<Timestamp> },
    #[error("{0}")]
    Refused(Refusal),
    /// What is left of a volume that is being cleaned up.
    #[error("{0}")]
    Unclean(String),
    #[error("the pod has the volume at {0} already")]
    Elsewhere(String),
    #[error("{0}")]
    Options(BadOption),
    #[error("{0}")]
    Fault(Fault),
    #[error("{0}")]
    Wait(Wait),
    #[error("others change the volume's record all the time; it is tried again")]
    Contested,
    #[error("there is no way to the API server yet")]
    NoApi,
    #[error(
        "an earlier attempt to {what} has not come back for {seconds} s; the storage may be gone"
    )]
    Stuck { what: &'static str, seconds: u64 },
    #[error("could not {what} within {seconds} s; the storage may be gone")]
    Slow { what: &'static str, seconds: u64 },
    #[error("somebody else works on the volume; it is tried again")]
    Busy,
    #[error(
        "no more calls for storage {storage:?} or this volume are begun while so many of them are \
         under way; it is tried again"
    )]
    Crowded { storage: String },
    #[error("it took longer than kubelet waits; what is done is done, and the next try is quicker")]
    Late,
    #[error("the volume does not come to rest")]
    Endless,
    #[error("the journal of the volume cannot be kept")]
    Journal(#[source] io::Error),
    #[error(transparent)]
    Kube(#[from] KubeError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl VolumeError {
    /// Whether a look failed because the storage does not answer.
    pub fn is_silence(&self) -> bool {
        let is_late = matches!(self, Self::Stuck { .. } | Self::Slow { .. });
        is_late || matches!(self, Self::Storage(StorageError::Silent))
    }

    /// A decision that grants nothing.
    pub fn refused(decision: Decision) -> Self {
        match decision {
            Decision::Refuse(refusal) => Self::Refused(refusal),
            Decision::Wait { wake_at, .. } => {
                Self::Blocked { why: decision.to_string(), until: wake_at }
            }
            Decision::Granted(_) | Decision::Do(_) => Self::Contested,
        }
    }
}

type Result<T> = std::result::Result<T, VolumeError>;

/// Why a volume is worked on.
#[derive(Debug, Clone)]
enum Goal {
    Mount {
        request: Box<Request>,
        /// Nobody waits for it any more then.
        answer_by: Instant,
    },
    Unmount(String),
    /// Directories of pods that are gone for good.
    Tidy(BTreeSet<String>),
}

/// What the API server says, and in which tenure.
struct Facts {
    record: Option<Record>,
    tenure: u64,
    node_uid: String,
}

impl Volumes {
    /// Mounts a volume for a pod. When it fails, nothing is mounted in the pod's directory.
    pub async fn mount(&self, request: Request) -> Result<()> {
        let _call = self.calls.begin(&request.storage_cluster, &request.volume)?;
        let begun = Instant::now();
        loop {
            let failed = match self.try_mount(&request, begun + ANSWER).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let VolumeError::Blocked { until, .. } = &failed else { return Err(failed) };
            let patience = if until.is_some() { PATIENCE } else { SHORT_PATIENCE };
            if begun.elapsed() + LOOK_AGAIN >= patience {
                self.tell_blocked(&request, &failed).await;
                return Err(failed);
            }
            // The lock is not held meanwhile: the holder may be on this very node.
            sleep(LOOK_AGAIN).await;
        }
    }

    /// People look at the volume, too, and not only at the pod that waits.
    async fn tell_blocked(&self, request: &Request, why: &VolumeError) {
        let Some(api) = self.cluster() else { return };
        let why = why.to_string();
        let waits = Condition::waiting(&self.node, &request.pod, &why, Timestamp::now());
        let told = tokio::join!(
            api.say(&request.volume, &waits),
            api.emit_on_volume(&request.volume, true, "VolumeHeld", &waits.message),
        );
        if let (Err(error), _) | (_, Err(error)) = told {
            info!(volume = request.volume, reason = chain(&error), "it could not be told");
        }
    }

    async fn try_mount(&self, request: &Request, answer_by: Instant) -> Result<()> {
        let _held = self.lock_by(&request.volume, answer_by).await?;
        let mounted = self.mount_locked(request, answer_by).await;
        if mounted.is_err() {
            // Whatever failed, the mount is undone. What cannot be undone now is later.
            if let Err(error) = self.tidy_locked(&request.volume, BTreeSet::new()).await {
                warn!(volume = request.volume, reason = chain(&error), "not all was undone");
            }
        }
        mounted
    }

    async fn mount_locked(&self, request: &Request, answer_by: Instant) -> Result<()> {
        let api = self.cluster().ok_or(VolumeError::NoApi)?;
        let mut gathered = self.gather(&api, request).await?;
        let journal = match self.load(&request.volume)? {
            Some(journal) if !is_same(&journal, request, &gathered) => {
                // Undoing this mount takes it away, if nobody uses it.
                return Err(VolumeError::Unclean(format!(
                    "this node still has image {} of an earlier volume of this name, which has to \
                     leave first",
                    journal.image
                )));
            }
            Some(journal) => journal,
            None => self.new_journal(request, &gathered)?,
        };
        if let Some(other) = journal.other_dir(&request.mount_dir, &request.pod.uid) {
            return Err(VolumeError::Elsewhere(other.to_owned()));
        }
        let mut job = Job::new(self, journal, Some(api))?;
        job.facts = Some(Facts {
            record: gathered.record.clone(),
            tenure: gathered.tenure,
            node_uid: gathered.node_uid.clone(),
        });
        let goal = Goal::Mount { request: Box::new(request.clone()), answer_by };
        job.run(&goal, Some(&mut gathered)).await
    }

    /// Unmounts what is in a pod's directory. Nothing but that directory has to be known.
    pub async fn unmount(&self, dir: &str) -> Result<()> {
        let root = self.places.kubelet_root();
        let place = parse_mount_dir(&root.to_string_lossy(), dir).map_err(|fault| {
            VolumeError::Bad(BadRequest::MountDir { dir: dir.chars().take(200).collect(), fault })
        })?;
        let _call = self.call_for(&place.volume)?;
        let _held = self.lock_by(&place.volume, Instant::now() + ANSWER).await?;
        let journal = match self.load(&place.volume) {
            Ok(Some(journal)) => journal,
            // Nothing of ours is here; what is mounted there is somebody else's and goes all the same,
            // because kubelet asks for it.
            Ok(None) => return self.unmount_unknown(&place.volume, dir).await,
            Err(unread) => return self.unmount_unread(&place.volume, dir, &unread).await,
        };
        Job::new(self, journal, self.cluster())?.run(&Goal::Unmount(dir.to_owned()), None).await
    }

    /// Begins a call for a volume that may be here. What is wrong with its journal is told by whoever
    /// needs that.
    pub fn call_for(&self, volume: &str) -> Result<Call> {
        let journal = self.load(volume).ok().flatten();
        let storage = journal.map(|journal| journal.storage_cluster);
        self.calls.begin(&storage.unwrap_or_default(), volume)
    }

    async fn unmount_unknown(&self, volume: &str, dir: &str) -> Result<()> {
        let at = PathBuf::from(dir);
        self.blocking(volume, "unmount the pod's directory", move || {
            Ok(kernel::unmount_all(&at, false)?)
        })
        .await
    }

    /// Takes away what nobody wants or may use any more, if nobody works on the volume.
    pub async fn tidy(&self, volume: &str, orphans: BTreeSet<String>) -> Result<()> {
        let _held = self.lock_soon(volume).await?;
        self.tidy_locked(volume, orphans).await
    }

    pub async fn tidy_locked(&self, volume: &str, orphans: BTreeSet<String>) -> Result<()> {
        let Some(journal) = self.load(volume)? else { return Ok(()) };
        Job::new(self, journal, self.cluster())?.run(&Goal::Tidy(orphans), None).await
    }

    pub fn load(&self, volume: &str) -> Result<Option<Journal>> {
        self.journals.load(volume).map_err(VolumeError::Journal)
    }

    /// The journal of a volume that has none yet.
    fn new_journal(&self, request: &Request, facts: &Gathered) -> Result<Journal> {
        let cluster = request.storage_cluster.clone();
        let Some(found) = &facts.cluster else {
            return Err(VolumeError::Refused(Refusal::NoCluster { cluster }));
        };
        Ok(Journal {
            volume: request.volume.clone(),
            storage_cluster: cluster,
            image: request.image.clone(),
            backend: found.backend,
            parameters: found.parameters.clone(),
            fs_type: request.fs_type.clone(),
            mount_options: request.mount_options.clone(),
            boot_id: self.boot_id.clone(),
            device: DeviceStage::Absent,
            cut: false,
            pods: Vec::new(),
        })
    }

    /// The storage behind a journal.
    pub fn storage(&self, journal: &Journal) -> Result<Arc<dyn Storage>> {
        let opened =
            storage::open(journal.backend, &journal.parameters, &self.places, &self.hints)?;
        Ok(opened.into())
    }
}

/// Whether a journal is of the image that a mount asks for. A storage cluster that is not there refuses it later.
fn is_same(journal: &Journal, request: &Request, facts: &Gathered) -> bool {
    let (backend, parameters) = match &facts.cluster {
        Some(cluster) => (cluster.backend, &cluster.parameters),
        None => (journal.backend, &journal.parameters),
    };
    journal.is_of(&request.storage_cluster, &request.image, backend, parameters)
}

/// A volume of this node as its storage is asked for it.
pub fn use_of(journal: &Journal, boot_id: &str, places: &Places) -> Use {
    let grants = || journal.pods.iter().filter_map(|pod| pod.entry.as_ref());
    Use {
        volume: journal.volume.clone(),
        image: journal.image.clone(),
        generation: grants().map(|entry| entry.generation).max().unwrap_or_default(),
        read_only: grants().next().is_some() && grants().all(|entry| entry.read_only),
        boot_id: boot_id.to_owned(),
        agent: agent_of(boot_id, &places.state_dir),
        staging: places.staging(&journal.volume),
        binds: journal.pods.iter().map(|pod| PathBuf::from(&pod.mount_dir)).collect(),
        pods: places.pods(),
    }
}

/// The work on one volume, under its lock.
struct Job<'a> {
    volumes: &'a Volumes,
    journal: Journal,
    storage: Arc<dyn Storage>,
    api: Option<Cluster>,
    /// `None` until they are read, and after something changed.
    facts: Option<Facts>,
    /// The API server did not answer in this job: it is not asked again.
    is_away: bool,
    /// The record is another than when the job began.
    is_changed: bool,
    device: Option<Device>,
    /// Why the last look did not see the device.
    silence: Option<VolumeError>,
}

impl<'a> Job<'a> {
    fn new(volumes: &'a Volumes, journal: Journal, api: Option<Cluster>) -> Result<Self> {
        let storage = volumes.storage(&journal)?;
        let is_away = api.is_none();
        Ok(Self {
            volumes,
            journal,
            storage,
            api,
            facts: None,
            is_away,
            is_changed: false,
            device: None,
            silence: None,
        })
    }

    async fn run(&mut self, goal: &Goal, mut gathered: Option<&mut Gathered>) -> Result<()> {
        for _ in 0..MOST_STEPS {
            if let Goal::Mount { request, .. } = goal {
                self.journal.begin(&request.mount_dir, &request.pod.uid);
            }
            self.read_facts().await;
            let seen = self.look(goal).await?;
            let (own, standing) = (self.own(), self.volumes.standing());
            match decide_next(&self.journal, &seen, purpose(goal), &own, &standing) {
                Next::Do { action, .. } if is_late(goal, &action, Instant::now()) => {
                    return Err(VolumeError::Late);
                }
                Next::Do { note, action: Action::Claim { .. } } => {
                    self.journal = *note;
                    self.claim(goal, gathered.as_deref_mut()).await?;
                }
                Next::Do { note, action } => {
                    self.journal = *note;
                    self.store().await?;
                    self.act(&action, goal).await?;
                }
                Next::Settled => return Ok(()),
                Next::Wait(wait) => {
                    return match goal {
                        Goal::Unmount(dir) if self.journal.is_unmounted(dir, &seen) => Ok(()),
                        Goal::Mount { .. } | Goal::Unmount(_) | Goal::Tidy(_) => {
                            Err(self.silence.take().unwrap_or(VolumeError::Wait(wait)))
                        }
                    };
                }
                Next::Fail(fault) => return Err(VolumeError::Fault(fault)),
            }
        }
        Err(VolumeError::Endless)
    }

    fn used(&self) -> Use {
        use_of(&self.journal, &self.volumes.boot_id, &self.volumes.places)
    }

    fn own(&self) -> wharf_core::volume::record::Own {
        let known = self.facts.as_ref().map(|facts| facts.node_uid.clone());
        let mut granted = self.journal.pods.iter().filter_map(|pod| pod.entry.as_ref());
        let uid = known.or_else(|| granted.next().map(|entry| entry.node_uid.clone()));
        self.volumes.own(&uid.unwrap_or_default())
    }

    /// Asks who holds the volume, once and after every change. An API server that is away does not
    /// keep a device here.
    async fn read_facts(&mut self) {
        let tenure = self.volumes.own("").tenure;
        let is_fresh = self.facts.as_ref().is_some_and(|facts| facts.tenure == tenure);
        if is_fresh || self.is_away {
            return;
        }
        self.facts = None;
        let Some(api) = &self.api else { return };
        let asked =
            tokio::try_join!(api.attachment(&self.journal.volume), self.volumes.node_uid(api),);
        match asked {
            Ok((record, node_uid)) => self.facts = Some(Facts { record, tenure, node_uid }),
            Err(error) => {
                info!(volume = self.journal.volume, reason = chain(&error), "nobody answers");
                self.is_away = true;
            }
        }
    }

    /// What is really there. A device that does not answer is there, and hangs.
    async fn look(&mut self, goal: &Goal) -> Result<Seen> {
        let used = self.used();
        let mounts = kernel::mounts()?;
        let is_mounted = |at: &Path| mounts.iter().any(|mount| mount.point == at);
        let staged = is_mounted(&used.staging);
        let dirs = self.journal.pods.iter().map(|pod| pod.mount_dir.clone());
        let bound = dirs.filter(|dir| is_mounted(Path::new(dir))).collect();
        // What is on it matters to those who want to mount it; a device that was cut off is empty.
        let is_asked = matches!(goal, Goal::Mount { .. }) && !staged && !self.journal.cut;
        let (device, silence) = match self.find(used, staged, is_asked).await {
            Ok(found) => {
                self.volumes.answered(&self.journal.volume);
                (found, None)
            }
            Err(why) if why.is_silence() => (Found::Unknown, Some(why)),
            Err(error) => return Err(error),
        };
        let hung = silence.as_ref().is_some_and(|why| self.hangs(why, staged));
        self.silence = silence;
        let orphaned = match goal {
            Goal::Tidy(orphans) => orphans.clone(),
            Goal::Mount { .. } | Goal::Unmount(_) => BTreeSet::new(),
        };
        let record = self.facts.as_ref().map(|facts| facts.record.clone());
        let is_cut_off = |device: &Device| device.is_block && kernel::is_cut_off(&device.path);
        let spoiled = staged && self.device.as_ref().is_some_and(is_cut_off);
        Ok(Seen { device, staged, bound, orphaned, hung, spoiled, record })
    }

    /// Whether a device that was not seen hangs for good. Storage that is slow for a while may still get
    /// what a pod wrote last: only where nothing is mounted, nothing is lost by less patience.
    fn hangs(&self, why: &VolumeError, staged: bool) -> bool {
        let volume = &self.journal.volume;
        let is_silent = matches!(why, VolumeError::Storage(_));
        let silent = is_silent.then(|| self.volumes.silent_for(volume));
        let stuck = self.volumes.oldest_stuck(volume, |_| true).map(|(_, since)| since);
        !staged || silent.max(stuck).is_some_and(|since| since >= STEP)
    }

    async fn find(&mut self, used: Use, staged: bool, is_asked: bool) -> Result<Found> {
        // Nothing was ever begun: there is nothing to look for.
        let is_blank = self.journal.device == DeviceStage::Absent
            && self.journal.boot_id == self.volumes.boot_id;
        if is_blank && !staged {
            self.device = None;
            return Ok(Found::Absent);
        }
        let (storage, fs_type) = (self.storage.clone(), self.journal.fs_type.clone());
        let find = move || {
            let device = storage.find(&used)?;
            let found = match &device {
                None => Found::Absent,
                Some(device) if is_asked && device.is_block => {
                    Found::Present(kernel::signature(&device.path, &fs_type)?)
                }
                Some(_) => Found::Present(Signature::Ready),
            };
            Ok((device, found))
        };
        let volume = self.journal.volume.clone();
        let (device, found) = self.volumes.observe(&volume, "look at the device", find).await?;
        self.device = device;
        Ok(found)
    }

    async fn store(&self) -> Result<()> {
        let (journals, journal) = (self.volumes.journals.clone(), self.journal.clone());
        let stored = tokio::task::spawn_blocking(move || journals.store(&journal)).await;
        let stored = stored.unwrap_or_else(|error| Err(io::Error::other(error)));
        stored.map_err(VolumeError::Journal)
    }

    async fn act(&mut self, action: &Action, goal: &Goal) -> Result<()> {
        let volume = self.journal.volume.clone();
        info!(volume, ?action, "volume step");
        match action {
            Action::Report { key } => return self.report(key).await,
            Action::GiveUp { key } => return self.give_up(key).await,
            // A claim stores the journal itself.
            Action::Forget | Action::Claim { .. } => return Ok(()),
            Action::Map
            | Action::Format
            | Action::Stage
            | Action::Bind { .. }
            | Action::Cut
            | Action::Unbind { .. }
            | Action::Unstage
            | Action::Unmap => {}
        }
        let step = Step::new(&self.journal, self.used(), self.storage.clone(), self.device.clone());
        let (doing, what) = (action.clone(), what(action));
        let taken = move || step.take(&doing);
        if *action == Action::Cut {
            // It is what sets free what hangs.
            self.volumes.by_force(&volume, what, taken).await?;
            self.journal.was_cut();
            return self.volumes.stranded.add(&self.journal).map_err(VolumeError::Journal);
        }
        let volumes = self.volumes;
        let taking = volumes.blocking(&volume, what, taken);
        let done = match action {
            Action::Stage => tokio::join!(taking, self.report_early(goal)).0,
            _ => taking.await,
        };
        if done.is_ok() && *action == Action::Format {
            self.journal.formatted();
        }
        done
    }

    /// Asks for the volume, with the journal stored before there is anything to undo.
    async fn claim(&mut self, goal: &Goal, gathered: Option<&mut Gathered>) -> Result<()> {
        let (Goal::Mount { request, .. }, Some(gathered), Some(api)) = (goal, gathered, &self.api)
        else {
            return Err(VolumeError::NoApi);
        };
        info!(volume = self.journal.volume, "volume step: claim");
        let (volumes, storage) = (self.volumes, &self.storage);
        if self.is_changed {
            *gathered = volumes.gather(api, request).await?;
        }
        let begin = volumes.begin_claim(api, request, storage, gathered);
        let (stored, begun) = tokio::join!(self.store(), begin);
        stored?;
        let entry = volumes.claim(api, request, storage, gathered, begun?).await?;
        self.journal.claimed(&request.mount_dir, &entry);
        self.facts = Some(Facts {
            record: gathered.record.clone(),
            tenure: gathered.tenure,
            node_uid: gathered.node_uid.clone(),
        });
        Ok(())
    }

    /// Says in the record what the device is.
    async fn report(&mut self, key: &EntryKey) -> Result<()> {
        self.change(self.attached(key)).await
    }

    fn attached(&self, key: &EntryKey) -> Option<Change> {
        let device = self.device.as_ref();
        let path = device.map(|device| device.path.display().to_string()).unwrap_or_default();
        let identity = device.map(|device| device.identity.clone()).unwrap_or_default();
        let record = self.facts.as_ref().and_then(|facts| facts.record.as_ref());
        record.and_then(|record| record.attached(key, &path, &identity))
    }

    /// The same while the file system is mounted, so that nobody waits for it at the end. The device is
    /// known by then, and the claim was granted; what is not answered is said again.
    async fn report_early(&mut self, goal: &Goal) {
        let Goal::Mount { request, .. } = goal else { return };
        let pod = self.journal.pods.iter().find(|pod| pod.mount_dir == request.mount_dir);
        let entry = pod.and_then(|pod| pod.entry.as_ref());
        let change = entry.and_then(|entry| self.attached(&entry.key()));
        let (Some(change), Some(api)) = (change, &self.api) else { return };
        self.is_changed = true;
        match api.change_attachment(&self.journal.volume, &change).await {
            Ok(Written::Is(record)) => {
                if let Some(facts) = &mut self.facts {
                    facts.record = record;
                }
            }
            Ok(Written::Stale) => self.facts = None,
            Err(error) => {
                info!(volume = self.journal.volume, reason = chain(&error), "it is said later");
            }
        }
    }

    async fn give_up(&mut self, key: &EntryKey) -> Result<()> {
        let record = self.facts.as_ref().and_then(|facts| facts.record.as_ref());
        let change = record.and_then(|record| record.without(key));
        self.change(change).await
    }

    /// Changes the record. Whoever was faster makes it be read anew.
    async fn change(&mut self, change: Option<Change>) -> Result<()> {
        let (Some(change), Some(api)) = (change, &self.api) else {
            self.facts = None;
            return Ok(());
        };
        self.is_changed = true;
        match api.change_attachment(&self.journal.volume, &change).await {
            Ok(Written::Is(record)) => {
                if let Some(facts) = &mut self.facts {
                    facts.record = record;
                }
            }
            Ok(Written::Stale) => self.facts = None,
            Err(error) => {
                info!(volume = self.journal.volume, reason = chain(&error), "nobody answers");
                self.facts = None;
                self.is_away = true;
            }
        }
        Ok(())
    }
}

fn purpose(goal: &Goal) -> Purpose<'_> {
    match goal {
        Goal::Mount { request, .. } => Purpose::Mount { dir: &request.mount_dir },
        Goal::Unmount(dir) => Purpose::Unmount { dir },
        Goal::Tidy(_) => Purpose::Tidy,
    }
}

/// The bind is what a pod sees: all before it is undone, or found again by the next try.
fn is_late(goal: &Goal, action: &Action, now: Instant) -> bool {
    let Goal::Mount { answer_by, .. } = goal else { return false };
    matches!(action, Action::Bind { .. }) && now >= *answer_by
}
