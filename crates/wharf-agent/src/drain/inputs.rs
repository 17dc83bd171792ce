//! The files that the gate decides on.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use wharf_api::node_files::{
    self, DisruptionGuard, EdgeNodeClusterConfig, EdgeNodeInfo, GLOBAL, NodeDrainRequest,
    NodeDrainStatus,
};
use wharf_core::node::{
    gate::{FORCE_FILES, Forced, Guard, Request, Requests, choose_force},
    names::node_name,
};

use crate::{
    files::{Subscription, read_bytes},
    health::{AGENT, Reporter},
    tasks::Context,
};

/// Who asks for device operations, and who for updates.
pub const DEVICE_AGENT: &str = "zedagent";
pub const UPDATE_AGENT: &str = "baseosmgr";

/// What others say to the gate.
pub struct Inputs {
    device_operation: Subscription<NodeDrainRequest>,
    update: Subscription<NodeDrainRequest>,
    /// In memory, and as it outlives a reboot.
    cluster: [Subscription<EdgeNodeClusterConfig>; 2],
    guard: Subscription<DisruptionGuard>,
    force: ForceFiles,
}

/// What they say now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub clustered: bool,
    pub requests: Requests,
    pub guard: Guard,
    pub force: Option<Forced>,
}

impl Inputs {
    pub fn open(context: &Context) -> Self {
        let files = &context.files;
        Self {
            device_operation: files.watch(DEVICE_AGENT),
            update: files.watch(UPDATE_AGENT),
            cluster: [files.watch(DEVICE_AGENT), files.persistent().watch(DEVICE_AGENT)],
            guard: files.watch(AGENT),
            force: ForceFiles::new(&context.config.persist_dir),
        }
    }

    /// `None` until every file was looked at once.
    pub fn read(&self, reporter: &Reporter) -> Option<Said> {
        let request = |from: &Subscription<NodeDrainRequest>| {
            let request = from.current()?.get(GLOBAL).cloned();
            Some(request.map(|request| to_request(&request)))
        };
        let guard = self.guard.current()?;
        let clustered: Option<Vec<bool>> = self.cluster.iter().map(is_clustered).collect();
        Some(Said {
            clustered: clustered?.contains(&true),
            requests: Requests {
                device_operation: request(&self.device_operation)?,
                update: request(&self.update)?,
            },
            guard: guard.get(GLOBAL).map_or(Guard::Open, |guard| to_guard(guard)),
            force: self.force.read(reporter),
        })
    }

    /// Returns when something may be different. The force files are only looked at.
    pub async fn changed(&mut self) {
        let [here, kept] = &mut self.cluster;
        tokio::select! {
            () = self.device_operation.changed() => {}
            () = self.update.changed() => {}
            () = here.changed() => {}
            () = kept.changed() => {}
            () = self.guard.changed() => {}
        }
    }

    pub fn remove_force_files(&self) -> io::Result<()> {
        self.force.remove()
    }
}

/// A configuration that is there and cannot be read is one too: who does not know drains first.
fn is_clustered(config: &Subscription<EdgeNodeClusterConfig>) -> Option<bool> {
    config.current()?;
    Some(config.get(GLOBAL) != Some(None))
}

pub fn to_request(file: &NodeDrainRequest) -> Request {
    Request { at: file.requested_at.0, context: file.context.clone() }
}

/// A guard that is not reached is not waited for: budgets alone protect then.
fn to_guard(file: &DisruptionGuard) -> Guard {
    match file {
        DisruptionGuard { linked: true, admitted: false, reason } if reason.is_empty() => {
            Guard::Refuses("the server has not agreed yet".to_owned())
        }
        DisruptionGuard { linked: true, admitted: false, reason } => Guard::Refuses(reason.clone()),
        DisruptionGuard { .. } => Guard::Open,
    }
}

/// Where a person forces a status.
struct ForceFiles {
    paths: [PathBuf; FORCE_FILES.len()],
}

impl ForceFiles {
    fn new(persist_dir: &Path) -> Self {
        let folder = persist_dir.join("kube-status");
        Self { paths: FORCE_FILES.map(|name| folder.join(name)) }
    }

    fn read(&self, reporter: &Reporter) -> Option<Forced> {
        choose_force(self.paths.each_ref().map(|path| {
            let subject = path.display().to_string();
            let status: Option<NodeDrainStatus> = match read_bytes(path) {
                Ok(bytes) => node_files::read(&bytes).ok(),
                Err(_) if !path.exists() => {
                    reporter.clear(&subject);
                    return None;
                }
                Err(_) => None,
            };
            match status {
                Some(_) => reporter.clear(&subject),
                None => reporter.fault(&subject, "it is no status, and is ignored"),
            }
            status.map(|status| (status.status, status.requested_by))
        }))
    }

    fn remove(&self) -> io::Result<()> {
        for path in &self.paths {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// What this node is called in the cluster: as it is configured, or after the device.
pub async fn wait_for_node_name(context: &Context) -> String {
    if !context.config.node_name.is_empty() {
        return context.config.node_name.clone();
    }
    let mut kept: Subscription<EdgeNodeInfo> = context.files.persistent().watch(DEVICE_AGENT);
    let mut here: Subscription<EdgeNodeInfo> = context.files.watch(DEVICE_AGENT);
    loop {
        for info in [&kept, &here] {
            let info = info.get(GLOBAL).flatten().filter(|info| !info.device_name.is_empty());
            if let Some(info) = info {
                return node_name(&info.device_name);
            }
        }
        tokio::select! {
            () = kept.changed() => {}
            () = here.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_that_is_not_reached_is_not_waited_for() {
        let guard = |linked, admitted, reason: &str| {
            to_guard(&DisruptionGuard { linked, admitted, reason: reason.to_owned() })
        };
        assert_eq!(guard(false, false, "n2 is out"), Guard::Open);
        assert_eq!(guard(true, true, ""), Guard::Open);
        assert_eq!(guard(true, false, "n2 is out"), Guard::Refuses("n2 is out".to_owned()));
        let unasked = Guard::Refuses("the server has not agreed yet".to_owned());
        assert_eq!(guard(true, false, ""), unasked);
    }
}
