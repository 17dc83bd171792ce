//! Nodes.

use jiff::Timestamp;
use wharf_api::{node as wire, resource::Head};
use wharf_core::{
    agents::{AgentRecord, Deferral, DrainSaid, NodeOperation},
    cluster::{
        ClusterRecord,
        health::{Amounts, NodeHealth},
    },
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
        agent: node.agent.as_ref().map(|(record, linked)| agent(record, *linked, now)),
        operation: node
            .operation
            .as_ref()
            .map(|one| operation(prefix, one, node.agent.as_ref().map(|(record, _)| record))),
        usage: usage(used.0, used.1),
    }
}

fn agent(record: &AgentRecord, linked: bool, now: Timestamp) -> wire::Agent {
    wire::Agent {
        link: if linked { "linked" } else { "no link" }.to_owned(),
        health: match (linked && record.reported, record.faults.is_empty()) {
            (false, _) => "unknown",
            (true, true) => "ok",
            (true, false) => "faults",
        }
        .to_owned(),
        faults: record.faults.clone(),
        version: record.version.clone(),
        // Whoever is linked speaks all the time.
        last_contact: if linked { Some(now) } else { record.seen_at },
        drain_status: record.drain.as_ref().map(drain_name),
    }
}

fn drain_name(drain: &DrainSaid) -> String {
    drain.known().map_or("UNKNOWN", |status| status.name()).to_owned()
}

pub fn operation(
    prefix: &str,
    record: &NodeOperation,
    agent: Option<&AgentRecord>,
) -> wire::NodeOperation {
    let collection = format!("{prefix}/clusters/{}/nodes/{}", record.cluster, record.node);
    let agent = agent.filter(|_| record.is_running());
    let drain = agent.and_then(|agent| agent.drain.as_ref());
    let (deferred, not_deferred) = match agent.map_or(Deferral::Unknown, AgentRecord::deferral) {
        Deferral::Waits => (true, None),
        Deferral::Goes(why) => (false, Some(why)),
        Deferral::Unknown => (false, None),
    };
    let (image, sha256) = record.image.clone().unzip();
    wire::NodeOperation {
        head: Head {
            id: record.id.clone(),
            type_: "nodeOperation".to_owned(),
            links: only_self(&collection, "operation"),
            creation_timestamp: record.started_at,
            deletion_timestamp: None,
        },
        cluster: record.cluster.clone(),
        node: record.node.clone(),
        kind: record.kind.name().to_owned(),
        image,
        sha256,
        state: record.state.name().to_owned(),
        reason: record.reason.clone(),
        deferred,
        not_deferred,
        drain_status: drain.map(drain_name),
        blocking: drain.map(|drain| drain.blocking.clone()).unwrap_or_default(),
        requested_by: record.requested_by.clone(),
        started_at: record.started_at,
        ended_at: record.ended_at,
        canceled: record.canceled_at.is_some(),
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
