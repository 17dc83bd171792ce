//! What the machine must have before it can hold a test bed.

use anyhow::{Result, bail};

use crate::debian;

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

/// Fails with one sentence unless the caller is root and everything is there, installing
/// packages where it can.
pub(crate) fn ensure() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return debian::ensure("the test bed", &NEEDS);
    }
    let missing = debian::missing(&NEEDS).join(" ");
    let packages = match missing.as_str() {
        "" => String::new(),
        list => format!(", and these Debian packages: {list}"),
    };
    bail!(
        "the test bed needs root (it makes machines, mounts, bridges and cgroups){packages}; \
         run the same command as root"
    );
}
