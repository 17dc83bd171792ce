//! What a proxy says about itself, in small files of its run directory.

use std::{
    fs,
    io::{self, Write},
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{HOLDER, OPTIONS, Options, Place, Process, WORKER, mounts};

/// How the volume is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Health {
    Serving,
    /// The server is away; requests wait.
    Reconnecting {
        reason: String,
    },
    /// Everything gets an I/O error.
    Dead {
        reason: String,
        /// Also when the server comes back: it has lost what it had promised.
        for_good: bool,
    },
    /// Others have been let in with a higher generation. Everything gets an I/O error, for good.
    Fenced {
        reason: String,
    },
}

impl Health {
    fn is_final(&self) -> bool {
        match self {
            Health::Serving | Health::Reconnecting { .. } => false,
            Health::Dead { for_good, .. } => *for_good,
            Health::Fenced { .. } => true,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HolderFile {
    pub holder: Process,
    pub worker: Option<Process>,
    /// How often the worker was started.
    pub starts: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct WorkerFile {
    worker: Process,
    #[serde(flatten)]
    health: Health,
    since_unix_seconds: u64,
}

/// What there is of a proxy. Processes are named only while they live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub options: Options,
    pub holder: Option<Process>,
    pub worker: Option<Process>,
    /// How often the worker was started.
    pub starts: u64,
    /// Whether, and as what, the file system is mounted.
    pub fuse_minor: Option<u32>,
    /// What the worker said last; `None` while it has said nothing, or when it is dead.
    pub health: Option<Health>,
    pub since_unix_seconds: u64,
}

impl Observed {
    /// Whether there is somebody who answers, or who sees to it.
    pub fn lives(&self) -> bool {
        self.fuse_minor.is_some() && (self.holder.is_some() || self.worker.is_some())
    }
}

pub(super) fn observe(place: &Place) -> io::Result<Option<Observed>> {
    let Some(options) = read::<Options>(&place.file(OPTIONS))? else { return Ok(None) };
    let holder = read::<HolderFile>(&place.file(HOLDER))?;
    let said = read::<WorkerFile>(&place.file(WORKER))?;
    let starts = holder.as_ref().map_or(0, |file| file.starts);
    let (holder, worker) = match holder {
        Some(file) => (Some(file.holder), file.worker),
        None => (None, None),
    };
    let worker = worker.filter(Process::is_alive);
    let said = said.filter(|said| worker.as_ref() == Some(&said.worker));
    Ok(Some(Observed {
        options,
        holder: holder.filter(Process::is_alive),
        worker,
        starts,
        fuse_minor: mounts::fuse_minor(&place.mount_point())?,
        since_unix_seconds: said.as_ref().map_or(0, |said| said.since_unix_seconds),
        health: said.map(|said| said.health),
    }))
}

/// `None` where there is no file. A file is whole or not there, so one that cannot be read is an error.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whole or not at all, whoever reads it and whenever we end. It need not survive the machine: the
/// processes do not either.
pub(super) fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = fs::File::create(&fresh)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    fs::rename(fresh, path)
}

/// The health that the worker's threads agree on, and its file.
#[derive(Debug)]
pub(super) struct Told {
    place: Place,
    worker: Process,
    health: Mutex<Health>,
    /// Whether it serves: looked at for every request, so without the lock.
    well: AtomicBool,
}

impl Told {
    pub fn new(place: &Place, first: Health) -> io::Result<Self> {
        let told = Self {
            place: place.clone(),
            worker: Process::myself()?,
            well: AtomicBool::new(first == Health::Serving),
            health: Mutex::new(first.clone()),
        };
        told.publish(first)?;
        Ok(told)
    }

    pub fn get(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_well(&self) -> bool {
        self.well.load(Ordering::Acquire)
    }

    /// Changes the health, unless it is final. Says whether it is another than before.
    pub fn set(&self, new: Health) -> bool {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let same_kind = std::mem::discriminant(&*health) == std::mem::discriminant(&new);
        if health.is_final() || (same_kind && !new.is_final()) {
            return false;
        }
        self.well.store(new == Health::Serving, Ordering::Release);
        *health = new.clone();
        // The volume works on when its directory is full; the next change is written again.
        let _unwritten = self.publish(new);
        true
    }

    fn publish(&self, health: Health) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let worker = self.worker.clone();
        let file = WorkerFile { worker, health, since_unix_seconds: now.as_secs() };
        write(&self.place.file(WORKER), &file)
    }
}
