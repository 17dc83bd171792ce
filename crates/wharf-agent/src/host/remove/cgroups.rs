//! Cgroups of pods, in every hierarchy of version 1 and in version 2.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::paths::is_sound;
use super::super::root::{Root, wait_until};
use super::mounts;

/// Those of the named cgroups that exist, one for each hierarchy.
pub(super) fn directories(root: &Root, names: &[String]) -> io::Result<Vec<PathBuf>> {
    let kinds = ["cgroup", "cgroup2"];
    let hierarchies = mounts::all(root)?.into_iter().filter(|m| kinds.contains(&m.kind.as_str()));
    let points: BTreeSet<PathBuf> = hierarchies.map(|mount| mount.point).collect();
    let sound = |name: &&String| is_sound(&format!("/{name}"));
    let named = names.iter().filter(sound);
    let all = named.flat_map(|name| points.iter().map(move |point| point.join(name)));
    Ok(all.filter(|path| path.is_dir()).collect())
}

/// The processes in these cgroups and in all below them.
pub(super) fn processes(directories: &[PathBuf]) -> BTreeSet<i32> {
    let mut pids = BTreeSet::new();
    for directory in directories.iter().flat_map(|directory| with_all_below(directory)) {
        let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    // In a pid namespace, processes of others are shown as 0.
    pids.remove(&0);
    pids
}

/// A process in a frozen cgroup is killed only when it may run again.
pub(super) fn thaw(directories: &[PathBuf]) {
    for directory in directories.iter().flat_map(|directory| with_all_below(directory)) {
        for (file, value) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
            let path = directory.join(file);
            if path.exists() {
                // If that fails, the processes stay and are reported.
                let _ = fs::write(path, value);
            }
        }
    }
}

/// Removes a cgroup and all below it, as soon as their last processes are gone.
pub(super) fn remove(directory: &Path, deadline: Duration) -> io::Result<()> {
    let mut last = io::Error::other("it holds processes");
    let gone = wait_until(deadline, || {
        for directory in with_all_below(directory).iter().rev() {
            match fs::remove_dir(directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => last = error,
                Ok(()) | Err(_) => {}
            }
        }
        Ok::<_, io::Error>((!directory.exists()).then_some(()))
    })?;
    gone.ok_or(last)
}

/// Parents before their children.
fn with_all_below(directory: &Path) -> Vec<PathBuf> {
    let mut all = vec![directory.to_owned()];
    let mut next = 0;
    while let Some(directory) = all.get(next) {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let below: Vec<PathBuf> = below.map(|entry| entry.path()).collect();
        all.extend(below);
        next += 1;
    }
    all
}
