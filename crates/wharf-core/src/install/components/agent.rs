//! The agent: pod network, the balancer before the API servers, and all that it does for the node.

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

use super::{
    API_PORT, BIN, Component, Kind, Service, VOLUME_PLUGINS, directory, kubelet, quoted, text_file,
};

pub const CONFIG: &str = "/etc/wharf/agent/agent.toml";
/// What the node is to join, before the link tells it; the folder is the agent's.
const MEMBERSHIPS: &str = "/persist/status/zedagent/EdgeNodeClusterConfig";
/// Where containerd looks for the pod network, unless the user brings one.
pub const CNI_CONFIG: &str = "/etc/wharf/cni/net.d";
const CONFLIST: &str = "/etc/wharf/cni/net.d/10-wharf.conflist";
/// What puts a new system in place, if the machine brings it: it is called with the image.
const UPDATE_PROGRAM: &str = "/usr/local/sbin/wharf-node-update";
/// Whom the agent plays, because nobody else does on a host of ours.
const ROLES: [&str; 6] =
    ["zedagent", "nodeagent", "baseosmgr", "zedmanager", "domainmgr", "volumemgr"];
/// What it makes by itself: the files through which the agents of a node speak, and what it keeps.
pub const GROWN: [&str; 17] = [
    "/run/wharf/AgentHealth",
    "/run/wharf/NodeWish",
    "/run/wharf/NodeJobs",
    "/run/wharf/DisruptionGuard",
    "/run/wharf/metrics.prom",
    "/run/zedkube",
    "/run/zedagent",
    "/run/nodeagent",
    "/run/baseosmgr",
    "/run/zedmanager",
    "/run/domainmgr",
    "/run/volumemgr",
    "/persist/status",
    "/persist/kube-status",
    "/persist/kubelog",
    "/persist/wharf",
    VOLUMES,
];
/// Where it keeps what it does with volumes.
pub const VOLUMES: &str = "/var/lib/wharf/volumes";
/// What volumes need beside the agent: the driver that kubelet calls, and the proxy of block servers.
pub const HELPERS: [&str; 2] = ["wharf-flex", "wharf-block"];
/// While it stops the agent does not renew its lease, and volumes are cut off when that ends. So it is
/// killed soon, which it bears at every step; the next one goes on with the lease.
pub const STOP_SECONDS: u64 = 6;
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
    let mut directories = ["/etc/wharf/agent", "/etc/wharf/cni", CNI_CONFIG].to_vec();
    if let Some(membership) = input.membership {
        directories.push(MEMBERSHIPS);
        let path = format!("{MEMBERSHIPS}/global.json");
        reloaded_files.push(text_file(&path, 0o644, membership));
    }
    Ok(Component {
        stage: Stage::Prepare,
        service: service(CONFIG),
        directories: directories.into_iter().map(|path| directory(path, 0o755)).collect(),
        files: vec![text_file(CONFIG, 0o644, render_config(input))],
        reloaded_files,
        credentials: Vec::new(),
        reloaded_credentials: vec![
            path::CA,
            path::AGENT_KUBECONFIG,
            path::KUBELET_KUBECONFIG,
            path::AGENT_TOKEN,
            path::LINK_IDENTITY,
            path::LINK_AUTHORITY,
        ],
    })
}

/// The agent as a service, with this configuration.
pub fn service(config: &str) -> Service {
    Service {
        name: "agent",
        description: "Wharf agent: pod network, API balancer and the node's operations",
        after: &[],
        kind: Kind::Notify,
        program: "wharf",
        arguments: ["agent", "--config", config].map(str::to_owned).to_vec(),
        settings: vec![
            "LimitNOFILE=65536".to_owned(),
            // The guard of volumes outlives the agent.
            "KillMode=process".to_owned(),
            format!("TimeoutStopSec={STOP_SECONDS}"),
            // The words of applications go to the journal through the agent: none is left out.
            "LogRateLimitIntervalSec=0".to_owned(),
        ],
    }
}

fn render_config(input: &DocumentInput<'_>) -> String {
    let roles = ROLES.map(quoted).join(", ");
    let mut rows = vec![
        ("node_name", quoted(&input.node.name)),
        ("network_file", quoted(NETWORK_FILE)),
        ("kubeconfig", quoted(path::AGENT_KUBECONFIG)),
        ("node_kubeconfig", quoted(path::KUBELET_KUBECONFIG)),
        ("publish_as", format!("[{roles}]")),
        ("trace_token_file", quoted(path::AGENT_TOKEN)),
        ("update_command", format!("[{}]", quoted(UPDATE_PROGRAM))),
    ];
    if !input.servers.is_empty() {
        rows.push(("server", quoted(&input.servers.join(","))));
    }
    let rows = rows.into_iter().map(|(key, value)| format!("{key} = {value}\n"));
    // The journal keeps itself small, and every host of ours has one.
    let mut text: String = rows.chain(["[logs]\njournal = true\n".to_owned()]).collect();
    if has_volumes(input) {
        let rows = [
            ("state_dir", VOLUMES),
            ("driver", &format!("{BIN}/wharf-flex")),
            ("kubelet_root", kubelet::DATA),
            ("plugin_dir", VOLUME_PLUGINS),
        ];
        text.push_str("[volumes]\n");
        text.extend(rows.map(|(key, value)| format!("{key} = {}\n", quoted(value))));
    }
    text
}

/// Whoever builds only the one program has no volumes.
pub fn has_volumes(input: &DocumentInput<'_>) -> bool {
    HELPERS.iter().all(|helper| input.bundle.contains_key(*helper))
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
