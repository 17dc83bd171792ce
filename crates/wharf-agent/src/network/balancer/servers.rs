//! Which API servers there are, how they are, and who is next.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A server that failed this many checks in a row is given up: its connections are closed, so that
/// clients which would hold theirs for ever connect to another.
const GIVEN_UP_AFTER: u32 = 4;
/// A connection that found no server is told of for so long: clients may hold theirs for hours, and
/// none of those says that all is well again.
const LOST_FOR: Duration = Duration::from_secs(30);

/// The list is shared by connections and checks; nobody holds the lock for longer than a look.
#[derive(Debug, Default)]
pub struct Servers(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The node's own address: a server there is the nearest.
    own: Option<Ipv4Addr>,
    turn: usize,
    list: Vec<Server>,
    /// When a connection last found no server.
    lost: Option<Instant>,
}

#[derive(Debug)]
struct Server {
    address: SocketAddrV4,
    health: Health,
    failures: u32,
    /// Ends the connections to it.
    connections: CancellationToken,
}

/// In the order in which they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    Ready,
    /// Not looked at yet.
    Unknown,
    Unready,
}

/// Where a connection may go, and what ends it.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub address: SocketAddrV4,
    pub closed: CancellationToken,
}

impl Servers {
    /// Takes the new list. Connections to servers that stay are not touched.
    pub fn set(&self, own: Ipv4Addr, addresses: &[SocketAddrV4]) {
        let mut inner = self.lock();
        inner.own = Some(own);
        inner.list.retain(|server| {
            let stays = addresses.contains(&server.address);
            if !stays {
                server.connections.cancel();
            }
            stays
        });
        for address in addresses {
            if !inner.list.iter().any(|server| server.address == *address) {
                inner.list.push(Server {
                    address: *address,
                    health: Health::Unknown,
                    failures: 0,
                    connections: CancellationToken::new(),
                });
            }
        }
    }

    /// All servers in the order in which a new connection shall try them: the healthy ones first,
    /// the node's own first of these, the others in turn. Those that are not ready come last
    /// instead of not at all: before the first is ready there is no other.
    pub fn candidates(&self) -> Vec<Candidate> {
        let mut inner = self.lock();
        inner.turn = inner.turn.wrapping_add(1);
        let (own, turn) = (inner.own, inner.turn);
        let count = inner.list.len().max(1);
        let mut order: Vec<(usize, &Server)> = inner.list.iter().enumerate().collect();
        order.sort_by_key(|(place, server)| {
            let elsewhere = Some(*server.address.ip()) != own;
            (server.health, elsewhere, (place + count - turn % count) % count)
        });
        let candidate = |server: &Server| Candidate {
            address: server.address,
            closed: server.connections.clone(),
        };
        order.into_iter().map(|(_, server)| candidate(server)).collect()
    }

    /// Takes the result of a check and gives the health before it, for the log.
    ///
    /// Connections to a server that is given up are closed only when another one is ready: as long
    /// as none is, a new connection would be no better.
    pub fn checked(&self, address: SocketAddrV4, ready: bool) -> Option<Health> {
        let mut inner = self.lock();
        let server = inner.list.iter_mut().find(|server| server.address == address)?;
        let before = server.health;
        server.health = if ready { Health::Ready } else { Health::Unready };
        server.failures = if ready { 0 } else { server.failures.saturating_add(1) };
        if inner.list.iter().any(|server| server.health == Health::Ready) {
            let given_up = |server: &&mut Server| server.failures >= GIVEN_UP_AFTER;
            for server in inner.list.iter_mut().filter(given_up) {
                std::mem::take(&mut server.connections).cancel();
            }
        }
        Some(before)
    }

    /// A connection found no server.
    pub fn lost(&self, now: Instant) {
        self.lock().lost = Some(now);
    }

