//! What hosts expect of the kernel that they share, and cannot load themselves: they have no
//! modules of this machine's kernel.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::command::{run, tool};

/// A module, and how one sees that it is there: compiled-in code is no module to list.
const MODULES: [(&str, Evidence); 4] = [
    ("br_netfilter", Evidence::Path("/proc/sys/net/bridge/bridge-nf-call-iptables")),
    ("nf_conntrack", Evidence::Path("/proc/sys/net/netfilter/nf_conntrack_max")),
    ("vxlan", Evidence::Path("/sys/module/vxlan")),
    ("overlay", Evidence::FileSystem("overlay")),
];

enum Evidence {
    Path(&'static str),
    FileSystem(&'static str),
}

impl Evidence {
    fn is_there(&self) -> Result<bool> {
        match self {
            Self::Path(path) => Ok(Path::new(path).exists()),
            Self::FileSystem(name) => {
                let known = fs::read_to_string("/proc/filesystems")?;
                Ok(known.lines().any(|line| line.split_whitespace().last() == Some(name)))
            }
        }
    }
}

/// Loads what is missing. It stays loaded after the last bed: another program of the machine may
/// have come to use it by then.
pub(crate) fn ensure() -> Result<()> {
    for (module, evidence) in MODULES {
        if !evidence.is_there()? {
            run(tool("modprobe").arg(module))
                .with_context(|| format!("hosts need the kernel module {module}"))?;
        }
    }
    Ok(())
}
