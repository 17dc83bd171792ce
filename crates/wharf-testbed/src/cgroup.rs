//! A cgroup for each bed and host, in every hierarchy of the machine.
//!
//! Hosts that shared cgroups would see, and kill, each other's pods.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const TOP: &str = "wharf-testbed";

/// The directory of a bed in each hierarchy: one for each v1 controller, and the unified one.
pub(crate) fn bed_directories(bed: &str) -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mut directories: Vec<PathBuf> = hierarchies(&mounts)
        .into_iter()
        .map(|mount| Path::new(mount).join(TOP).join(bed))
        .collect();
    directories.sort();
    directories.dedup();
    Ok(directories)
}

fn hierarchies(mountinfo: &str) -> Vec<&str> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let kind = right.split(' ').next()?;
            let fields: Vec<&str> = left.split(' ').collect();
            let whole = *fields.get(3)? == "/";
            (whole && matches!(kind, "cgroup" | "cgroup2")).then(|| fields.get(4).copied())?
        })
        .collect()
}

/// Makes the bed's directories; those of its hosts are made, and emptied, at each of their starts.
pub(crate) fn ensure(directories: &[PathBuf]) -> Result<()> {
    for directory in directories {
        let Some(top) = directory.parent() else { continue };
        let Some(hierarchy) = top.parent() else { continue };
        for (parent, child) in [(hierarchy, top), (top, directory.as_path())] {
            make_child(parent, child)?;
        }
        delegate(directory);
    }
    Ok(())
}

fn make_child(parent: &Path, child: &Path) -> Result<()> {
    delegate(parent);
    fs::create_dir_all(child).with_context(|| format!("cannot make the cgroup {child:?}"))?;
    // A new v1 cpuset is empty and takes no process until it is told what it may use.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if child.join("tasks").exists() && child.join(file).exists() {
            fs::write(child.join(file), fs::read(parent.join(file))?)
                .with_context(|| format!("cannot set {file} of {child:?}"))?;
        }
    }
    Ok(())
}

/// In the unified hierarchy a child has only the controllers that its parent passes on. Which of
/// them can be passed on is the machine's affair, so a refusal is no error.
fn delegate(directory: &Path) {
    let Ok(controllers) = fs::read_to_string(directory.join("cgroup.controllers")) else { return };
    for controller in controllers.split_whitespace() {
        let _ = fs::write(directory.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// Removes the bed's directories, which hold no process any more, and the common one with the
/// last bed.
pub(crate) fn remove(directories: &[PathBuf]) -> Result<()> {
    for directory in directories {
        match fs::remove_dir(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("cannot remove the cgroup {directory:?}"));
            }
            _ => {}
        }
        // Fails as long as it holds another bed.
        if let Some(top) = directory.parent() {
            let _ = fs::remove_dir(top);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hierarchy_counts_and_binds_of_a_part_do_not() {
        let mountinfo = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
42 31 0:38 /pod1 /srv/part rw,relatime - cgroup2 cgroup2 rw
";
        assert_eq!(
            hierarchies(mountinfo),
            ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified"]
        );
    }
}
