//! Clusters on the wire.
//!
//! [`Cluster`] is what the API shows, [`ClusterRequest`] what it takes to create or change one. The
//! two are apart because secrets go one way only. What the API shows may be sent back in a
//! request: its read-only fields are passed over ([`ClusterRequest::READ_ONLY`]).

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::{resource::Head, secret::Secret};

/// A cluster as it is and as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    #[serde(flatten)]
    pub head: Head,
    pub name: String,
    /// `Creating`, `CreateFailed`, `Running`, `Unreachable`, `Updating` or `Deleting`.
    #[schema(example = "Running")]
    pub status: String,
    /// Why the status is what it is, where that needs saying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub reason_since: Option<Timestamp>,
    pub nodes: Vec<ClusterNode>,
    pub network: Network,
    /// Where the cluster's machines find the server.
    pub single_cloud_address: String,
    pub ssh_user: String,
    /// A number, as text.
    #[schema(example = "22")]
    pub ssh_port: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_jump_host: Option<String>,
    /// The key that it must show: the one that was given, or that it showed at the first contact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_jump_host_key: Option<String>,
    pub cluster_cidr: String,
    pub service_cidr: String,
    pub cluster_domain: String,
    #[serde(rename = "clusterDNSServiceIP")]
    pub cluster_dns_service_ip: String,
    #[serde(rename = "clusterUpstreamDNS")]
    pub cluster_upstream_dns: Vec<String>,
    /// The version that was asked for; `version` is the one that runs.
    pub kubernetes_version: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub private_registrys: Vec<Registry>,
    pub disable_port_check: bool,
    pub node_count: usize,
    pub ready_node_count: usize,
    /// As the cluster's API server says it.
    pub version: String,
    /// The server's version, or `imported`.
    pub zcloud_version: String,
    #[serde(flatten)]
    pub usage: Usage,
    /// Whether the usage was measured; otherwise it is the sum of what pods requested.
    pub usage_measured: bool,
    /// `installed` or `imported`.
    pub origin: String,
    /// The operation that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Whether that operation was asked to stop.
    pub canceling: bool,
    /// What works but is worth knowing.
    pub warnings: Vec<String>,
    /// When the first of the cluster's certificates ends. An update renews them, from four months
    /// before that on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub certificates_expire_at: Option<Timestamp>,
    /// Nodes that differ from the wish, after an update that did not get there.
    pub pending: Vec<PendingNode>,
    /// The server that works on the cluster.
    pub owner: Option<String>,
    /// How often the cluster has changed hands.
    pub epoch: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterNode {
    pub name: String,
    pub address: String,
    /// `controlplane`, `etcd`, `worker`, `edge`; as they were given.
    pub roles: Vec<String>,
    /// The host key that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Network {
    /// `routed` by default, `vxlan` or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    /// The interface that carries the pods' traffic; found by the nodes' addresses by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iface: Option<String>,
}

/// A registry from which the cluster's machines may pull, without its password.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Registry {
    pub url: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ca_cert: String,
}

/// What there is and what is used of it: CPU in thousandths of a core, memory in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    pub cpu: u64,
    pub cpu_used: u64,
    #[schema(example = "0.25")]
    pub cpu_used_ratio: String,
    pub memory: u64,
    pub memory_used: u64,
    #[schema(example = "0.25")]
    pub memory_used_ratio: String,
    pub pod: u64,
    pub pod_used: u64,
    #[schema(example = "0.25")]
    pub pod_used_ratio: String,
}

/// A node that is not as the wish has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PendingNode {
    pub name: String,
    pub address: String,
    /// `add`: wanted, not there yet; `remove`: there, no longer wanted.
    pub change: String,
}

/// What to create, or what a cluster shall be. Everything is text and may be left out; what is
/// missing or wrong is reported all at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterRequest {
    /// Lower-case letters, digits, `-` and `.`; it is the id and cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "demo")]
    pub name: Option<String>,
    /// At least one controlplane and one worker node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeRequest>>,
    /// Ignored in an update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Where the cluster's machines find the server: an IPv4 address and a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "10.0.0.1:8443")]
    pub single_cloud_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "root")]
    pub ssh_user: Option<String>,
    /// A private key in PEM; empty in an update keeps the old one. It is never shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, write_only)]
    pub ssh_key: Option<Secret>,
    /// Opens `sshKey`, if that is encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, write_only)]
    pub ssh_key_passphrase: Option<Secret>,
    /// A number, as text; 22 by default.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "text_or_number")]
    #[schema(example = "22")]
    pub ssh_port: Option<String>,
    /// A host through which the others are reached, with the same key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "root@10.0.0.2:22")]
    pub ssh_jump_host: Option<String>,
    /// Its public key or the fingerprint of it. Without one the key of the first contact is pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_jump_host_key: Option<String>,
    /// The pods' addresses; 10.42.0.0/16 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_cidr: Option<String>,
    /// The Services' addresses; 10.43.0.0/16 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_cidr: Option<String>,
    /// `cluster.local` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_domain: Option<String>,
    /// The tenth address of `serviceCidr` by default.
    #[serde(skip_serializing_if = "Option::is_none", rename = "clusterDNSServiceIP")]
    pub cluster_dns_service_ip: Option<String>,
    /// Where names outside the cluster are looked up; an empty list: nowhere. Ignored in an update.
    #[serde(skip_serializing_if = "Option::is_none", rename = "clusterUpstreamDNS")]
    pub cluster_upstream_dns: Option<Vec<String>>,
    /// One that the server has a bundle of; the newest by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "1.36.3")]
    pub kubernetes_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_registrys: Option<Vec<RegistryRequest>>,
    /// Whether not to look for ports in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_port_check: Option<bool>,
    /// Not supported: given, it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub load_balance: Option<serde_json::Value>,
    /// Not supported: given, it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub docker_socket: Option<serde_json::Value>,
    /// Not supported: given, it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub ignore_docker_version: Option<serde_json::Value>,
}

