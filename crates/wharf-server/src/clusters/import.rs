//! Taking in a cluster that exists already.

use std::net::{Ipv4Addr, SocketAddrV4};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use wharf_api::error::{ErrorCode, FieldFault};
use wharf_core::{
    cluster::{
        ClusterRecord, ClusterSecrets, ClusterSpec, NetworkPlugin, NetworkSpec, NodeRole, NodeSpec,
        Origin,
        health::HealthRecord,
        life::{ClusterEvent, Life, decide_transition},
    },
    name::check_cluster_name,
};
use wharf_store::{Compare, Stored, Txn, typed::key_of};

use super::{TRIES, check::Addresses, commit, create::refuse_duplicate, live::Seen, put_health};
use crate::{
    access::Caller,
    app::AppState,
    error::{ApiError, ApiResult},
    vault::{self, Vault},
};

/// The name under which it is published that a cluster runs for the first time.
const CREATED: &str = "cluster.created";
/// The certificate whose entry in the state document holds the kubeconfig.
const ADMIN_CERTIFICATE: &str = "kube-admin";
/// Stands for a server's address that nobody gave.
const NOWHERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);

/// What an import is based on.
pub enum Import {
    Kubeconfig(String),
    /// The state document of the original and the field that it came in.
    State(&'static str, Value),
}

/// Takes in a cluster that answers; `probe` asks it.
pub async fn import<F, Fut>(
    app: &AppState,
    caller: &Caller,
    name: &str,
    import: Import,
    probe: F,
) -> ApiResult<Stored<ClusterRecord>>
where
    F: Fn(String) -> Fut,
    Fut: Future<Output = Result<Seen, String>>,
{
    check_cluster_name(name).map_err(|fault| {
        ApiError::field("name", ErrorCode::InvalidFormat, format!("the cluster's name {fault}"))
    })?;
    refuse_duplicate(app, name).await?;
    let (field, found) = match import {
        Import::Kubeconfig(text) => ("kubeConfig", Found::of_kubeconfig(name, text)),
        Import::State(field, value) => (field, Found::of_state(name, field, value)?),
    };
    let seen = probe(found.kubeconfig.clone()).await.map_err(|reason| {
        ApiError::field(
            field,
            ErrorCode::InvalidBodyContent,
            format!("the cluster cannot be reached with this kubeconfig: {reason}"),
        )
        .hint("nothing was stored; check its address, its certificates and the way to it")
    })?;
    store(app, caller, name, found, seen).await
}

async fn store(
    app: &AppState,
    caller: &Caller,
    name: &str,
    found: Found,
    seen: Seen,
) -> ApiResult<Stored<ClusterRecord>> {
    let Ok(Life::Recorded(state)) = decide_transition(Life::Init, ClusterEvent::Import) else {
        return Err(ApiError::internal("a cluster cannot be imported"));
    };
    let mut spec = found.spec;
    spec.kubernetes_version = seen.version.trim_start_matches('v').to_owned();
    let health = HealthRecord::new(name, Some(seen.version), seen.nodes, seen.measured);
    let vault =
        Vault { secrets: found.secrets, kubeconfig: Some(found.kubeconfig), ..Vault::default() };
    for _ in 0..TRIES {
        refuse_duplicate(app, name).await?;
        let txn = claim(app, &spec).await?;
        let now = Timestamp::now();
        let record = ClusterRecord::new(spec.clone(), state, Origin::Imported, now);
        let txn = txn.when(Compare::Absent(key_of::<ClusterRecord>(name))).write(
            name,
            &record,
            now,
            Some(CREATED),
        )?;
        let txn = put_health(vault::put(txn, app, name, None, &vault, now)?, &health, now)?;
        if let Some(revision) = commit(app, caller, "cluster.import", name, txn, now).await? {
            let id = name.to_owned();
            return Ok(Stored { id, value: record, created: revision, revision, at: now });
        }
    }
    Err(ApiError::conflict())
}

/// A transaction that is refused when another cluster gets addresses meanwhile. Without nodes there
/// is nothing to claim, and imports at the same time are in nobody's way.
async fn claim(app: &AppState, spec: &ClusterSpec) -> ApiResult<Txn> {
    if spec.nodes.is_empty() {
        return Ok(Txn::new());
    }
    let addresses = Addresses::of_others(app, &spec.name).await?;
    refuse_taken(spec, &addresses)?;
    Ok(addresses.claim(Txn::new()))
}

/// The same machines under two names would be two clusters in one.
fn refuse_taken(spec: &ClusterSpec, addresses: &Addresses) -> ApiResult<()> {
    let taken = spec.nodes.iter().find_map(|node| Some((node, addresses.owner(node.address)?)));
    match taken {
        None => Ok(()),
        Some((node, other)) => Err(ApiError::field(
            "nodes",
            ErrorCode::DuplicateResource,
            format!("node address {} is used by the cluster {other}", node.address),
        )),
    }
}

/// What a request says of a cluster.
struct Found {
    spec: ClusterSpec,
    secrets: ClusterSecrets,
    kubeconfig: String,
}

impl Found {
    fn of_kubeconfig(name: &str, kubeconfig: String) -> Self {
        let mut spec = ClusterSpec::new(name, NOWHERE, "");
        spec.network.plugin = NetworkPlugin::None;
        Self { spec, secrets: ClusterSecrets::default(), kubeconfig }
    }

