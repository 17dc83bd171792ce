//! What an agent is told: all that its node needs to know, made from what is stored.

use std::net::Ipv4Addr;

use sha2::{Digest, Sha256};
use wharf_api::{
    link::{Guard, NodeConfig},
    node_files::{
        AppInstanceConfig, EdgeNodeClusterConfig, EdgeNodeInfo, Ip, IpPrefix, NodeWish, Uuid,
        UuidAndVersion, VolumeConfig,
    },
};
use wharf_core::{
    agents::NodeOperation,
    app::AppRecord,
    cluster::{ClusterSpec, NodeRole, NodeSpec},
    disruption::Kind,
    install::components::agent::{network_file, render_network},
};
use wharf_pki::Agent;

use super::Facts;

/// The configuration of the agent's node. `ours`: where this server hears agents of the cluster.
pub fn node_config(facts: &Facts, agent: &Agent, ours: &[String]) -> NodeConfig {
    let record = &facts.record;
    let operation = facts.operations.get(&agent.node);
    let mut servers = facts.servers.clone();
    servers.extend(ours.iter().cloned());
    servers.sort();
    servers.dedup();
    let network = network_file(&record.spec, &agent.node, &record.nodes).ok();
    let cluster_id = uuid_of_identity(&agent.identity);
    let apps = facts.apps.iter().filter(|app| app.deleted_at.is_none());
    NodeConfig {
        servers,
        network: network.as_ref().map(render_network),
        node: EdgeNodeInfo {
            device_name: agent.node.clone(),
            device_id: device_id(agent).to_string(),
            project_name: record.spec.name.clone(),
            project_id: cluster_id.to_string(),
            ..EdgeNodeInfo::default()
        },
        nodes: record.spec.nodes.len(),
        cluster: membership(&record.spec, &agent.node, &agent.identity),
        apps: apps.clone().filter_map(|app| app_config(app, &agent.node)).collect(),
        volumes: apps.flat_map(volumes).collect(),
        device: operation.and_then(|operation| wish(operation, false)),
        update: operation.and_then(|operation| wish(operation, true)),
        guard: guard(operation),
    }
}

/// A node's part in its cluster, as the installer leaves it on the host and the link tells it.
pub fn membership(spec: &ClusterSpec, node: &str, identity: &str) -> Option<EdgeNodeClusterConfig> {
    let node = spec.node(node)?;
    let first = spec.nodes_with(NodeRole::Controlplane).next()?;
    Some(EdgeNodeClusterConfig {
        cluster_name: spec.name.clone(),
        cluster_id: UuidAndVersion { uuid: uuid_of_identity(identity), version: "1".to_owned() },
        cluster_interface: spec.network.iface.clone().unwrap_or_default(),
        cluster_ip_prefix: Some(IpPrefix {
            address: node.address.into(),
            length: common_prefix(&spec.nodes),
        }),
        is_worker_node: !node.is(NodeRole::Controlplane),
        join_server_ip: Ip(Some(first.address.into())),
        bootstrap_node: node.name == first.name,
        ..EdgeNodeClusterConfig::default()
    })
}

/// The length of the smallest prefix that holds the addresses of all nodes: nobody tells the server
/// how their network is cut.
fn common_prefix(nodes: &[NodeSpec]) -> u8 {
    let bits = |address: Ipv4Addr| u32::from(address);
    let Some(first) = nodes.first() else { return 32 };
    let differing =
        nodes.iter().fold(0, |all, node| all | (bits(node.address) ^ bits(first.address)));
    u8::try_from(differing.leading_zeros()).unwrap_or(32)
}

/// What tells clusters of one name apart has the size of a UUID.
fn uuid_of_identity(identity: &str) -> Uuid {
    dashed(identity).parse().unwrap_or_else(|_| hashed(&[identity]))
}

/// Of a node, as long as it is one of this cluster.
fn device_id(agent: &Agent) -> Uuid {
    hashed(&[&agent.identity, &agent.node])
}

fn hashed(parts: &[&str]) -> Uuid {
    let digest = parts.iter().fold(Sha256::new(), |hash, part| hash.chain_update(part));
    let text = hex::encode(digest.finalize());
    dashed(text.get(..32).unwrap_or_default()).parse().unwrap_or_default()
}

