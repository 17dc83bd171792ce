//! The agent: pod network and the balancer before the API servers.

use std::{collections::BTreeMap, net::SocketAddrV4};

use crate::cluster::{ClusterSpec, NetworkPlugin, NodeRecord, NodeRole};
use crate::install::{
    credentials::path,
    document::{DocumentError, DocumentInput, Stage},
    network::{
        BALANCER, Balancer, NETWORK_FILE, NetworkFile, NetworkMode, NetworkNode, pod_mtu,
        render_conflist,
    },
};

use super::{API_PORT, Component, Kind, Service, directory, quoted, text_file};

const CONFIG: &str = "/etc/wharf/agent/agent.toml";
/// Where containerd looks for the pod network, unless the user brings one.
pub const CNI_CONFIG: &str = "/etc/wharf/cni/net.d";
const CONFLIST: &str = "/etc/wharf/cni/net.d/10-wharf.conflist";
/// What Ethernet carries where nothing else is known.
const USUAL_MTU: u32 = 1500;

pub fn component(input: &DocumentInput<'_>) -> Result<Component, DocumentError> {
    let network = network_file(input.spec, &input.node.name, input.nodes)?;
    let mut reloaded_files = vec![text_file(NETWORK_FILE, 0o644, render_network(&network))];
    if network.mode != NetworkMode::None {
        let interface_mtu = if input.facts.mtu == 0 { USUAL_MTU } else { input.facts.mtu };
        let conflist = render_conflist(&network, pod_mtu(network.mode, interface_mtu));
        reloaded_files.push(text_file(CONFLIST, 0o644, conflist));
    }
    Ok(Component {
        stage: Stage::Prepare,
        service: Service {
            name: "agent",
            description: "Wharf agent: pod network and API balancer",
            after: &[],
            kind: Kind::Notify,
            program: "wharf",
            arguments: ["agent", "--config", CONFIG].map(str::to_owned).to_vec(),
            settings: vec!["LimitNOFILE=65536".to_owned()],
        },
        directories: ["/etc/wharf/agent", "/etc/wharf/cni", CNI_CONFIG]
            .map(|path| directory(path, 0o755))
            .to_vec(),
        files: vec![text_file(CONFIG, 0o644, render_config(&input.node.name))],
        reloaded_files,
        credentials: Vec::new(),
        reloaded_credentials: vec![path::CA],
    })
}

fn render_config(node: &str) -> String {
    format!("node_name = {}\nnetwork_file = {}\n", quoted(node), quoted(NETWORK_FILE))
}

/// The text of the network file, whoever writes it.
pub fn render_network(file: &NetworkFile) -> String {
    // A value of ours that has only strings and numbers can always be written.
    serde_json::to_string_pretty(file).unwrap_or_default() + "\n"
}

/// What the agent on a node must know of the others.
pub fn network_file(
    spec: &ClusterSpec,
    node: &str,
    nodes: &BTreeMap<String, NodeRecord>,
) -> Result<NetworkFile, DocumentError> {
    let own = nodes.get(node).ok_or_else(|| DocumentError::NoPodCidr(node.to_owned()))?;
    let others = nodes.values().filter(|record| record.spec.name != own.spec.name);
    let servers = nodes.values().filter(|record| record.spec.is(NodeRole::Controlplane));
    Ok(NetworkFile {
        node: network_node(own),
        cluster_cidr: spec.cluster_cidr.trunc(),
        service_cidr: spec.service_cidr.trunc(),
        mode: match spec.network.plugin {
            NetworkPlugin::Routed => NetworkMode::Routed,
            NetworkPlugin::Vxlan => NetworkMode::Vxlan,
            NetworkPlugin::None => NetworkMode::None,
        },
        interface: spec.network.iface.clone(),
        peers: others.map(network_node).collect(),
        balancer: Balancer {
            listen: BALANCER,
            servers: servers
                .map(|record| SocketAddrV4::new(record.spec.address, API_PORT))
                .collect(),
            authority_file: path::CA.to_owned(),
        },
    })
}

fn network_node(record: &NodeRecord) -> NetworkNode {
    NetworkNode {
        name: record.spec.name.clone(),
        address: record.spec.address,
        pod_cidr: record.pod_cidr,
    }
}