    fn of_state(name: &str, field: &str, value: Value) -> ApiResult<Self> {
        let state: State = serde_path_to_error::deserialize(value).map_err(|error| {
            // Only where: the value itself may be a key.
            let path = format!("{field}.{}", error.path());
            ApiError::field(
                &path,
                ErrorCode::InvalidBodyContent,
                format!("{path} has another form"),
            )
        })?;
        let mut faults = Vec::new();
        let path = format!("{field}.zkeConfig");
        let config = state.zke_config;
        if !config.cluster_name.is_empty() && config.cluster_name != name {
            let known = &config.cluster_name;
            fault(&mut faults, &path, "clusterName", format!("the document is of {known}"));
        }
        let nodes = config.nodes.iter().enumerate();
        let nodes =
            nodes.filter_map(|(i, node)| node.spec(&format!("{path}.nodes[{i}]"), &mut faults));
        let nodes = nodes.collect();
        let certificate = state.certificates_bundle.get(ADMIN_CERTIFICATE);
        let kubeconfig = certificate.and_then(|entry| entry.get("config")).and_then(Value::as_str);
        if kubeconfig.is_none_or(str::is_empty) {
            let path = format!("{field}.certificatesBundle");
            let message = "the document holds no kubeconfig".to_owned();
            fault(&mut faults, &path, "kube-admin.config", message);
        }
        let spec = spec_of(name, &config, nodes, &path, &mut faults);
        if !faults.is_empty() {
            return Err(ApiError::invalid(faults));
        }
        let secrets =
            ClusterSecrets { ssh_key: config.option.ssh_key, ..ClusterSecrets::default() };
        Ok(Self { spec, secrets, kubeconfig: kubeconfig.unwrap_or_default().to_owned() })
    }
}

/// The parts of the state document that matter; it has many more.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct State {
    zke_config: ZkeConfig,
    #[serde(default)]
    certificates_bundle: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct ZkeConfig {
    cluster_name: String,
    single_cloud_address: String,
    option: ZkeOption,
    network: ZkeNetwork,
    nodes: Vec<ZkeNode>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ZkeOption {
    ssh_user: String,
    ssh_key: String,
    ssh_port: String,
    cluster_cidr: String,
    service_cidr: String,
    cluster_domain: String,
    #[serde(rename = "clusterDNSServiceIP")]
    cluster_dns_service_ip: String,
    up_stream_name_servers: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ZkeNetwork {
    iface: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ZkeNode {
    name: String,
    address: String,
    roles: Vec<String>,
}

impl ZkeNode {
    fn spec(&self, path: &str, faults: &mut Vec<FieldFault>) -> Option<NodeSpec> {
        if self.name.is_empty() {
            fault(faults, path, "name", "the node has no name".to_owned());
        }
        let Ok(address) = self.address.trim().parse() else {
            let message = format!("{} isn't an ipv4 address", self.address);
            fault(faults, path, "address", message);
            return None;
        };
        // Derived roles such as storage are not ours to keep.
        let known = NodeRole::ALL.into_iter();
        let roles = known.filter(|role| self.roles.iter().any(|name| name == role.name()));
        let mut roles: Vec<NodeRole> = roles.collect();
        roles.sort();
        Some(NodeSpec { name: self.name.clone(), address, roles, host_key: None })
    }
}

fn spec_of(
    name: &str,
    config: &ZkeConfig,
    nodes: Vec<NodeSpec>,
    path: &str,
    faults: &mut Vec<FieldFault>,
) -> ClusterSpec {
    let option = &config.option;
    let defaults = ClusterSpec::new(name, NOWHERE, "");
    let options = format!("{path}.option");
    let mut parse = Parse { path: &options, faults };
    let iface = config.network.iface.clone();
    let ssh = wharf_core::cluster::SshSpec {
        user: option.ssh_user.clone(),
        port: parse.or("sshPort", &option.ssh_port, defaults.ssh.port),
        jump: None,
    };
    let upstream = option.up_stream_name_servers.iter();
    ClusterSpec {
        nodes,
        network: NetworkSpec {
            // Whatever connects its pods, it is not us.
            plugin: NetworkPlugin::None,
            iface: (!iface.is_empty()).then_some(iface),
        },
        single_cloud_address: config.single_cloud_address.trim().parse().unwrap_or(NOWHERE),
        ssh,
        cluster_cidr: parse.or("clusterCidr", &option.cluster_cidr, defaults.cluster_cidr),
        service_cidr: parse.or("serviceCidr", &option.service_cidr, defaults.service_cidr),
        cluster_dns_service_ip: parse.or(
            "clusterDNSServiceIP",
            &option.cluster_dns_service_ip,
            defaults.cluster_dns_service_ip,
        ),
        cluster_domain: match option.cluster_domain.trim() {
            "" => defaults.cluster_domain.clone(),
            domain => domain.to_owned(),
        },
        cluster_upstream_dns: upstream.filter_map(|address| address.trim().parse().ok()).collect(),
        ..defaults
    }
}

/// Reads fields that may be empty.
struct Parse<'a> {
    path: &'a str,
    faults: &'a mut Vec<FieldFault>,
}

impl Parse<'_> {
    fn or<T: std::str::FromStr>(&mut self, field: &str, text: &str, default: T) -> T {
        match text.trim() {
            "" => default,
            text => text.parse().unwrap_or_else(|_| {
                fault(self.faults, self.path, field, format!("{text} cannot be understood"));
                default
            }),
        }
    }
}

fn fault(faults: &mut Vec<FieldFault>, path: &str, field: &str, message: String) {
    let field = format!("{path}.{field}");
    faults.push(FieldFault { field, code: ErrorCode::InvalidBodyContent, message });
}
