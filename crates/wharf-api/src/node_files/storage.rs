//! Volumes of applications and what they are made from.

use serde::{Deserialize, Serialize};

use super::{
    NodeFile,
    go::{Time, Uuid},
};

/// `zedagent/VolumeConfig/<uuid>#<generation>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VolumeConfig {
    #[serde(rename = "VolumeID")]
    pub volume_id: Uuid,
    #[serde(rename = "ContentID")]
    pub content_id: Uuid,
    pub volume_content_origin_type: i32,
    pub max_vol_size: u64,
    pub read_only: bool,
    pub ref_count: u64,
    pub generation_counter: i64,
    pub local_generation_counter: i64,
    pub volume_dir: String,
    pub display_name: String,
    pub encrypted: bool,
    pub target: i32,
    /// It is kept in several copies on other nodes.
    pub is_replicated: bool,
}

impl NodeFile for VolumeConfig {
    const TYPE: &'static str = "VolumeConfig";
}

/// `volumemgr/VolumeStatus/<uuid>#<generation>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VolumeStatus {
    #[serde(rename = "VolumeID")]
    pub volume_id: Uuid,
    #[serde(rename = "ContentID")]
    pub content_id: Uuid,
    pub volume_content_origin_type: i32,
    pub max_vol_size: u64,
    pub read_only: bool,
    pub generation_counter: i64,
    pub local_generation_counter: i64,
    pub display_name: String,
    /// The number of a `SwState`.
    pub state: u8,
    pub ref_count: u64,
    /// In percent.
    pub progress: u32,
    pub total_size: i64,
    pub current_size: i64,
    pub file_location: String,
    pub content_format: i32,
    pub last_use: Time,
    pub is_replicated: bool,
    pub error: String,
    pub error_time: Time,
}

impl NodeFile for VolumeStatus {
    const TYPE: &'static str = "VolumeStatus";
}

/// `volumemgr/ContentTreeStatus/<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ContentTreeStatus {
    #[serde(rename = "ContentID")]
    pub content_id: Uuid,
    #[serde(rename = "RelativeURL")]
    pub relative_url: String,
    pub content_sha256: String,
    pub max_download_size: u64,
    pub display_name: String,
    /// The number of a `SwState`.
    pub state: u8,
    pub total_size: i64,
    pub current_size: i64,
    /// In percent.
    pub progress: u32,
    pub file_location: String,
    /// It is fetched to this node.
    pub is_local: bool,
    pub error: String,
    pub error_time: Time,
}

impl NodeFile for ContentTreeStatus {
    const TYPE: &'static str = "ContentTreeStatus";
}

/// `volumemgr/AppDiskMetric/<path, with dashes>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AppDiskMetric {
    pub disk_path: String,
    pub provisioned_bytes: u64,
    pub used_bytes: u64,
    pub disk_type: String,
    pub dirty: bool,
}

impl NodeFile for AppDiskMetric {
    const TYPE: &'static str = "AppDiskMetric";
}