impl ClusterRequest {
    /// Fields of [`Cluster`] that a request may hold, so that an answer can be sent back, and that
    /// mean nothing there.
    pub const READ_ONLY: &[&str] = &[
        "id",
        "type",
        "links",
        "creationTimestamp",
        "deletionTimestamp",
        "status",
        "reason",
        "reasonSince",
        "nodeCount",
        "readyNodeCount",
        "version",
        "zcloudVersion",
        "cpu",
        "cpuUsed",
        "cpuUsedRatio",
        "memory",
        "memoryUsed",
        "memoryUsedRatio",
        "pod",
        "podUsed",
        "podUsedRatio",
        "usageMeasured",
        "origin",
        "operation",
        "canceling",
        "certificatesExpireAt",
        "warnings",
        "pending",
        "owner",
        "epoch",
    ];

    /// The same for the entries of `nodes`: fields of a node that a client may have kept.
    pub const NODE_READ_ONLY: &[&str] = &[
        "id",
        "type",
        "links",
        "creationTimestamp",
        "deletionTimestamp",
        "status",
        "reason",
        "labels",
        "annotations",
        "operatingSystem",
        "operatingSystemImage",
        "dockerVersion",
        "kubeletVersion",
        "podCidr",
        "installed",
        "cordoned",
        "drain",
        "agent",
        "operation",
        "cpu",
        "cpuUsed",
        "cpuUsedRatio",
        "memory",
        "memoryUsed",
        "memoryUsedRatio",
        "pod",
        "podUsed",
        "podUsedRatio",
    ];
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "node-1")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "10.0.0.11")]
    pub address: Option<String>,
    /// `controlplane` or `worker`, and with it `etcd` and `edge`. If no node names `etcd`, it runs
    /// on the controlplane nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roles: Option<Vec<String>>,
    /// The host's public key or its fingerprint (`SHA256:…`); without it the key of the first
    /// contact is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistryRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "registry.example.com:5000")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Never shown; empty in an update keeps the old one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, write_only)]
    pub password: Option<Secret>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_cert: Option<String>,
}

/// A cluster that exists already: its kubeconfig, or the state document of the original.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImportCluster {
    /// With everything in it: no files, no programs to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, write_only)]
    pub kube_config: Option<Secret>,
    /// `{zkeConfig, certificatesBundle}`
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, write_only)]
    pub current_state: Option<Secret<serde_json::Value>>,
    /// Taken where `currentState` is missing or empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, write_only)]
    pub desired_state: Option<Secret<serde_json::Value>>,
}

/// What would be done, host by host. Nothing has been touched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    pub hosts: Vec<PlanHost>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanHost {
    /// The node's name.
    pub host: String,
    pub changes: Vec<PlanChange>,
    /// What else is to be said, such as why nothing is known of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanChange {
    #[schema(example = "write_file")]
    pub action: String,
    #[schema(example = "/etc/wharf/kubelet.yaml")]
    pub subject: String,
}

/// Whether machines can become the nodes of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preflight {
    /// Whether there is no finding of severity `error`.
    pub ok: bool,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// The node's name.
    pub host: String,
    #[schema(example = "memory")]
    pub check: String,
    /// `error` or `warning`
    pub severity: String,
    pub message: String,
    pub hint: String,
}

/// Whoever writes YAML writes a port without quotes.
fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TextOrNumber {
        Text(String),
        Number(u64),
    }
    Ok(Option::<TextOrNumber>::deserialize(deserializer)?.map(|value| match value {
        TextOrNumber::Text(text) => text,
        TextOrNumber::Number(number) => number.to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_sent_whole_and_logged_without_its_secrets() {
        let request = ClusterRequest {
            ssh_key: Some(Secret("swordfish".to_owned())),
            private_registrys: Some(vec![RegistryRequest {
                password: Some(Secret("swordfish".to_owned())),
                ..RegistryRequest::default()
            }]),
            cluster_dns_service_ip: Some("10.43.0.10".to_owned()),
            ..ClusterRequest::default()
        };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(
            text,
            r#"{"sshKey":"swordfish","clusterDNSServiceIP":"10.43.0.10","privateRegistrys":[{"password":"swordfish"}]}"#
        );
        assert_eq!(serde_json::from_str::<ClusterRequest>(&text).unwrap(), request);
        assert!(!format!("{request:?}").contains("swordfish"));
    }

    #[test]
    fn a_port_is_text_or_a_number() {
        for text in [r#"{"sshPort":"22"}"#, r#"{"sshPort":22}"#] {
            let request: ClusterRequest = serde_json::from_str(text).unwrap();
            assert_eq!(request.ssh_port.as_deref(), Some("22"));
        }
        for none in ["{}", r#"{"sshPort":null}"#] {
            assert_eq!(serde_json::from_str::<ClusterRequest>(none).unwrap().ssh_port, None);
        }
        assert!(serde_json::from_str::<ClusterRequest>(r#"{"sshPort":true}"#).is_err());
    }
}
