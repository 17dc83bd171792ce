//! Clusters and their kubeconfigs.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use wharf_api::{
    cluster as wire,
    kubeconfig::Kubeconfig,
    resource::{Collection, Head, Links},
    secret::Secret,
};
use wharf_core::{
    cluster::{
        ClusterRecord, ClusterSpec, JumpSpec, NodeRole, NodeSpec, Origin,
        health::{Amounts, HealthSummary, render_ratio},
        validate::{Draft, NetworkDraft, NodeDraft, RegistryDraft, warnings},
    },
    install::{
        host::Change,
        preflight::{Finding, Severity},
    },
};
use wharf_store::Unreadable;

use super::{links, only_self};
use crate::{
    clusters::Shown,
    error::ApiResult,
    http::extract::{parse_json, parse_value},
    installer::HostPlan,
};

const CHILDREN: [&str; 4] = ["events", "kubeconfigs", "nodes", "operations"];

/// Reads the body of a request for a cluster. It may be an answer that is sent back: what is
/// read-only there is passed over.
pub fn draft(bytes: &[u8]) -> ApiResult<Draft> {
    let mut value: Value = parse_json(bytes)?;
    drop_fields(&mut value, wire::ClusterRequest::READ_ONLY);
    let nodes = value.get_mut("nodes").and_then(Value::as_array_mut);
    for node in nodes.into_iter().flatten() {
        drop_fields(node, wire::ClusterRequest::NODE_READ_ONLY);
    }
    Ok(draft_of(parse_value(value)?))
}

fn drop_fields(value: &mut Value, names: &[&str]) {
    if let Some(object) = value.as_object_mut() {
        object.retain(|name, _| !names.contains(&name.as_str()));
    }
}

fn draft_of(request: wire::ClusterRequest) -> Draft {
    let unsupported = [
        ("loadBalance", &request.load_balance),
        ("dockerSocket", &request.docker_socket),
        ("ignoreDockerVersion", &request.ignore_docker_version),
    ];
    let unsupported = unsupported.into_iter().filter(|(_, value)| value.is_some());
    let unsupported = unsupported.map(|(name, _)| name).collect();
    let node = |node: wire::NodeRequest| NodeDraft {
        name: node.name,
        address: node.address,
        roles: node.roles,
        host_key: node.host_key,
    };
    let registry = |registry: wire::RegistryRequest| RegistryDraft {
        url: registry.url,
        user: registry.user,
        password: registry.password.map(|secret| secret.0),
        ca_cert: registry.ca_cert,
    };
    Draft {
        name: request.name,
        nodes: request.nodes.map(|nodes| nodes.into_iter().map(node).collect()),
        network: request
            .network
            .map(|network| NetworkDraft { plugin: network.plugin, iface: network.iface }),
        single_cloud_address: request.single_cloud_address,
        ssh_user: request.ssh_user,
        ssh_key: request.ssh_key.map(|secret| secret.0),
        ssh_key_passphrase: request.ssh_key_passphrase.map(|secret| secret.0),
        ssh_port: request.ssh_port,
        ssh_jump_host: request.ssh_jump_host,
        ssh_jump_host_key: request.ssh_jump_host_key,
        cluster_cidr: request.cluster_cidr,
        service_cidr: request.service_cidr,
        cluster_domain: request.cluster_domain,
        cluster_dns_service_ip: request.cluster_dns_service_ip,
        cluster_upstream_dns: request.cluster_upstream_dns,
        kubernetes_version: request.kubernetes_version,
        private_registries: request
            .private_registrys
            .map(|registries| registries.into_iter().map(registry).collect()),
        disable_port_check: request.disable_port_check,
        unsupported,
    }
}

pub fn shown(prefix: &str, shown: &Shown) -> wire::Cluster {
    match &shown.record {
        Ok(stored) => cluster(prefix, &stored.value, shown.health.as_ref()),
        Err(unreadable) => unreadable_cluster(prefix, unreadable),
    }
}

/// The JSON of a list of clusters, put together from theirs.
pub fn collection(prefix: &'static str, all: &[Arc<Shown>]) -> Result<Vec<u8>, serde_json::Error> {
    let head: Collection<()> = Collection::new("cluster", &format!("{prefix}/clusters"), vec![]);
    let mut body = serde_json::to_vec(&head)?;
    // What closes the list and the object.
    let end = body.split_off(body.len().saturating_sub(2));
    body.reserve(all.len() * USUAL_BYTES);
    for (number, one) in all.iter().enumerate() {
        if number > 0 {
            body.push(b',');
        }
        body.extend_from_slice(rendered(prefix, one)?);
    }
    body.extend(end);
    Ok(body)
}

/// A cluster's JSON in a list, roughly.
const USUAL_BYTES: usize = 1500;

