//! What to change in a node's kernel so that pods of all nodes reach each other, and the node reaches
//! Services.
//!
//! Nodes on the same segment are reached by a plain route. To all others leads one VXLAN device
//! that learns nothing by itself: who is behind it follows from the network file alone, because a
//! node's address in the tunnel (the first of its pod addresses) and its hardware address (made of
//! the node's own address) can be computed by everybody.
//!
//! Packets to Services get the address of a pod on their way out, but only if there is a way at all: the
//! kernel looks for it first. Where no route of the host covers the range of Services, it gets one.

use std::{collections::BTreeSet, fmt, net::Ipv4Addr};

use ipnet::Ipv4Net;

use super::{NetworkFile, NetworkMode, NetworkNode, TUNNEL_OVERHEAD};

/// What was found in the kernel: what is ours, and what we build on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObservedNetwork {
    /// The interface that the file names, or else the one with the node's address.
    pub interface: Option<Interface>,
    pub tunnel: Option<ObservedTunnel>,
    /// Routes with our mark.
    pub routes: BTreeSet<Route>,
    /// Whether a route without our mark leads to Services, such as a default route.
    pub services_routed: bool,
    /// Who is known behind the tunnel, by its neighbours and by its forwarding table.
    pub neighbours: BTreeSet<(Ipv4Addr, Mac)>,
    pub forwarding: BTreeSet<(Mac, Ipv4Addr)>,
    pub table: ObservedTable,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    pub mtu: u32,
    /// Its addresses with their prefixes: who lies in one of these is on the same segment.
    pub networks: Vec<Ipv4Net>,
}

/// The tunnel's device as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// Index of the interface below it.
    pub below: u32,
    pub local: Ipv4Addr,
    pub mac: Mac,
    pub mtu: u32,
    /// The node's address inside the tunnel.
    pub address: Ipv4Addr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedTunnel {
    /// None if the device cannot be changed into ours: another kind, number, port or way of
    /// learning, or no address or several.
    pub tunnel: Option<Tunnel>,
    pub up: bool,
}

/// The agent's table of nft rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ObservedTable {
    #[default]
    Absent,
    /// It is there, but its content is not known to be ours.
    Unknown,
    InForce(Masquerade),
}

/// Traffic of the node's pods to anywhere outside of the cluster comes from the node's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masquerade {
    pub pod_cidr: Ipv4Net,
    pub cluster_cidr: Ipv4Net,
    pub service_cidr: Ipv4Net,
}

impl Masquerade {
    pub fn of(file: &NetworkFile) -> Self {
        Self {
            pod_cidr: file.node.pod_cidr.trunc(),
            cluster_cidr: file.cluster_cidr.trunc(),
            service_cidr: file.service_cidr.trunc(),
        }
    }
}

/// A route to a node's pods, or to Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    pub to: Ipv4Net,
    pub way: Way,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Through the interface, by the address of a node on the same segment.
    Segment(Ipv4Addr),
    /// Through the tunnel, by the address of a node inside it.
    Tunnel(Ipv4Addr),
    /// Through the interface to nobody: the packets, which come from this address, get another
    /// destination before they leave, and with it another way.
    Services(Ipv4Addr),
    /// Any other; never wished for.
    Elsewhere,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(gateway) | Self::Tunnel(gateway) => write!(f, "by {gateway}"),
            Self::Services(source) => write!(f, "from {source}"),
            Self::Elsewhere => f.write_str("elsewhere"),
        }
    }
}

/// A node behind the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TunnelPeer {
    /// Its address inside the tunnel.
    pub inner: Ipv4Addr,
    pub mac: Mac,
    /// The node's own address.
    pub outer: Ipv4Addr,
}

