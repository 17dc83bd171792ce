//! Reboots, shutdowns and updates: what is wanted of this node, what became of it, and whether the
//! node may go out of service. Only Wharf's own agent reads and writes these, under `wharf/`.

use serde::{Deserialize, Serialize};

use super::{
    NodeFile,
    go::{List, Time},
};

/// Under this key stands the last device operation that was wanted.
pub const DEVICE: &str = "device";
/// Under this one the last update.
pub const UPDATE: &str = "update";

/// `wharf/NodeWish/device` and `wharf/NodeWish/update`: what whoever manages the node wants. It stays
/// when it is done: the id tells a wish from the next.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeWish {
    #[serde(rename = "ID")]
    pub id: String,
    /// `reboot`, `shutdown` or `update`.
    pub kind: String,
    pub canceled: bool,
    /// Of an update: an `https://` or `http://` address, or a path on this node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// Of an update: the image's checksum, in hexadecimal digits.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sha256: String,
    /// In which boot an agent of this node took it over, as far as whoever wishes knows.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub taken_in: String,
}

impl NodeFile for NodeWish {
    const TYPE: &'static str = "NodeWish";
}

/// `wharf/NodeJobs/global`: what became of wishes, whoever wished.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeJobs {
    pub jobs: List<NodeJob>,
}

impl NodeFile for NodeJobs {
    const TYPE: &'static str = "NodeJobs";
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeJob {
    #[serde(rename = "ID")]
    pub id: String,
    /// `reboot`, `shutdown` or `update`.
    pub kind: String,
    /// `preparing`, `deferred`, `commanding`, `leaving`, `done`, `failed` or `canceled`.
    pub phase: String,
    /// Why it does not go on, or why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When it ended.
    pub ended: Time,
}

/// `wharf/DisruptionGuard/global`: what the cluster's disruption guard says of this node, as far as it
/// is known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DisruptionGuard {
    /// The server is reached. If not, nobody asks the guard.
    pub linked: bool,
    /// The node may go out of service.
    pub admitted: bool,
    /// Why not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl NodeFile for DisruptionGuard {
    const TYPE: &'static str = "DisruptionGuard";
}
