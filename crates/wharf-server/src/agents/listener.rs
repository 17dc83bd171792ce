//! Where agents are heard: a port of its own, because whoever calls here shows a certificate.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use wharf_api::link::SERVER_NAME;
use wharf_pki::AgentAuthority;

use super::session;
use crate::{
    app::App,
    config::Config,
    error::{ServerError, chain},
};

/// For the handshake, and for the first word.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// After an accept that failed, as when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What is shown lives a year; a server may run for longer.
const SHOW_ANEW: Duration = Duration::from_secs(30 * 24 * 3600);

/// Binds the port for agents. Where nobody said which, a port that is taken is no reason not to
/// start: then there are no links, and that is told.
pub async fn bind(config: &Config) -> Result<Option<TcpListener>, ServerError> {
    let address = config.agents_listen()?;
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if config.agents.listen.is_empty() => {
            tracing::error!(%address, %error, "agents cannot be heard; `agents.listen` says where");
            Ok(None)
        }
        Err(source) => Err(ServerError::Listen { address, source }),
    }
}

/// Hears agents until the server stops.
pub async fn serve(app: App, listener: Option<TcpListener>) {
    let Some(listener) = listener else { return app.stopping.cancelled().await };
    let sessions = TaskTracker::new();
    tokio::select! {
        () = app.stopping.cancelled() => {}
        () = accept(&app, &listener, &sessions) => {}
    }
    sessions.close();
    sessions.wait().await;
}

async fn accept(app: &App, listener: &TcpListener, sessions: &TaskTracker) {
    let room = Arc::new(Semaphore::new(app.config.agents.connections));
    let mut shown: Option<(TlsAcceptor, Instant)> = None;
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(?error, "an agent's connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = room.clone().try_acquire_owned() else {
            app.metrics.connections_refused.inc();
            continue;
        };
        let tls = match shown.take().filter(|(_, since)| since.elapsed() < SHOW_ANEW) {
            Some((tls, since)) => {
                shown = Some((tls.clone(), since));
                tls
            }
            None => match acceptor(&app.agents.authority, Timestamp::now()) {
                Ok(tls) => {
                    shown = Some((tls.clone(), Instant::now()));
                    tls
                }
                Err(error) => {
                    tracing::error!(error = chain(&error), "nothing can be shown to agents");
                    continue;
                }
            },
        };
        sessions.spawn(greet(app.clone(), tls, stream, address, permit));
    }
}

async fn greet(
    app: App,
    tls: TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
    _room: OwnedSemaphorePermit,
) {
    // Messages are written whole: waiting to fill a packet only delays them.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => session::run(app, stream, address).await,
        Ok(Err(error)) => tracing::debug!(%address, %error, "an agent was not believed"),
        Err(_) => tracing::debug!(%address, "an agent took too long to show itself"),
    }
}

/// Believes whoever shows a certificate of the agents' authority, and shows one itself.
fn acceptor(authority: &AgentAuthority, now: Timestamp) -> Result<TlsAcceptor, ServerError> {
    let pair = authority.serve(SERVER_NAME, now).map_err(tls_error("making a certificate"))?;
    let pem = |text: &str| CertificateDer::from_pem_slice(text.as_bytes());
    let mut roots = RootCertStore::empty();
    let root = pem(authority.certificate_pem()).map_err(tls_error("the agents' authority"))?;
    roots.add(root).map_err(tls_error("the agents' authority"))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(tls_error("the agents' authority"))?;
    let chain = vec![pem(&pair.cert_pem).map_err(tls_error("a certificate"))?];
    let key = PrivateKeyDer::from_pem_slice(pair.key_pem.expose().as_bytes())
        .map_err(tls_error("a key"))?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(tls_error("choosing TLS versions"))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(tls_error("the certificate and the key do not go together"))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn tls_error<E: std::error::Error + Send + Sync + 'static>(
    what: &str,
) -> impl FnOnce(E) -> ServerError {
    let reason = what.to_owned();
    move |source| ServerError::Tls { reason, source: Some(Box::new(source)) }
}
