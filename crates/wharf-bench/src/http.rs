//! A client for one connection: sends bytes that are already a request, reads the answer.
//!
//! A full client library would spend more time than the servers that are measured, and on the
//! same cores.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustls::{
    ClientConfig, ConfigBuilder,
    client::WantsClientCert,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// No answer here takes longer, unless the server is stuck.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
/// The longest answer is the list of everything that a run has written.
const MAX_ANSWER_BYTES: usize = 1 << 30;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

pub struct Connection {
    stream: Box<dyn Stream>,
    received: Vec<u8>,
}

pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// The authority that a server's certificate must come from.
pub fn trust(authority: &Path) -> Result<TlsConnector> {
    let config = trusting(authority)?.with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The same for a client that shows a certificate; it and its key are in one file.
pub fn trust_with(authority: &Path, identity: &Path) -> Result<TlsConnector> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(identity)?.collect();
    let key = PrivateKeyDer::from_pem_file(identity)?;
    let config = trusting(authority)?.with_client_auth_cert(chain?, key)?;
    Ok(TlsConnector::from(Arc::new(config)))
}

fn trusting(authority: &Path) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority)
        .with_context(|| format!("cannot read {}", authority.display()))?
    {
        // A chain holds the server's own certificate too, which is no authority.
        roots.add(certificate?).ok();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots))
}

/// A whole request for [`Connection::send`].
pub fn request(method: &str, path: &str, token: Option<&str>, body: &str) -> Vec<u8> {
    let authorization = token.map(|t| format!("authorization: Bearer {t}\r\n")).unwrap_or_default();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{authorization}accept: application/json\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl Connection {
    pub async fn open(port: u16, tls: Option<&TlsConnector>) -> Result<Connection> {
        Self::open_at(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), tls).await
    }

    pub async fn open_at(address: SocketAddr, tls: Option<&TlsConnector>) -> Result<Connection> {
        tokio::time::timeout(ANSWER_DEADLINE, Self::connect(address, tls))
            .await
            .context("no connection was made")?
    }

    async fn connect(address: SocketAddr, tls: Option<&TlsConnector>) -> Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(match tls {
            None => Self::over(stream),
            Some(tls) => Self::over(tls.connect(ServerName::from(address.ip()), stream).await?),
        })
    }

    /// On a stream that is open.
    pub fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Connection {
        Connection { stream: Box::new(stream), received: Vec::with_capacity(4096) }
    }

    pub async fn send(&mut self, request: &[u8]) -> Result<Answer> {
        tokio::time::timeout(ANSWER_DEADLINE, self.exchange(request))
            .await
            .context("the server did not answer")?
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<Answer> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        let head_length = self.receive_until(0, b"\r\n\r\n").await?;
        let head: Vec<u8> = self.received.drain(..head_length).collect();
        let head = Head::parse(std::str::from_utf8(&head)?)?;
        let body = match head.length {
            Some(length) => self.take(length).await?,
            None => self.take_chunks().await?,
        };
        Ok(Answer { status: head.status, body })
    }

    async fn take(&mut self, length: usize) -> Result<Vec<u8>> {
        while self.received.len() < length {
            self.receive().await?;
        }
        Ok(self.received.drain(..length).collect())
    }

    async fn take_chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.receive_until(0, b"\r\n").await?;
            let line: Vec<u8> = self.received.drain(..line).collect();
            let length = usize::from_str_radix(std::str::from_utf8(&line)?.trim(), 16)?;
            body.extend(self.take(length).await?);
            self.take(2).await?;
            if length == 0 {
                return Ok(body);
            }
        }
    }

    /// The length up to and including `end`.
    async fn receive_until(&mut self, from: usize, end: &[u8]) -> Result<usize> {
        let mut looked = from;
        loop {
            let unseen = self.received.get(looked..).unwrap_or_default();
            if let Some(place) = unseen.windows(end.len()).position(|window| window == end) {
                return Ok(looked + place + end.len());
            }
            looked = self.received.len().saturating_sub(end.len() - 1);
            self.receive().await?;
        }
    }

    async fn receive(&mut self) -> Result<()> {
        if self.received.len() > MAX_ANSWER_BYTES {
            bail!("the answer is too long");
        }
        if self.stream.read_buf(&mut self.received).await? == 0 {
            bail!("the server closed the connection");
        }
        Ok(())
    }
}

struct Head {
    status: u16,
    /// Absent when the body comes in chunks.
    length: Option<usize>,
}

impl Head {
    fn parse(text: &str) -> Result<Head> {
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.with_context(|| format!("not an answer: {first:?}"))?;
        let mut length = Some(0);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse()?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                length = None;
                break;
            }
        }
        Ok(Head { status, length })
    }
}

impl Answer {
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).context("the answer is not JSON")
    }

    /// An error that shows the answer, unless the status is the expected one.
    pub fn expect(self, status: u16) -> Result<Answer> {
        if self.status != status {
            bail!(
                "status {} instead of {status}: {}",
                self.status,
                String::from_utf8_lossy(&self.body)
            );
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn answer_to(reply: &'static [&'static [u8]]) -> Result<Answer> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut got = [0; 512];
            assert!(stream.read(&mut got).await.unwrap() > 0);
            for part in reply {
                stream.write_all(part).await.unwrap();
                stream.flush().await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let mut connection = Connection::open(port, None).await?;
        let answer = connection.send(&request("GET", "/", None, "")).await;
        server.await?;
        answer
    }

    #[tokio::test]
    async fn an_answer_in_pieces_is_put_together() {
        let answer =
            answer_to(&[b"HTTP/1.1 201 Created\r\nContent-Le", b"ngth: 5\r\n\r", b"\nhel", b"lo"]);
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (201, &b"hello"[..]));
    }

    #[tokio::test]
    async fn chunks_are_put_together() {
        let reply: &[&[u8]] = &[
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r",
            b"\nA\r\n0123456789\r\n0\r\n\r\n",
        ];
        let answer = answer_to(reply).await.unwrap();
        assert_eq!(answer.body, b"abc0123456789");
    }

    #[tokio::test]
    async fn an_answer_that_breaks_off_is_an_error() {
        assert!(answer_to(&[b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"]).await.is_err());
        assert!(answer_to(&[b"nonsense\r\n\r\n"]).await.is_err());
    }
}
