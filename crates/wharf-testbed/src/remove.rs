//! Undoing a bed, whatever state it was left in.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};

use crate::bed::in_parallel;
use crate::cgroup;
use crate::host::Host;
use crate::packages;
use crate::paths::{BedPaths, RUN};
use crate::state::{Condition, HostState, Lock, State, names};
use crate::wait::wait;

/// The default of 128 is shared by all hosts, since they are one kernel's: the seventh failed to
/// boot with it.
const INOTIFY_INSTANCES: u32 = 1024;
const INOTIFY_LIMIT: &str = "/proc/sys/fs/inotify/max_user_instances";

/// After a kill the last references to a mount go within moments.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(10);

/// Removes a bed with everything that belongs to it. A bed that is not there is fine.
///
/// Flow: end the supervisors, then the hosts, in this order, or a host would be started again;
/// then loop devices and cgroups, mounts, the network, the disks, and the state at last.
/// Guarantees: it can be repeated after it failed or was killed at any point.
pub fn remove(name: &str) -> Result<()> {
    remove_locked(name, &Lock::all_beds()?)
}

/// Removes the beds whose owners are gone, and gives their names.
pub fn reap_abandoned() -> Result<Vec<String>> {
    packages::ensure()?;
    reap(&Lock::all_beds()?)
}

pub(crate) fn reap(lock: &Lock) -> Result<Vec<String>> {
    let mut reaped = Vec::new();
    for name in names()? {
        let state = State::load(&name)?;
        if state.is_none_or(|state| state.condition() == Condition::Abandoned) {
            eprintln!("testbed: removing the abandoned test bed {name}");
            remove_locked(&name, lock).with_context(|| format!("cannot remove {name}"))?;
            reaped.push(name);
        }
    }
    Ok(reaped)
}

pub(crate) fn remove_locked(name: &str, _lock: &Lock) -> Result<()> {
    let paths = BedPaths::new(name)?;
    if let Some(state) = State::load(name)? {
        for supervisor in state.hosts.iter().filter_map(|host| host.supervisor) {
            supervisor.kill()?;
        }
        release_hosts(&state, &paths)?;
        unmount_below(&paths.disks)?;
        state.network.remove()?;
        cgroup::remove(&state.cgroups)?;
    }
    remove_tree(&paths.disks)?;
    if let Some(all_disks) = paths.disks.parent() {
        // Fails as long as it holds another bed.
        let _ = fs::remove_dir(all_disks);
    }
    remove_tree(&paths.run)?;
    if names()?.is_empty() {
        restore_machine_limits()?;
    }
    Ok(())
}

/// All at the same time: each waits for the kernel most of the time.
fn release_hosts(state: &State, paths: &BedPaths) -> Result<()> {
    let made = |host: &&HostState| paths.disks.join(&host.name).exists();
    let hosts = state.hosts.iter().filter(made).map(|host| Host::new(state, host));
    let hosts: Vec<Host> = hosts.collect::<Result<_>>()?;
    in_parallel(&hosts, |host| {
        host.release()?;
        host.remove_nspawn_marks();
        Ok(())
    })
}

fn unmount_below(directory: &Path) -> Result<()> {
    // The latest first: it may lie on an earlier one.
    for mount in mounts_below(directory)?.into_iter().rev() {
        let mut last = None;
        let done = wait(UNMOUNT_DEADLINE, || match unmount(&mount, UnmountFlags::empty()) {
            Ok(()) => Ok(Some(())),
            Err(error) => {
                last = Some(error);
                Ok(None)
            }
        })?;
        if done.is_none() {
            bail!("cannot unmount {mount:?}: {}", last.map(|e| e.to_string()).unwrap_or_default());
        }
    }
    Ok(())
}

fn mounts_below(directory: &Path) -> Result<Vec<PathBuf>> {
    // No path of ours holds a character that mountinfo would escape.
    let mountinfo = fs::read_to_string("/proc/self/mountinfo")?;
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    Ok(points.filter(|point| point.starts_with(directory)).collect())
}

/// Refuses while something is mounted below: that could be a shared directory with data in it.
fn remove_tree(directory: &Path) -> Result<()> {
    if let Some(mount) = mounts_below(directory)?.first() {
        bail!("{mount:?} is still mounted");
    }
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {directory:?}"))
        }
        _ => Ok(()),
    }
}

/// Raises what all hosts share, and notes the machine's own value.
pub(crate) fn ensure_machine_limits() -> Result<()> {
    let text = fs::read_to_string(INOTIFY_LIMIT)?;
    if text.trim().parse::<u32>().is_ok_and(|limit| limit >= INOTIFY_INSTANCES) {
        return Ok(());
    }
    fs::write(noted_limit(), &text)?;
    fs::write(INOTIFY_LIMIT, INOTIFY_INSTANCES.to_string())
        .with_context(|| format!("cannot raise {INOTIFY_LIMIT}"))
}

fn restore_machine_limits() -> Result<()> {
    let Ok(text) = fs::read_to_string(noted_limit()) else { return Ok(()) };
    fs::write(INOTIFY_LIMIT, text.trim())
        .with_context(|| format!("cannot restore {INOTIFY_LIMIT}"))?;
    Ok(fs::remove_file(noted_limit())?)
}

fn noted_limit() -> PathBuf {
    Path::new(RUN).join("inotify-instances-before")
}
