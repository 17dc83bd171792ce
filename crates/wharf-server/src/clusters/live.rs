//! What is asked of clusters that run.

use std::time::Duration;

use wharf_api::error::ErrorCode;
use wharf_core::cluster::{
    ClusterRecord,
    health::{Amounts, HealthRecord, NodeHealth},
};
use wharf_kube::{Cluster, KubeError, NodeObservation, Probe, Resources};

use crate::{
    access::Caller,
    app::AppState,
    error::{ApiError, ApiResult, chain},
    installer, vault,
};

/// A cluster that does not answer within this time is not imported, and a node of it not removed;
/// below the limit of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was seen of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub version: String,
    pub nodes: Vec<NodeHealth>,
    /// Whether the use was measured.
    pub measured: bool,
}

/// A connection to a cluster over all its API servers; nothing is sent yet.
pub async fn connect(app: &AppState, record: &ClusterRecord) -> Result<Cluster, String> {
    let vault = vault::read(app, &record.spec.name).await.map_err(|error| chain(&error))?;
    match (&vault.kubeconfig, &vault.pki) {
        (Some(kubeconfig), _) => {
            Cluster::from_kubeconfig(kubeconfig).map_err(|error| chain(&error))
        }
        (None, Some(pki)) => {
            installer::connect(pki, &record.serving_spec()).map_err(|failure| failure.sentence())
        }
        (None, None) => Err("there is no kubeconfig of it".to_owned()),
    }
}

/// The same for a cluster that the caller may see and that is served.
pub async fn reach(app: &AppState, caller: &Caller, cluster: &str) -> ApiResult<Cluster> {
    let record = super::get_served(app, caller, cluster).await?;
    connect(app, &record.value).await.map_err(|reason| away(cluster, &reason))
}

/// Waits so long for an answer of a cluster; what it says against the question is judged by `refused`.
pub async fn ask<T>(
    cluster: &str,
    within: Duration,
    question: impl Future<Output = Result<T, KubeError>>,
    refused: impl FnOnce(KubeError) -> ApiError,
) -> ApiResult<T> {
    match tokio::time::timeout(within, question).await {
        Ok(answer) => answer.map_err(refused),
        Err(_) => Err(away(cluster, &format!("nothing within {} s", within.as_secs()))),
    }
}

pub fn away(cluster: &str, reason: &str) -> ApiError {
    let message = format!("cluster {cluster} does not answer: {reason}");
    ApiError::new(ErrorCode::ClusterUnavailable, message).hint("try again when it is Running")
}

/// What a probe and a look at the nodes say of a cluster.
pub fn health_of(record: &ClusterRecord, probe: &Probe, nodes: &[NodeObservation]) -> HealthRecord {
    let seen = seen_of(probe, nodes);
    HealthRecord::new(&record.spec.name, Some(seen.version), seen.nodes, seen.measured)
}

/// Asks a cluster that nobody knows yet.
pub async fn probe(kubeconfig: String) -> Result<Seen, String> {
    let look = async {
        let cluster = Cluster::from_kubeconfig(&kubeconfig).map_err(|error| chain(&error))?;
        let probe = cluster.probe(PATIENCE).await.map_err(|error| chain(&error))?;
        let nodes = cluster.observe_nodes().await.map_err(|error| chain(&error))?;
        Ok(seen_of(&probe, &nodes))
    };
    let late = || Err(format!("its API did not answer within {} s", PATIENCE.as_secs()));
    tokio::time::timeout(PATIENCE, look).await.unwrap_or_else(|_| late())
}

/// Which of these nodes hold storage, as the cluster itself says.
pub async fn storage_nodes(
    app: &AppState,
    record: &ClusterRecord,
    names: Vec<String>,
) -> Result<Vec<String>, String> {
    let ask = async {
        let cluster = connect(app, record).await?;
        let mut found = Vec::new();
        for name in names {
            if cluster.is_storage_node(&name).await.map_err(|error| chain(&error))? {
                found.push(name);
            }
        }
        Ok(found)
    };
    let late = || Err(format!("its API did not answer within {} s", PATIENCE.as_secs()));
    tokio::time::timeout(PATIENCE, ask).await.unwrap_or_else(|_| late())
}

fn seen_of(probe: &Probe, nodes: &[NodeObservation]) -> Seen {
    Seen {
        version: probe.version.clone(),
        measured: !nodes.is_empty() && nodes.iter().all(|node| node.usage.is_some()),
        nodes: nodes.iter().map(node_health).collect(),
    }
}

fn node_health(node: &NodeObservation) -> NodeHealth {
    let used = match node.usage {
        Some(usage) => Amounts {
            cpu_milli: usage.cpu_millis,
            memory_bytes: usage.memory_bytes,
            pods: node.requests.pods,
        },
        None => amounts(node.requests),
    };
    NodeHealth {
        name: node.name.clone(),
        address: node.internal_ip.as_deref().and_then(|address| address.parse().ok()),
        ready: node.ready,
        reason: (!node.reason.is_empty()).then(|| node.reason.clone()),
        cordoned: node.unschedulable,
        drained: node.unschedulable && node.movable_pods == 0,
        labels: node.labels.clone(),
        annotations: node.annotations.clone(),
        operating_system: node.os.clone(),
        operating_system_image: node.os_image.clone(),
        container_runtime: node.runtime_version.clone(),
        kubelet_version: node.kubelet_version.clone(),
        capacity: amounts(node.capacity),
        used,
        created_at: node.created_at,
    }
}

fn amounts(resources: Resources) -> Amounts {
    Amounts {
        cpu_milli: resources.cpu_millis,
        memory_bytes: resources.memory_bytes,
        pods: resources.pods,
    }
}
