//! Connections to web servers, with or without encryption.

use std::{sync::Arc, time::Duration};

use hyper::{
    StatusCode, Uri,
    body::Body,
    client::conn::http1::{self, SendRequest},
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

/// A connection, on which one request after the other may be sent.
pub struct Connection<B> {
    pub host: String,
    pub sender: SendRequest<B>,
    /// Without it nothing comes.
    pub task: AbortOnDropHandle<()>,
}

/// Connects with the server of an address.
pub async fn connect<B>(address: &Uri) -> Result<Connection<B>, HttpError>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
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
        return speak(host, stream).await;
    }
    let name = ServerName::try_from(plain).map_err(|_| bad())?;
    let tls = TlsConnector::from(trust()?);
    let stream = within(&host, tls.connect(name, stream)).await?;
    speak(host, stream).await
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

async fn speak<B>(
    host: String,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Connection<B>, HttpError>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let broken = |source| HttpError::Broken { host: host.clone(), source };
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let task = AbortOnDropHandle::new(tokio::spawn(async move {
        // Its end is seen by who reads from it.
        let _ = connection.await;
    }));
    Ok(Connection { host, sender, task })
}

/// What the machine trusts, read for each connection: the agent is small between them.
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
