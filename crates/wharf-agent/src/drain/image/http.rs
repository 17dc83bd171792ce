//! Getting one thing from a web server.

use std::{sync::Arc, time::Duration};

use http_body_util::{BodyExt, Empty};
use hyper::{
    Request, Response, StatusCode, Uri,
    body::{Bytes, Incoming},
    client::conn::http1,
    header,
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

/// For TCP and TLS each.
const CONNECT: Duration = Duration::from_secs(15);
const MOST_REDIRECTIONS: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("{url} is no address of a web server")]
    BadUrl { url: String },
    #[error("no connection to {host}")]
    Connect {
        host: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{host} did not answer within {} s", CONNECT.as_secs())]
    Silent { host: String },
    #[error("the connection to {host} broke")]
    Broken {
        host: String,
        #[source]
        source: hyper::Error,
    },
    #[error("{url} was answered with {status}")]
    Status { url: String, status: StatusCode },
    #[error("{url} leads from one address to the next without end, or to one without encryption")]
    Redirections { url: String },
    #[error("this machine trusts no certificate authority")]
    NoTrust,
    #[error("the certificates that this machine trusts cannot be used")]
    Trust(#[from] rustls::Error),
}

impl HttpError {
    /// Whether asking again may help.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Silent { .. } | Self::Broken { .. } => true,
            Self::Status { status, .. } => status.is_server_error(),
            Self::BadUrl { .. } | Self::Redirections { .. } | Self::NoTrust | Self::Trust(_) => {
                false
            }
        }
    }
}

/// What comes, piece by piece.
pub struct Body {
    host: String,
    body: Incoming,
    /// Without it nothing comes.
    _connection: AbortOnDropHandle<()>,
}

impl Body {
    pub async fn next(&mut self) -> Result<Option<Bytes>, HttpError> {
        while let Some(frame) = self.body.frame().await {
            let frame =
                frame.map_err(|source| HttpError::Broken { host: self.host.clone(), source })?;
            if let Ok(piece) = frame.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }
}

/// Asks for a thing, also where it has moved.
pub async fn get(url: &str) -> Result<Body, HttpError> {
    let bad = |url: &str| HttpError::BadUrl { url: url.to_owned() };
    let mut address: Uri = url.parse().map_err(|_| bad(url))?;
    for _ in 0..=MOST_REDIRECTIONS {
        let (response, host, connection) = ask(&address).await?;
        if response.status().is_success() {
            return Ok(Body { host, body: response.into_body(), _connection: connection });
        }
        let location = response.headers().get(header::LOCATION);
        let location = location.filter(|_| response.status().is_redirection());
        let Some(location) = location.and_then(|location| location.to_str().ok()) else {
            let status = response.status();
            return Err(HttpError::Status { url: address.to_string(), status });
        };
        let next = resolve(&address, location).ok_or_else(|| bad(location))?;
        if address.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
            return Err(HttpError::Redirections { url: url.to_owned() });
        }
        address = next;
    }
    Err(HttpError::Redirections { url: url.to_owned() })
}

/// A location may leave the server out.
fn resolve(from: &Uri, location: &str) -> Option<Uri> {
    if !location.starts_with('/') {
        return location.parse().ok();
    }
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    format!("{scheme}://{authority}{location}").parse().ok()
}

type Answer = (Response<Incoming>, String, AbortOnDropHandle<()>);

async fn ask(address: &Uri) -> Result<Answer, HttpError> {
    let bad = || HttpError::BadUrl { url: address.to_string() };
    let host = address.host().ok_or_else(bad)?.to_owned();
    let encrypted = match address.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        Some(_) | None => return Err(bad()),
    };
    let port = address.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
    let plain = host.trim_matches(['[', ']']).to_owned();
    let stream = within(&host, TcpStream::connect((plain.as_str(), port))).await?;
    if !encrypted {
        return send(address, host, stream).await;
    }
    let name = ServerName::try_from(plain).map_err(|_| bad())?;
    let tls = TlsConnector::from(trust()?);
    let stream = within(&host, tls.connect(name, stream)).await?;
    send(address, host, stream).await
}

async fn within<T>(
    host: &str,
    connect: impl Future<Output = std::io::Result<T>>,
) -> Result<T, HttpError> {
    match timeout(CONNECT, connect).await {
        Ok(connected) => {
            connected.map_err(|source| HttpError::Connect { host: host.to_owned(), source })
        }
        Err(_) => Err(HttpError::Silent { host: host.to_owned() }),
    }
}

async fn send(
    address: &Uri,
    host: String,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Answer, HttpError> {
    let broken = |source| HttpError::Broken { host: host.clone(), source };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let connection = AbortOnDropHandle::new(tokio::spawn(async move {
        // Its end is seen by who reads from it.
        let _ = connection.await;
    }));
    let path = address.path_and_query().map_or("/", |path| path.as_str());
    let authority = address.authority().map_or("", |authority| authority.as_str());
    let request = Request::get(path)
        .header(header::HOST, authority)
        .header(header::USER_AGENT, "wharf")
        .body(Empty::<Bytes>::new())
        .map_err(|_| HttpError::BadUrl { url: address.to_string() })?;
    let response = sender.send_request(request).await.map_err(broken)?;
    Ok((response, host, connection))
}

/// What the machine trusts, read for each image: the agent is small between them.
fn trust() -> Result<Arc<ClientConfig>, HttpError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(HttpError::NoTrust);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
