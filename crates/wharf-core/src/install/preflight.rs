//! Whether hosts may become the nodes of a cluster, judged by their facts.
//!
//! All findings come at once: whoever repairs machines wants the whole list.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cluster::{ClusterSpec, NetworkPlugin, NodeRole, NodeSpec};

use super::{facts::HostFacts, network::BRIDGE};

/// Something about a host that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub node: String,
    pub check: Check,
    pub severity: Severity,
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

/// Errors stop an installation; warnings are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Error,
    Warning,
}

/// What was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Whether it could be asked at all.
    Connect,
    Root,
    Systemd,
    Arch,
    Kernel,
    Modules,
    Tools,
    Cgroup,
    Memory,
    Disk,
    Swap,
    Clock,
    Address,
    Ports,
    MachineId,
    Hostname,
    Cluster,
    Leftovers,
    Reachability,
    Resolver,
    Firewall,
}

/// kube-proxy's nft rules need it.
const KERNEL_AT_LEAST: (u32, u32) = (5, 13);
/// Certificates, leases and logs of hosts that differ by more make no sense together.
const CLOCK_SKEW_SECONDS: i64 = 30;

/// What a host needs, in MiB: below the first it cannot work, below the second not well.
struct Need {
    at_least: u64,
    better: u64,
}

/// An API server takes 260, the other components of a controlplane 400, before the first object.
const CONTROLPLANE_MEMORY: Need = Need { at_least: 1000, better: 1700 };
const WORKER_MEMORY: Need = Need { at_least: 500, better: 900 };
/// Images, containers, etcd; and 2 GiB, below which kubelet takes no pods.
const DATA_DISK: Need = Need { at_least: 4 << 10, better: 10 << 10 };
/// All programs of one version; an upgrade lays those of another beside them.
const PROGRAMS_DISK: Need = Need { at_least: 1 << 10, better: 2 << 10 };

const ETCD_PORTS: [u16; 3] = [2379, 2380, 2381];
const CONTROLPLANE_PORTS: [u16; 3] = [6443, 10257, 10259];
const NODE_PORTS: [u16; 5] = [6444, 10248, 10249, 10250, 10256];

/// Judges all hosts that answered, by the names of their nodes.
///
/// `identity` is the cluster's own, once it has one; see [`HostDocument`](super::host::HostDocument).
/// `bundle_arch` is the architecture of the programs to install, as the bundle names it: `amd64`.
pub fn decide_preflight(
    spec: &ClusterSpec,
    facts: &BTreeMap<String, HostFacts>,
    identity: Option<&str>,
    bundle_arch: &str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for node in &spec.nodes {
        let Some(found) = facts.get(&node.name) else { continue };
        let mut host = Host { spec, node, facts: found, identity, findings: Vec::new() };
        host.check_access();
        host.check_machine(bundle_arch);
        host.check_kernel();
        host.check_room();
        host.check_clock(facts);
        host.check_network();
        host.check_firewall();
        host.check_ports();
        host.check_twins(facts);
        host.check_past();
        findings.append(&mut host.findings);
    }
    findings
}

/// One host under judgement.
struct Host<'a> {
    spec: &'a ClusterSpec,
    node: &'a NodeSpec,
    facts: &'a HostFacts,
    identity: Option<&'a str>,
    findings: Vec<Finding>,
}