/// A hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// That of a node's tunnel: locally administered, and different for each address.
    pub fn of(address: Ipv4Addr) -> Self {
        let [a, b, c, d] = address.octets();
        Self([0x02, 0x77, a, b, c, d])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// One change, to be carried out in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkAction {
    RemoveRoute(Route),
    RemoveTunnel,
    CreateTunnel(Tunnel),
    RaiseTunnel,
    RemoveNeighbour(Ipv4Addr, Mac),
    RemoveForwarding(Mac, Ipv4Addr),
    SetNeighbour(TunnelPeer),
    SetForwarding(TunnelPeer),
    /// Takes the place of another route to the same pods.
    SetRoute(Route),
    SetMasquerade(Masquerade),
    RemoveTable,
}

impl fmt::Display for NetworkAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemoveRoute(route) => write!(f, "remove the route to {}", route.to),
            Self::RemoveTunnel => f.write_str("remove the tunnel"),
            Self::CreateTunnel(tunnel) => write!(f, "create the tunnel from {}", tunnel.local),
            Self::RaiseTunnel => f.write_str("switch the tunnel on"),
            Self::RemoveNeighbour(address, _) => {
                write!(f, "forget the neighbour {address} in the tunnel")
            }
            Self::RemoveForwarding(_, outer) => write!(f, "forget {outer} behind the tunnel"),
            Self::SetNeighbour(peer) => write!(f, "set the neighbour {} in the tunnel", peer.inner),
            Self::SetForwarding(peer) => write!(f, "set {} behind the tunnel", peer.outer),
            Self::SetRoute(route) => write!(f, "set the route to {} {}", route.to, route.way),
            Self::SetMasquerade(rule) => write!(f, "hide {} from the outside", rule.pod_cidr),
            Self::RemoveTable => f.write_str("remove the nft table"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkDecision {
    pub actions: Vec<NetworkAction>,
    /// Why not all can be done yet.
    pub waiting: Option<String>,
}

/// What is missing is added, what is ours and no longer wished for is removed; a kernel that is as
/// it should be needs no action.
pub fn decide_network(file: &NetworkFile, observed: &ObservedNetwork) -> NetworkDecision {
    if file.mode == NetworkMode::None {
        return NetworkDecision { actions: remove_all(observed), waiting: None };
    }
    let mut actions = Vec::new();
    let rule = Masquerade::of(file);
    if observed.table != ObservedTable::InForce(rule.clone()) {
        actions.push(NetworkAction::SetMasquerade(rule));
    }
    let Some(interface) = &observed.interface else {
        // What is there stays: the interface may be back in a moment.
        return NetworkDecision { actions, waiting: Some(no_interface(file)) };
    };
    let wish = Wish::new(file, interface, observed.services_routed);
    let stale = observed.routes.iter().filter(|route| !wish.leads_to(route.to));
    actions.extend(stale.copied().map(NetworkAction::RemoveRoute));
    decide_tunnel(&wish, observed, &mut actions);
    let gone = actions.contains(&NetworkAction::RemoveTunnel);
    for route in &wish.routes {
        // The routes through a tunnel go with it.
        let lost = gone && matches!(route.way, Way::Tunnel(_));
        let kept = observed.routes.contains(route) && !lost;
        if !kept {
            actions.push(NetworkAction::SetRoute(*route));
        }
    }
    NetworkDecision { actions, waiting: None }
}

fn no_interface(file: &NetworkFile) -> String {
    match &file.interface {
        Some(name) => format!("there is no interface {name}"),
        None => format!("no interface carries the node's address {}", file.node.address),
    }
}

fn remove_all(observed: &ObservedNetwork) -> Vec<NetworkAction> {
    let mut actions: Vec<NetworkAction> =
        observed.routes.iter().copied().map(NetworkAction::RemoveRoute).collect();
    if observed.tunnel.is_some() {
        actions.push(NetworkAction::RemoveTunnel);
    }
    if observed.table != ObservedTable::Absent {
        actions.push(NetworkAction::RemoveTable);
    }
    actions
}

/// What the kernel shall hold for this file.
struct Wish {
    routes: Vec<Route>,
    peers: BTreeSet<TunnelPeer>,
    /// None if nobody is behind it.
    tunnel: Option<Tunnel>,
}

impl Wish {
    fn new(file: &NetworkFile, interface: &Interface, services_routed: bool) -> Self {
        let on_segment = |peer: &NetworkNode| {
            file.mode == NetworkMode::Routed
                && interface.networks.iter().any(|network| network.contains(&peer.address))
        };
        let mut routes = Vec::new();
        let mut peers = BTreeSet::new();
        for peer in file.peers.iter().filter(|peer| peer.address != file.node.address) {
            let to = peer.pod_cidr.trunc();
            if on_segment(peer) {
                routes.push(Route { to, way: Way::Segment(peer.address) });
            } else {
                let inner = to.network();
                routes.push(Route { to, way: Way::Tunnel(inner) });
                peers.insert(TunnelPeer { inner, mac: Mac::of(peer.address), outer: peer.address });
            }
        }
        if !services_routed {
            let to = file.service_cidr.trunc();
            let way = source(file, interface).map(Way::Services);
            routes.extend(way.map(|way| Route { to, way }));
        }
        let tunnel = (!peers.is_empty()).then(|| Tunnel {
            below: interface.index,
            local: file.node.address,
            mac: Mac::of(file.node.address),
            mtu: interface.mtu.saturating_sub(TUNNEL_OVERHEAD),
            address: file.node.pod_cidr.network(),
        });
        Self { routes, peers, tunnel }
    }

    fn leads_to(&self, range: Ipv4Net) -> bool {
        self.routes.iter().any(|route| route.to == range)
    }
}

/// From where the node speaks to Services: its own address, unless the interface has only others.
/// That is outside of the range of pods, so that kube-proxy hides it behind the address of the device
/// through which a packet leaves in the end, and answers come back the same way, tunnel or not.
fn source(file: &NetworkFile, interface: &Interface) -> Option<Ipv4Addr> {
    let mut addresses = interface.networks.iter().map(Ipv4Net::addr);
    let own = addresses.clone().find(|address| *address == file.node.address);
    own.or_else(|| addresses.next())
}

fn decide_tunnel(wish: &Wish, observed: &ObservedNetwork, actions: &mut Vec<NetworkAction>) {
    let right = observed.tunnel.as_ref().filter(|found| found.tunnel == wish.tunnel);
    if observed.tunnel.is_some() && (right.is_none() || wish.tunnel.is_none()) {
        actions.push(NetworkAction::RemoveTunnel);
    }
    let Some(tunnel) = &wish.tunnel else { return };
    // What was known behind a tunnel goes with it.
    let (neighbours, forwarding) = match right {
        Some(found) => {
            if !found.up {
                actions.push(NetworkAction::RaiseTunnel);
            }
            (observed.neighbours.clone(), observed.forwarding.clone())
        }
        None => {
            actions.push(NetworkAction::CreateTunnel(tunnel.clone()));
            (BTreeSet::new(), BTreeSet::new())
        }
    };
    for (inner, mac) in &neighbours {
        // Another hardware address for a wished neighbour is replaced below.
        if !wish.peers.iter().any(|peer| peer.inner == *inner) {
            actions.push(NetworkAction::RemoveNeighbour(*inner, *mac));
        }
    }
    for (mac, outer) in &forwarding {
        if !wish.peers.iter().any(|peer| (peer.mac, peer.outer) == (*mac, *outer)) {
            actions.push(NetworkAction::RemoveForwarding(*mac, *outer));
        }
    }
    for peer in &wish.peers {
        if !neighbours.contains(&(peer.inner, peer.mac)) {
            actions.push(NetworkAction::SetNeighbour(*peer));
        }
        if !forwarding.contains(&(peer.mac, peer.outer)) {
            actions.push(NetworkAction::SetForwarding(*peer));
        }
    }
}

#[cfg(test)]
mod tests;