    /// Why a client finds no server, if that is so.
    pub fn fault(&self, now: Instant) -> Option<String> {
        let inner = self.lock();
        let recently = |lost: Instant| now.saturating_duration_since(lost) < LOST_FOR;
        if inner.list.is_empty() {
            Some("the network file names none".to_owned())
        } else if inner.list.iter().all(|server| server.health == Health::Unready) {
            let all: Vec<String> = inner.list.iter().map(|it| it.address.to_string()).collect();
            Some(format!("none is ready of {}", all.join(", ")))
        } else if inner.lost.is_some_and(recently) {
            Some("a connection found none that could be reached".to_owned())
        } else {
            None
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(n: u8) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, n), 6443)
    }

    fn servers(own: u8, list: &[u8]) -> Servers {
        let servers = Servers::default();
        let list: Vec<_> = list.iter().map(|n| server(*n)).collect();
        servers.set(*server(own).ip(), &list);
        servers
    }

    fn order(servers: &Servers) -> Vec<u8> {
        servers.candidates().iter().map(|c| c.address.ip().octets()[3]).collect()
    }

    fn token(servers: &Servers, n: u8) -> CancellationToken {
        let all = servers.candidates();
        all.iter().find(|c| c.address == server(n)).unwrap().closed.clone()
    }

    #[test]
    fn ready_servers_take_turns_and_others_come_last() {
        let servers = servers(9, &[1, 2, 3]);
        servers.checked(server(1), true);
        servers.checked(server(3), true);
        servers.checked(server(2), false);
        let firsts: Vec<u8> = (0..6).map(|_| order(&servers)[0]).collect();
        assert!([1, 3].iter().all(|n| firsts.contains(n)) && !firsts.contains(&2), "{firsts:?}");
        assert!((0..6).all(|_| order(&servers)[2] == 2));
    }

    #[test]
    fn the_own_server_is_first_as_long_as_it_is_ready() {
        let servers = servers(2, &[1, 2, 3]);
        for n in 1..=3 {
            servers.checked(server(n), true);
        }
        assert!((0..6).all(|_| order(&servers)[0] == 2));
        servers.checked(server(2), false);
        assert!((0..6).all(|_| order(&servers)[2] == 2));
    }

    #[test]
    fn before_any_is_known_to_be_ready_all_are_tried() {
        let servers = servers(9, &[1, 2, 3]);
        let mut all = order(&servers);
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
        for n in 1..=3 {
            servers.checked(server(n), false);
        }
        assert_eq!(order(&servers).len(), 3);
    }

    #[test]
    fn connections_of_a_server_are_closed_after_repeated_failures_if_another_is_ready() {
        let servers = servers(9, &[1, 2]);
        let token = token(&servers, 1);
        for _ in 0..10 {
            servers.checked(server(1), false);
        }
        assert!(!token.is_cancelled(), "none is ready: staying is as good as leaving");
        servers.checked(server(2), true);
        assert!(token.is_cancelled());
        assert!(!self::token(&servers, 1).is_cancelled(), "a later connection is not ended by it");
    }

    #[test]
    fn that_clients_find_no_server_is_a_fault_as_long_as_it_is_so() {
        let now = Instant::now();
        let fault = |servers: &Servers, now| servers.fault(now).unwrap_or_default();
        assert_eq!(fault(&servers(9, &[]), now), "the network file names none");
        let servers = servers(9, &[1, 2]);
        assert_eq!(fault(&servers, now), "", "none was looked at yet");
        servers.checked(server(1), false);
        assert_eq!(fault(&servers, now), "");
        servers.checked(server(2), false);
        assert_eq!(fault(&servers, now), "none is ready of 192.0.2.1:6443, 192.0.2.2:6443");
        servers.checked(server(2), true);
        assert_eq!(fault(&servers, now), "");
        servers.lost(now);
        assert_eq!(fault(&servers, now), "a connection found none that could be reached");
        assert_eq!(fault(&servers, now + LOST_FOR), "");
    }

    #[test]
    fn a_short_fault_ends_no_connection() {
        let servers = servers(9, &[1, 2]);
        servers.checked(server(2), true);
        let token = token(&servers, 1);
        for ready in [false, false, false, true, false, false, false] {
            servers.checked(server(1), ready);
        }
        assert!(!token.is_cancelled());
        servers.checked(server(1), false);
        assert!(token.is_cancelled());
    }

    #[test]
    fn a_new_list_ends_connections_only_to_servers_that_left() {
        let servers = servers(9, &[1, 2]);
        servers.checked(server(2), true);
        let (left, stays) = (token(&servers, 1), token(&servers, 2));
        servers.set(*server(9).ip(), &[server(2), server(3)]);
        assert!(left.is_cancelled() && !stays.is_cancelled());
        assert_eq!(order(&servers), [2, 3], "what is known of a server stays known");
        assert_eq!(servers.checked(server(1), true), None);
    }
}
