//! Ranges, names and addresses, and that none of them are in each other's way.

use std::{collections::BTreeMap, net::Ipv4Addr};

use ipnet::Ipv4Net;

use super::{
    Draft, FaultCode, Faults,
    words::{given, is_dns_name, is_one_word},
};
use crate::{
    cluster::{
        ClusterSpec, NetworkPlugin, NetworkSpec, NodeRecord,
        spec::{CLUSTER_CIDR, SERVICE_CIDR},
    },
    install::allocate::allocate_pod_cidrs,
};

/// An API server refuses larger and smaller ranges for Services.
const SERVICE_PREFIX_MIN: u8 = 12;
const SERVICE_PREFIX_MAX: u8 = 29;
/// The DNS service's place in the range of Services, where there is room.
const DNS_PLACE: u32 = 10;
/// The API server's own Service has the first address.
const API_PLACE: u32 = 1;
/// What CoreDNS forwards to at most.
const UPSTREAM_MAX: usize = 15;
/// The kernel's limit, without the zero at the end.
const IFACE_MAX: usize = 15;
const UPSTREAM_DNS: [Ipv4Addr; 2] =
    [Ipv4Addr::new(223, 5, 5, 5), Ipv4Addr::new(114, 114, 114, 114)];

/// Ranges that have a meaning of their own on every machine.
const RESERVED: [(Ipv4Net, &str); 4] = [
    (Ipv4Net::new_assert(Ipv4Addr::new(0, 0, 0, 0), 8), "\"this network\""),
    (Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8), "loopback"),
    (Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16), "link-local"),
    (Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 3), "multicast and reserved"),
];

/// The ranges of pods and Services, and the DNS service's place in the latter.
pub(super) struct Ranges {
    pub cluster: Ipv4Net,
    pub service: Ipv4Net,
    pub dns: Ipv4Addr,
}

pub(super) fn ranges(draft: &Draft, faults: &mut Faults) -> Ranges {
    let cluster = range("clusterCidr", draft.cluster_cidr.as_deref(), faults);
    let service = range("serviceCidr", draft.service_cidr.as_deref(), faults);
    if let Ok(range) = service
        && !(SERVICE_PREFIX_MIN..=SERVICE_PREFIX_MAX).contains(&range.prefix_len())
    {
        let message = format!(
            "serviceCidr {range}: the prefix must be from /{SERVICE_PREFIX_MIN} to \
             /{SERVICE_PREFIX_MAX}"
        );
        faults.add("serviceCidr", FaultCode::InvalidOption, message);
    }
    // A range that is wrong was reported; what hangs on it cannot be judged.
    let known = cluster.as_ref().ok().zip(service.as_ref().ok());
    if let Some((cluster, service)) = known
        && overlap(*cluster, *service)
    {
        let message = format!("serviceCidr {service} overlaps clusterCidr {cluster}");
        faults.add("serviceCidr", FaultCode::InvalidOption, message);
    }
    let dns = dns(draft, service.as_ref().ok().copied(), faults);
    Ranges {
        cluster: cluster.unwrap_or(CLUSTER_CIDR),
        service: service.unwrap_or(SERVICE_CIDR),
        dns,
    }
}

/// A range, or its default; an error if it is wrong, which has been reported.
fn range(field: &str, text: Option<&str>, faults: &mut Faults) -> Result<Ipv4Net, ()> {
    let default = if field == "clusterCidr" { CLUSTER_CIDR } else { SERVICE_CIDR };
    let Some(text) = given(text) else { return Ok(default) };
    let Some(range) = parse_range(text) else {
        let message = format!("{field} {text} isn't an ipv4 CIDR such as {default}");
        faults.add(field, FaultCode::InvalidFormat, message);
        return Err(());
    };
    if range.trunc() != range {
        let message =
            format!("{field} {text} names an address, not a range: use {}", range.trunc());
        faults.add(field, FaultCode::InvalidFormat, message);
        return Err(());
    }
    if let Some((_, what)) = RESERVED.iter().find(|(reserved, _)| overlap(range, *reserved)) {
        let message = format!("{field} {text} overlaps the range for {what}");
        faults.add(field, FaultCode::InvalidOption, message);
        return Err(());
    }
    Ok(range)
}

pub(super) fn parse_range(text: &str) -> Option<Ipv4Net> {
    text.parse().ok()
}

pub(super) fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b) || b.contains(&a)
}

fn dns(draft: &Draft, service: Option<Ipv4Net>, faults: &mut Faults) -> Ipv4Addr {
    const FIELD: &str = "clusterDNSServiceIP";
    let default = default_dns(service.unwrap_or(SERVICE_CIDR));
    let Some(text) = given(draft.cluster_dns_service_ip.as_deref()) else { return default };
    let Ok(address) = text.parse::<Ipv4Addr>() else {
        let message = format!("{FIELD} {text} isn't an ipv4 address");
        faults.add(FIELD, FaultCode::InvalidFormat, message);
        return default;
    };
    let Some(service) = service else { return address };
    if !service.contains(&address) {
        let message = format!("{FIELD} {address} not in serviceCidr {service}");
        faults.add(FIELD, FaultCode::InvalidOption, message);
    } else if address == service.network()
        || address == service.broadcast()
        || address == place(service, API_PLACE)
    {
        let message = format!("{FIELD} {address} is taken by the range itself: use {default}");
        faults.add(FIELD, FaultCode::InvalidOption, message);
    }
    address
}

