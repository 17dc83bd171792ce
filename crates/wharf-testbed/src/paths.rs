//! Where things lie.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use wharf_bundle::cache::Cache;

/// State of all beds. Files here name what must be undone, so they go last.
pub(crate) const RUN: &str = "/run/wharf-testbed";
/// Disks of all beds: on a real disk, because containerd and kubelet cannot work on an overlay.
const DISKS: &str = "/var/lib/wharf-testbed";

/// What is made once and kept: the same place as for assets.
pub fn cache_dir() -> Result<PathBuf> {
    let cache = Cache::from_env().context("set WHARF_CACHE or HOME: there is no place to keep")?;
    Ok(cache.root().to_owned())
}

/// The directories of one bed.
#[derive(Clone, Debug)]
pub(crate) struct BedPaths {
    pub run: PathBuf,
    pub disks: PathBuf,
}

impl BedPaths {
    pub fn new(bed: &str) -> Result<Self> {
        check_name(bed)?;
        Ok(Self { run: PathBuf::from(RUN).join(bed), disks: PathBuf::from(DISKS).join(bed) })
    }

    pub fn key(&self) -> PathBuf {
        self.run.join("ssh_key")
    }

    pub fn known_hosts(&self) -> PathBuf {
        self.run.join("known_hosts")
    }

    pub fn host(&self, host: &str) -> HostPaths {
        HostPaths { disk: self.disks.join(host), console: self.run.join(format!("{host}.console")) }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct HostPaths {
    /// Everything that the host writes lies below this directory.
    pub disk: PathBuf,
    /// What the host prints while it boots and stops.
    pub console: PathBuf,
}

impl HostPaths {
    /// The mount point of the overlay: the host's `/`.
    pub fn root(&self) -> PathBuf {
        self.disk.join("root")
    }
    pub fn upper(&self) -> PathBuf {
        self.disk.join("upper")
    }
    pub fn work(&self) -> PathBuf {
        self.disk.join("work")
    }
    pub fn containerd(&self) -> PathBuf {
        self.disk.join("containerd")
    }
    pub fn kubelet(&self) -> PathBuf {
        self.disk.join("kubelet")
    }
}

/// Names of beds and hosts become parts of paths, host names, cgroups and mount options.
pub(crate) fn check_name(name: &str) -> Result<()> {
    const LONGEST: usize = 32;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > LONGEST || !name.chars().all(plain) || name.starts_with('-')
    {
        bail!(
            "{name:?} is no name for a test bed or host: \
             up to {LONGEST} lower-case letters, digits and hyphens"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_leave_the_directory_is_refused() {
        for name in ["", "..", "a/b", "A", "-a", "a b", "a:b", &"x".repeat(33)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        assert!(check_name("crash-1234-0").is_ok());
    }
}
