//! What must hold for a wish before anything is done about it.
//!
//! All faults are found at once, each with the path of its field, so that a user repairs a request
//! in one go. Nothing here opens a connection: what must be asked of the world (which addresses
//! other clusters use, whether a key parses) comes in as [`Surroundings`].
//!
//! Start reading at [`validate_create`] and [`validate_update`].

mod change;
mod network;
mod nodes;
mod settings;
mod words;

use std::{collections::BTreeMap, net::Ipv4Addr};

use super::{ClusterSecrets, ClusterSpec, NodeRole};

pub use change::{Known, removed_nodes};

/// A cluster's nodes. Far above what this server has been tried with, and low enough that a
/// request cannot make it hold a record of megabytes.
pub const MAX_NODES: usize = 1000;

/// A request as it came: texts that nobody has looked at yet. It holds secrets, so it has no
/// `Debug`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Draft {
    pub name: Option<String>,
    pub nodes: Option<Vec<NodeDraft>>,
    pub network: Option<NetworkDraft>,
    pub single_cloud_address: Option<String>,
    pub ssh_user: Option<String>,
    pub ssh_key: Option<String>,
    pub ssh_key_passphrase: Option<String>,
    pub ssh_port: Option<String>,
    pub ssh_jump_host: Option<String>,
    pub ssh_jump_host_key: Option<String>,
    pub cluster_cidr: Option<String>,
    pub service_cidr: Option<String>,
    pub cluster_domain: Option<String>,
    pub cluster_dns_service_ip: Option<String>,
    pub cluster_upstream_dns: Option<Vec<String>>,
    pub kubernetes_version: Option<String>,
    pub private_registries: Option<Vec<RegistryDraft>>,
    pub disable_port_check: Option<bool>,
    /// Fields that were given although Wharf has nothing like them.
    pub unsupported: Vec<&'static str>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeDraft {
    pub name: Option<String>,
    pub address: Option<String>,
    pub roles: Option<Vec<String>>,
    pub host_key: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkDraft {
    pub plugin: Option<String>,
    pub iface: Option<String>,
}

#[derive(Clone, Default, PartialEq, Eq)]
pub struct RegistryDraft {
    pub url: Option<String>,
    pub user: Option<String>,
    pub password: Option<String>,
    pub ca_cert: Option<String>,
}

/// What the checks must know of the world.
pub struct Surroundings<'a> {
    /// The versions of Kubernetes that can be installed; the first is the default.
    pub kubernetes_versions: &'a [String],
    /// Addresses that belong to other clusters, with their names.
    pub taken: &'a BTreeMap<Ipv4Addr, String>,
    /// Says what is wrong with an SSH key and its passphrase.
    pub check_key: &'a dyn Fn(&str, &str) -> Result<(), String>,
}

/// A wish that may be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub spec: ClusterSpec,
    pub secrets: ClusterSecrets,
}

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// `nodes[1].address`
    pub field: String,
    pub code: FaultCode,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultCode {
    DuplicateResource,
    InvalidFormat,
    InvalidOption,
    MaxLengthExceeded,
    MissingRequired,
    NotNullable,
}

/// Checks a request for a new cluster and fills in its defaults.
pub fn validate_create(draft: &Draft, around: &Surroundings<'_>) -> Result<Checked, Vec<Fault>> {
    let mut faults = Faults::default();
    faults.unsupported(draft);
    let name = settings::name(draft, &mut faults);
    let (nodes, etcd_implied) = nodes::nodes(draft, &mut faults);
    let address = settings::single_cloud_address(draft, &mut faults);
    let ranges = network::ranges(draft, &mut faults);
    let spec = ClusterSpec {
        nodes,
        etcd_implied,
        network: network::network(draft, &mut faults),
        ssh: settings::ssh(draft, None, &mut faults),
        cluster_cidr: ranges.cluster,
        service_cidr: ranges.service,
        cluster_dns_service_ip: ranges.dns,
        cluster_domain: network::domain(draft, &mut faults),
        cluster_upstream_dns: network::upstream_dns(draft, &mut faults),
        private_registries: settings::registries(draft, &mut faults),
        disable_port_check: draft.disable_port_check.unwrap_or_default(),
        ..ClusterSpec::new(
            &name,
            address,
            &settings::version(draft, around.kubernetes_versions, &mut faults),
        )
    };
    let secrets = settings::secrets(draft, None, around.check_key, &mut faults);
    network::places(&spec, around.taken, &mut faults);
    network::room(&spec, &BTreeMap::new(), &mut faults);
    faults.or(Checked { spec, secrets })
}

