//! What one script over SSH tells of a host, and what is not good about it.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// A host as it was found. The script that asks writes `key=value` lines; what it could not find
/// out is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostFacts {
    pub hostname: String,
    pub machine_id: String,
    /// `ID` and `VERSION_ID` of os-release.
    pub os: String,
    pub os_version: String,
    /// As `uname -m` says: `x86_64`.
    pub arch: String,
    pub kernel: String,
    pub boot_id: String,
    pub systemd: bool,
    /// The user is root, or may become root by sudo without a password.
    pub root: bool,
    /// Whether the machine is a container, as systemd sees it.
    pub container: bool,
    pub cgroup_version: u8,
    /// Whether a process may lower its oom_score_adj (CAP_SYS_RESOURCE).
    pub sys_resource: bool,
    pub cpus: u32,
    pub memory_mib: u64,
    pub swap: bool,
    /// Free space where data will lie.
    pub free_data_mib: u64,
    pub free_programs_mib: u64,
    /// Kind of the file system below `/var/lib/wharf` and `/var/lib/containerd`: `ext2/ext3`,
    /// `overlayfs`.
    pub data_filesystem: String,
    pub containerd_filesystem: String,
    /// Seconds since the epoch by the host's clock, and by the server's in the middle of asking.
    pub clock_seconds: i64,
    pub asked_at_seconds: i64,
    pub addresses: Vec<Ipv4Addr>,
    /// The interface and MTU that carry the node's address.
    pub interface: String,
    pub mtu: u32,
    /// TCP ports on which something listens, with the program if it is known.
    pub listening: Vec<(u16, String)>,
    /// The cluster that `/var/lib/wharf/made.json` names, and which one of that name.
    pub cluster: Option<String>,
    pub identity: String,
    /// Directories that should be empty or absent and are not.
    pub leftovers: Vec<String>,
    /// The host's way to resolve names: `/etc/resolv.conf`, or that of systemd-resolved.
    pub resolv_conf: String,
    /// Whether that file names a server that is not this host itself.
    pub resolves_outside: bool,
    /// Which of the modules that matter are loaded, built in, or can be loaded.
    pub kernel_modules: Vec<String>,
    /// Programs that the components call and that are not there: `nft`.
    pub missing_tools: Vec<String>,
    /// Chains of rules that drop every forwarded packet they do not know, ours among them:
    /// `ip filter FORWARD`.
    pub forward_drops: Vec<String>,
    /// Other nodes' addresses whose SSH port could not be reached from here.
    pub unreachable: Vec<Ipv4Addr>,
}

impl HostFacts {
    /// Whether the host was made for this cluster. One that has no identity yet has no hosts.
    pub fn holds(&self, cluster: &str, identity: Option<&str>) -> bool {
        self.cluster.as_deref() == Some(cluster) && identity == Some(&self.identity)
    }
}
