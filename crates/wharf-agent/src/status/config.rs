//! The node's membership as it is told, from the two places where it may be published.

use std::sync::Arc;

use wharf_api::node_files::{EdgeNodeClusterConfig, GLOBAL};

use crate::files::{Files, Subscription};

const AGENT: &str = "zedagent";

/// What is in the run directory counts; what outlives a reboot stands in for it before it is there.
#[derive(Clone)]
pub struct ClusterConfig {
    now: Subscription<EdgeNodeClusterConfig>,
    lasting: Subscription<EdgeNodeClusterConfig>,
}

impl ClusterConfig {
    pub fn watch(files: &Files) -> Self {
        Self { now: files.watch(AGENT), lasting: files.persistent().watch(AGENT) }
    }

    /// The outer `None`: not known yet. The inner one: the node is alone.
    pub fn get(&self) -> Option<Option<Arc<EdgeNodeClusterConfig>>> {
        let (now, lasting) = (self.now.get(GLOBAL)?, self.lasting.get(GLOBAL)?);
        Some(now.or(lasting))
    }

    pub async fn changed(&mut self) {
        tokio::select! {
            () = self.now.changed() => {}
            () = self.lasting.changed() => {}
        }
    }
}