/// Checks a request to change a cluster against what it is. What may not change is kept where the
/// request leaves it out, and is a fault where the request says otherwise; the network and the
/// upstream DNS are kept whatever it says.
pub fn validate_update(
    draft: &Draft,
    known: &Known<'_>,
    around: &Surroundings<'_>,
) -> Result<Checked, Vec<Fault>> {
    let mut faults = Faults::default();
    faults.unsupported(draft);
    let old = known.spec;
    change::name(draft, old, &mut faults);
    change::fixed_settings(draft, old, &mut faults);
    let (nodes, etcd_implied) = nodes::nodes(draft, &mut faults);
    let spec = ClusterSpec {
        nodes,
        etcd_implied,
        single_cloud_address: settings::single_cloud_address(draft, &mut faults),
        ssh: settings::ssh(draft, Some(&old.ssh), &mut faults),
        private_registries: settings::registries(draft, &mut faults),
        disable_port_check: draft.disable_port_check.unwrap_or_default(),
        ..old.clone()
    };
    let secrets = settings::secrets(draft, Some(known.secrets), around.check_key, &mut faults);
    network::places(&spec, around.taken, &mut faults);
    network::room(&spec, known.nodes, &mut faults);
    if draft.nodes.as_ref().is_some_and(|nodes| nodes.len() <= MAX_NODES) {
        change::nodes(&spec, known, &mut faults);
    }
    faults.or(Checked { spec, secrets })
}

/// Checks a request to change an imported cluster: its nodes are not ours to change, so only the
/// settings are looked at. `shown` are the nodes that the API shows, which may be sent back.
pub fn validate_imported(
    draft: &Draft,
    known: &Known<'_>,
    shown: &[NodeDraft],
    around: &Surroundings<'_>,
) -> Result<Checked, Vec<Fault>> {
    let mut faults = Faults::default();
    faults.unsupported(draft);
    change::name(draft, known.spec, &mut faults);
    change::fixed_settings(draft, known.spec, &mut faults);
    change::imported_nodes(draft, shown, &mut faults);
    let mut spec = known.spec.clone();
    if words::given(draft.single_cloud_address.as_deref()).is_some() {
        spec.single_cloud_address = settings::single_cloud_address(draft, &mut faults);
    }
    if words::given(draft.ssh_user.as_deref()).is_some() {
        spec.ssh = settings::ssh(draft, Some(&known.spec.ssh), &mut faults);
    }
    let mut secrets = known.secrets.clone();
    if words::given(draft.ssh_key.as_deref()).is_some() {
        secrets = settings::secrets(draft, Some(known.secrets), around.check_key, &mut faults);
    }
    faults.or(Checked { spec, secrets })
}

/// What may be done but is worth knowing.
pub fn warnings(spec: &ClusterSpec) -> Vec<String> {
    let members = spec.nodes_with(NodeRole::Etcd).count();
    let mut warnings = Vec::new();
    if members > 0 && members.is_multiple_of(2) {
        warnings.push(format!(
            "{members} etcd members survive the loss of no more machines than {} would: use an odd \
             number",
            members - 1
        ));
    }
    warnings
}

/// Faults as they are found.
#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, field: impl Into<String>, code: FaultCode, message: impl Into<String>) {
        self.0.push(Fault { field: field.into(), code, message: message.into() });
    }

    fn missing(&mut self, field: &str) {
        self.add(field, FaultCode::MissingRequired, format!("field {field} is missing"));
    }

    fn empty(&mut self, field: &str) {
        self.add(field, FaultCode::NotNullable, format!("field {field} must not be empty"));
    }

    fn unsupported(&mut self, draft: &Draft) {
        for field in &draft.unsupported {
            self.add(*field, FaultCode::InvalidOption, format!("{field} is not supported"));
        }
    }

    fn or<T>(self, value: T) -> Result<T, Vec<Fault>> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }
}

#[cfg(test)]
mod tests;
