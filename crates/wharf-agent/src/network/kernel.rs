//! The kernel's links, routes, neighbours and forwarding entries, by netlink.

use std::{io, net::IpAddr, net::Ipv4Addr};

use futures_util::{Stream, TryStreamExt};
use ipnet::Ipv4Net;
use rtnetlink::{
    Handle, LinkUnspec, LinkVxlan, RouteMessageBuilder, new_connection,
    packet_route::{
        AddressFamily,
        address::AddressAttribute,
        link::{InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
        neighbour::{
            NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
        },
        route::{
            RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
            RouteType,
        },
    },
};
use tokio::task::AbortHandle;
use wharf_core::install::network::{
    Interface, Mac, NetworkAction, NetworkFile, ObservedNetwork, ObservedTunnel, ROUTE_PROTOCOL,
    Route, TUNNEL, Tunnel, TunnelPeer, Way,
};

use super::{NetworkError, nft::Table};

/// The number of our network in the tunnel, and the port that the standard gives to VXLAN.
const VXLAN_ID: u32 = 117;
const VXLAN_PORT: u16 = 4789;
/// Where the kernel looks for a route after the main table.
const DEFAULT_TABLE: u8 = 253;
/// Of the route to Services: whoever adds another one is neither refused nor overruled.
const LAST_METRIC: u32 = u32::MAX;

/// A netlink socket for one look and what follows from it. It is opened anew each time: a socket
/// that broke once must not keep a node without routes.
pub struct Kernel {
    netlink: Handle,
    connection: AbortHandle,
    interface: Option<u32>,
    tunnel: Option<u32>,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Kernel {
    pub fn open() -> Result<Self, NetworkError> {
        let (connection, netlink, _) = new_connection().map_err(NetworkError::Socket)?;
        let connection = tokio::spawn(connection).abort_handle();
        Ok(Self { netlink, connection, interface: None, tunnel: None })
    }

    pub async fn observe(
        &mut self,
        file: &NetworkFile,
        table: &Table,
    ) -> Result<ObservedNetwork, NetworkError> {
        let addresses = self.addresses().await?;
        let interface = self.find_interface(file, &addresses).await?;
        self.interface = interface.as_ref().map(|interface| interface.index);
        let link = self.link(TUNNEL).await?;
        self.tunnel = link.as_ref().map(|link| link.header.index);
        let routes = self.routes().await?;
        let mut observed = ObservedNetwork {
            interface,
            tunnel: link.map(|link| observe_tunnel(&link, &addresses)),
            routes: routes.iter().filter_map(|route| self.our_route(route)).collect(),
            services_routed: routes.iter().any(|route| is_others_to(route, file.service_cidr)),
            table: table.observe().await?,
            ..ObservedNetwork::default()
        };
        if let Some(tunnel) = self.tunnel {
            observed.neighbours = self
                .neighbours(tunnel, AddressFamily::Inet)
                .await?
                .filter_map(|(mac, address)| Some((address?, mac)))
                .collect();
            observed.forwarding = self
                .neighbours(tunnel, AddressFamily::Bridge)
                .await?
                .filter_map(|(mac, address)| Some((mac, address?)))
                .collect();
        }
        Ok(observed)
    }

    /// All IPv4 addresses with the index of their interface.
    async fn addresses(&self) -> Result<Vec<(u32, Ipv4Net)>, NetworkError> {
        let found = all("list addresses", self.netlink.address().get().execute()).await?;
        let of = |attributes: &[AddressAttribute]| {
            // On a point-to-point link `Address` is the other end's.
            let local = attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
                _ => None,
            });
            local.or_else(|| {
                attributes.iter().find_map(|attribute| match attribute {
                    AddressAttribute::Address(IpAddr::V4(address)) => Some(*address),
                    _ => None,
                })
            })
        };
        Ok(found
            .iter()
            .filter_map(|message| {
                let network = Ipv4Net::new(of(&message.attributes)?, message.header.prefix_len);
                Some((message.header.index, network.ok()?))
            })
            .collect())
    }

    async fn find_interface(
        &self,
        file: &NetworkFile,
        addresses: &[(u32, Ipv4Net)],
    ) -> Result<Option<Interface>, NetworkError> {
        let link = match &file.interface {
            Some(name) => self.link(name).await?,
            None => {
                let own = |(_, network): &&(u32, Ipv4Net)| network.addr() == file.node.address;
                match addresses.iter().find(own) {
                    Some((index, _)) => self.link_by_index(*index).await?,
                    None => None,
                }
            }
        };
        Ok(link.map(|link| {
            let index = link.header.index;
            let own = addresses.iter().filter(|(of, _)| *of == index);
            Interface { index, mtu: mtu(&link), networks: own.map(|(_, net)| *net).collect() }
        }))
    }

    async fn link(&self, name: &str) -> Result<Option<LinkMessage>, NetworkError> {
        let request = self.netlink.link().get().match_name(name);
        unless_absent(all("look at a link", request.execute()).await).map(|found| found?.pop())
    }

    async fn link_by_index(&self, index: u32) -> Result<Option<LinkMessage>, NetworkError> {
        let request = self.netlink.link().get().match_index(index);
        unless_absent(all("look at a link", request.execute()).await).map(|found| found?.pop())
    }

    async fn routes(&self) -> Result<Vec<RouteMessage>, NetworkError> {
        let every = RouteMessageBuilder::<Ipv4Addr>::new().build();
        all("list routes", self.netlink.route().get(every).execute()).await
    }

    /// A route with our mark.
    fn our_route(&self, route: &RouteMessage) -> Option<Route> {
        let header = &route.header;
        if !is_marked(route)
            || header.table != RouteHeader::RT_TABLE_MAIN
            || header.kind != RouteType::Unicast
        {
            return None;
        }
        let (mut gateway, mut source, mut device) = (None, None, None);
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Gateway(RouteAddress::Inet(address)) => gateway = Some(*address),
                RouteAttribute::PrefSource(RouteAddress::Inet(address)) => source = Some(*address),
                RouteAttribute::Oif(index) => device = Some(*index),
                _ => {}
            }
        }
        let through = |index: Option<u32>| device.is_some() && device == index;
        let way = match (gateway, source) {
            (Some(gateway), _) if through(self.interface) => Way::Segment(gateway),
            (Some(gateway), _) if through(self.tunnel) => Way::Tunnel(gateway),
            (None, Some(source)) if through(self.interface) => Way::Services(source),
            _ => Way::Elsewhere,
        };
        Some(Route { to: destination(route)?, way })
    }

    /// The lasting entries of a device: neighbours, or with the family of bridges its forwarding
    /// table.
    async fn neighbours(
        &self,
        device: u32,
        family: AddressFamily,
    ) -> Result<impl Iterator<Item = (Mac, Option<Ipv4Addr>)>, NetworkError> {
        let request = self.netlink.neighbours().get().set_address_family(family);
        let found = all("list neighbours", request.execute()).await?;
        Ok(found.into_iter().filter_map(move |entry| {
            let lasting = entry.header.state == NeighbourState::Permanent;
            (entry.header.ifindex == device && lasting).then(|| neighbour(&entry))?
        }))
    }

    pub async fn carry_out(
        &mut self,
        action: &NetworkAction,
        table: &mut Table,
    ) -> Result<(), NetworkError> {
        let what = action.to_string();
        let done = match action {
            NetworkAction::SetMasquerade(rule) => return table.set(rule).await,
            NetworkAction::RemoveTable => return table.remove().await,
            NetworkAction::CreateTunnel(tunnel) => return self.create_tunnel(tunnel).await,
            NetworkAction::RemoveTunnel => match self.tunnel.take() {
                Some(index) => self.netlink.link().del(index).execute().await,
                None => Ok(()),
            },
            NetworkAction::RaiseTunnel => {
                let up = LinkUnspec::new_with_index(self.tunnel_index(&what)?).up().build();
                let raised = self.netlink.link().change(up).execute().await;
                return raised.map_err(failed(&what));
            }
            NetworkAction::RemoveRoute(route) => {
                let any = route_message(route).scope(RouteScope::NoWhere);
                self.netlink.route().del(any.build()).execute().await
            }
            NetworkAction::SetRoute(route) => return self.set_route(route, &what).await,
            NetworkAction::SetNeighbour(peer) => return self.set_neighbour(peer, &what).await,
            NetworkAction::SetForwarding(peer) => return self.set_forwarding(peer, &what).await,
            NetworkAction::RemoveNeighbour(inner, mac) => {
                let index = self.tunnel_index(&what)?;
                let entry = neighbour_message(AddressFamily::Inet, index, *mac, *inner);
                self.netlink.neighbours().del(entry).execute().await
            }
            NetworkAction::RemoveForwarding(mac, outer) => {
                let index = self.tunnel_index(&what)?;
                let entry = neighbour_message(AddressFamily::Bridge, index, *mac, *outer);
                self.netlink.neighbours().del(entry).execute().await
            }
        };
        // Only removals are left here; what is gone already is as wished.
        unless_absent(done.map_err(failed(&what))).map(drop)
    }

    async fn create_tunnel(&mut self, tunnel: &Tunnel) -> Result<(), NetworkError> {
        let message = LinkVxlan::new(TUNNEL, VXLAN_ID)
            .dev(tunnel.below)
            .local(tunnel.local)
            .port(VXLAN_PORT)
            .learning(false)
            .address(tunnel.mac.0.to_vec())
            .mtu(tunnel.mtu)
            .up()
            .build();
        let added = self.netlink.link().add(message).execute().await;
        added.map_err(failed("create the tunnel"))?;
        self.tunnel = self.link(TUNNEL).await?.map(|link| link.header.index);
        let what = "give the tunnel its address";
        let index = self.tunnel_index(what)?;
        let address = self.netlink.address().add(index, tunnel.address.into(), 32);
        address.execute().await.map_err(failed(what))
    }

    async fn set_route(&self, route: &Route, what: &str) -> Result<(), NetworkError> {
        let message = route_message(route);
        let device = match route.way {
            Way::Tunnel(_) => self.tunnel,
            Way::Segment(_) | Way::Services(_) => self.interface,
            Way::Elsewhere => None,
        };
        let message = message.output_interface(device.ok_or_else(|| gone(what))?);
        let message = match route.way {
            Way::Tunnel(gateway) => message.gateway(gateway).onlink(),
            Way::Segment(gateway) => message.gateway(gateway),
            Way::Services(source) => {
                message.scope(RouteScope::Link).pref_source(source).priority(LAST_METRIC)
            }
            Way::Elsewhere => message,
        };
        let request = self.netlink.route().add(message.build()).replace();
        request.execute().await.map_err(failed(what))
    }

    async fn set_neighbour(&self, peer: &TunnelPeer, what: &str) -> Result<(), NetworkError> {
        let neighbours = self.netlink.neighbours();
        let request = neighbours.add(self.tunnel_index(what)?, peer.inner.into());
        let request = request.link_layer_address(&peer.mac.0).replace();
        request.execute().await.map_err(failed(what))
    }

    async fn set_forwarding(&self, peer: &TunnelPeer, what: &str) -> Result<(), NetworkError> {
        let neighbours = self.netlink.neighbours();
        let request = neighbours.add_bridge(self.tunnel_index(what)?, &peer.mac.0);
        let request = request.destination(peer.outer.into()).flags(NeighbourFlags::Own).replace();
        request.execute().await.map_err(failed(what))
    }

    fn tunnel_index(&self, what: &str) -> Result<u32, NetworkError> {
        self.tunnel.ok_or_else(|| gone(what))
    }
}

