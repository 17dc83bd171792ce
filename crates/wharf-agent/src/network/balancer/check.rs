//! Whether an API server is ready, asked every second.

use std::{
    net::{IpAddr, SocketAddrV4},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    net::TcpStream,
    task::AbortHandle,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_rustls::TlsConnector;
use tracing::{info, warn};

use super::{
    servers::{Health, Servers},
    tell,
};
use crate::health::Reporter;

const CHECK_EVERY: Duration = Duration::from_secs(1);
/// A loaded API server may take a second for its answer; one that takes longer is no use.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// `/readyz` says `ok`, or a line for each of its checks.
const MOST_ANSWER_BYTES: usize = 64 << 10;

/// Asks one server for ever; the caller ends the task.
///
/// The connection is kept: a handshake a second from each of a thousand nodes would be a load of
/// its own on the API servers.
pub async fn keep_checking(
    servers: Arc<Servers>,
    address: SocketAddrV4,
    authority: PathBuf,
    reporter: Reporter,
) {
    let mut checker = Checker { address, authority, proved: false, connection: None };
    let mut ticks = interval(CHECK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let result = match timeout(CHECK_TIMEOUT, checker.check()).await {
            Ok(result) => result,
            Err(_) => Err(CheckError::Silent),
        };
        if result.is_err() {
            checker.connection = None;
        }
        let before = servers.checked(address, result.is_ok());
        tell(&servers, &reporter);
        match (before, result) {
            (Some(Health::Unknown | Health::Unready), Ok(())) => {
                info!(server = %address, "the API server is ready");
            }
            (Some(Health::Unknown | Health::Ready), Err(error)) => {
                let reason = wharf_core::words::chain(&error);
                warn!(server = %address, reason, "the API server is not ready");
            }
            (Some(Health::Ready), Ok(())) | (Some(Health::Unready), Err(_)) | (None, _) => {}
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("it cannot be reached")]
    Unreachable(#[source] std::io::Error),
    #[error("it does not prove to be an API server of this cluster")]
    Untrusted(#[source] std::io::Error),
    #[error("the authority's file cannot be read")]
    NoAuthority(#[source] std::io::Error),
    #[error("the authority's certificate cannot be used")]
    Authority(#[source] rustls::Error),
    #[error("the authority's file holds no certificate in PEM")]
    AuthorityFile(#[source] rustls::pki_types::pem::Error),
    #[error("it does not speak HTTP")]
    Http(#[source] hyper::Error),
    #[error("it answered {0}")]
    NotReady(StatusCode),
    #[error("its answer broke off")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("it does not answer")]
    Silent,
}

struct Checker {
    address: SocketAddrV4,
    authority: PathBuf,
    /// It has proved once to be an API server of this cluster: from then on nothing less will do.
    proved: bool,
    connection: Option<Connection>,
}

struct Connection {
    sender: http1::SendRequest<Empty<Bytes>>,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Checker {
    async fn check(&mut self) -> Result<(), CheckError> {
        // A kept connection may have been closed in the meantime, which says nothing: only then
        // is a second attempt made.
        if let Some(connection) = &mut self.connection {
            match ask(connection).await {
                Err(CheckError::Http(_) | CheckError::Broken(_)) => self.connection = None,
                answer => return answer,
            }
        }
        let stream = TcpStream::connect(self.address).await.map_err(CheckError::Unreachable)?;
        let config = match trust(&self.authority) {
            // The installer has not put the authority there yet: that somebody listens must do.
            Err(CheckError::NoAuthority(error))
                if error.kind() == std::io::ErrorKind::NotFound && !self.proved =>
            {
                return Ok(());
            }
            config => config?,
        };
        let name = ServerName::from(IpAddr::V4(*self.address.ip()));
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .map_err(CheckError::Untrusted)?;
        let (sender, driver) =
            http1::handshake(TokioIo::new(stream)).await.map_err(CheckError::Http)?;
        // Its fault is the fault of the request that it carries.
        let driver = tokio::spawn(async move { drop(driver.await) }).abort_handle();
        ask(self.connection.insert(Connection { sender, driver })).await?;
        self.proved = true;
        Ok(())
    }
}

async fn ask(connection: &mut Connection) -> Result<(), CheckError> {
    connection.sender.ready().await.map_err(CheckError::Http)?;
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = hyper::Uri::from_static("/readyz");
    let host = hyper::header::HeaderValue::from_static("kubernetes");
    request.headers_mut().insert(hyper::header::HOST, host);
    let answer = connection.sender.send_request(request).await.map_err(CheckError::Http)?;
    let status = answer.status();
    // Read to its end, or the connection could not be used again.
    Limited::new(answer.into_body(), MOST_ANSWER_BYTES)
        .collect()
        .await
        .map_err(CheckError::Broken)?;
    match status {
        StatusCode::OK => Ok(()),
        // Strangers may not ask there; but it is there and answers.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ok(()),
        other => Err(CheckError::NotReady(other)),
    }
}

fn trust(authority: &Path) -> Result<ClientConfig, CheckError> {
    let pem = std::fs::read(authority).map_err(CheckError::NoAuthority)?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(CheckError::AuthorityFile)?;
        roots.add(certificate).map_err(CheckError::Authority)?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(CheckError::Authority)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn only_before_the_authority_is_there_it_is_enough_that_somebody_listens() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let std::net::SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!() };
        let dir = tempfile::tempdir().unwrap();
        let check = async |authority: PathBuf, proved| {
            let mut checker = Checker { address, authority, proved, connection: None };
            checker.check().await
        };
        assert!(check(dir.path().join("ca.crt"), false).await.is_ok());
        let gone = check(dir.path().join("ca.crt"), true).await;
        assert!(matches!(gone, Err(CheckError::NoAuthority(_))), "{gone:?}");
        let unreadable = check(dir.path().to_owned(), false).await;
        assert!(matches!(unreadable, Err(CheckError::NoAuthority(_))), "{unreadable:?}");
    }
}
