//! The base root: one Debian that all hosts share as the lower layer of their overlays.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::{run_long, tool};
use crate::paths::cache_dir;
use crate::state::Lock;
use crate::wait::wait_for;

const SUITE: &str = "bookworm";

/// What a plain server has, and what Kubernetes needs of it.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,openssh-server,sudo,iproute2,iptables,nftables,\
    kmod,conntrack,procps,mount,e2fsprogs,xfsprogs,socat,ethtool";

/// Timers that would look for the network, or wake at bad moments.
const MASKED: [&str; 6] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
];

const EXECUTABLE: u32 = 0o755;
const PLAIN: u32 = 0o644;

/// Path in the host, mode, content.
const FILES: [(&str, u32, &str); 7] = [
    (
        "etc/systemd/system/testbed-kernel.service",
        PLAIN,
        include_str!("../root/etc/systemd/system/testbed-kernel.service"),
    ),
    (
        "usr/local/lib/testbed/kernel",
        EXECUTABLE,
        include_str!("../root/usr/local/lib/testbed/kernel"),
    ),
    (
        "etc/systemd/system/testbed-network.service",
        PLAIN,
        include_str!("../root/etc/systemd/system/testbed-network.service"),
    ),
    (
        "etc/systemd/system.conf.d/testbed.conf",
        PLAIN,
        include_str!("../root/etc/systemd/system.conf.d/testbed.conf"),
    ),
    (
        "etc/ssh/sshd_config.d/testbed.conf",
        PLAIN,
        include_str!("../root/etc/ssh/sshd_config.d/testbed.conf"),
    ),
    ("etc/resolv.conf", PLAIN, "# A test bed has no name server.\n"),
    // Empty, so that each host makes one of its own at its first boot.
    ("etc/machine-id", 0o444, ""),
];

/// A unit, and the target that wants it.
const ENABLED: [(&str, &str); 2] = [
    ("testbed-kernel.service", "sysinit.target"),
    ("testbed-network.service", "multi-user.target"),
];

/// From a slow mirror, on a busy machine.
const BUILD_DEADLINE: Duration = Duration::from_secs(1200);

/// The base root of the present recipe, made now if it is not there yet.
pub(crate) fn ensure() -> Result<PathBuf> {
    let cache = cache_dir()?.join("testbed");
    let root = cache.join(format!("root-{:016x}", recipe_hash()));
    if root.is_dir() {
        return Ok(root);
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {cache:?}"))?;
    let lock = cache.join("lock");
    let what = "another process to make the base root";
    let _lock = wait_for(what, BUILD_DEADLINE, || Lock::try_take(&lock))?;
    if root.is_dir() {
        return Ok(root);
    }
    let partial = root.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("cannot remove {partial:?}"))?;
    }
    eprintln!("testbed: making the base root {} (once, about a minute)", root.display());
    let log = root.with_extension("log");
    let built = build(&partial, &log).and_then(|()| Ok(fs::rename(&partial, &root)?));
    if built.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    built.context("cannot make the base root of the test bed's hosts")?;
    Ok(root)
}

fn build(root: &Path, log: &Path) -> Result<()> {
    let mut command = tool("mmdebstrap");
    command.args(["--mode=root", "--variant=minbase"]).arg(format!("--include={PACKAGES}"));
    command.arg(SUITE).arg(root);
    if let Some(mirror) = std::env::var_os("WHARF_DEBIAN_MIRROR") {
        command.arg(mirror);
    }
    run_long(&mut command, log, BUILD_DEADLINE)?;
    for (path, mode, content) in FILES {
        write_file(&root.join(path), mode, content)?;
    }
    let units = root.join("etc/systemd/system");
    for unit in MASKED {
        symlink("/dev/null", units.join(unit))?;
    }
    for (unit, target) in ENABLED {
        let wants = units.join(format!("{target}.wants"));
        fs::create_dir_all(&wants)?;
        symlink(format!("/etc/systemd/system/{unit}"), wants.join(unit))?;
    }
    remove_host_keys(&root.join("etc/ssh"))
}

/// Two hosts with the same key would make every check of host keys worthless.
fn remove_host_keys(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("ssh_host_") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Writes a file of a host anew (never through a link that the host may have there).
pub(crate) fn write_file(path: &Path, mode: u32, content: &str) -> Result<()> {
    let write = || -> std::io::Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        if path.symlink_metadata().is_ok() {
            fs::remove_file(path)?;
        }
        fs::write(path, content)?;
        fs::set_permissions(path, Permissions::from_mode(mode))
    };
    write().with_context(|| format!("cannot write {path:?}"))
}

/// FNV-1a over everything that goes into the root: a name for a directory needs no more.
fn recipe_hash() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |text: &str| {
        for byte in text.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    add(SUITE);
    add(PACKAGES);
    FILES.iter().for_each(|(path, mode, content)| {
        add(path);
        add(&mode.to_string());
        add(content);
    });
    MASKED.iter().for_each(|unit| add(unit));
    ENABLED.iter().for_each(|(unit, target)| {
        add(unit);
        add(target);
    });
    hash
}
