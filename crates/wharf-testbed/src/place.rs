//! Directories in which tests let agents and proxies make devices.
//!
//! A test that is killed takes nothing away. Its processes, mounts and loop devices stay, and whoever
//! syncs the machine's disks hangs in a device whose server was stopped. So the name of a place says
//! whose it is, and whoever makes the next one first takes away those whose owners are gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::devices;
use crate::procfs::ProcessId;

const PREFIX: &str = "wharf-place";

/// A directory of this process. All that is left in it goes with the value.
#[derive(Debug)]
pub struct Place {
    dir: TempDir,
}

impl Place {
    /// A new one, after those of processes that are gone are taken away.
    pub fn new() -> Result<Self> {
        reap(&std::env::temp_dir());
        Self::of(ProcessId::own()?)
    }

    fn of(owner: ProcessId) -> Result<Self> {
        let prefix = format!("{}-", name_of(owner, pid_namespace()?));
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir()?;
        Ok(Self { dir })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The place of another process, which takes nothing away when it is killed. It ends by itself.
    pub fn of_another() -> Result<(PathBuf, Child)> {
        let another = Command::new("sleep").arg("600").spawn()?;
        let owner = ProcessId::of(another.id().try_into()?).context("it has ended already")?;
        let place = Self::of(owner)?;
        let path = place.path().to_owned();
        std::mem::forget(place);
        Ok((path, another))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        devices::remove_below(self.dir.path());
    }
}

/// Takes away the places whose owners are gone. What cannot be taken away now is tried again by the next.
fn reap(below: &Path) {
    let Ok(namespace) = pid_namespace() else { return };
    for entry in fs::read_dir(below).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if owner(&name, namespace).is_some_and(|owner| !owner.is_alive()) {
            let path = entry.path();
            eprintln!("testbed: removing the abandoned place {}", path.display());
            devices::remove_below(&path);
            // Never through a mount: that may be a directory of somebody else.
            if devices::mounts(&path).is_empty() {
                let _tried_again = fs::remove_dir_all(&path);
            }
        }
    }
}

fn name_of(owner: ProcessId, namespace: u64) -> String {
    let (pid, start) = owner.parts();
    format!("{PREFIX}-{namespace}-{pid}-{start}")
}

/// Whose a place is. `None` for what is none, or is of a process that cannot be seen from here.
fn owner(name: &str, namespace: u64) -> Option<ProcessId> {
    let mut parts = name.strip_prefix(PREFIX)?.strip_prefix('-')?.splitn(4, '-');
    let [seen_in, pid, start, _random] = [(); 4].map(|()| parts.next());
    let is_ours = seen_in?.parse::<u64>().ok()? == namespace;
    let owner = ProcessId::from_parts(pid?.parse().ok()?, start?.parse().ok()?);
    is_ours.then_some(owner)
}

/// In which processes have these numbers.
fn pid_namespace() -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata("/proc/self/ns/pid").context("cannot see the namespace of processes")?.ino())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wait::wait_for;

    #[test]
    fn a_place_is_known_by_its_owner_and_others_are_none() {
        let own = ProcessId::own().unwrap();
        let name = format!("{}-Ab1", name_of(own, 7));
        assert_eq!(owner(&name, 7), Some(own));
        assert_eq!(owner(&name, 8), None, "its processes are not seen from here");
        for other in ["wharf-place", "wharf-place-7-1", "wharf-place-7-x-1-a", "other-7-1-1-a"] {
            assert_eq!(owner(other, 7), None, "{other}");
        }
    }

    #[test]
    fn places_of_the_living_stay_and_those_of_the_dead_go() {
        let living = Place::new().unwrap();
        fs::write(living.path().join("file"), "kept").unwrap();
        let (other, mut owner) = Place::of_another().unwrap();
        fs::write(other.join("file"), "left").unwrap();
        let next = Place::new().unwrap();
        assert!(living.path().join("file").exists() && next.path().exists());
        assert!(other.join("file").exists(), "its owner lives");
        owner.kill().unwrap();
        owner.wait().unwrap();
        // Others may be at it, too.
        let gone = wait_for("the place to go", Duration::from_secs(30), || {
            Place::new()?;
            Ok((!other.exists()).then_some(()))
        });
        gone.unwrap();
        assert!(living.path().join("file").exists());
    }
}
