//! From an address to a session: the wire, the host's key, the log-in.

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use russh::client::{self, AuthResult, ChannelOpenHandle, DisconnectReason, Msg};
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PrivateKeyWithHashAlg, PublicKeyOrCertificate};
use russh::{Channel, Preferred, cipher, compression};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::session::{Link, Session};
use crate::{HostKey, Key, SshError};

/// A host, and how it is reached.
#[derive(Debug, Clone)]
pub struct Target {
    /// The name under which errors speak of it.
    pub host: String,
    /// An address or a name that the resolver knows (that of the jump host, if it is reached
    /// through one).
    pub address: String,
    pub port: u16,
    pub user: String,
    pub key: Arc<Key>,
    /// The key that it must show; without one any key is taken, and [`Session::host_key`] says
    /// which it was.
    pub pinned: Option<HostKey>,
}

/// How long things may take. The defaults are for machines in a room or across a continent.
#[derive(Debug, Clone)]
pub struct Limits {
    /// For the TCP connection, and again for greeting and key exchange.
    pub connect: Duration,
    pub log_in: Duration,
    /// A silent host is asked for a sign of life this often …
    pub keep_alive: Duration,
    /// … and is lost after so many questions without an answer.
    pub keep_alive_missed: usize,
    /// A transfer of which the host takes nothing for so long has failed.
    pub stall: Duration,
    /// Commands at once on one connection. OpenSSH allows 10 by default, and one more than here is
    /// needed to end another.
    pub channels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            log_in: Duration::from_secs(20),
            keep_alive: Duration::from_secs(5),
            keep_alive_missed: 3,
            stall: Duration::from_secs(60),
            channels: 8,
        }
    }
}

impl Limits {
    fn config(&self, host_keys: &[Algorithm]) -> client::Config {
        client::Config {
            // Commands are small packets in both directions: without this each waits for the
            // acknowledgement of the one before, 40 ms.
            nodelay: true,
            keepalive_interval: Some(self.keep_alive),
            // The library counts the questions that it has sent before the one that is due.
            keepalive_max: self.keep_alive_missed.saturating_sub(1).max(1),
            // While a write to the socket blocks, the library does not count keep-alives; this
            // timer still runs. Every answer to a keep-alive sets it back.
            inactivity_timeout: Some(
                self.keep_alive
                    .saturating_mul(u32::try_from(self.keep_alive_missed + 1).unwrap_or(4)),
            ),
            preferred: Preferred {
                key: Cow::Owned(host_keys.to_vec()),
                cipher: Cow::Borrowed(CIPHERS),
                // Nothing that we send gets smaller, and nothing that we get can then blow up.
                compression: Cow::Borrowed(&[compression::NONE]),
                ..Preferred::DEFAULT
            },
            ..client::Config::default()
        }
    }
}

/// The fastest first: processors have instructions for AES.
const CIPHERS: &[cipher::Name] =
    &[cipher::AES_256_GCM, cipher::CHACHA20_POLY1305, cipher::AES_256_CTR, cipher::AES_128_CTR];

/// What a host may show, the shortest first. No SHA-1.
const HOST_KEYS: &[Algorithm] = &[
    Algorithm::Ed25519,
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
    Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
    Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
];

/// The orders of host key kinds in which a host is asked, one after the other.
///
/// A host has several keys and shows the first kind that we ask for. So the kind of the pinned key
/// comes first; a fingerprint does not say its kind, so there each kind is tried.
fn key_orders(pinned: Option<&HostKey>) -> Vec<Vec<Algorithm>> {
    let is_rsa = |kind: &Algorithm| matches!(kind, Algorithm::Rsa { .. });
    let without = |banned: &dyn Fn(&Algorithm) -> bool| -> Vec<Algorithm> {
        HOST_KEYS.iter().filter(|kind| !banned(kind)).cloned().collect()
    };
    match pinned.map(HostKey::algorithm) {
        None => vec![HOST_KEYS.to_vec()],
        Some(Some(first)) => {
            let same = |kind: &Algorithm| *kind == first || (is_rsa(kind) && is_rsa(&first));
            let (mut order, rest): (Vec<_>, Vec<_>) = HOST_KEYS.iter().cloned().partition(same);
            order.extend(rest);
            vec![order]
        }
        Some(None) => vec![
            HOST_KEYS.to_vec(),
            without(&|kind| *kind == Algorithm::Ed25519),
            without(&|kind| !is_rsa(kind)),
        ],
    }
}

impl Session {
    /// Connects, checks the host's key, and logs in. Cancelling it closes what was opened.
    pub async fn connect(target: &Target, limits: &Limits) -> Result<Self, SshError> {
        connect(target, limits, None).await
    }

    /// The same, through the host of this session; many may be reached through one. It stays open as
    /// long as any of them.
    pub async fn connect_through(
        &self,
        target: &Target,
        limits: &Limits,
    ) -> Result<Self, SshError> {
        connect(target, limits, Some(self)).await
    }
}