fn is_marked(route: &RouteMessage) -> bool {
    route.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL)
}

/// Whether a route that is not ours leads to all of a range. One that only refuses leads nowhere.
fn is_others_to(route: &RouteMessage, range: Ipv4Net) -> bool {
    let header = &route.header;
    let is_looked_at = [RouteHeader::RT_TABLE_MAIN, DEFAULT_TABLE].contains(&header.table);
    is_looked_at
        && !is_marked(route)
        && header.kind == RouteType::Unicast
        && destination(route).is_some_and(|to| to.contains(&range))
}

/// A default route names none.
fn destination(route: &RouteMessage) -> Option<Ipv4Net> {
    let named = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(*address),
        _ => None,
    });
    let address = named.unwrap_or(Ipv4Addr::UNSPECIFIED);
    Ipv4Net::new(address, route.header.destination_prefix_length).ok()
}

fn route_message(route: &Route) -> RouteMessageBuilder<Ipv4Addr> {
    RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(route.to.network(), route.to.prefix_len())
        .protocol(RouteProtocol::Other(ROUTE_PROTOCOL))
}

fn neighbour_message(
    family: AddressFamily,
    index: u32,
    mac: Mac,
    address: Ipv4Addr,
) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family;
    message.header.ifindex = index;
    if family == AddressFamily::Bridge {
        message.header.flags = NeighbourFlags::Own;
    }
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
    message
}

