//! Agents of imported clusters.

use wharf_api::agent as wire;
use wharf_core::install::pod_agent::{AgentPods, Toleration};

use crate::agent_pods::{Looked, Removal};

pub fn wish(request: &wire::InstallAgent) -> AgentPods {
    let toleration = |wire: &wire::AgentToleration| Toleration {
        key: wire.key.clone(),
        value: wire.value.clone(),
        effect: wire.effect.clone(),
    };
    AgentPods {
        image: request.image.clone(),
        node_selector: request.node_selector.clone(),
        tolerations: request.tolerations.iter().map(toleration).collect(),
        plugin_dir: request.plugin_dir.clone(),
    }
}

/// The answer to a dry run.
pub fn rendered(
    cluster: &str,
    request: wire::InstallAgent,
    manifests: String,
) -> wire::AgentInstallation {
    wire::AgentInstallation {
        cluster: cluster.to_owned(),
        image: request.image,
        node_selector: request.node_selector,
        done: false,
        settled: false,
        desired: 0,
        updated: 0,
        ready: 0,
        pods: Vec::new(),
        changed: Vec::new(),
        manifests: Some(manifests),
    }
}

pub fn installation(looked: &Looked) -> wire::AgentInstallation {
    let seen = &looked.daemon_set;
    let all = |count: u32| count == seen.desired;
    let pods = looked.pods.iter().map(|pod| wire::AgentPod {
        name: pod.name.clone(),
        node: pod.node.clone(),
        ready: pod.ready && !pod.deleting,
        reason: pod.reason.clone(),
    });
    wire::AgentInstallation {
        cluster: looked.cluster.clone(),
        image: seen.image.clone(),
        node_selector: seen.node_selector.clone(),
        done: seen.is_settled && !seen.deleting && all(seen.updated) && all(seen.ready),
        settled: seen.is_settled,
        desired: seen.desired,
        updated: seen.updated,
        ready: seen.ready,
        pods: pods.collect(),
        changed: looked.changed.clone(),
        manifests: None,
    }
}

pub fn removal(cluster: &str, removal: Removal) -> wire::AgentRemoval {
    wire::AgentRemoval {
        cluster: cluster.to_owned(),
        done: removal.done,
        waiting: removal.waiting,
        kept: removal.kept,
    }
}
