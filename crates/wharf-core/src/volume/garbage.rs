//! What is left of holders that were pushed out: which entries become garbage, and what the agent
//! of their node may clean.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::record::{Entry, Generation};

/// One thing on the garbage list of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GarbageEntry {
    pub volume: String,
    pub generation: Generation,
    #[serde(rename = "bootID")]
    pub boot_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    pub mount_dir: String,
    pub since: Timestamp,
    pub reason: String,
}

impl GarbageEntry {
    pub fn new(volume: &str, entry: &Entry, since: Timestamp, reason: String) -> Self {
        Self {
            volume: volume.to_owned(),
            generation: entry.generation,
            boot_id: entry.boot_id.clone(),
            device: entry.device.clone(),
            mount_dir: entry.mount_dir.clone(),
            since,
            reason,
        }
    }

    /// Whether it was made of this entry of the volume.
    pub fn is_of(&self, volume: &str, entry: &Entry) -> bool {
        self.volume == volume
            && self.generation == entry.generation
            && self.boot_id == entry.boot_id
            && self.mount_dir == entry.mount_dir
    }
}