async fn connect(
    target: &Target,
    limits: &Limits,
    jump: Option<&Session>,
) -> Result<Session, SshError> {
    let mut refused = None;
    for order in key_orders(target.pinned.as_ref()) {
        match connect_once(target, limits, jump, &order).await {
            Err(error @ SshError::HostKeyChanged { .. }) => {
                refused = refused.or(Some(error));
            }
            // It has no key of the kinds that are left.
            Err(SshError::Protocol { .. }) if refused.is_some() => break,
            result => return result,
        }
    }
    Err(refused.unwrap_or_else(|| SshError::Protocol {
        host: target.host.clone(),
        why: "it shows no host key".to_owned(),
    }))
}

async fn connect_once(
    target: &Target,
    limits: &Limits,
    jump: Option<&Session>,
    host_keys: &[Algorithm],
) -> Result<Session, SshError> {
    let (stream, wire) = match jump {
        None => dial(target, limits).await?,
        Some(jump) => tunnel(target, limits, jump.clone()).await?,
    };
    let seen = Arc::new(Seen::default());
    let ended = CancellationToken::new();
    let guard = Client {
        pinned: target.pinned.clone(),
        seen: seen.clone(),
        _ended: ended.clone().drop_guard(),
    };
    let config = Arc::new(limits.config(host_keys));
    let greeting = client::connect_stream(config, stream, guard);
    let mut handle = within(target, "greet us by SSH", limits.connect, greeting)
        .await?
        .map_err(|error| handshake_error(target, &seen, error))?;
    within(target, "check our key", limits.log_in, log_in(&mut handle, target, &seen)).await??;
    let host_key = seen.host_key.get().cloned().ok_or_else(|| SshError::Protocol {
        host: target.host.clone(),
        why: "it showed no host key".to_owned(),
    })?;
    Ok(Session::new(Link::new(target, limits, host_key, handle, seen, ended, wire)))
}

