//! The guest's kernel: Debian's for virtual machines, fetched once.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::{run, run_long, tool};
use crate::paths::cache_dir;
use crate::state::Lock;
use crate::wait::wait_for;

/// Depends on the package of the present version.
const NEWEST: &str = "linux-image-cloud-amd64";
/// 27 MB, from a slow mirror.
const FETCH_DEADLINE: Duration = Duration::from_secs(600);

/// A kernel that was unpacked, not installed: this machine boots as before.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    root: PathBuf,
}

impl Kernel {
    /// The kernel in the cache, fetched now if there is none.
    pub fn ensure() -> Result<Self> {
        let cache = cache_dir()?.join("testbed");
        let root = cache.join("guest-kernel");
        fs::create_dir_all(&cache).with_context(|| format!("cannot make {cache:?}"))?;
        let lock = cache.join("guest-kernel.lock");
        let what = "another process to fetch the guest's kernel";
        let _lock = wait_for(what, FETCH_DEADLINE, || Lock::try_take(&lock))?;
        if !root.is_dir() {
            let partial = tempfile::tempdir_in(&cache)?;
            fetch(partial.path()).context("cannot fetch the guest's kernel")?;
            fs::rename(partial.keep(), &root)?;
        }
        Ok(Self { root })
    }

    pub fn image(&self) -> Result<PathBuf> {
        only_in(&self.root.join("boot"), "vmlinuz-")
    }

    /// The file of a module, by its place below `kernel`.
    pub fn module(&self, place: &str) -> Result<PathBuf> {
        let version = only_in(&self.root.join("lib/modules"), "")?;
        Ok(version.join("kernel").join(place))
    }
}

fn fetch(into: &Path) -> Result<()> {
    eprintln!("testbed: fetching a kernel for guests (once)");
    let log = into.join("log");
    let download = || -> Result<()> {
        let depends = run(tool("apt-cache").args(["depends", NEWEST]))?;
        let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
        let package = package.with_context(|| format!("Debian has no {NEWEST}"))?;
        // As ourselves: apt's own user may not write into our directory.
        let words = ["-qy", "-o", "APT::Sandbox::User=root", "download", package];
        run_long(tool("apt-get").args(words).current_dir(into), &log, FETCH_DEADLINE)
    };
    // The lists name a version that the mirror may have replaced since.
    download().or_else(|_| {
        run_long(tool("apt-get").args(["-qy", "update"]), &log, FETCH_DEADLINE)?;
        download()
    })?;
    let package = only_in(into, "linux-image-")?;
    run(tool("dpkg-deb").arg("--extract").arg(&package).arg(into))?;
    Ok(fs::remove_file(package)?)
}

/// The entry of a directory whose name begins so.
fn only_in(directory: &Path, beginning: &str) -> Result<PathBuf> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut names = entries.flatten().map(|entry| entry.file_name());
    let found = names.find(|name| name.to_string_lossy().starts_with(beginning));
    let found = found.with_context(|| format!("no {beginning}… in {}", directory.display()))?;
    Ok(directory.join(found))
}
