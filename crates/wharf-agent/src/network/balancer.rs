//! The node-local balancer: one address for all API servers.
//!
//! kubelet and kube-proxy connect to it; bytes are passed on as they are, so TLS and client
//! certificates are between them and the API server. A server's health ([`check`]) decides where
//! new connections go and when old ones are ended ([`servers`]).

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    ops::RangeInclusive,
    os::fd::AsFd,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use rustix::{
    net::sockopt,
    process::{Resource, getrlimit},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::{info, warn};
use wharf_core::install::network::NetworkFile;

mod check;
mod pass;
mod servers;

use servers::{Candidate, Servers};

use crate::health::Reporter;

/// A node's own clients hold a dozen connections; pods that ask the API through the node hold more.
const MOST_CONNECTIONS: usize = 16_384;
/// Each connection takes two open files; these are left for everything else that the agent does.
const OTHER_FILES: usize = 224;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A peer whose machine is gone is found out within about half a minute. Each connection has a time of
/// its own: the kernel would ask after all that were opened together at once, and lose questions.
const KEEPALIVE_IDLE_SECONDS: RangeInclusive<u64> = 6..=15;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
const UNACKNOWLEDGED_MILLISECONDS: u32 = 30_000;
/// Before the next try to listen, or to accept when the process has no file left.
const PAUSE: Duration = Duration::from_millis(500);
const LISTENING: &str = "its address";
const SERVERS: &str = "API servers";

/// What the balancer shall do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    pub listen: SocketAddrV4,
    pub servers: Vec<SocketAddrV4>,
    pub authority_file: PathBuf,
    /// The node's own address.
    pub own: Ipv4Addr,
}

impl Wish {
    pub fn of(file: &NetworkFile) -> Self {
        Self {
            listen: file.balancer.listen,
            servers: file.balancer.servers.clone(),
            authority_file: file.balancer.authority_file.clone().into(),
            own: file.node.address,
        }
    }
}

/// Runs until `stop`, or until nobody wishes any more. A changed wish takes effect at once;
/// connections to servers that stay in the list stay open.
pub async fn run(
    mut wishes: watch::Receiver<Option<Wish>>,
    listening: watch::Sender<bool>,
    reporter: Reporter,
    stop: CancellationToken,
) {
    let servers = Arc::new(Servers::default());
    let mut checks = Checks::default();
    let mut listener: Option<Listener> = None;
    loop {
        let wish = wishes.borrow_and_update().clone();
        if let Some(wish) = wish {
            servers.set(wish.own, &wish.servers);
            tell(&servers, &reporter);
            checks.follow(&wish, &servers, &reporter);
            if listener.as_ref().is_none_or(|listener| listener.address != wish.listen) {
                // The old one ends only when the new one is there; its connections go on.
                match Listener::bind(wish.listen, &servers, &reporter, &stop).await {
                    Ok(bound) => listener = Some(bound),
                    Err(error) => {
                        let reason = format!("cannot listen at {}: {error}", wish.listen);
                        reporter.fault(LISTENING, &reason);
                    }
                }
            }
            let listens = listener.as_ref().is_some_and(|l| l.address == wish.listen);
            if listens {
                reporter.clear(LISTENING);
                reporter.ok();
            }
            listening.send_replace(listens);
        }
        let retry = wishes.borrow().is_some() && !*listening.borrow();
        tokio::select! {
            () = stop.cancelled() => return,
            () = Listener::ended(listener.as_mut()) => return,
            changed = wishes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(PAUSE), if retry => {}
        }
    }
}

/// Says whether clients find an API server.
fn tell(servers: &Servers, reporter: &Reporter) {
    match servers.fault(Instant::now()) {
        Some(reason) => reporter.fault(SERVERS, &reason),
        None => reporter.clear(SERVERS),
    }
}

/// The tasks that ask each server for its health.
#[derive(Default)]
struct Checks {
    authority: PathBuf,
    tasks: JoinSet<()>,
    running: HashMap<SocketAddrV4, AbortHandle>,
}

