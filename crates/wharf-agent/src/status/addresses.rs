//! The addresses that the node's interfaces carry, from the kernel.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::BoxStream};
use rtnetlink::{
    Handle, MulticastGroup, new_multicast_connection,
    packet_route::{address::AddressAttribute, link::LinkAttribute},
};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use wharf_core::node::cluster_status::Port;

use crate::network::{NetworkError, kernel::all};

/// Pods come in groups, and each brings addresses: they are looked at once.
const SETTLE: Duration = Duration::from_millis(200);

/// A netlink socket that also tells of changes.
pub struct Addresses {
    netlink: Handle,
    /// One for each change; what it says is found by looking.
    notices: BoxStream<'static, ()>,
    _connection: AbortOnDropHandle<()>,
}

impl Addresses {
    pub fn open() -> Result<Self, NetworkError> {
        let groups = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        let (connection, netlink, notices) =
            new_multicast_connection(&groups).map_err(NetworkError::Socket)?;
        let connection = AbortOnDropHandle::new(tokio::spawn(connection));
        Ok(Self { netlink, notices: notices.map(drop).boxed(), _connection: connection })
    }

    /// Every interface, under its own name, with what it carries.
    pub async fn ports(&mut self) -> Result<Vec<Port>, NetworkError> {
        let links = all("list links", self.netlink.link().get().execute()).await?;
        let mut ports = HashMap::new();
        for link in links {
            let name = link.attributes.into_iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name),
                _ => None,
            });
            let name = name.unwrap_or_default();
            let port = Port { label: name.clone(), if_name: name, ..Port::default() };
            ports.insert(link.header.index, port);
        }
        let addresses = all("list addresses", self.netlink.address().get().execute()).await?;
        for address in addresses {
            if let Some(port) = ports.get_mut(&address.header.index) {
                port.addresses.extend(own(&address.attributes));
            }
        }
        Ok(ports.into_values().collect())
    }

    /// Returns soon after addresses changed.
    ///
    /// # Errors
    /// The kernel tells nothing any more.
    pub async fn changed(&mut self) -> Result<(), NetworkError> {
        let lost = || NetworkError::Socket(std::io::ErrorKind::BrokenPipe.into());
        self.notices.next().await.ok_or_else(lost)?;
        sleep(SETTLE).await;
        while let Some(Some(())) = self.notices.next().now_or_never() {}
        Ok(())
    }
}

/// On a point-to-point link `Address` is the other end's.
fn own(attributes: &[AddressAttribute]) -> Option<IpAddr> {
    let find = |local: bool| {
        attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) if local => Some(*address),
            AddressAttribute::Address(address) if !local => Some(*address),
            _ => None,
        })
    };
    find(true).or_else(|| find(false))
}
