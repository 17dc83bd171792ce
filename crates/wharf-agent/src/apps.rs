//! Applications on this node: where their pods are, and what is told of them.
//!
//! One task follows what the cluster shows ([`pods`]); the others make of it what the node's agents
//! publish: how each application is ([`status`]), how its volumes are ([`volumes`]) and what it
//! uses ([`usage`]). What is said is decided in `wharf-core` (`node::apps`, `node::app_reports`).

use std::sync::Arc;

use tokio::sync::watch;
use wharf_api::node_files::AppInstanceConfig;

use crate::{
    config::{Config, Role},
    kube::Kube,
    tasks::Tasks,
};

mod pods;
mod status;
mod usage;
mod volumes;

/// An application whose pod is on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hosted {
    key: String,
    config: Arc<AppInstanceConfig>,
    /// By the name of its pod among those that are seen.
    pod_name: String,
}

/// Starts everything about applications, as far as this agent has to tell of it.
pub fn start(tasks: &mut Tasks, config: &Config, kube: Kube) {
    let (sight, seen) = watch::channel(pods::Sight::default());
    let (hosted, here) = watch::channel(None);
    let way = kube.clone();
    tasks.start("pods", move |context, reporter| {
        pods::run(context, reporter, way.clone(), sight.clone())
    });
    let pods = seen.clone();
    tasks.start("apps", move |context, reporter| {
        status::run(context, reporter, pods.clone(), hosted.clone())
    });
    if config.plays(Role::Volumemgr) {
        let pods = seen.clone();
        tasks.start("app-volumes", move |context, reporter| {
            volumes::run(context, reporter, pods.clone())
        });
    }
    if config.plays(Role::Domainmgr) || config.plays(Role::Volumemgr) {
        tasks.start("app-usage", move |context, reporter| {
            usage::run(context, reporter, kube.clone(), seen.clone(), here.clone())
        });
    }
}