fn neighbour(entry: &NeighbourMessage) -> Option<(Mac, Option<Ipv4Addr>)> {
    let mut mac = None;
    let mut address = None;
    for attribute in &entry.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(Mac);
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet(found)) => {
                address = Some(*found);
            }
            // In a forwarding table the kind of address is not told, only its bytes.
            NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => {
                address = <[u8; 4]>::try_from(bytes.as_slice()).ok().map(Ipv4Addr::from);
            }
            _ => {}
        }
    }
    Some((mac?, address))
}

fn mtu(link: &LinkMessage) -> u32 {
    let found = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    });
    found.unwrap_or_default()
}

fn observe_tunnel(link: &LinkMessage, addresses: &[(u32, Ipv4Net)]) -> ObservedTunnel {
    ObservedTunnel {
        tunnel: read_tunnel(link, addresses),
        up: link.header.flags.contains(LinkFlags::Up),
    }
}

/// The device, if it is of our kind.
fn read_tunnel(link: &LinkMessage, addresses: &[(u32, Ipv4Net)]) -> Option<Tunnel> {
    let mac = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Address(bytes) => <[u8; 6]>::try_from(bytes.as_slice()).ok().map(Mac),
        _ => None,
    })?;
    let data = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.iter().find_map(|info| match info {
            LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
            _ => None,
        }),
        _ => None,
    })?;
    let has = |wanted: &InfoVxlan| data.contains(wanted);
    let ours = has(&InfoVxlan::Id(VXLAN_ID))
        && has(&InfoVxlan::Port(VXLAN_PORT))
        && has(&InfoVxlan::Learning(false));
    let below = data.iter().find_map(|entry| match entry {
        InfoVxlan::Link(index) => Some(*index),
        _ => None,
    })?;
    let local = data.iter().find_map(|entry| match entry {
        InfoVxlan::Local(address) => Some(*address),
        _ => None,
    })?;
    let mut own = addresses.iter().filter(|(index, _)| *index == link.header.index);
    let (address, another) = (own.next()?.1, own.next());
    let alone = another.is_none() && address.prefix_len() == 32;
    (ours && alone).then(|| Tunnel { below, local, mac, mtu: mtu(link), address: address.addr() })
}

