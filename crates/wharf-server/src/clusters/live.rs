//! What is asked of clusters that run.

use std::time::Duration;

use wharf_core::cluster::{
    ClusterRecord,
    health::{Amounts, HealthRecord, NodeHealth},
};
use wharf_kube::{Cluster, NodeObservation, Probe, Resources};

use crate::{app::AppState, error::chain, installer, vault};

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