fn rendered<'a>(prefix: &'static str, one: &'a Shown) -> Result<&'a [u8], serde_json::Error> {
    let [native, other] = &one.rendered;
    let place = if prefix == wharf_api::PREFIX { native } else { other };
    match place.get() {
        Some(bytes) => Ok(bytes),
        None => {
            let bytes = serde_json::to_vec(&shown(prefix, one))?;
            Ok(place.get_or_init(|| bytes))
        }
    }
}

pub fn cluster(
    prefix: &str,
    record: &ClusterRecord,
    health: Option<&HealthSummary>,
) -> wire::Cluster {
    let spec = &record.spec;
    let imported = record.origin == Origin::Imported;
    let node_count = match (imported, health) {
        (true, Some(health)) => health.node_count,
        (true, None) | (false, _) => spec.nodes.len(),
    };
    wire::Cluster {
        status: record.state.name().to_owned(),
        reason: record.reason.as_ref().map(|reason| reason.text.clone()),
        reason_since: record.reason.as_ref().map(|reason| reason.since),
        node_count,
        ready_node_count: health.map_or(0, |health| health.ready_count),
        version: health.and_then(|health| health.version.clone()).unwrap_or_default(),
        zcloud_version: if imported { "imported" } else { env!("CARGO_PKG_VERSION") }.to_owned(),
        usage: health.map_or_else(
            || usage(Amounts::default(), Amounts::default()),
            |health| usage(health.used, health.capacity),
        ),
        usage_measured: health.is_some_and(|health| health.measured),
        origin: if imported { "imported" } else { "installed" }.to_owned(),
        operation: record.work.as_ref().map(|work| work.operation.clone()),
        canceling: record.work.as_ref().is_some_and(|work| work.canceled),
        warnings: all_warnings(record, Timestamp::now()),
        certificates_expire_at: record.certificates_expire_at,
        pending: if imported { Vec::new() } else { pending(record) },
        owner: record.ownership.owner.as_ref().map(ToString::to_string),
        epoch: record.ownership.epoch,
        ..wish(head(prefix, &spec.name, record.created_at, record.deleted_at), spec)
    }
}

/// What was asked for; the rest says that nothing is known.
fn wish(head: Head, spec: &ClusterSpec) -> wire::Cluster {
    let server = spec.single_cloud_address;
    let registry = |registry: &wharf_core::cluster::RegistrySpec| wire::Registry {
        url: registry.url.clone(),
        user: registry.user.clone(),
        ca_cert: registry.ca_cert.clone(),
    };
    wire::Cluster {
        head,
        name: spec.name.clone(),
        nodes: spec.nodes.iter().map(|node| cluster_node(node, spec.etcd_implied)).collect(),
        network: wire::Network {
            plugin: Some(spec.network.plugin.name().to_owned()),
            iface: spec.network.iface.clone(),
        },
        // An imported cluster need not have one.
        single_cloud_address: match server.ip().is_unspecified() {
            true => String::new(),
            false => server.to_string(),
        },
        ssh_user: spec.ssh.user.clone(),
        ssh_port: spec.ssh.port.to_string(),
        ssh_jump_host: spec.ssh.jump.as_ref().map(render_jump),
        ssh_jump_host_key: spec.ssh.jump.as_ref().and_then(|jump| jump.host_key.clone()),
        cluster_cidr: spec.cluster_cidr.to_string(),
        service_cidr: spec.service_cidr.to_string(),
        cluster_domain: spec.cluster_domain.clone(),
        cluster_dns_service_ip: spec.cluster_dns_service_ip.to_string(),
        cluster_upstream_dns: spec.cluster_upstream_dns.iter().map(ToString::to_string).collect(),
        kubernetes_version: spec.kubernetes_version.clone(),
        private_registrys: spec.private_registries.iter().map(registry).collect(),
        disable_port_check: spec.disable_port_check,
        status: String::new(),
        reason: None,
        reason_since: None,
        node_count: 0,
        ready_node_count: 0,
        version: String::new(),
        zcloud_version: String::new(),
        usage: usage(Amounts::default(), Amounts::default()),
        usage_measured: false,
        origin: String::new(),
        operation: None,
        canceling: false,
        warnings: Vec::new(),
        certificates_expire_at: None,
        pending: Vec::new(),
        owner: None,
        epoch: 0,
    }
}

/// A record that cannot be read is shown with its reason instead of being lost from sight.
fn unreadable_cluster(prefix: &str, unreadable: &Unreadable) -> wire::Cluster {
    let nowhere = std::net::SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0);
    let spec = ClusterSpec::new(&unreadable.id, nowhere, "");
    wire::Cluster {
        status: "Unreachable".to_owned(),
        reason: Some(format!("its record cannot be read: {}", unreadable.reason)),
        ..wish(head(prefix, &unreadable.id, Timestamp::UNIX_EPOCH, None), &spec)
    }
}

