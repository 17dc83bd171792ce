//! The connection: TLS with the node's certificate, and messages on it.

use std::{io::ErrorKind, path::Path, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use wharf_api::link::{self, Down, Lines, SERVER_NAME, SILENCE, Up};

use super::LinkError;
use crate::config::Config;

/// For the connection and the handshake.
const CONNECT: Duration = Duration::from_secs(10);

pub struct Wire {
    reader: ReadHalf<TlsStream<TcpStream>>,
    writer: WriteHalf<TlsStream<TcpStream>>,
    lines: Lines,
}

impl Wire {
    /// Opens a connection. The files are read each time: the installer may have replaced them.
    pub async fn open(config: &Config, server: &str) -> Result<Self, LinkError> {
        let tls = TlsConnector::from(Arc::new(client(config)?));
        let connect = async {
            let stream = TcpStream::connect(server).await.map_err(LinkError::Connect)?;
            stream.set_nodelay(true).map_err(LinkError::Connect)?;
            let name = ServerName::try_from(SERVER_NAME).map_err(|error| {
                LinkError::Connect(std::io::Error::new(ErrorKind::InvalidInput, error))
            })?;
            tls.connect(name, stream).await.map_err(LinkError::Connect)
        };
        let stream = timeout(CONNECT, connect).await.map_err(|_| LinkError::Late(CONNECT))??;
        let (reader, writer) = tokio::io::split(stream);
        Ok(Self { reader, writer, lines: Lines::default() })
    }

    /// The next message. May be dropped at any time; nothing is lost.
    pub async fn next(&mut self) -> Result<Down, LinkError> {
        loop {
            if let Some(message) = self.lines.take()? {
                return Ok(message);
            }
            let read = self.reader.read_buf(self.lines.buffer()).await;
            if read.map_err(LinkError::Broken)? == 0 {
                return Err(LinkError::Closed);
            }
        }
    }

    pub async fn send(&mut self, message: &Up) -> Result<(), LinkError> {
        let bytes = link::line(message)?;
        let write = async {
            self.writer.write_all(&bytes).await?;
            self.writer.flush().await
        };
        let written = timeout(SILENCE, write).await.map_err(|_| LinkError::Silent(SILENCE))?;
        written.map_err(LinkError::Broken)
    }
}

fn client(config: &Config) -> Result<ClientConfig, LinkError> {
    let identity = &config.link_identity;
    let bad = |source: Box<dyn std::error::Error + Send + Sync>| LinkError::Identity {
        path: identity.clone(),
        source,
    };
    let pem = read(identity)?;
    let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| bad(Box::new(error)))?;
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| bad(Box::new(error)))?;
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(&read(&config.link_authority)?);
    let added = authority.map_err(|error| bad(Box::new(error)));
    roots.add(added?).map_err(|error| bad(Box::new(error)))?;
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| bad(Box::new(error)))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| bad(Box::new(error)))
}

fn read(path: &Path) -> Result<Vec<u8>, LinkError> {
    std::fs::read(path).map_err(|source| LinkError::File { path: path.to_owned(), source })
}
