//! What the machine must have before it can hold a test bed.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::command::{find_tool, run_long, tool};

/// A tool or file, and the Debian package that brings it.
const NEEDS: [(&str, &str); 9] = [
    ("systemd-nspawn", "systemd-container"),
    ("mmdebstrap", "mmdebstrap"),
    ("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("losetup", "mount"),
    ("setsid", "util-linux"),
];

const INSTALL_DEADLINE: Duration = Duration::from_secs(600);

/// Fails with one sentence unless the caller is root and everything is there, installing
/// packages where it can.
pub(crate) fn ensure() -> Result<()> {
    let missing = missing();
    let list = missing.join(" ");
    if !rustix::process::geteuid().is_root() {
        let packages = if missing.is_empty() {
            String::new()
        } else {
            format!(", and these Debian packages: {list}")
        };
        bail!(
            "the test bed needs root (it makes machines, mounts, bridges and cgroups){packages}; \
             run the same command as root"
        );
    }
    if missing.is_empty() {
        return Ok(());
    }
    if find_tool("apt-get").is_none() {
        bail!("the test bed needs what these Debian packages hold: {list}; install them first");
    }
    eprintln!("testbed: installing {list}");
    install(&missing)
}

fn missing() -> Vec<&'static str> {
    let there = |need: &str| match need.starts_with('/') {
        true => Path::new(need).exists(),
        false => find_tool(need).is_some(),
    };
    let mut packages: Vec<&str> =
        NEEDS.iter().filter(|(need, _)| !there(need)).map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

fn install(packages: &[&str]) -> Result<()> {
    let log = tempfile::NamedTempFile::new()?;
    let apt_get = |arguments: &[&str]| {
        let mut command = tool("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qy").args(arguments);
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
