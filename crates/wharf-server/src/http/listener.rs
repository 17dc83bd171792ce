//! Connections: accepted up to a limit, over TLS, plain or the Unix socket, and brought to an
//! orderly end.

use std::{net::SocketAddr, os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::layers::Peer;
use crate::{app::App, error::ServerError};

/// How long open requests may take to end once the server stops; the whole stop takes 10 s at most.
pub const DRAIN: Duration = Duration::from_secs(7);
/// After an accept that failed, as when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Requests at once on one HTTP/2 connection.
const STREAMS_PER_CONNECTION: u32 = 100;

pub struct Listeners {
    pub tcp: TcpListener,
    pub tls: Option<TlsAcceptor>,
    pub unix: UnixListener,
}

pub async fn bind_tcp(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).await.map_err(|source| ServerError::Listen { address, source })
}

/// Binds the socket for the local command line. One that an earlier server left behind is removed;
/// one that answers belongs to a server that runs.
pub async fn bind_unix(path: &Path) -> Result<UnixListener, ServerError> {
    let failed = |action: &'static str| {
        let path = path.to_path_buf();
        move |source| ServerError::File { action, path, source }
    };
    if path.exists() {
        if tokio::net::UnixStream::connect(path).await.is_ok() {
            return Err(ServerError::SocketInUse { path: path.to_path_buf() });
        }
        std::fs::remove_file(path).map_err(failed("remove the old socket"))?;
    }
    let listener = UnixListener::bind(path).map_err(failed("make the socket"))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(failed("set the mode of the socket"))?;
    Ok(listener)
}

/// Serves until the server stops, then lets open requests end.
pub async fn serve(app: App, router: Router, listeners: Listeners) {
    let server = Arc::new(Server {
        slots: Arc::new(Semaphore::new(app.config.limits.connections)),
        connections: TaskTracker::new(),
        http: http_builder(&app),
        tls: listeners.tls,
        router,
        app,
    });
    tokio::select! {
        () = server.app.stopping.cancelled() => {}
        () = accept_tcp(&server, listeners.tcp) => {}
        () = accept_unix(&server, listeners.unix) => {}
    }
    server.connections.close();
    if tokio::time::timeout(DRAIN, server.connections.wait()).await.is_err() {
        tracing::warn!("some requests did not end in {} s and were cut off", DRAIN.as_secs());
    }
}

struct Server {
    app: App,
    router: Router,
    tls: Option<TlsAcceptor>,
    slots: Arc<Semaphore>,
    connections: TaskTracker,
    http: auto::Builder<TokioExecutor>,
}

fn http_builder(app: &App) -> auto::Builder<TokioExecutor> {
    let limits = &app.config.limits;
    let header_bytes = u32::try_from(limits.header_bytes).unwrap_or(u32::MAX);
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(limits.header_seconds))
        .max_buf_size(limits.header_bytes);
    http.http2()
        .timer(TokioTimer::new())
        .max_header_list_size(header_bytes)
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .keep_alive_interval(Duration::from_secs(limits.header_seconds));
    http
}

async fn accept_tcp(server: &Arc<Server>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let Some(slot) = server.slot() else { continue };
                let peer = Peer::Address(address.ip().to_canonical());
                let server_of_task = server.clone();
                server.connections.spawn(async move {
                    server_of_task.serve_tcp(stream, peer).await;
                    drop(slot);
                });
            }
            Err(error) => pause_after(&error).await,
        }
    }
}

async fn accept_unix(server: &Arc<Server>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Some(slot) = server.slot() else { continue };
                let server_of_task = server.clone();
                server.connections.spawn(async move {
                    server_of_task.serve_stream(stream, Peer::Local).await;
                    drop(slot);
                });
            }
            Err(error) => pause_after(&error).await,
        }
    }
}

async fn pause_after(error: &std::io::Error) {
    tracing::warn!(?error, "a connection could not be accepted");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

impl Server {
    /// Room for one more connection; without it the connection is closed at once.
    fn slot(&self) -> Option<Slot> {
        match self.slots.clone().try_acquire_owned() {
            Ok(permit) => {
                self.app.metrics.connections.inc();
                Some(Slot { app: self.app.clone(), _permit: permit })
            }
            Err(_) => {
                self.app.metrics.connections_refused.inc();
                None
            }
        }
    }

    async fn serve_tcp(&self, stream: TcpStream, peer: Peer) {
        // Answers are written whole: waiting to fill a packet only delays them.
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let Some(tls) = &self.tls else { return self.serve_stream(stream, peer).await };
        let limit = Duration::from_secs(self.app.config.limits.header_seconds);
        match tokio::time::timeout(limit, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve_stream(stream, peer).await,
            Ok(Err(error)) => tracing::debug!(?error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn serve_stream(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
    ) {
        let service = self.router.clone().map_request(
            move |mut request: http::Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(peer.clone());
                request
            },
        );
        let service = TowerToHyperService::new(service);
        let connection = self.http.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.app.stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error, "a connection broke");
        }
    }
}

/// Counts a connection for as long as it lives.
struct Slot {
    app: App,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.app.metrics.connections.dec();
    }
}
