//! The balancer before real TLS servers on loopback addresses, each standing for an API server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::{ClientConfig, RootCertStore, ServerConfig, pki_types::PrivateKeyDer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;
use wharf_agent::{
    health::Health,
    network::balancer::{self, Wish},
};

/// For what takes the balancer some checks; the machine may be busy.
const SOON: Duration = Duration::from_secs(30);

/// An authority and what it trusts.
struct Cluster {
    authority: CertifiedIssuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = CertifiedIssuer::self_signed(params, key).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let cluster = Self { authority, dir };
        std::fs::write(cluster.authority_file(), cluster.authority.pem()).unwrap();
        cluster
    }

    fn authority_file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    fn acceptor(&self, address: Ipv4Addr) -> TlsAcceptor {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names.push(SanType::IpAddress(address.into()));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Answers `GET /readyz` by its switch, and any other request with its own name. Connections are
/// kept. Dropping it is the death of the process: every connection ends.
struct ApiServer {
    address: SocketAddrV4,
    ready: Arc<AtomicBool>,
    handshakes: Arc<AtomicUsize>,
    accepting: AbortHandle,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl ApiServer {
    async fn start(cluster: &Cluster, address: Ipv4Addr) -> Self {
        Self::start_at(cluster, SocketAddrV4::new(address, 0)).await
    }

    async fn start_at(cluster: &Cluster, address: SocketAddrV4) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = SocketAddrV4::new(*address.ip(), listener.local_addr().unwrap().port());
        let ready = Arc::new(AtomicBool::new(true));
        let handshakes = Arc::new(AtomicUsize::new(0));
        let acceptor = cluster.acceptor(*address.ip());
        let (told, counted) = (ready.clone(), handshakes.clone());
        let accepting = async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, ready, counted) = (acceptor.clone(), told.clone(), counted.clone());
                connections.spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        counted.fetch_add(1, Ordering::Relaxed);
                        answer(stream, address, &ready).await;
                    }
                });
            }
        };
        let accepting = tokio::spawn(accepting).abort_handle();
        Self { address, ready, handshakes, accepting }
    }
}

