//! What the server chooses for each node once and records: the addresses of its pods, and the members
//! with which its etcd starts.
//!
//! A node keeps its range for life, also when others come and go, because running pods have addresses
//! out of it.

use std::collections::BTreeMap;

use ipnet::Ipv4Net;

use crate::cluster::{ClusterSpec, EtcdStart, NodeRecord, NodeRole, NodeSpec};

/// A node's range in a cluster that has room for it: 254 pods.
const COMFORTABLE_PREFIX: u8 = 24;
/// The smallest range that is worth a node: 14 pods with the network and the bridge taken off.
const SMALLEST_PREFIX: u8 = 28;
/// How many nodes a small cluster range is cut for at least.
const NODES_AT_LEAST: u32 = 16;

/// There are more nodes than ranges.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "clusterCidr {cluster_cidr} has room for {room} nodes with a /{prefix} of pod addresses each, and no range is left for node {node}"
)]
pub struct Exhausted {
    pub node: String,
    pub cluster_cidr: Ipv4Net,
    pub prefix: u8,
    pub room: u64,
}

/// The pod addresses of every node of the wish, by its name.
///
/// Nodes that have a range keep it, and ranges of nodes that are not gone yet (they are in the
/// records, though no longer in the wish) are not given away.
pub fn allocate_pod_cidrs(
    spec: &ClusterSpec,
    records: &BTreeMap<String, NodeRecord>,
) -> Result<BTreeMap<String, Ipv4Net>, Exhausted> {
    let prefix = node_prefix(spec.cluster_cidr, records);
    let mut taken: Vec<Ipv4Net> = records.values().map(|record| record.pod_cidr).collect();
    let mut free = subnets(spec.cluster_cidr, prefix);
    let mut given = BTreeMap::new();
    // In the order of the wish, so that what a user listed first has the first range.
    for node in &spec.nodes {
        let range = match records.get(&node.name) {
            Some(record) => record.pod_cidr,
            None => free.find(|range| !taken.iter().any(|other| overlap(*range, *other))).ok_or(
                Exhausted {
                    node: node.name.clone(),
                    cluster_cidr: spec.cluster_cidr,
                    prefix,
                    room: 1 << prefix.saturating_sub(spec.cluster_cidr.prefix_len()),
                },
            )?,
        };
        taken.push(range);
        given.insert(node.name.clone(), range);
    }
    Ok(given)
}

/// With which members the etcd of each node of the wish starts, by its name.
///
/// Where there is no etcd yet, all start together. Later each one joins those that are there: first
/// the nodes that were to join before, then the new ones in the order of the wish, each with all
/// before it. The number of its members is thus the order in which they join.
pub fn choose_etcd_starts(
    spec: &ClusterSpec,
    records: &BTreeMap<String, NodeRecord>,
) -> BTreeMap<String, EtcdStart> {
    let start = |name: &str| records.get(name).and_then(|record| record.etcd.as_ref());
    let address = |node: &NodeSpec| (node.name.clone(), node.address);
    let wished = || spec.nodes_with(NodeRole::Etcd);
    if records.values().all(|record| record.etcd.is_none()) {
        let members: BTreeMap<_, _> = wished().map(address).collect();
        let start = EtcdStart { members, joins: false };
        return wished().map(|node| (node.name.clone(), start.clone())).collect();
    }
    let is_member = |record: &NodeRecord| {
        record.etcd.as_ref().is_some_and(|start| record.installed || !start.joins)
    };
    let (settled, mut joining): (Vec<&NodeSpec>, Vec<&NodeSpec>) =
        wished().partition(|node| records.get(&node.name).is_some_and(is_member));
    joining.sort_by_key(|node| start(&node.name).is_none());
    let mut members: BTreeMap<_, _> = settled.iter().copied().map(address).collect();
    let kept =
        settled.iter().filter_map(|node| Some((node.name.clone(), start(&node.name)?.clone())));
    let mut starts: BTreeMap<String, EtcdStart> = kept.collect();
    for node in joining {
        members.extend([address(node)]);
        starts.insert(node.name.clone(), EtcdStart { members: members.clone(), joins: true });
    }
    starts
}