impl Host<'_> {
    fn error(&mut self, check: Check, message: impl Into<String>, hint: impl Into<String>) {
        self.find(check, Severity::Error, message.into(), hint.into());
    }

    fn warning(&mut self, check: Check, message: impl Into<String>, hint: impl Into<String>) {
        self.find(check, Severity::Warning, message.into(), hint.into());
    }

    fn find(&mut self, check: Check, severity: Severity, message: String, hint: String) {
        let node = self.node.name.clone();
        self.findings.push(Finding { node, check, severity, message, hint });
    }

    fn check_access(&mut self) {
        if !self.facts.root {
            let user = &self.spec.ssh.user;
            self.error(
                Check::Root,
                format!("user {user} is not root and may not become root by sudo without a password"),
                format!("log in as root, or give {user} the right: `{user} ALL=(ALL) NOPASSWD: ALL` in /etc/sudoers.d"),
            );
        }
        if !self.facts.systemd {
            self.error(
                Check::Systemd,
                format!("{} does not run systemd", self.system()),
                "use a distribution that does",
            );
        }
    }

    fn system(&self) -> String {
        match self.facts.os.is_empty() {
            true => "the host".to_owned(),
            false => format!("{} {}", self.facts.os, self.facts.os_version).trim_end().to_owned(),
        }
    }

    fn check_machine(&mut self, bundle_arch: &str) {
        let arch = go_arch(&self.facts.arch);
        if arch != bundle_arch {
            self.error(
                Check::Arch,
                format!("the machine is {arch}, the programs to install are for {bundle_arch}"),
                format!("use machines of {bundle_arch}, or a bundle for {arch}"),
            );
        }
        if self.facts.cgroup_version < 2 {
            self.warning(
                Check::Cgroup,
                "the kernel's control groups are of version 1, which Kubernetes will give up",
                "boot with systemd.unified_cgroup_hierarchy=1 when you can",
            );
        }
        if self.facts.swap {
            self.warning(
                Check::Swap,
                "swap is on; pods will not use it, but the host's programs may become slow",
                "turn it off with `swapoff -a` and in /etc/fstab",
            );
        }
    }

    fn check_kernel(&mut self) {
        let kernel = &self.facts.kernel;
        let (major, minor) = KERNEL_AT_LEAST;
        if kernel_version(kernel).is_none_or(|version| version < KERNEL_AT_LEAST) {
            self.error(
                Check::Kernel,
                format!("the kernel is {kernel}; Services need {major}.{minor} or newer"),
                "install a newer kernel and boot it",
            );
        }
        let there = |module: &&str| !self.facts.kernel_modules.iter().any(|there| there == module);
        let missing: Vec<&str> =
            ["overlay", "nf_conntrack", "nf_tables"].into_iter().filter(there).collect();
        let useful: Vec<&str> = self.useful_modules().into_iter().filter(there).collect();
        let hint = "install the kernel's module package (linux-modules…); in a container load it on the machine below";
        if !missing.is_empty() {
            self.error(Check::Modules, format!("the kernel has no {}", missing.join(", ")), hint);
        }
        if !useful.is_empty() {
            let message = format!(
                "the kernel has no {}: without it some pods may not reach others",
                useful.join(", ")
            );
            self.warning(Check::Modules, message, hint);
        }
        if !self.facts.missing_tools.is_empty() {
            let tools = self.facts.missing_tools.join(", ");
            self.error(
                Check::Tools,
                format!("the host has no {tools}"),
                "install them; on Debian they are in nftables, iproute2, mount and systemd",
            );
        }
    }

    fn useful_modules(&self) -> Vec<&'static str> {
        match self.spec.network.plugin {
            NetworkPlugin::Vxlan => vec!["br_netfilter", "vxlan"],
            NetworkPlugin::Routed => vec!["br_netfilter"],
            NetworkPlugin::None => Vec::new(),
        }
    }

    fn check_room(&mut self) {
        let memory = match self.node.is(NodeRole::Controlplane) {
            true => CONTROLPLANE_MEMORY,
            false => WORKER_MEMORY,
        };
        let facts = self.facts;
        self.compare(Check::Memory, "memory", facts.memory_mib, &memory, "use a larger machine");
        let hint = "make room, or mount a larger file system there";
        // What is installed already needs no more room.
        if !self.is_ours() {
            let (data, programs) = ("free space in /var/lib", "free space in /opt");
            self.compare(Check::Disk, data, facts.free_data_mib, &DATA_DISK, hint);
            self.compare(Check::Disk, programs, facts.free_programs_mib, &PROGRAMS_DISK, hint);
        }
    }

    fn compare(&mut self, check: Check, what: &str, mib: u64, need: &Need, hint: &str) {
        if mib < need.at_least {
            let message = format!("{what} is {mib} MiB; at least {} are needed", need.at_least);
            self.error(check, message, hint);
        } else if mib < need.better {
            let message = format!("{what} is {mib} MiB; {} are better", need.better);
            self.warning(check, message, hint);
        }
    }

    fn check_clock(&mut self, all: &BTreeMap<String, HostFacts>) {
        let own = offset(self.facts);
        let hint = "set the clock and keep it by NTP (chrony, systemd-timesyncd)";
        if own.abs() > CLOCK_SKEW_SECONDS {
            let message = format!("the clock is {} the server's", difference(own));
            return self.error(Check::Clock, message, hint);
        }
        let from_median = own - median(all.values().map(offset).collect());
        if from_median.abs() > CLOCK_SKEW_SECONDS {
            let message = format!("the clock is {} most other hosts'", difference(from_median));
            self.error(Check::Clock, message, hint);
        }
    }

    fn check_network(&mut self) {
        let address = self.node.address;
        if !self.facts.addresses.contains(&address) {
            let addresses: Vec<String> = self
                .facts
                .addresses
                .iter()
                .filter(|a| !a.is_loopback())
                .map(ToString::to_string)
                .collect();
            self.error(
                Check::Address,
                format!("{address} is not an address of this host; it has {}", addresses.join(", ")),
                "give an address that an interface of the host carries; addresses that a router translates do not work",
            );
        }
        if !self.facts.unreachable.is_empty() {
            let others: Vec<String> =
                self.facts.unreachable.iter().map(|a| self.named(*a)).collect();
            self.error(
                Check::Reachability,
                format!("{} cannot be reached from this host", others.join(", ")),
                "look at routes and firewalls between the hosts; all nodes must reach each other",
            );
        }
        if self.facts.resolv_conf.is_empty() {
            self.warning(
                Check::Resolver,
                "the host has no /etc/resolv.conf: pods with the host's DNS will resolve nothing",
                "write one, or let systemd-resolved do it",
            );
        }
    }

    /// Without a pod network of ours nobody knows what its packets look like.
    fn check_firewall(&mut self) {
        let drops = self.facts.forward_drops.join(", ");
        if drops.is_empty() || self.spec.network.plugin == NetworkPlugin::None {
            return;
        }
        self.warning(
            Check::Firewall,
            format!("packets from and to pods may be dropped: the policy of {drops} is drop"),
            format!(
                "let them pass: `iptables -I FORWARD -i {BRIDGE} -j ACCEPT` and the same with -o, \
                 or such rules in the firewall that made the policy"
            ),
        );
    }

    /// An address with the name of its node.
    fn named(&self, address: std::net::Ipv4Addr) -> String {
        match self.spec.nodes.iter().find(|node| node.address == address) {
            Some(node) => format!("{} ({address})", node.name),
            None => address.to_string(),
        }
    }

    /// A host of this cluster is expected to listen on its own ports.
    fn check_ports(&mut self) {
        if self.spec.disable_port_check || self.is_ours() {
            return;
        }
        let mut ports = NODE_PORTS.to_vec();
        if self.node.is(NodeRole::Etcd) {
            ports.extend(ETCD_PORTS);
        }
        if self.node.is(NodeRole::Controlplane) {
            ports.extend(CONTROLPLANE_PORTS);
        }
        ports.sort_unstable();
        let mut busy: Vec<String> = Vec::new();
        for port in ports {
            let listener = self.facts.listening.iter().find(|(listening, _)| *listening == port);
            busy.extend(listener.map(|(port, program)| match program.is_empty() {
                true => port.to_string(),
                false => format!("{port} (by {program})"),
            }));
        }
        if !busy.is_empty() {
            self.error(
                Check::Ports,
                format!("ports in use that Kubernetes needs: {}", busy.join(", ")),
                "stop the programs that listen there, or set disablePortCheck",
            );
        }
    }

    /// Clones of one machine look like one and the same to Kubernetes and to leases of addresses.
    fn check_twins(&mut self, all: &BTreeMap<String, HostFacts>) {
        let others = || all.iter().filter(|(name, _)| **name != self.node.name);
        let same = |what: fn(&HostFacts) -> &str| {
            let own = what(self.facts);
            let twins = others().filter(|(_, facts)| !own.is_empty() && what(facts) == own);
            twins.map(|(name, _)| name.clone()).collect::<Vec<_>>().join(", ")
        };
        let ids = same(|facts| facts.machine_id.as_str());
        let names = same(|facts| facts.hostname.as_str());
        if !ids.is_empty() {
            self.error(
                Check::MachineId,
                format!("the machine id is the same as that of {ids}"),
                "on each clone: `rm /etc/machine-id && systemd-machine-id-setup`, then reboot",
            );
        }
        if !names.is_empty() {
            self.error(
                Check::Hostname,
                format!("the host name {} is the same as that of {names}", self.facts.hostname),
                "set another with `hostnamectl set-hostname NAME`",
            );
        }
    }

    fn is_ours(&self) -> bool {
        self.facts.holds(&self.spec.name, self.identity)
    }

    fn check_past(&mut self) {
        if let Some(other) = self.facts.cluster.as_ref().filter(|_| !self.is_ours()) {
            let message = match *other == self.spec.name {
                true => format!("the host holds another cluster that is named {other} too"),
                false => format!("the host belongs to cluster {other}"),
            };
            let command = format!("`{}/wharf agent host remove`", super::components::BIN);
            let hint = format!("delete that cluster, or clean the host with {command} on it");
            return self.error(Check::Cluster, message, hint);
        }
        if !self.facts.leftovers.is_empty() {
            let leftovers = self.facts.leftovers.join(", ");
            self.error(
                Check::Leftovers,
                format!("another installation left something in {leftovers}"),
                "take it off with its own tool (`kubeadm reset`), or empty these directories",
            );
        }
    }
}

/// The names that Go, and with it the bundle, gives to what `uname` says.
fn go_arch(machine: &str) -> &str {
    match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// `6.18.5-amd64` is (6, 18).
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// By how many seconds the host's clock is ahead of the server's.
fn offset(facts: &HostFacts) -> i64 {
    facts.clock_seconds.saturating_sub(facts.asked_at_seconds)
}

fn difference(seconds: i64) -> String {
    match seconds < 0 {
        true => format!("{} s behind", seconds.unsigned_abs()),
        false => format!("{seconds} s ahead of"),
    }
}

fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests;
