use super::super::{BALANCER, Balancer};
use super::*;
use NetworkAction::*;

fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap()
}

fn ip(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

/// A node `n` has the last octet n in its address and the pods 10.42.n.0/24.
fn node(name: u8, address: &str) -> NetworkNode {
    NetworkNode {
        name: format!("node{name}"),
        address: ip(address),
        pod_cidr: net(&format!("10.42.{name}.0/24")),
    }
}

/// Node 1, a peer on its segment (2) and one on another (3).
fn file(mode: NetworkMode) -> NetworkFile {
    NetworkFile {
        node: node(1, "192.0.2.1"),
        cluster_cidr: net("10.42.0.0/16"),
        service_cidr: net("10.43.0.0/16"),
        mode,
        interface: None,
        peers: vec![node(2, "192.0.2.2"), node(3, "198.51.100.3")],
        balancer: Balancer { listen: BALANCER, servers: Vec::new(), authority_file: String::new() },
    }
}

/// A host with a default route and nothing of ours.
fn bare() -> ObservedNetwork {
    let interface = Interface { index: 2, mtu: 1500, networks: vec![net("192.0.2.1/24")] };
    let interface = Some(interface);
    ObservedNetwork { interface, services_routed: true, ..ObservedNetwork::default() }
}

/// What the kernel does with the actions, as far as it concerns us.
fn carry_out(observed: &ObservedNetwork, actions: &[NetworkAction]) -> ObservedNetwork {
    let mut kernel = observed.clone();
    for action in actions {
        match action.clone() {
            RemoveRoute(route) => assert!(kernel.routes.remove(&route), "{action}"),
            RemoveTunnel => {
                assert!(kernel.tunnel.take().is_some());
                kernel.neighbours.clear();
                kernel.forwarding.clear();
                kernel.routes.retain(|route| !is_tunnelled(route));
            }
            CreateTunnel(tunnel) => {
                assert!(kernel.tunnel.is_none());
                kernel.tunnel = Some(ObservedTunnel { tunnel: Some(tunnel), up: true });
            }
            RaiseTunnel => kernel.tunnel.as_mut().unwrap().up = true,
            RemoveNeighbour(inner, mac) => assert!(kernel.neighbours.remove(&(inner, mac))),
            RemoveForwarding(mac, outer) => assert!(kernel.forwarding.remove(&(mac, outer))),
            SetNeighbour(peer) => {
                assert!(kernel.tunnel.is_some());
                kernel.neighbours.retain(|(inner, _)| *inner != peer.inner);
                kernel.neighbours.insert((peer.inner, peer.mac));
            }
            SetForwarding(peer) => {
                assert!(kernel.tunnel.is_some());
                kernel.forwarding.insert((peer.mac, peer.outer));
            }
            SetRoute(route) => {
                assert!(!is_tunnelled(&route) || kernel.tunnel.as_ref().is_some_and(|t| t.up));
                kernel.routes.retain(|other| other.to != route.to);
                kernel.routes.insert(route);
            }
            SetMasquerade(rule) => kernel.table = ObservedTable::InForce(rule),
            RemoveTable => kernel.table = ObservedTable::Absent,
        }
    }
    kernel
}

/// Decides, carries out, and proves that there is nothing left to do.
fn settle(file: &NetworkFile, observed: &ObservedNetwork) -> ObservedNetwork {
    let decision = decide_network(file, observed);
    assert_eq!(decision.waiting, None);
    let after = carry_out(observed, &decision.actions);
    assert_eq!(decide_network(file, &after), NetworkDecision::default(), "{after:?}");
    after
}

fn segment(n: u8, gateway: &str) -> Route {
    Route { to: net(&format!("10.42.{n}.0/24")), way: Way::Segment(ip(gateway)) }
}

fn tunnelled(n: u8) -> Route {
    let inner = format!("10.42.{n}.0");
    Route { to: net(&format!("{inner}/24")), way: Way::Tunnel(ip(&inner)) }
}

fn services(source: &str) -> Route {
    Route { to: net("10.43.0.0/16"), way: Way::Services(ip(source)) }
}

fn is_tunnelled(route: &Route) -> bool {
    matches!(route.way, Way::Tunnel(_))
}

#[test]
fn peers_on_the_segment_are_routed_to_and_others_lie_behind_the_tunnel() {
    let kernel = settle(&file(NetworkMode::Routed), &bare());
    assert_eq!(kernel.routes, BTreeSet::from([segment(2, "192.0.2.2"), tunnelled(3)]));
    let far = Mac([0x02, 0x77, 198, 51, 100, 3]);
    assert_eq!(kernel.neighbours, BTreeSet::from([(ip("10.42.3.0"), far)]));
    assert_eq!(kernel.forwarding, BTreeSet::from([(far, ip("198.51.100.3"))]));
    let expected = Tunnel {
        below: 2,
        local: ip("192.0.2.1"),
        mac: Mac([0x02, 0x77, 192, 0, 2, 1]),
        mtu: 1450,
        address: ip("10.42.1.0"),
    };
    assert_eq!(kernel.tunnel.unwrap().tunnel, Some(expected));
}

#[test]
fn mode_vxlan_puts_everybody_behind_the_tunnel() {
    let kernel = settle(&file(NetworkMode::Vxlan), &bare());
    assert_eq!(kernel.routes, BTreeSet::from([tunnelled(2), tunnelled(3)]));
    assert_eq!((kernel.neighbours.len(), kernel.forwarding.len()), (2, 2));
}

#[test]
fn without_far_peers_there_is_no_tunnel() {
    let mut near = file(NetworkMode::Routed);
    near.peers.pop();
    let before = settle(&file(NetworkMode::Routed), &bare());
    for observed in [bare(), before] {
        let kernel = settle(&near, &observed);
        assert_eq!(kernel.tunnel, None);
        assert_eq!(kernel.routes, BTreeSet::from([segment(2, "192.0.2.2")]));
    }
}

#[test]
fn mode_none_removes_what_is_ours_and_makes_nothing() {
    let full = settle(&file(NetworkMode::Routed), &bare());
    let kernel = settle(&file(NetworkMode::None), &full);
    assert_eq!(kernel, bare());
    assert_eq!(decide_network(&file(NetworkMode::None), &bare()), NetworkDecision::default());
}

#[test]
fn every_single_loss_is_made_good() {
    let file = file(NetworkMode::Routed);
    let full = settle(&file, &bare());
    let mut losses: Vec<(&str, ObservedNetwork)> = Vec::new();
    let mut lose = |what, change: &dyn Fn(&mut ObservedNetwork)| {
        let mut kernel = full.clone();
        change(&mut kernel);
        assert_ne!(kernel, full, "{what}");
        losses.push((what, kernel));
    };
    lose("a route", &|k| k.routes.retain(is_tunnelled));
    lose("a route through the tunnel", &|k| k.routes.retain(|r| !is_tunnelled(r)));
    lose("neighbours", &|k| k.neighbours.clear());
    lose("forwarding", &|k| k.forwarding.clear());
    lose("the table", &|k| k.table = ObservedTable::Absent);
    lose("the table's content", &|k| k.table = ObservedTable::Unknown);
    lose("the tunnel's state", &|k| {
        k.tunnel.as_mut().unwrap().up = false;
        k.routes.retain(|r| !is_tunnelled(r));
    });
    lose("the tunnel's size", &|k| {
        k.tunnel.as_mut().unwrap().tunnel.as_mut().unwrap().mtu = 1400;
    });
    lose("the tunnel's kind", &|k| k.tunnel.as_mut().unwrap().tunnel = None);
    lose("the tunnel", &|k| {
        k.tunnel = None;
        k.neighbours.clear();
        k.forwarding.clear();
        k.routes.retain(|r| !is_tunnelled(r));
    });
    for (what, kernel) in losses {
        assert_eq!(settle(&file, &kernel), full, "{what}");
    }
}

#[test]
fn a_peer_that_left_or_moved_leaves_nothing_behind() {
    let full = settle(&file(NetworkMode::Routed), &bare());
    let mut left = file(NetworkMode::Routed);
    left.peers.remove(0);
    assert_eq!(settle(&left, &full).routes, BTreeSet::from([tunnelled(3)]));

    let mut swapped = file(NetworkMode::Routed);
    swapped.peers = vec![node(2, "198.51.100.9"), node(3, "192.0.2.77")];
    let kernel = settle(&swapped, &full);
    assert_eq!(kernel.routes, BTreeSet::from([tunnelled(2), segment(3, "192.0.2.77")]));
    let mac = Mac::of(ip("198.51.100.9"));
    assert_eq!(kernel.neighbours, BTreeSet::from([(ip("10.42.2.0"), mac)]));
    assert_eq!(kernel.forwarding, BTreeSet::from([(mac, ip("198.51.100.9"))]));
}

#[test]
fn a_route_that_changes_its_way_is_replaced_not_removed_first() {
    let full = settle(&file(NetworkMode::Routed), &bare());
    let actions = decide_network(&file(NetworkMode::Vxlan), &full).actions;
    assert!(actions.contains(&SetRoute(tunnelled(2))));
    assert!(!actions.iter().any(|action| matches!(action, RemoveRoute(_))), "{actions:?}");
}

#[test]
fn without_the_interface_nothing_is_taken_away_and_the_reason_is_said() {
    let full = settle(&file(NetworkMode::Routed), &bare());
    let lost = ObservedNetwork { interface: None, ..full };
    let decision = decide_network(&file(NetworkMode::Routed), &lost);
    assert_eq!(decision.actions, []);
    assert!(decision.waiting.unwrap().contains("192.0.2.1"));
    let named = NetworkFile { interface: Some("eth9".to_owned()), ..file(NetworkMode::Routed) };
    assert!(decide_network(&named, &lost).waiting.unwrap().contains("eth9"));
}

#[test]
fn the_node_itself_among_its_peers_gets_no_route() {
    let mut odd = file(NetworkMode::Vxlan);
    odd.peers = vec![odd.node.clone()];
    let kernel = settle(&odd, &bare());
    assert_eq!((kernel.routes.len(), kernel.tunnel), (0, None));
}

#[test]
fn a_host_without_a_route_to_services_gets_one_until_it_has_its_own() {
    let unrouted = ObservedNetwork { services_routed: false, ..bare() };
    for mode in [NetworkMode::Routed, NetworkMode::Vxlan] {
        let kernel = settle(&file(mode), &unrouted);
        assert!(kernel.routes.contains(&services("192.0.2.1")), "{kernel:?}");
        assert_eq!(kernel.routes.len(), 3);
        let routed = ObservedNetwork { services_routed: true, ..kernel.clone() };
        assert!(!settle(&file(mode), &routed).routes.contains(&services("192.0.2.1")));
        let left = settle(&file(NetworkMode::None), &kernel);
        assert_eq!(left.routes, BTreeSet::new());
    }
    let none = decide_network(&file(NetworkMode::None), &unrouted);
    assert_eq!(none, NetworkDecision::default(), "whoever connects pods there sees to it");
}

#[test]
fn the_route_to_services_follows_their_range_and_the_nodes_address() {
    let unrouted = ObservedNetwork { services_routed: false, ..bare() };
    let kernel = settle(&file(NetworkMode::Routed), &unrouted);
    let other = NetworkFile { service_cidr: net("10.96.0.0/12"), ..file(NetworkMode::Routed) };
    let moved = settle(&other, &kernel).routes;
    let way = Way::Services(ip("192.0.2.1"));
    assert!(moved.contains(&Route { to: net("10.96.0.0/12"), way }), "{moved:?}");
    assert!(!moved.contains(&services("192.0.2.1")), "{moved:?}");

    // Through another device or from another address, it is replaced.
    for way in [Way::Elsewhere, Way::Services(ip("192.0.2.7"))] {
        let mut odd = kernel.clone();
        odd.routes.remove(&services("192.0.2.1"));
        odd.routes.insert(Route { to: net("10.43.0.0/16"), way });
        assert_eq!(settle(&file(NetworkMode::Routed), &odd), kernel);
    }

    // A node that is known by an address that it does not have itself.
    let mut translated = unrouted;
    translated.interface.as_mut().unwrap().networks = vec![net("172.16.0.4/20")];
    let kernel = settle(&file(NetworkMode::Routed), &translated);
    assert!(kernel.routes.contains(&services("172.16.0.4")), "{kernel:?}");
    translated.interface.as_mut().unwrap().networks.clear();
    let kernel = settle(&file(NetworkMode::Routed), &translated);
    assert!(kernel.routes.iter().all(is_tunnelled), "{kernel:?}");
}