fn dashed(hex: &str) -> String {
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

/// `None` for what a newer server stored in a form that this one cannot read.
fn app_config(app: &AppRecord, node: &str) -> Option<AppInstanceConfig> {
    let mut config: AppInstanceConfig = serde_json::from_value(app.config.clone()).ok()?;
    config.uuid_and_version =
        UuidAndVersion { uuid: app.uuid.parse().ok()?, version: app.version.to_string() };
    config.display_name.clone_from(&app.name);
    config.is_designated_node_id = app.designated_node.as_deref() == Some(node);
    Some(config)
}

fn volumes(app: &AppRecord) -> impl Iterator<Item = VolumeConfig> {
    app.volumes.iter().filter_map(|volume| serde_json::from_value(volume.clone()).ok())
}

/// What the agent is to do, once it was let in. What is over is not told: an agent that has lost its
/// journal would do it again. What was called off is, because a node that was away may not know of it. An
/// agent that has taken it over is told so, and knows by that whether it has lost its journal since.
fn wish(operation: &NodeOperation, update: bool) -> Option<NodeWish> {
    let is_update = operation.kind == Kind::Update;
    let is_meant = operation.is_running() || operation.canceled_at.is_some();
    if operation.local || !operation.admitted || !is_meant || is_update != update {
        return None;
    }
    let (image, sha256) = operation.image.clone().unwrap_or_default();
    Some(NodeWish {
        id: operation.id.clone(),
        kind: operation.kind.name().to_owned(),
        canceled: operation.canceled_at.is_some(),
        image,
        sha256,
        taken_in: operation.taken_in.clone().unwrap_or_default(),
    })
}

fn guard(operation: Option<&NodeOperation>) -> Guard {
    match operation.filter(|operation| operation.is_running()) {
        Some(running) if running.admitted => Guard { admitted: true, reason: String::new() },
        Some(running) => {
            Guard { admitted: false, reason: running.reason.clone().unwrap_or_default() }
        }
        None => {
            Guard { admitted: false, reason: "the cluster's guard has not been asked".to_owned() }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use wharf_core::operation::OperationState;

    use super::*;

    fn running(kind: Kind) -> NodeOperation {
        let asked_for = NodeOperation::new("demo", "n1", "1", kind, Timestamp::UNIX_EPOCH);
        NodeOperation { admitted: true, ..asked_for }
    }

    #[test]
    fn an_agent_is_told_what_runs_and_what_was_called_off_and_never_what_was_done() {
        let canceled_at = Some(Timestamp::UNIX_EPOCH);
        for (kind, update) in [(Kind::Reboot, false), (Kind::Shutdown, false), (Kind::Update, true)]
        {
            let running = running(kind);
            let over = |state| NodeOperation { state, ..running.clone() };
            let let_go = NodeOperation { canceled_at, ..over(OperationState::Failed) };
            let rows = [
                (running.clone(), Some(false)),
                (NodeOperation { canceled_at, ..running.clone() }, Some(true)),
                (NodeOperation { admitted: false, ..running.clone() }, None),
                (NodeOperation { local: true, ..running.clone() }, None),
                (over(OperationState::Succeeded), None),
                (NodeOperation { away: true, ..over(OperationState::Succeeded) }, None),
                (over(OperationState::Failed), None),
                (over(OperationState::Canceled), None),
                (let_go, Some(true)),
            ];
            for (operation, told) in rows {
                let found = wish(&operation, update);
                assert_eq!(found.map(|wish| wish.canceled), told, "{operation:?}");
                assert_eq!(wish(&operation, !update), None, "in the place of another kind");
            }
        }
    }

    #[test]
    fn an_agent_is_told_in_which_boot_it_took_an_operation_over() {
        let told = |operation: &NodeOperation| wish(operation, false).unwrap().taken_in;
        let new = running(Kind::Reboot);
        assert_eq!(told(&new), "", "nobody has heard of it");
        let taken = NodeOperation { taken_in: Some("boot".to_owned()), ..new };
        assert_eq!(told(&taken), "boot");
    }

    fn node(address: &str) -> NodeSpec {
        NodeSpec {
            name: address.to_owned(),
            address: address.parse().unwrap(),
            roles: Vec::new(),
            host_key: None,
        }
    }

    #[test]
    fn the_prefix_holds_all_nodes_and_no_more_than_it_must() {
        let rows: [(&[&str], u8); 4] = [
            (&["10.0.0.5"], 32),
            (&["10.0.0.4", "10.0.0.5"], 31),
            (&["10.0.0.1", "10.0.0.2", "10.0.0.6"], 29),
            (&["10.0.0.1", "10.1.0.1"], 15),
        ];
        for (addresses, expected) in rows {
            let nodes: Vec<NodeSpec> = addresses.iter().copied().map(node).collect();
            assert_eq!(common_prefix(&nodes), expected, "{addresses:?}");
        }
    }

    #[test]
    fn ids_are_uuids_and_differ_between_nodes_and_clusters() {
        let identity = "00112233445566778899aabbccddeeff";
        let uuid = uuid_of_identity(identity).to_string();
        assert_eq!(uuid, "00112233-4455-6677-8899-aabbccddeeff");
        let id = |identity, node| device_id(&super::super::agent_of("demo", identity, node));
        assert_ne!(id(identity, "a"), id(identity, "b"));
        assert_ne!(id(identity, "a"), id("other", "a"));
        assert_eq!(id(identity, "a"), id(identity, "a"));
        assert!(!uuid_of_identity("short").is_nil());
    }
}
