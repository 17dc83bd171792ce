//! The block server: images in a directory, served to one writer each.
//!
//! Flow of a connection: handshake with a deadline ([`handshake`]), entry through the image's gate
//! ([`gate`]), then requests one after the other in the connection's own thread ([`transmit`]). A client
//! that wants several requests under way opens several connections.
//!
//! **Guarantees.** An epoch is on disk before anybody profits from it, and never falls. When somebody
//! is let in, nobody below his generation, no other session that writes and no older connection of his
//! own slot can change the image any more: their requests have ended. What was flushed is on disk.
//!
//! **Assumptions.** One server has the directory (it holds a lock there), and the file system beneath
//! keeps what it has flushed. Without TLS whoever reaches the port may read and write: it must be
//! reachable for the nodes only.

mod gate;
mod handshake;
mod store;
mod transmit;

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::net::sockopt;

use store::Store;

/// Each connection is a thread with a buffer of a mebibyte, and each node opens some for each volume.
const MAX_CONNECTIONS: usize = 1024;

/// From the first byte to the last option, waiting for others to leave not counted.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The kernel is out of something when it cannot accept; asking again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A client whose machine has vanished holds its place no longer than about this.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("another block server has the directory {0}")]
    Locked(String),
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
}

/// A server that listens and does not serve yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    boot: String,
    connections: AtomicUsize,
}

impl Server {
    /// Takes the directory for itself and begins to listen.
    pub fn bind(address: impl ToSocketAddrs, directory: &Path) -> Result<Self, Error> {
        let store = Store::open(directory)?;
        let io = |what: &str| {
            let what = what.to_owned();
            move |source| Error::Io { what, source }
        };
        let boot = super::boot_id().map_err(io("reading the kernel's boot id"))?;
        let listener = TcpListener::bind(address).map_err(io("listening"))?;
        let shared = Shared { store, boot, connections: AtomicUsize::new(0) };
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the process ends. There is nothing to tidy up at the end: a kill is as good.
    pub fn run(self) -> ! {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => welcome(&self.shared, stream),
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
    }
}

/// Gives the connection a thread, unless there are too many.
fn welcome(shared: &Arc<Shared>, stream: TcpStream) {
    if shared.connections.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
        shared.connections.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let place = Place(Arc::clone(shared));
    // When no thread can be had the place is dropped with the closure.
    let _no_thread = thread::Builder::new().name("connection".to_owned()).spawn(move || {
        // A connection that breaks concerns its client, who sees it too.
        let _broken = serve(&place.0, &stream);
    });
}

/// One of the [`MAX_CONNECTIONS`].
struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve(shared: &Shared, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?;
    let Some(admission) = handshake::run(shared, stream)? else { return Ok(()) };
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    transmit::run(&admission, stream)
}
