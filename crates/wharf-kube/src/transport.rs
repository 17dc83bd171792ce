//! One connection for a cluster with several API servers.
//!
//! A server whose connection cannot be made is passed over at once: nothing was sent, so the
//! request may go to the next one. A server that took a request and stayed silent is only
//! avoided by the following requests, since the first may have been carried out.

use std::{
    error::Error,
    future::Future,
    pin::Pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header, request::Parts};
use http_body_util::Limited;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::Body;
use rustls::{ClientConfig, RootCertStore, client::Resumption, crypto::CryptoProvider};
use tower::Service;

use crate::kubeconfig::{Access, Identity, KubeconfigError};

/// For TCP and TLS together: a machine that is up answers in milliseconds.
const CONNECT: Duration = Duration::from_secs(3);
/// Longer than the pause between two probes, so that a healthy cluster keeps one connection.
const IDLE: Duration = Duration::from_secs(30);
/// As many as drains of a few nodes use at once; more are closed after use. A cluster that is only
/// probed asks one thing at a time and never has more than one.
const IDLE_CONNECTIONS: usize = 64;
/// What a connection may keep in memory between two requests; the library's default is 400 KiB.
const BUFFER: usize = 64 << 10;
/// Sessions that can be resumed, for each cluster; the library's default is 256.
const SESSIONS: usize = 4;
/// No list that we ask for, page by page, comes near it; a hostile server may send anything.
const MAX_ANSWER: usize = 64 << 20;

/// So that an audit log tells who asked.
const AGENT: HeaderValue = HeaderValue::from_static("wharf");

type BoxError = Box<dyn Error + Send + Sync>;
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));

/// Sends a request to one server instead of any.
#[derive(Clone, Copy)]
pub(crate) struct Only(pub usize);

#[derive(Clone)]
pub(crate) struct Transport {
    client: Client<Connector, Body>,
    servers: Arc<Servers>,
    authorization: Option<HeaderValue>,
}

impl Transport {
    pub fn new(access: Access, servers: Vec<Uri>) -> Result<Self, KubeconfigError> {
        let mut authorization = None;
        if let Identity::Token(token) = &access.identity {
            let bad = KubeconfigError::Bad { field: "token", expected: "a bearer token" };
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| bad)?;
            value.set_sensitive(true);
            authorization = Some(value);
        }
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .http1_max_buf_size(BUFFER)
            .build(Connector::new(access)?);
        Ok(Self { client, servers: Arc::new(Servers::new(servers)), authorization })
    }

    /// The same identity at other servers.
    pub fn with_servers(&self, servers: Vec<Uri>) -> Self {
        Self { servers: Arc::new(Servers::new(servers)), ..self.clone() }
    }

    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    async fn send(self, request: Request<Body>) -> Result<Response<Limited<Answer>>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let order = match parts.extensions.get::<Only>() {
            Some(Only(server)) => vec![*server],
            None => self.servers.order(),
        };
        let mut failure: BoxError = "the cluster has no API server".into();
        for server in order {
            let attempt = self.servers.attempt(server);
            match self.client.request(self.request(server, &parts, body.clone())?).await {
                Ok(answer) => {
                    attempt.succeeded();
                    return Ok(answer.map(|body| Limited::new(body, MAX_ANSWER)));
                }
                Err(error) if error.is_connect() => failure = error.into(),
                Err(error) => return Err(error.into()),
            }
        }
        Err(failure)
    }

    fn request(
        &self,
        server: usize,
        parts: &Parts,
        body: Bytes,
    ) -> Result<Request<Body>, BoxError> {
        let mut parts = parts.clone();
        parts.uri = self.servers.address(server, &parts.uri)?;
        parts.headers.insert(header::USER_AGENT, AGENT);
        if let Some(authorization) = &self.authorization {
            parts.headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        Ok(Request::from_parts(parts, Body::from(body)))
    }
}

type Answer = hyper::body::Incoming;

