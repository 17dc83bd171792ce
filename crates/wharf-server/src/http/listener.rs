//! Connections: accepted up to a limit, over TLS, plain or the Unix socket, and brought to an
//! orderly end.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt,
    path::Path,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body};
use http_body_util::BodyExt;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::layers::Peer;
use crate::{app::App, error::ServerError};

/// How long open requests may take to end once the server stops; the whole stop takes 10 s at most.
pub const DRAIN: Duration = Duration::from_secs(7);
/// For the last words to a peer whose connection is closed because it asks nothing.
const FAREWELL: Duration = Duration::from_secs(1);
/// Connections of the local command line at once.
const LOCAL_CONNECTIONS: usize = 100;
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
        local_slots: Arc::new(Semaphore::new(LOCAL_CONNECTIONS)),
        by_address: Mutex::new(HashMap::new()),
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
    local_slots: Arc<Semaphore>,
    by_address: Mutex<HashMap<IpAddr, usize>>,
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
                let address = address.ip().to_canonical();
                let Some(slot) = Slot::take(server, Some(address)) else { continue };
                let peer = Peer::Address(address);
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
                let Some(slot) = Slot::take(server, None) else { continue };
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
    /// Counts a connection from an address; false if it has its share already.
    fn admit(&self, address: IpAddr) -> bool {
        let mut counts = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        let room = *count < self.app.config.limits.connections_per_address;
        if room {
            *count += 1;
        }
        room
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
        let activity = Arc::new(Activity::default());
        let service = Tracked { router: self.router.clone(), peer, activity: activity.clone() };
        let service = TowerToHyperService::new(service);
        let connection = self.http.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let idle = Duration::from_secs(self.app.config.limits.header_seconds);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.app.stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = activity.idle_for(idle) => {
                connection.as_mut().graceful_shutdown();
                // Time for a word of farewell; a peer that was silent so far is not waited for.
                tokio::time::timeout(FAREWELL, connection).await.unwrap_or(Ok(()))
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error, "a connection broke");
        }
    }
}

/// The router, told where its requests come from, with every request noted until the last byte of
/// its answer is written.
#[derive(Clone)]
struct Tracked {
    router: Router,
    peer: Peer,
    activity: Arc<Activity>,
}

impl tower::Service<http::Request<hyper::body::Incoming>> for Tracked {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<hyper::body::Incoming>) -> Self::Future {
        let busy = Busy::new(&self.activity);
        request.extensions_mut().insert(self.peer.clone());
        let answer = self.router.clone().oneshot(request);
        Box::pin(async move {
            let response = answer.await?;
            // The body owns the note: it is dropped with it.
            let hold = move |frame| {
                let _until_the_end = &busy;
                frame
            };
            Ok(response.map(|body| Body::new(body.map_frame(hold))))
        })
    }
}

/// What a connection is doing: a peer that asks nothing is not kept.
struct Activity {
    requests: AtomicUsize,
    changed: Notify,
}

impl Default for Activity {
    fn default() -> Self {
        Self { requests: AtomicUsize::new(0), changed: Notify::new() }
    }
}

impl Activity {
    /// Returns once no request has been under way for that long.
    async fn idle_for(&self, limit: Duration) {
        loop {
            let changed = self.changed.notified();
            if self.requests.load(Ordering::Acquire) > 0 {
                changed.await;
            } else if tokio::time::timeout(limit, changed).await.is_err() {
                return;
            }
        }
    }
}

/// A request under way.
struct Busy(Arc<Activity>);

impl Busy {
    fn new(activity: &Arc<Activity>) -> Self {
        activity.requests.fetch_add(1, Ordering::AcqRel);
        activity.changed.notify_one();
        Self(Arc::clone(activity))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}

/// Room for one connection, for as long as it lives.
struct Slot {
    server: Arc<Server>,
    address: Option<IpAddr>,
    _permit: OwnedSemaphorePermit,
}

impl Slot {
    /// `None` if there are too many; then the connection is closed at once. The local socket has
    /// its own room, so that strangers cannot lock the owner out.
    fn take(server: &Arc<Server>, address: Option<IpAddr>) -> Option<Self> {
        let slots = if address.is_some() { &server.slots } else { &server.local_slots };
        let permit = Arc::clone(slots).try_acquire_owned().ok();
        let permit = permit.filter(|_| address.is_none_or(|address| server.admit(address)));
        let metrics = &server.app.metrics;
        let Some(permit) = permit else {
            metrics.connections_refused.inc();
            return None;
        };
        metrics.connections.inc();
        Some(Self { server: Arc::clone(server), address, _permit: permit })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.server.app.metrics.connections.dec();
        let Some(address) = self.address else { return };
        let mut counts = self.server.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&address);
            }
        }
    }
}
