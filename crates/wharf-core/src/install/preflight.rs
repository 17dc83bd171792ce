//! Whether hosts may become the nodes of a cluster, judged by their facts.
//!
//! All findings come at once: whoever repairs machines wants the whole list.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cluster::{ClusterSpec, NodeRole, NodeSpec};

use super::facts::HostFacts;

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
}

/// Judges all hosts that answered, by the names of their nodes.
///
/// `bundle_arch` is the architecture of the programs to install, as the bundle names it: `amd64`.
pub fn decide_preflight(
    spec: &ClusterSpec,
    facts: &BTreeMap<String, HostFacts>,
    bundle_arch: &str,
) -> Vec<Finding> {
    let _ = (spec, facts, bundle_arch, NodeRole::ALL);
    let _: Option<NodeSpec> = None;
    Vec::new()
}