impl Checks {
    fn follow(&mut self, wish: &Wish, servers: &Arc<Servers>, reporter: &Reporter) {
        let other_authority = self.authority != wish.authority_file;
        self.authority.clone_from(&wish.authority_file);
        self.running.retain(|address, task| {
            let stays = !other_authority && wish.servers.contains(address);
            if !stays {
                task.abort();
            }
            stays
        });
        for address in &wish.servers {
            self.running.entry(*address).or_insert_with(|| {
                let authority = wish.authority_file.clone();
                let (servers, reporter) = (servers.clone(), reporter.clone());
                self.tasks.spawn(check::keep_checking(servers, *address, authority, reporter))
            });
        }
        // What was aborted is taken out of the set.
        while self.tasks.try_join_next().is_some() {}
    }
}

/// A bound address; dropping it stops accepting there.
struct Listener {
    address: SocketAddrV4,
    accepting: AbortOnDropHandle<()>,
}

impl Listener {
    async fn bind(
        address: SocketAddrV4,
        servers: &Arc<Servers>,
        reporter: &Reporter,
        stop: &CancellationToken,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        info!(%address, "the balancer listens");
        let accepting = accept(listener, servers.clone(), reporter.clone(), stop.clone());
        Ok(Self { address, accepting: AbortOnDropHandle::new(tokio::spawn(accepting)) })
    }

    /// Returns if nobody accepts any more, which only a defect can bring about.
    async fn ended(listener: Option<&mut Self>) {
        match listener {
            Some(listener) => drop((&mut listener.accepting).await),
            None => std::future::pending().await,
        }
    }
}

async fn accept(
    listener: TcpListener,
    servers: Arc<Servers>,
    reporter: Reporter,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(most_connections(getrlimit(Resource::Nofile).current)));
    loop {
        // Who comes when all places are taken waits in the kernel's queue.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let (servers, reporter, stop) = (servers.clone(), reporter.clone(), stop.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = serve(client, &servers, &reporter) => {}
                    }
                    drop(place);
                });
            }
            Err(error) => {
                warn!(%error, "the balancer could not accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// As many as the process may have open files for, and never none.
fn most_connections(open_files: Option<u64>) -> usize {
    let files = open_files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    (files.saturating_sub(OTHER_FILES) / 2).clamp(1, MOST_CONNECTIONS)
}

/// Passes bytes between a client and the first server that takes the connection.
async fn serve(mut client: TcpStream, servers: &Servers, reporter: &Reporter) {
    for Candidate { address, closed } in servers.candidates() {
        let Ok(Ok(mut server)) = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await else {
            continue;
        };
        if let Err(error) = watch_over(&client).and_then(|()| watch_over(&server)) {
            warn!(%error, "a connection was lost before it began");
            return;
        }
        tokio::select! {
            () = closed.cancelled() => {}
            // However it ends, both sides have learned it from each other.
            _ = pass::between(&mut client, &mut server) => {}
        }
        return;
    }
    servers.lost(Instant::now());
    tell(servers, reporter);
}

/// Small messages go out at once, and a peer that is gone is noticed.
fn watch_over(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = stream.as_fd();
    sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED_MILLISECONDS)?;
    // A process of this machine does not vanish without a word. To ask after it would only do harm: the
    // loopback interface takes a thousand packets at a time, and who is not heard counts as gone.
    let (own, peer) = (stream.local_addr()?.ip(), stream.peer_addr()?.ip());
    if peer.is_loopback() || peer == own {
        return Ok(());
    }
    let idle = Duration::from_secs(rand::random_range(KEEPALIVE_IDLE_SECONDS));
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_open_files_for_everything_else() {
        assert_eq!(most_connections(Some(1024)), 400);
        assert_eq!(most_connections(Some(65_536)), MOST_CONNECTIONS);
        assert_eq!(most_connections(None), MOST_CONNECTIONS, "no limit");
        assert_eq!(most_connections(Some(0)), 1);
    }

    /// Thousands that are asked after at once would not be heard, and be taken for gone.
    #[tokio::test]
    async fn a_peer_on_the_same_machine_is_not_asked_whether_it_is_there() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        watch_over(&client).unwrap();
        assert!(!sockopt::socket_keepalive(client.as_fd()).unwrap());
        assert!(client.nodelay().unwrap());
    }
}
