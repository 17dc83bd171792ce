//! Each node by itself, and all of them together.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use super::{
    Draft, FaultCode, Faults, MAX_NODES, NodeDraft,
    words::{LABEL_MAX, given, is_dns_name, is_host_key},
};
use crate::cluster::{NodeRole, NodeSpec};

/// The nodes of a request, and whether etcd goes with controlplane because no node names it. Nodes
/// with faults are among them, as far as they can be understood.
pub(super) fn nodes(draft: &Draft, faults: &mut Faults) -> (Vec<NodeSpec>, bool) {
    let Some(drafts) = &draft.nodes else {
        faults.missing("nodes");
        return (Vec::new(), false);
    };
    if drafts.is_empty() {
        faults.empty("nodes");
        return (Vec::new(), false);
    }
    if drafts.len() > MAX_NODES {
        let message = format!("a cluster has at most {MAX_NODES} nodes, not {}", drafts.len());
        faults.add("nodes", FaultCode::MaxLengthExceeded, message);
        return (Vec::new(), false);
    }
    let mut nodes: Vec<NodeSpec> =
        drafts.iter().enumerate().map(|(i, draft)| node(i, draft, faults)).collect();
    duplicates(&nodes, faults);
    let etcd_implied = !nodes.iter().any(|node| node.is(NodeRole::Etcd));
    if etcd_implied {
        for node in nodes.iter_mut().filter(|node| node.is(NodeRole::Controlplane)) {
            node.roles.push(NodeRole::Etcd);
            node.roles.sort();
        }
    }
    let is_missing = |role| !nodes.iter().any(|node| node.is(role));
    if [NodeRole::Controlplane, NodeRole::Etcd, NodeRole::Worker].into_iter().any(is_missing) {
        let message = "a cluster must have at least one controlplane, one etcd and one worker node";
        faults.add("nodes", FaultCode::InvalidOption, message);
    }
    (nodes, etcd_implied)
}

fn node(i: usize, draft: &NodeDraft, faults: &mut Faults) -> NodeSpec {
    let name = name(&format!("nodes[{i}].name"), draft, faults);
    // What a person calls the node, also when its name is what is wrong.
    let called = if name.is_empty() { format!("node {i}") } else { name.clone() };
    let host_key = given(draft.host_key.as_deref()).map(str::to_owned);
    if host_key.as_deref().is_some_and(|key| !is_host_key(key)) {
        let message = format!(
            "{called}: hostKey must be an OpenSSH public key or its fingerprint (SHA256:…)"
        );
        faults.add(format!("nodes[{i}].hostKey"), FaultCode::InvalidFormat, message);
    }
    NodeSpec {
        address: address(&format!("nodes[{i}].address"), draft, faults),
        roles: roles(&format!("nodes[{i}].roles"), &called, draft, faults),
        name,
        host_key,
    }
}

fn name(field: &str, draft: &NodeDraft, faults: &mut Faults) -> String {
    let name = match (&draft.name, given(draft.name.as_deref())) {
        (_, Some(name)) => name,
        (None, None) => {
            faults.missing(field);
            return String::new();
        }
        (Some(_), None) => {
            faults.empty(field);
            return String::new();
        }
    };
    if name.len() > LABEL_MAX {
        let message = format!("the node's name {name} must have at most {LABEL_MAX} characters");
        faults.add(field, FaultCode::MaxLengthExceeded, message);
    } else if !is_dns_name(name) {
        let message = format!(
            "the node's name {name} may hold lower-case letters, digits, '-' and '.', and must \
             begin and end with a letter or digit"
        );
        faults.add(field, FaultCode::InvalidFormat, message);
    }
    name.to_owned()
}

fn address(field: &str, draft: &NodeDraft, faults: &mut Faults) -> Ipv4Addr {
    let text = match (&draft.address, given(draft.address.as_deref())) {
        (_, Some(text)) => text,
        (None, None) => {
            faults.missing(field);
            return Ipv4Addr::UNSPECIFIED;
        }
        (Some(_), None) => {
            faults.empty(field);
            return Ipv4Addr::UNSPECIFIED;
        }
    };
    let Ok(address) = text.parse::<Ipv4Addr>() else {
        let message = format!("{text} node address isn't an ipv4 address");
        faults.add(field, FaultCode::InvalidFormat, message);
        return Ipv4Addr::UNSPECIFIED;
    };
    if address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address.is_broadcast()
    {
        let message = format!("{text} can't be the address of one machine that others reach");
        faults.add(field, FaultCode::InvalidOption, message);
        return Ipv4Addr::UNSPECIFIED;
    }
    address
}

fn roles(field: &str, called: &str, draft: &NodeDraft, faults: &mut Faults) -> Vec<NodeRole> {
    let mut roles = BTreeSet::new();
    let mut is_understood = true;
    for (i, text) in draft.roles.iter().flatten().enumerate() {
        let text = text.trim();
        let Some(role) = NodeRole::ALL.into_iter().find(|role| role.name() == text) else {
            let options = NodeRole::ALL.map(NodeRole::name).join(" ");
            let message = format!("{called}: role {text} isn't included in options [{options}]");
            faults.add(format!("{field}[{i}]"), FaultCode::InvalidOption, message);
            is_understood = false;
            continue;
        };
        if !roles.insert(role) {
            let message = format!("{called} node has duplicate role {text}");
            faults.add(format!("{field}[{i}]"), FaultCode::InvalidOption, message);
        }
    }
    let has = |role| roles.contains(&role);
    if has(NodeRole::Controlplane) && has(NodeRole::Worker) {
        let message = format!("{called} controlplane node can't be worker");
        faults.add(field, FaultCode::InvalidOption, message);
    } else if draft.roles.is_none() {
        faults.missing(field);
    } else if is_understood && !has(NodeRole::Controlplane) && !has(NodeRole::Worker) {
        let message = format!("{called} must be controlplane or worker");
        faults.add(field, FaultCode::InvalidOption, message);
    }
    roles.into_iter().collect()
}

/// No two nodes share an address or a name. Names that differ only in case are the same to DNS.
fn duplicates(nodes: &[NodeSpec], faults: &mut Faults) {
    let mut addresses = BTreeMap::new();
    let mut names = BTreeMap::new();
    for (i, node) in nodes.iter().enumerate() {
        if !node.address.is_unspecified()
            && let Some(first) = addresses.insert(node.address, i)
        {
            let message = format!("duplicate node address {}, as in nodes[{first}]", node.address);
            faults.add(format!("nodes[{i}].address"), FaultCode::DuplicateResource, message);
        }
        let name = node.name.to_ascii_lowercase();
        if !name.is_empty()
            && let Some(first) = names.insert(name, i)
        {
            let message = format!("duplicate node name {}, as in nodes[{first}]", node.name);
            faults.add(format!("nodes[{i}].name"), FaultCode::DuplicateResource, message);
        }
    }
}