impl Service<Request<Body>> for Transport {
    type Response = Response<Limited<Answer>>;
    type Error = BoxError;
    type Future = BoxFuture<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

/// The API servers of a cluster, and which of them answered last.
#[derive(Debug)]
pub(crate) struct Servers {
    list: Vec<Uri>,
    good: AtomicUsize,
}

impl Servers {
    fn new(list: Vec<Uri>) -> Self {
        Self { list, good: AtomicUsize::new(0) }
    }

    /// All of them, the last good one first.
    pub fn order(&self) -> Vec<usize> {
        let (count, good) = (self.list.len(), self.good.load(Ordering::Relaxed));
        (0..count).map(|step| (good + step) % count).collect()
    }

    pub fn get(&self, server: usize) -> Option<&Uri> {
        self.list.get(server)
    }

    fn address(&self, server: usize, path: &Uri) -> Result<Uri, BoxError> {
        let base = self.get(server).ok_or("there is no such API server")?;
        let path = path.path_and_query().map_or("/", |path| path.as_str());
        let prefix = base.path().trim_end_matches('/');
        let authority = base.authority().map_or("", |authority| authority.as_str());
        Ok(Uri::try_from(format!("https://{authority}{prefix}{path}"))?)
    }

    fn attempt(&self, server: usize) -> Attempt<'_> {
        Attempt { servers: self, server, succeeded: false }
    }
}

/// A request under way. If it ends in any other way than by an answer, also by being given up,
/// the next request starts with another server.
struct Attempt<'a> {
    servers: &'a Servers,
    server: usize,
    succeeded: bool,
}

impl Attempt<'_> {
    fn succeeded(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let good = &self.servers.good;
        if self.succeeded {
            good.store(self.server, Ordering::Relaxed);
        } else {
            let next = (self.server + 1) % self.servers.list.len().max(1);
            let keep = Ordering::Relaxed;
            // Another request may have found a better one meanwhile: then that stays.
            _ = good.compare_exchange(self.server, next, keep, keep);
        }
    }
}

/// Why there is no connection to a server.
#[derive(Debug, thiserror::Error)]
#[error("{server}")]
struct ConnectError {
    server: String,
    #[source]
    source: BoxError,
}

/// TCP and TLS, with one limit of time for both: a frozen machine still accepts connections.
#[derive(Clone)]
struct Connector(HttpsConnector<HttpConnector>);

impl Connector {
    fn new(access: Access) -> Result<Self, KubeconfigError> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_keepalive(Some(IDLE));
        http.set_connect_timeout(Some(CONNECT));
        let server_name = access.server_name.clone();
        let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls(access)?).https_only();
        if let Some(name) = server_name {
            builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        Ok(Self(builder.enable_http1().wrap_connector(http)))
    }
}

impl Service<Uri> for Connector {
    type Response = <HttpsConnector<HttpConnector> as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = BoxFuture<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let server = uri.authority().map(ToString::to_string).unwrap_or_default();
        let connection = self.0.call(uri);
        Box::pin(async move {
            let connected = tokio::time::timeout(CONNECT, connection).await;
            let connected = connected.unwrap_or_else(|_| Err("no connection within 3 s".into()));
            connected.map_err(|source| ConnectError { server, source }.into())
        })
    }
}

fn tls(access: Access) -> Result<ClientConfig, KubeconfigError> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(access.authorities);
    if added == 0 {
        let field = "certificate-authority-data";
        return Err(KubeconfigError::Bad { field, expected: "a usable authority" });
    }
    let unusable = |field| move |_| KubeconfigError::Bad { field, expected: "usable" };
    let builder = ClientConfig::builder_with_provider(PROVIDER.clone())
        .with_safe_default_protocol_versions()
        .map_err(unusable("certificate-authority-data"))?
        .with_root_certificates(roots);
    let mut config = match access.identity {
        Identity::Token(_) => builder.with_no_client_auth(),
        Identity::Certificate { chain, key } => {
            builder.with_client_auth_cert(chain, key).map_err(unusable("client-key-data"))?
        }
    };
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(config)
}