async fn within<T>(
    target: &Target,
    doing: &str,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, SshError> {
    tokio::time::timeout(limit, work).await.map_err(|_| SshError::TimedOut {
        host: target.host.clone(),
        doing: doing.to_owned(),
        after: limit,
    })
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Cuts the connection when it is dropped, whatever the library's own task is waiting for. Also a
/// server that feeds us a byte now and then cannot outlive the one who wanted to talk to it.
pub(crate) enum Wire {
    Tcp(std::net::TcpStream),
    Tunnel(AbortHandle),
}

impl Wire {
    pub(crate) fn cut(&self) {
        match self {
            // An error means that the connection is gone, which is what we want.
            Self::Tcp(socket) => drop(socket.shutdown(Shutdown::Both)),
            Self::Tunnel(pump) => pump.abort(),
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn dial(target: &Target, limits: &Limits) -> Result<(Box<dyn Stream>, Wire), SshError> {
    let unreachable = |source| SshError::Unreachable { host: target.host.clone(), source };
    let address = (target.address.as_str(), target.port);
    let stream = within(target, "accept a connection", limits.connect, TcpStream::connect(address))
        .await?
        .map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let socket = stream.into_std().map_err(unreachable)?;
    let wire = Wire::Tcp(socket.try_clone().map_err(unreachable)?);
    let stream = TcpStream::from_std(socket).map_err(unreachable)?;
    Ok((Box::new(stream), wire))
}

/// Between a session and the one that carries it. The library reads nothing while it writes, so
/// two of its sessions that feed each other can block each other; this much lies between them.
const TUNNEL_BUFFER: usize = 16 * 1024 * 1024;

async fn tunnel(
    target: &Target,
    limits: &Limits,
    jump: Session,
) -> Result<(Box<dyn Stream>, Wire), SshError> {
    let opening = jump.open_tunnel(&target.address, target.port);
    let channel =
        within(target, "be reached through the jump host", limits.connect, opening).await?;
    let channel = channel.map_err(|error| SshError::Unreachable {
        host: target.host.clone(),
        source: io::Error::other(format!("through {}: {error}", jump.host())),
    })?;
    let (ours, mut theirs) = tokio::io::duplex(TUNNEL_BUFFER);
    let pump = tokio::spawn(async move {
        let mut stream = channel.into_stream();
        // However it ends, both sides notice by the end of their stream.
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut theirs).await;
        drop(jump);
    });
    Ok((Box::new(ours), Wire::Tunnel(pump.abort_handle())))
}

fn handshake_error(target: &Target, seen: &Seen, error: russh::Error) -> SshError {
    let host = target.host.clone();
    match (error, &target.pinned, seen.host_key.get()) {
        (russh::Error::UnknownKey, Some(pinned), Some(found)) => SshError::HostKeyChanged {
            host,
            expected: pinned.fingerprint(),
            found: found.fingerprint(),
        },
        (russh::Error::IO(source), ..) => SshError::Unreachable { host, source },
        (russh::Error::HUP | russh::Error::Disconnect, ..) => SshError::Unreachable {
            host,
            source: io::Error::other("it closed the connection during the handshake"),
        },
        (error, ..) => SshError::Protocol { host, why: error.to_string() },
    }
}

async fn log_in(
    handle: &mut client::Handle<Client>,
    target: &Target,
    seen: &Seen,
) -> Result<(), SshError> {
    let lost = |seen: &Seen| SshError::Lost {
        host: target.host.clone(),
        doing: "log in".to_owned(),
        why: seen.why(),
    };
    for hash in signature_hashes(handle, &target.key).await.ok_or_else(|| lost(seen))? {
        let key = PrivateKeyWithHashAlg::new(target.key.inner(), hash);
        let answer = handle.authenticate_publickey(target.user.as_str(), key).await;
        match answer {
            Ok(AuthResult::Success) => return Ok(()),
            Ok(AuthResult::Failure { .. }) => {}
            Err(_) => break,
        }
    }
    // A server that hangs up in good order after our try has refused it, too.
    match handle.is_closed() && !matches!(seen.ending.get(), Some(Ending::ByServer(_))) {
        true => Err(lost(seen)),
        false => {
            Err(SshError::AuthRefused { host: target.host.clone(), user: target.user.clone() })
        }
    }
}

/// The hashes to try with an RSA key: never SHA-1. `None` if the connection is gone.
async fn signature_hashes(
    handle: &client::Handle<Client>,
    key: &Key,
) -> Option<Vec<Option<HashAlg>>> {
    if !key.is_rsa() {
        return Some(vec![None]);
    }
    match handle.best_supported_rsa_hash().await.ok()? {
        Some(Some(hash)) => Some(vec![Some(hash)]),
        // The server does not say what it takes.
        None | Some(None) => Some(vec![Some(HashAlg::Sha512), Some(HashAlg::Sha256)]),
    }
}

/// What the library's task saw, for those who ask later.
#[derive(Default)]
pub(crate) struct Seen {
    host_key: OnceLock<HostKey>,
    ending: OnceLock<Ending>,
}

enum Ending {
    /// The server said good-bye, with these words.
    ByServer(String),
    Broken(String),
}

impl Seen {
    pub(crate) fn why(&self) -> String {
        match self.ending.get() {
            Some(Ending::ByServer(words)) if words.is_empty() => "the server ended it".to_owned(),
            Some(Ending::ByServer(words)) => format!("the server ended it: {words}"),
            Some(Ending::Broken(why)) => why.clone(),
            None => "it ended".to_owned(),
        }
    }
}

/// What the library asks us while the connection lives. It is dropped with the connection.
pub(crate) struct Client {
    pinned: Option<HostKey>,
    seen: Arc<Seen>,
    _ended: DropGuard,
}

type Handled = Result<(), russh::Error>;

impl client::Handler for Client {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        shown: &PublicKeyOrCertificate,
    ) -> Result<bool, russh::Error> {
        let Some(shown) = HostKey::from_public(&shown.public_key()) else { return Ok(false) };
        let trusted = self.pinned.as_ref().is_none_or(|pinned| pinned.matches(&shown));
        // The key is shown once, at the beginning.
        let _ = self.seen.host_key.set(shown);
        Ok(trusted)
    }

    async fn disconnected(&mut self, reason: DisconnectReason<russh::Error>) -> Handled {
        let ending = match reason {
            DisconnectReason::ReceivedDisconnect(info) => Ending::ByServer(clean(&info.message)),
            DisconnectReason::Error(russh::Error::KeepaliveTimeout) => {
                Ending::Broken("no sign of life from the host".to_owned())
            }
            DisconnectReason::Error(russh::Error::InactivityTimeout) => {
                Ending::Broken("the host takes and gives nothing".to_owned())
            }
            DisconnectReason::Error(russh::Error::HUP | russh::Error::Disconnect) => {
                Ending::Broken("it was closed".to_owned())
            }
            DisconnectReason::Error(error) => Ending::Broken(error.to_string()),
        };
        let _ = self.seen.ending.set(ending);
        Ok(())
    }

    // A server may ask to open channels to us. We never asked for any, and a dropped reply refuses.

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut client::Session,
    ) -> Handled {
        Ok(())
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut client::Session,
    ) -> Handled {
        Ok(())
    }

    async fn server_channel_open_agent_forward(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut client::Session,
    ) -> Handled {
        Ok(())
    }

    async fn server_channel_open_session(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut client::Session,
    ) -> Handled {
        Ok(())
    }

    async fn server_channel_open_direct_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut client::Session,
    ) -> Handled {
        Ok(())
    }

    async fn server_channel_open_direct_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut client::Session,
    ) -> Handled {
        Ok(())
    }

    async fn server_channel_open_x11(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut client::Session,
    ) -> Handled {
        Ok(())
    }
}

/// Words of a server that may be hostile, for an error that somebody reads on a terminal.
fn clean(words: &str) -> String {
    words.chars().filter(|c| !c.is_control()).take(200).collect()
}
