//! Who the device is, as its services tell.

use wharf_api::node_files::{EdgeNodeInfo, GLOBAL};

use crate::files::{Files, FilesError};

const AGENT: &str = "zedagent";

/// What outlives a reboot counts first: it is there before anybody speaks with a controller.
pub fn info(files: &Files) -> Result<Option<EdgeNodeInfo>, FilesError> {
    match files.persistent().read(AGENT, GLOBAL) {
        Ok(Some(info)) => Ok(Some(info)),
        Ok(None) => files.read(AGENT, GLOBAL),
        Err(error) => files.read(AGENT, GLOBAL).and_then(|info| info.map(Some).ok_or(error)),
    }
}

/// The device's name, once it has one.
pub fn name(files: &Files) -> Option<String> {
    let info = info(files).ok().flatten()?;
    Some(info.device_name).filter(|name| !name.is_empty())
}
