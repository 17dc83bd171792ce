//! What an update may not do.

use std::{collections::BTreeMap, net::Ipv4Addr};

use super::{
    Draft, FaultCode, Faults, NodeDraft, network::parse_range, settings::plain_version,
    words::given,
};
use crate::cluster::{ClusterSecrets, ClusterSpec, NodeRecord, NodeRole, NodeSpec};

/// A cluster as it is before an update.
pub struct Known<'a> {
    pub spec: &'a ClusterSpec,
    pub secrets: &'a ClusterSecrets,
    pub nodes: &'a BTreeMap<String, NodeRecord>,
    /// Whether it was ever Running.
    pub created: bool,
}

impl Known<'_> {
    /// The nodes that a change must respect. Once a cluster runs, a node that an update asked for
    /// and never got is only a wish, and wishes can be taken back.
    fn existing(&self) -> impl Iterator<Item = &NodeSpec> {
        self.spec.nodes.iter().filter(|node| !self.created || self.is_installed(&node.name))
    }

    fn is_installed(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|record| record.installed)
    }

    /// The machines that hold something of the cluster, though the wish can do without them: nodes
    /// on their way out, and those that never became one.
    fn half(&self) -> impl Iterator<Item = &NodeSpec> {
        let records = self.nodes.values().filter(|_| self.created);
        let specs = records
            .filter(|record| !record.installed || self.spec.node(&record.spec.name).is_none());
        specs.map(|record| &record.spec)
    }
}

/// The nodes that a change takes out of a cluster, with the place that they had in it.
pub fn removed_nodes<'a>(known: &'a Known<'_>, spec: &ClusterSpec) -> Vec<&'a NodeSpec> {
    known.existing().filter(|old| spec.node(&old.name).is_none()).collect()
}

pub(super) fn name(draft: &Draft, old: &ClusterSpec, faults: &mut Faults) {
    match (&draft.name, given(draft.name.as_deref())) {
        (None, _) => faults.missing("name"),
        (Some(_), None) => faults.empty("name"),
        (Some(_), Some(name)) if name == old.name => {}
        (Some(_), Some(name)) => {
            let message =
                format!("the cluster's name can't be changed from {} to {name}", old.name);
            faults.add("name", FaultCode::InvalidOption, message);
        }
    }
}

/// What was settled when the cluster was made.
pub(super) fn fixed_settings(draft: &Draft, old: &ClusterSpec, faults: &mut Faults) {
    let range = |text: &str| parse_range(text);
    fixed("clusterCidr", draft.cluster_cidr.as_deref(), &old.cluster_cidr, range, faults);
    fixed("serviceCidr", draft.service_cidr.as_deref(), &old.service_cidr, range, faults);
    let text = |text: &str| Some(text.to_owned());
    let domain = draft.cluster_domain.as_deref();
    fixed("clusterDomain", domain, &old.cluster_domain, text, faults);
    let dns = draft.cluster_dns_service_ip.as_deref();
    let address = |text: &str| text.parse::<Ipv4Addr>().ok();
    fixed("clusterDNSServiceIP", dns, &old.cluster_dns_service_ip, address, faults);
    let version = |text: &str| Some(plain_version(text).to_owned());
    let given = draft.kubernetes_version.as_deref();
    fixed("kubernetesVersion", given, &old.kubernetes_version, version, faults);
}

/// A fault if the field is given and means something else than before.
fn fixed<T: PartialEq + std::fmt::Display>(
    field: &str,
    text: Option<&str>,
    old: &T,
    parse: impl Fn(&str) -> Option<T>,
    faults: &mut Faults,
) {
    let Some(text) = given(text) else { return };
    if parse(text).as_ref() != Some(old) {
        let message = format!("{field} can't be changed from {old} to {text}");
        faults.add(field, FaultCode::InvalidOption, message);
    }
}

/// Controlplane and etcd nodes come but do not go, and a node stays what it is.
pub(super) fn nodes(spec: &ClusterSpec, known: &Known<'_>, faults: &mut Faults) {
    let by_name = |name: &str| spec.nodes.iter().position(|node| node.name == name);
    let by_address = |address| spec.nodes.iter().position(|node| node.address == address);
    for old in known.existing() {
        let same_address = by_address(old.address).and_then(|i| Some((i, spec.nodes.get(i)?)));
        let same_name = by_name(&old.name).and_then(|i| Some((i, spec.nodes.get(i)?)));
        match (same_address, same_name) {
            (None, None) => removed(old, faults),
            (Some((i, new)), _) if new.name != old.name => {
                let message = format!(
                    "doesn't support change node name [{}] from {} to {}",
                    old.address, old.name, new.name
                );
                faults.add(format!("nodes[{i}].name"), FaultCode::InvalidOption, message);
            }
            (_, Some((i, new))) if new.address != old.address => {
                let message = format!(
                    "doesn't support change node address of {} from {} to {}",
                    old.name, old.address, new.address
                );
                faults.add(format!("nodes[{i}].address"), FaultCode::InvalidOption, message);
            }
            (_, Some((i, new))) if new.roles != old.roles => {
                let message = format!("doesn't support change node roles [{}]", old.address);
                faults.add(format!("nodes[{i}].roles"), FaultCode::InvalidOption, message);
            }
            _ => {}
        }
    }
    for (i, new) in spec.nodes.iter().enumerate() {
        let meets = |half: &&NodeSpec| (half.name == new.name) != (half.address == new.address);
        if let Some(half) = known.half().find(meets) {
            let message = format!(
                "the machine {} still holds what was begun of node {}; update without {} first, \
                 which cleans it",
                half.address, half.name, new.name
            );
            let field = if half.name == new.name { "address" } else { "name" };
            faults.add(format!("nodes[{i}].{field}"), FaultCode::InvalidOption, message);
        }
    }
}

fn removed(old: &NodeSpec, faults: &mut Faults) {
    let role = [NodeRole::Controlplane, NodeRole::Etcd].into_iter().find(|role| old.is(*role));
    if let Some(role) = role {
        let message = format!(
            "{} node only can add, {} ({}) not in new config",
            role.name(),
            old.address,
            old.name
        );
        faults.add("nodes", FaultCode::InvalidOption, message);
    }
}

/// An imported cluster's nodes may be left out or sent back as they are shown.
pub(super) fn imported_nodes(draft: &Draft, shown: &[NodeDraft], faults: &mut Faults) {
    let key = |node: &NodeDraft| {
        let trim = |text: &Option<String>| text.as_deref().unwrap_or_default().trim().to_owned();
        (trim(&node.name), trim(&node.address))
    };
    let sorted = |nodes: &[NodeDraft]| {
        let mut keys: Vec<_> = nodes.iter().map(key).collect();
        keys.sort();
        keys
    };
    let asked = draft.nodes.as_deref().unwrap_or_default();
    if !asked.is_empty() && sorted(asked) != sorted(shown) {
        let message = "the nodes of an imported cluster can't be changed";
        faults.add("nodes", FaultCode::InvalidOption, message);
    }
}
