//! The record of a bed: what exists, or is about to.

use std::fs::{self, File, TryLockError};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::bed::Bind;
use crate::network::Network;
use crate::paths::{BedPaths, RUN, check_name};
use crate::procfs::ProcessId;
use crate::wait::wait;

/// Others hold a lock while they remove a few beds; a minute each would be much.
const LOCK_DEADLINE: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub name: String,
    /// The machine's boot: after another one no process or mount of the bed can exist.
    pub machine_boot_id: String,
    /// Who must be alive for the bed to be wanted. Nobody owns a bed that waits for `down`.
    pub owner: Option<ProcessId>,
    pub network: Network,
    /// The bed's own directory in each cgroup hierarchy.
    pub cgroups: Vec<PathBuf>,
    pub hosts: Vec<HostState>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HostState {
    pub name: String,
    pub address: Ipv4Addr,
    pub binds: Vec<Bind>,
    pub supervisor: Option<ProcessId>,
}

/// What an outsider may know of a bed.
#[derive(Clone, Debug)]
pub struct BedStatus {
    pub name: String,
    pub condition: Condition,
    /// Name, address and whether it is on.
    pub hosts: Vec<(String, Ipv4Addr, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Owned by this living process (a test, or an `up` that is under way).
    Owned(i32),
    /// Stays until somebody takes it down.
    Kept,
    /// Its owner is gone, or the machine was booted since: the next start removes it.
    Abandoned,
}

/// All beds of this machine, by name.
pub fn list() -> Result<Vec<BedStatus>> {
    let mut beds = Vec::new();
    for name in names()? {
        beds.push(match State::load(&name)? {
            Some(state) => state.status(),
            None => BedStatus { name, condition: Condition::Abandoned, hosts: Vec::new() },
        });
    }
    Ok(beds)
}

pub(crate) fn names() -> Result<Vec<String>> {
    let entries = match fs::read_dir(RUN) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {RUN}")),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() && check_name(&name).is_ok() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

impl State {
    /// `None` when nothing was recorded, so that nothing can have been made.
    pub fn load(bed: &str) -> Result<Option<Self>> {
        let path = file(bed)?;
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {path:?}")),
        };
        let state = serde_json::from_slice(&bytes)
            .with_context(|| format!("{path:?} is not the state of a test bed"))?;
        Ok(Some(state))
    }

    pub fn store(&self) -> Result<()> {
        let path = file(&self.name)?;
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_vec_pretty(self)?)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("cannot write {path:?}"))
    }

    /// Changes the stored state. Threads and processes may do so at the same time.
    pub fn update<T>(bed: &str, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let _lock = Lock::take(&BedPaths::new(bed)?.run.join("lock"))?;
        let mut state =
            Self::load(bed)?.with_context(|| format!("there is no test bed named {bed}"))?;
        let value = change(&mut state)?;
        state.store()?;
        Ok(value)
    }

    pub fn host_mut(&mut self, name: &str) -> Result<&mut HostState> {
        let bed = &self.name;
        match self.hosts.iter_mut().find(|host| host.name == name) {
            Some(host) => Ok(host),
            None => bail!("the test bed {bed} has no host named {name}"),
        }
    }

    pub fn condition(&self) -> Condition {
        match self.owner {
            _ if Some(&self.machine_boot_id) != machine_boot_id().ok().as_ref() => {
                Condition::Abandoned
            }
            None => Condition::Kept,
            Some(owner) if owner.is_alive() => Condition::Owned(owner.pid),
            Some(_) => Condition::Abandoned,
        }
    }

    fn status(&self) -> BedStatus {
        let condition = self.condition();
        let is_on = |host: &HostState| host.supervisor.is_some_and(ProcessId::is_alive);
        let hosts = self.hosts.iter().map(|host| (host.name.clone(), host.address, is_on(host)));
        BedStatus { name: self.name.clone(), condition, hosts: hosts.collect() }
    }
}

pub(crate) fn machine_boot_id() -> Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

fn file(bed: &str) -> Result<PathBuf> {
    Ok(BedPaths::new(bed)?.run.join("state.json"))
}

/// Held while beds are claimed or removed, so that two never choose the same subnet and nobody
/// takes away what another is just about to use. The kernel releases it with its holder's death.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// The lock over all beds.
    pub fn all_beds() -> Result<Self> {
        fs::create_dir_all(RUN).with_context(|| format!("cannot make {RUN}"))?;
        Self::take(&Path::new(RUN).join("lock"))
    }

    pub fn take(path: &Path) -> Result<Self> {
        let taken = wait(LOCK_DEADLINE, || Self::try_take(path))?;
        taken.with_context(|| format!("another process holds {path:?} for {LOCK_DEADLINE:?}"))
    }

    /// `None` while somebody else has it.
    pub fn try_take(path: &Path) -> Result<Option<Self>> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .with_context(|| format!("cannot open {path:?}"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock {path:?}"))
            }
        }
    }
}
