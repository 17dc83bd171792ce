//! Loop devices of volumes, which outlive their mounts.

use std::{fs, path::Path};

use wharf_block::loops::{self, Device, Observed};
use wharf_core::install::components::agent;

use super::super::root::Root;
use crate::volumes::agent_of;

/// Those that an agent made since this machine was booted. A machine without a boot has none.
pub(super) fn ours(root: &Root) -> Result<Vec<Device>, loops::Error> {
    let boot = fs::read_to_string(root.path("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    if boot.is_empty() {
        return Ok(Vec::new());
    }
    let prefix = format!("{}/", agent_of(boot.trim(), Path::new(agent::VOLUMES)));
    let known = |observed: Observed| match observed {
        Observed::Known { device, .. } => Some(device),
        Observed::Silent { .. } => None,
    };
    let devices = loops::list()?.into_iter().filter_map(known);
    Ok(devices.filter(|device| device.tag.starts_with(&prefix)).collect())
}