fn default_dns(service: Ipv4Net) -> Ipv4Addr {
    let tenth = place(service, DNS_PLACE);
    if service.contains(&tenth) { tenth } else { place(service, API_PLACE + 1) }
}

fn place(range: Ipv4Net, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(range.network()).saturating_add(number))
}

pub(super) fn network(draft: &Draft, faults: &mut Faults) -> NetworkSpec {
    let network = draft.network.clone().unwrap_or_default();
    let plugin = match given(network.plugin.as_deref()) {
        None | Some("routed") => NetworkPlugin::Routed,
        // What the original's clients send: it connected pods by VXLAN.
        Some("vxlan" | "flannel") => NetworkPlugin::Vxlan,
        Some("none") => NetworkPlugin::None,
        Some(other) => {
            let message =
                format!("network plugin {other} isn't included in options [routed vxlan none]");
            faults.add("network.plugin", FaultCode::InvalidOption, message);
            NetworkPlugin::Routed
        }
    };
    let iface = given(network.iface.as_deref()).map(str::to_owned);
    if iface
        .as_deref()
        .is_some_and(|name| name.len() > IFACE_MAX || !is_one_word(name) || name.contains('/'))
    {
        let message = "network.iface must be the name of a network interface";
        faults.add("network.iface", FaultCode::InvalidFormat, message);
    }
    NetworkSpec { plugin, iface }
}

pub(super) fn domain(draft: &Draft, faults: &mut Faults) -> String {
    let domain = given(draft.cluster_domain.as_deref()).unwrap_or("cluster.local");
    if !is_dns_name(domain) {
        let message = format!("clusterDomain {domain} isn't a DNS name such as cluster.local");
        faults.add("clusterDomain", FaultCode::InvalidFormat, message);
    }
    domain.to_owned()
}

/// An empty list means that nothing outside is asked.
pub(super) fn upstream_dns(draft: &Draft, faults: &mut Faults) -> Vec<Ipv4Addr> {
    let Some(texts) = &draft.cluster_upstream_dns else { return UPSTREAM_DNS.to_vec() };
    if texts.len() > UPSTREAM_MAX {
        let message = format!("at most {UPSTREAM_MAX} addresses in clusterUpstreamDNS");
        faults.add("clusterUpstreamDNS", FaultCode::MaxLengthExceeded, message);
        return Vec::new();
    }
    let mut addresses = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        match text.trim().parse() {
            Ok(address) => addresses.push(address),
            Err(_) => {
                let message = format!("clusterUpstreamDNS {text} isn't an ipv4 address");
                let field = format!("clusterUpstreamDNS[{i}]");
                faults.add(field, FaultCode::InvalidFormat, message);
            }
        }
    }
    addresses
}

/// Where the machines are: not in the cluster's own ranges, not in another cluster, and not the
/// server itself.
pub(super) fn places(spec: &ClusterSpec, taken: &BTreeMap<Ipv4Addr, String>, faults: &mut Faults) {
    let server = *spec.single_cloud_address.ip();
    for (i, node) in spec.nodes.iter().enumerate() {
        let (field, address) = (format!("nodes[{i}].address"), node.address);
        if address.is_unspecified() {
            continue;
        }
        if address == server {
            let message = format!("singlecloud server IP {address} can't be a node");
            faults.add(field.clone(), FaultCode::InvalidOption, message);
        }
        if let Some(other) = taken.get(&address) {
            let message = format!("node address {address} is used by the cluster {other}");
            faults.add(field.clone(), FaultCode::DuplicateResource, message);
        }
        if let Some(range) = own_range(spec, address) {
            let message = format!("node address {address} lies in {range}");
            faults.add(field, FaultCode::InvalidOption, message);
        }
    }
    if let Some(range) = own_range(spec, server) {
        let message = format!("the server's address {server} lies in {range}");
        faults.add("singleCloudAddress", FaultCode::InvalidOption, message);
    }
}

fn own_range(spec: &ClusterSpec, address: Ipv4Addr) -> Option<String> {
    [("clusterCidr", spec.cluster_cidr), ("serviceCidr", spec.service_cidr)]
        .into_iter()
        .find(|(_, range)| range.contains(&address))
        .map(|(name, range)| format!("{name} {range}"))
}

/// Whether every node gets a range of pod addresses.
pub(super) fn room(spec: &ClusterSpec, nodes: &BTreeMap<String, NodeRecord>, faults: &mut Faults) {
    if let Err(exhausted) = allocate_pod_cidrs(spec, nodes) {
        faults.add("clusterCidr", FaultCode::InvalidOption, exhausted.to_string());
    }
}