/// How long the prefix of a node's range is: as in the ranges given already, else /24, or longer
/// where clusterCidr would hold too few of those.
fn node_prefix(cluster_cidr: Ipv4Net, records: &BTreeMap<String, NodeRecord>) -> u8 {
    if let Some(record) = records.values().next() {
        return record.pod_cidr.prefix_len();
    }
    let many = cluster_cidr.prefix_len().saturating_add(NODES_AT_LEAST.ilog2() as u8);
    many.clamp(COMFORTABLE_PREFIX, SMALLEST_PREFIX).max(cluster_cidr.prefix_len())
}

/// All ranges with this prefix.
fn subnets(cidr: Ipv4Net, prefix: u8) -> impl Iterator<Item = Ipv4Net> {
    cidr.trunc().subnets(prefix).into_iter().flatten()
}

fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// How many pods fit into a node's range: without its network and broadcast addresses and the
/// bridge, and with an address over for each pod that is being replaced.
pub fn pods_in(range: Ipv4Net) -> u32 {
    /// What kubelet takes without being asked.
    const USUAL: u32 = 110;
    let addresses = 1_u32.checked_shl(u32::from(32 - range.prefix_len())).unwrap_or(u32::MAX);
    addresses.saturating_sub(3).clamp(1, USUAL)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use super::*;
    use crate::cluster::{NodeRole, NodeSpec};

    fn spec(cidr: &str, nodes: usize) -> ClusterSpec {
        let mut spec =
            ClusterSpec::new("demo", SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1), "1.36.3");
        spec.cluster_cidr = cidr.parse().unwrap();
        spec.nodes = (0..nodes).map(node).collect();
        spec
    }

    fn node(n: usize) -> NodeSpec {
        let address = Ipv4Addr::from(0x0a00_0001 + u32::try_from(n).unwrap());
        NodeSpec { name: format!("n{n}"), address, roles: vec![NodeRole::Worker], host_key: None }
    }

    fn record(n: usize, cidr: &str) -> (String, NodeRecord) {
        let spec = node(n);
        let pod_cidr = cidr.parse().unwrap();
        (
            spec.name.clone(),
            NodeRecord { spec, pod_cidr, host_key: None, etcd: None, installed: true },
        )
    }

    #[test]
    fn a_node_gets_a_24_or_less_where_the_cluster_range_is_small() {
        for (cluster, nodes, expected) in [
            ("10.42.0.0/16", 3, vec!["10.42.0.0/24", "10.42.1.0/24", "10.42.2.0/24"]),
            // Host bits of the wish do not shift the ranges.
            ("10.42.7.9/16", 1, vec!["10.42.0.0/24"]),
            ("10.0.0.0/8", 2, vec!["10.0.0.0/24", "10.0.1.0/24"]),
            ("10.1.0.0/20", 2, vec!["10.1.0.0/24", "10.1.1.0/24"]),
            ("10.1.0.0/22", 2, vec!["10.1.0.0/26", "10.1.0.64/26"]),
            ("10.1.0.0/26", 2, vec!["10.1.0.0/28", "10.1.0.16/28"]),
            ("10.1.0.0/29", 1, vec!["10.1.0.0/29"]),
        ] {
            let given = allocate_pod_cidrs(&spec(cluster, nodes), &BTreeMap::new()).unwrap();
            let given: Vec<String> = given.values().map(ToString::to_string).collect();
            assert_eq!(given, expected, "{cluster}");
        }
    }

    #[test]
    fn a_node_keeps_its_range_and_nobody_gets_that_of_a_node_not_yet_gone() {
        let records = BTreeMap::from([record(1, "10.42.0.0/24"), record(9, "10.42.2.0/24")]);
        let given = allocate_pod_cidrs(&spec("10.42.0.0/16", 3), &records).unwrap();
        let range = |name: &str| given[name].to_string();
        assert_eq!(range("n0"), "10.42.1.0/24");
        assert_eq!(range("n1"), "10.42.0.0/24");
        assert_eq!(range("n2"), "10.42.3.0/24");
        assert!(!given.contains_key("n9"));
    }

    #[test]
    fn more_nodes_than_ranges_is_an_error_that_names_the_node() {
        let spec = spec("10.1.0.0/26", 5);
        let error = allocate_pod_cidrs(&spec, &BTreeMap::new()).unwrap_err();
        assert_eq!((error.node.as_str(), error.room), ("n4", 4));
        // A range that came free is used again.
        let records = BTreeMap::from([record(0, "10.1.0.32/28")]);
        let mut four = spec;
        four.nodes.truncate(4);
        let given = allocate_pod_cidrs(&four, &records).unwrap();
        assert_eq!(given["n3"].to_string(), "10.1.0.48/28");
    }

    #[test]
    fn members_of_etcd_start_together_and_later_join_one_after_the_other() {
        let mut spec = spec("10.42.0.0/16", 4);
        let wish = |spec: &mut ClusterSpec, names: &[&str]| {
            spec.nodes = names.iter().map(|name| node(name[1..].parse().unwrap())).collect();
            spec.nodes.iter_mut().for_each(|node| node.roles.push(NodeRole::Etcd));
        };
        let told = |starts: &BTreeMap<String, EtcdStart>| -> Vec<String> {
            let told = |(name, start): (&String, &EtcdStart)| {
                let members: Vec<&str> = start.members.keys().map(String::as_str).collect();
                format!("{name}: {} {}", members.join(","), start.joins)
            };
            starts.iter().map(told).collect()
        };
        wish(&mut spec, &["n1", "n0"]);
        let first = choose_etcd_starts(&spec, &BTreeMap::new());
        assert_eq!(told(&first), ["n0: n0,n1 false", "n1: n0,n1 false"]);

        // Names do not decide on the order, and the first members keep what they have.
        let mut records = BTreeMap::from([record(0, "10.42.0.0/24"), record(1, "10.42.1.0/24")]);
        let keep = |records: &mut BTreeMap<String, NodeRecord>, starts: &BTreeMap<_, EtcdStart>| {
            for (name, start) in starts {
                records.get_mut(name).unwrap().etcd = Some(start.clone());
            }
        };
        keep(&mut records, &first);
        wish(&mut spec, &["n0", "n1", "n9", "n10"]);
        let grown = choose_etcd_starts(&spec, &records);
        let joined = ["n10: n0,n1,n10,n9 true", "n9: n0,n1,n9 true"];
        assert_eq!(told(&grown), [&["n0: n0,n1 false", "n1: n0,n1 false"][..], &joined].concat());

        // One that was to join before comes first; one that went away is no member.
        records.extend([record(10, "10.42.2.0/24"), record(9, "10.42.3.0/24")]);
        for name in ["n9", "n10"] {
            records.get_mut(name).unwrap().installed = false;
        }
        keep(&mut records, &grown);
        wish(&mut spec, &["n5", "n0", "n1", "n10"]);
        let again = choose_etcd_starts(&spec, &records);
        assert_eq!(again["n10"].members.keys().collect::<Vec<_>>(), ["n0", "n1", "n10"]);
        assert_eq!(again["n5"].members.keys().collect::<Vec<_>>(), ["n0", "n1", "n10", "n5"]);
    }

    #[test]
    fn kubelet_is_told_of_no_more_pods_than_there_are_addresses() {
        for (range, pods) in [("10.0.0.0/24", 110), ("10.0.0.0/26", 61), ("10.0.0.0/28", 13)] {
            assert_eq!(pods_in(range.parse().unwrap()), pods, "{range}");
        }
    }
}