pub(crate) async fn all<T>(
    what: &str,
    answers: impl Stream<Item = Result<T, rtnetlink::Error>>,
) -> Result<Vec<T>, NetworkError> {
    answers.try_collect().await.map_err(failed(what))
}

pub(crate) fn failed(what: &str) -> impl FnOnce(rtnetlink::Error) -> NetworkError {
    let what = what.to_owned();
    move |error| match error {
        rtnetlink::Error::NetlinkError(message) => {
            NetworkError::Refused { what, source: message.to_io() }
        }
        other => NetworkError::Netlink { what, source: Box::new(other) },
    }
}

fn gone(what: &str) -> NetworkError {
    let source = io::Error::from(rustix::io::Errno::NODEV);
    NetworkError::Refused { what: what.to_owned(), source }
}

/// What is not there is no error, but nothing.
fn unless_absent<T>(result: Result<T, NetworkError>) -> Result<Option<T>, NetworkError> {
    use rustix::io::Errno;
    match result {
        Ok(value) => Ok(Some(value)),
        Err(NetworkError::Refused { source, .. })
            if [Errno::NODEV, Errno::NOENT, Errno::SRCH]
                .iter()
                .any(|errno| source.raw_os_error() == Some(errno.raw_os_error())) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tunnel_that_cannot_be_raised_is_a_fault() {
        let mut kernel = Kernel::open().unwrap();
        // There is no such device; without the right to change any the answer is another refusal.
        kernel.tunnel = Some(u32::MAX / 2);
        let raised = kernel.carry_out(&NetworkAction::RaiseTunnel, &mut Table::default()).await;
        assert!(matches!(raised, Err(NetworkError::Refused { .. })), "{raised:?}");
    }

    #[test]
    fn forwarding_entries_are_read_as_neighbours_are() {
        let (mac, address) = (Mac([2, 0x77, 192, 0, 2, 9]), Ipv4Addr::new(192, 0, 2, 9));
        let told = neighbour_message(AddressFamily::Inet, 7, mac, address);
        assert_eq!(neighbour(&told), Some((mac, Some(address))));
        let mut bytes = told;
        bytes.attributes.retain(|a| matches!(a, NeighbourAttribute::LinkLayerAddress(_)));
        let other = NeighbourAddress::Other(address.octets().to_vec());
        bytes.attributes.push(NeighbourAttribute::Destination(other));
        assert_eq!(neighbour(&bytes), Some((mac, Some(address))));
    }
}
