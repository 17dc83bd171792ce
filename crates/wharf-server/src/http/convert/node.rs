//! Nodes.

use jiff::Timestamp;
use wharf_api::{node as wire, resource::Head};
use wharf_core::cluster::{
    ClusterRecord,
    health::{Amounts, NodeHealth},
};
use wharf_store::Stored;

use super::{
    cluster::{roles, usage},
    drain, only_self,
};
use crate::clusters::nodes::Node;

pub fn node(
    prefix: &str,
    cluster: &Stored<ClusterRecord>,
    node: &Node,
    now: Timestamp,
) -> wire::Node {
    let collection = format!("{prefix}/clusters/{}/nodes", cluster.id);
    let spec = node.spec();
    let health = node.health.clone().unwrap_or_default();
    let (status, reason) = status(node.health.as_ref());
    let address = spec.map(|spec| spec.address).or(health.address);
    let used = node
        .health
        .as_ref()
        .map_or((Amounts::default(), Amounts::default()), |health| (health.used, health.capacity));
    wire::Node {
        head: Head {
            id: node.name.clone(),
            type_: "node".to_owned(),
            links: only_self(&collection, &node.name),
            creation_timestamp: creation(&health, cluster.value.created_at),
            deletion_timestamp: None,
        },
        name: node.name.clone(),
        address: address.map(|address| address.to_string()).unwrap_or_default(),
        roles: match spec {
            Some(spec) => roles(spec, cluster.value.spec.etcd_implied),
            None => health.roles(),
        },
        status: status.to_owned(),
        reason,
        labels: health.labels,
        annotations: health.annotations,
        operating_system: health.operating_system,
        operating_system_image: health.operating_system_image,
        docker_version: health.container_runtime,
        kubelet_version: health.kubelet_version,
        pod_cidr: node.record.as_ref().map(|record| record.pod_cidr.to_string()),
        host_key: node.record.as_ref().and_then(|record| record.host_key.clone()),
        cordoned: health.cordoned,
        drain: node.drain.as_ref().map(|record| drain::drain(prefix, record, now)),
        usage: usage(used.0, used.1),
    }
}

fn creation(health: &NodeHealth, cluster: Timestamp) -> Timestamp {
    health.created_at.unwrap_or(cluster)
}

/// What matters most comes first: a node that does not answer is not merely cordoned.
fn status(health: Option<&NodeHealth>) -> (&'static str, Option<String>) {
    match health {
        None => ("NotReady", Some("it has not been seen in the cluster".to_owned())),
        Some(health) if !health.ready => ("NotReady", health.reason.clone()),
        Some(health) if health.drained => ("Drained", None),
        Some(health) if health.cordoned => ("Cordoned", None),
        Some(_) => ("Ready", None),
    }
}
