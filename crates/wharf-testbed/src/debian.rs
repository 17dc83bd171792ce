//! Debian's packages, installed where we may.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::command::{find_tool, run_long, tool};

const INSTALL_DEADLINE: Duration = Duration::from_secs(600);

/// Makes sure of tools (by name) and files (by path), each with the package that brings it.
///
/// As root they are installed; otherwise the error is one sentence that names the packages.
pub fn ensure(purpose: &str, needs: &[(&str, &'static str)]) -> Result<()> {
    ensure_packages(purpose, &missing(needs))
}

/// The same for packages that are known to be missing.
pub fn ensure_packages(purpose: &str, missing: &[&str]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !rustix::process::geteuid().is_root() || find_tool("apt-get").is_none() {
        bail!("{purpose} needs these Debian packages: {list}; as root: apt-get install {list}");
    }
    eprintln!("installing {list}");
    install(missing)
}

/// The packages of what is not there. While somebody installs, programs are there whose packages are not
/// set up yet; that is waited for.
pub(crate) fn missing(needs: &[(&str, &'static str)]) -> Vec<&'static str> {
    // Without the lock nobody installs.
    let _settled = installing().and_then(|lock| lock.lock_shared());
    let there = |need: &str| match need.starts_with('/') {
        true => Path::new(need).exists(),
        false => find_tool(need).is_some(),
    };
    let mut packages: Vec<&str> =
        needs.iter().filter(|(need, _)| !there(need)).map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

/// Whoever installs has its lock.
fn installing() -> io::Result<File> {
    File::create(std::env::temp_dir().join("wharf-packages.lock"))
}

/// Installs packages; root only.
fn install(packages: &[&str]) -> Result<()> {
    // Tests run side by side, and apt-get refuses to. What another has installed meanwhile is no work.
    let alone = installing()?;
    alone.lock()?;
    let log = tempfile::NamedTempFile::new()?;
    let apt_get = |arguments: &[&str]| {
        let mut command = tool("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qy");
        // Somebody else may be at it.
        command.args(["-o", "DPkg::Lock::Timeout=300"]).args(arguments);
        run_long(&mut command, log.path(), INSTALL_DEADLINE)
    };
    let install = [&["install", "--no-install-recommends"], packages].concat();
    // The first try is without `update`: most machines have fresh enough lists, and it is slow.
    if apt_get(&install).is_ok() {
        return Ok(());
    }
    apt_get(&["update"])?;
    apt_get(&install)
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn only_what_is_not_there_is_missing_and_each_package_once() {
        let needs = [
            ("sh", "dash"),
            ("/etc/passwd", "base-passwd"),
            ("no-such-tool", "pack-a"),
            ("no-such-tool-either", "pack-a"),
            ("/no/such/file", "pack-b"),
        ];
        assert_eq!(missing(&needs), ["pack-a", "pack-b"]);
    }
}