fn head(
    prefix: &str,
    id: &str,
    creation_timestamp: Timestamp,
    deletion_timestamp: Option<Timestamp>,
) -> Head {
    Head {
        id: id.to_owned(),
        type_: "cluster".to_owned(),
        links: links(&format!("{prefix}/clusters"), id, &CHILDREN),
        creation_timestamp,
        deletion_timestamp,
    }
}

/// Roles as they were given: etcd is left out where it goes with controlplane.
pub(super) fn roles(node: &NodeSpec, etcd_implied: bool) -> Vec<String> {
    let given = node.roles.iter().filter(|role| !(etcd_implied && **role == NodeRole::Etcd));
    given.map(|role| role.name().to_owned()).collect()
}

fn cluster_node(node: &NodeSpec, etcd_implied: bool) -> wire::ClusterNode {
    wire::ClusterNode {
        name: node.name.clone(),
        address: node.address.to_string(),
        roles: roles(node, etcd_implied),
        host_key: node.host_key.clone(),
    }
}

fn render_jump(jump: &JumpSpec) -> String {
    format!("{}@{}:{}", jump.user, jump.host, jump.port)
}

/// Time enough to plan an update.
const CERTIFICATES_WARN: SignedDuration = SignedDuration::from_hours(30 * 24);

fn all_warnings(record: &ClusterRecord, now: Timestamp) -> Vec<String> {
    let mut warnings = warnings(&record.spec);
    if let Some(at) = record.certificates_expire_at
        && at.duration_since(now) < CERTIFICATES_WARN
    {
        let name = &record.spec.name;
        let at = at.strftime("%F");
        warnings.push(format!(
            "certificates end on {at}; any update renews them: `wharf cluster update {name} -f …`"
        ));
    }
    warnings
}

/// Nodes that are wanted and not there, and the other way round.
fn pending(record: &ClusterRecord) -> Vec<wire::PendingNode> {
    let pending = |node: &NodeSpec, change: &str| wire::PendingNode {
        name: node.name.clone(),
        address: node.address.to_string(),
        change: change.to_owned(),
    };
    let is_there = |name: &str| record.nodes.get(name).is_some_and(|node| node.installed);
    let wanted = record.spec.nodes.iter().filter(|node| !is_there(&node.name));
    let unwanted = record.nodes.values().filter(|node| record.spec.node(&node.spec.name).is_none());
    wanted
        .map(|node| pending(node, "add"))
        .chain(unwanted.map(|node| pending(&node.spec, "remove")))
        .collect()
}

pub(super) fn usage(used: Amounts, capacity: Amounts) -> wire::Usage {
    wire::Usage {
        cpu: capacity.cpu_milli,
        cpu_used: used.cpu_milli,
        cpu_used_ratio: render_ratio(used.cpu_milli, capacity.cpu_milli),
        memory: capacity.memory_bytes,
        memory_used: used.memory_bytes,
        memory_used_ratio: render_ratio(used.memory_bytes, capacity.memory_bytes),
        pod: capacity.pods,
        pod_used: used.pods,
        pod_used_ratio: render_ratio(used.pods, capacity.pods),
    }
}

pub fn kubeconfig(
    prefix: &str,
    cluster: &str,
    user: &str,
    at: Timestamp,
    text: String,
) -> Kubeconfig {
    let collection = format!("{prefix}/clusters/{cluster}/kubeconfigs");
    let links: Links = only_self(&collection, user);
    Kubeconfig {
        head: Head {
            id: user.to_owned(),
            type_: "kubeconfig".to_owned(),
            links,
            creation_timestamp: at,
            deletion_timestamp: None,
        },
        user: user.to_owned(),
        kube_config: Secret(text),
    }
}

/// What would be done, host by host.
pub fn plan(hosts: Vec<HostPlan>) -> wire::Plan {
    let change = |change: Change| wire::PlanChange {
        action: spelled(&change.action),
        subject: change.subject,
    };
    let host = |plan: HostPlan| wire::PlanHost {
        host: plan.host,
        changes: plan.changes.into_iter().map(change).collect(),
        note: plan.note,
    };
    wire::Plan { hosts: hosts.into_iter().map(host).collect() }
}

pub fn preflight(findings: Vec<Finding>) -> wire::Preflight {
    let ok = findings.iter().all(|finding| finding.severity == Severity::Warning);
    let finding = |finding: Finding| wire::Finding {
        host: finding.node,
        check: spelled(&finding.check),
        severity: spelled(&finding.severity),
        message: finding.message,
        hint: finding.hint,
    };
    wire::Preflight { ok, findings: findings.into_iter().map(finding).collect() }
}

/// An enum's variant as it is stored.
fn spelled(variant: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(variant).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}