async fn answer(
    mut stream: tokio_rustls::server::TlsStream<TcpStream>,
    address: SocketAddrV4,
    ready: &AtomicBool,
) {
    let mut buffer = vec![0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
        let (status, body) = match text.starts_with("GET /readyz ") {
            true if ready.load(Ordering::Relaxed) => ("200 OK", "ok".to_owned()),
            true => ("500 Internal Server Error", "[-]etcd failed".to_owned()),
            false => ("200 OK", address.to_string()),
        };
        let length = body.len();
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A balancer of a node at `own`, and a client of it.
struct Node {
    wishes: watch::Sender<Option<Wish>>,
    listening: watch::Receiver<bool>,
    health: Health,
    stop: CancellationToken,
    connector: TlsConnector,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Node {
    async fn start(cluster: &Cluster, own: Ipv4Addr, servers: &[&ApiServer]) -> Self {
        let wish = Wish {
            listen: SocketAddrV4::new(
                Ipv4Addr::LOCALHOST,
                wharf_testbed::process::free_port().unwrap(),
            ),
            servers: servers.iter().map(|server| server.address).collect(),
            authority_file: cluster.authority_file(),
            own,
        };
        let (wishes, wished) = watch::channel(Some(wish));
        let (told, mut listening) = watch::channel(false);
        let stop = CancellationToken::new();
        let health = Health::new("n1");
        tokio::spawn(balancer::run(wished, told, health.task("balancer"), stop.clone()));
        listening.wait_for(|listens| *listens).await.unwrap();
        Self { wishes, listening, health, stop, connector: cluster.connector() }
    }

    fn fault(&self, subject: &str) -> Option<String> {
        let tasks = self.health.snapshot().tasks;
        let mut faults = tasks.iter().flat_map(|task| task.faults.iter());
        faults.find(|fault| fault.subject == subject).map(|fault| fault.reason.clone())
    }

    fn change(&self, change: impl FnOnce(&mut Wish)) {
        self.wishes.send_modify(|wish| change(wish.as_mut().unwrap()));
    }

    /// A connection through the balancer, and who is at its other end.
    async fn connect(&self) -> Option<(Client, SocketAddrV4)> {
        let listen = self.wishes.borrow().as_ref().unwrap().listen;
        let stream = TcpStream::connect(listen).await.ok()?;
        // The name does not matter to the balancer; any server's will do.
        let servers = self.wishes.borrow().as_ref().unwrap().servers.clone();
        let name = std::net::IpAddr::from(*servers[0].ip()).into();
        let mut client = Client(self.connector.connect(name, stream).await.ok()?);
        let server = client.ask().await?;
        Some((client, server))
    }

    /// Waits until new connections go to this server.
    async fn goes_to(&self, server: &ApiServer) {
        until("connections go there", async || {
            self.connect().await.is_some_and(|(_, at)| at == server.address)
        })
        .await;
    }
}

struct Client(TlsStream<TcpStream>);

impl Client {
    async fn ask(&mut self) -> Option<SocketAddrV4> {
        self.0.write_all(b"GET / HTTP/1.1\r\n\r\n").await.ok()?;
        let mut buffer = vec![0; 4096];
        let read = tokio::time::timeout(SOON, self.0.read(&mut buffer)).await.ok()?.ok()?;
        let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
        text.rsplit("\r\n").next()?.parse().ok()
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds().await {
        assert!(Instant::now() < end, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const A: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
/// A node that runs no API server itself.
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

#[tokio::test]
async fn connections_go_on_elsewhere_when_a_server_dies() {
    let cluster = Cluster::new();
    let (one, two) = (ApiServer::start(&cluster, A).await, ApiServer::start(&cluster, A).await);
    let node = Node::start(&cluster, FAR, &[&one, &two]).await;
    until("both are used", async || {
        let (mut to_one, mut to_two) = (false, false);
        for _ in 0..4 {
            let at = node.connect().await.unwrap().1;
            to_one |= at == one.address;
            to_two |= at == two.address;
        }
        to_one && to_two
    })
    .await;
    let dead = one.address;
    drop(one);
    let begin = Instant::now();
    // Also before a check has seen it, each new connection finds the one that lives.
    for _ in 0..10 {
        let (_, at) = node.connect().await.expect("no connection was lost");
        assert_eq!(at, two.address);
    }
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let back = ApiServer::start_at(&cluster, dead).await;
    node.goes_to(&back).await;
}

#[tokio::test]
async fn connections_to_a_server_that_stays_unready_are_closed() {
    let cluster = Cluster::new();
    let (one, two) = (ApiServer::start(&cluster, A).await, ApiServer::start(&cluster, A).await);
    let node = Node::start(&cluster, FAR, &[&one, &two]).await;
    let mut held = Vec::new();
    until("both hold a connection", async || {
        held.extend(node.connect().await);
        [&one, &two].iter().all(|server| held.iter().any(|(_, at)| *at == server.address))
    })
    .await;
    one.ready.store(false, Ordering::Relaxed);
    let take = |held: &mut Vec<(Client, SocketAddrV4)>, server: &ApiServer| {
        let place = held.iter().position(|(_, at)| *at == server.address).unwrap();
        held.swap_remove(place).0
    };
    let (mut sick, mut healthy) = (take(&mut held, &one), take(&mut held, &two));
    until("the sick server's connection is closed", async || sick.ask().await.is_none()).await;
    assert_eq!(healthy.ask().await, Some(two.address), "the healthy server's stays");
    assert!(node.connect().await.unwrap().1 == two.address);
}

#[tokio::test]
async fn the_nodes_own_server_is_preferred() {
    let cluster = Cluster::new();
    // Another address of the loopback interface stands for another node.
    let other = ApiServer::start(&cluster, Ipv4Addr::new(127, 0, 0, 2)).await;
    let own = ApiServer::start(&cluster, A).await;
    let node = Node::start(&cluster, A, &[&own, &other]).await;
    // Taking turns, six in a row would never happen.
    until("six connections in a row go to the own server", async || {
        for _ in 0..6 {
            if node.connect().await.is_none_or(|(_, at)| at != own.address) {
                return false;
            }
        }
        true
    })
    .await;
}

#[tokio::test]
async fn a_changed_list_takes_effect_and_leaves_good_connections_alone() {
    let cluster = Cluster::new();
    let (one, two) = (ApiServer::start(&cluster, A).await, ApiServer::start(&cluster, A).await);
    let node = Node::start(&cluster, FAR, &[&one]).await;
    let (mut kept, at) = node.connect().await.unwrap();
    assert_eq!(at, one.address);
    node.change(|wish| wish.servers = vec![one.address, two.address]);
    node.goes_to(&two).await;
    assert_eq!(kept.ask().await, Some(one.address));
    node.change(|wish| wish.servers = vec![two.address]);
    until("the removed server's connection ends", async || kept.ask().await.is_none()).await;
    assert_eq!(node.connect().await.unwrap().1, two.address);
}

#[tokio::test]
async fn another_address_to_listen_on_takes_effect_while_connections_stay() {
    let cluster = Cluster::new();
    let one = ApiServer::start(&cluster, A).await;
    let node = Node::start(&cluster, FAR, &[&one]).await;
    let (mut kept, _) = node.connect().await.unwrap();
    let old = node.wishes.borrow().as_ref().unwrap().listen;
    let port = wharf_testbed::process::free_port().unwrap();
    node.change(|wish| wish.listen.set_port(port));
    until("it listens there", async || node.connect().await.is_some()).await;
    assert!(*node.listening.borrow());
    until("nobody listens at the old address", async || TcpStream::connect(old).await.is_err())
        .await;
    assert_eq!(kept.ask().await, Some(one.address));
}

#[tokio::test]
async fn a_stranger_with_another_authority_is_not_ready() {
    let (cluster, strangers) = (Cluster::new(), Cluster::new());
    let ours = ApiServer::start(&cluster, A).await;
    let stranger = ApiServer::start(&strangers, A).await;
    let node = Node::start(&cluster, FAR, &[&ours, &stranger]).await;
    // A client of ours would not even get through the handshake with the stranger.
    until("only ours is used", async || {
        for _ in 0..4 {
            if node.connect().await.is_none() {
                return false;
            }
        }
        true
    })
    .await;
    assert_eq!(stranger.handshakes.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn before_the_authority_is_there_a_listening_server_counts_as_ready() {
    let cluster = Cluster::new();
    std::fs::rename(cluster.authority_file(), cluster.dir.path().join("later")).unwrap();
    let one = ApiServer::start(&cluster, A).await;
    let gone = ApiServer::start(&cluster, A).await;
    let node = Node::start(&cluster, FAR, &[&one, &gone]).await;
    drop(gone);
    until("only the living one is used", async || {
        node.connect().await.is_some_and(|(_, at)| at == one.address)
    })
    .await;
    std::fs::rename(cluster.dir.path().join("later"), cluster.authority_file()).unwrap();
    // Now it is asked by TLS: handshakes come that no client of ours made.
    let before = one.handshakes.load(Ordering::Relaxed);
    until("it is checked by TLS", async || one.handshakes.load(Ordering::Relaxed) > before).await;
}

#[tokio::test]
async fn checks_keep_their_connection() {
    let cluster = Cluster::new();
    let one = ApiServer::start(&cluster, A).await;
    let node = Node::start(&cluster, FAR, &[&one]).await;
    until("it was checked", async || one.handshakes.load(Ordering::Relaxed) == 1).await;
    let begin = Instant::now();
    until("some checks passed", async || begin.elapsed() > Duration::from_secs(4)).await;
    assert_eq!(one.handshakes.load(Ordering::Relaxed), 1);
    drop(node);
}

#[tokio::test]
async fn without_any_server_a_connection_ends_at_once_instead_of_hanging() {
    let cluster = Cluster::new();
    let one = ApiServer::start(&cluster, A).await;
    let node = Node::start(&cluster, FAR, &[&one]).await;
    drop(one);
    let listen = node.wishes.borrow().as_ref().unwrap().listen;
    let mut stream = TcpStream::connect(listen).await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut [0; 1])).await;
    assert!(matches!(end, Ok(Ok(0) | Err(_))), "{end:?}");
    until("that is a fault", async || node.fault("API servers").is_some()).await;
}

#[tokio::test]
async fn a_taken_address_and_servers_that_are_not_ready_are_faults_that_go() {
    let cluster = Cluster::new();
    let one = ApiServer::start(&cluster, A).await;
    let node = Node::start(&cluster, FAR, &[&one]).await;
    one.ready.store(false, Ordering::Relaxed);
    let none = format!("none is ready of {}", one.address);
    until("none is ready", async || node.fault("API servers").as_ref() == Some(&none)).await;
    one.ready.store(true, Ordering::Relaxed);
    until("it is ready again", async || node.health.snapshot().is_healthy()).await;

    let taken = TcpListener::bind((A, 0)).await.unwrap();
    let port = taken.local_addr().unwrap().port();
    node.change(|wish| wish.listen.set_port(port));
    until("it cannot listen", async || {
        let reason = node.fault("its address").unwrap_or_default();
        reason.starts_with(&format!("cannot listen at {A}:{port}: "))
    })
    .await;
    drop(taken);
    until("it listens", async || node.health.snapshot().is_healthy()).await;
    assert!(*node.listening.borrow());
}
