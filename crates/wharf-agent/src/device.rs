//! Who the device is, as its services tell.

use std::time::Duration;

use wharf_api::node_files::{EdgeNodeInfo, GLOBAL};
use wharf_core::node::names;

use crate::{
    files::{Files, FilesError},
    tasks::Context,
};

const AGENT: &str = "zedagent";
/// Between two looks for the device's name.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What outlives a reboot counts first: it is there before anybody speaks with a controller.
pub fn info(files: &Files) -> Result<Option<EdgeNodeInfo>, FilesError> {
    match files.persistent().read(AGENT, GLOBAL) {
        Ok(Some(info)) => Ok(Some(info)),
        Ok(None) => files.read(AGENT, GLOBAL),
        Err(error) => files.read(AGENT, GLOBAL).and_then(|info| info.map(Some).ok_or(error)),
    }
}

/// The Node that this machine is: as configured, or as the device is called once it says so.
pub async fn node_name(context: &Context) -> String {
    if !context.config.node_name.is_empty() {
        return context.config.node_name.clone();
    }
    loop {
        let name = info(&context.files).ok().flatten().map(|info| info.device_name);
        match name {
            Some(name) if !name.is_empty() => return names::node_name(&name),
            Some(_) | None => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}
