//! Asking another agent's status server, with bounds on everything.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Method, Request, body::Bytes, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

/// What is asked, and of whom.
#[derive(Debug, Clone)]
pub struct Question<'a> {
    pub method: Method,
    pub server: SocketAddr,
    /// Only the cluster's own network is answered: this node's address in it.
    pub from: Option<IpAddr>,
    pub path: &'a str,
    pub token: Option<&'a str>,
    pub within: Duration,
    pub most_bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub code: u16,
    pub cluster_id: Option<String>,
    pub body: Bytes,
}

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("it cannot be reached")]
    Unreachable(#[source] io::Error),
    #[error("it did not answer within {0:?}")]
    Silent(Duration),
    #[error("it does not speak HTTP")]
    NotHttp(#[source] hyper::Error),
    #[error("its answer broke off or is larger than {most} bytes")]
    Body {
        most: usize,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("it cannot be asked for that")]
    Question(#[from] hyper::http::Error),
}

/// The whole answer, or why there is none.
pub async fn ask(question: &Question<'_>) -> Result<Answer, HttpError> {
    let answer = timeout(question.within, talk(question)).await;
    answer.unwrap_or(Err(HttpError::Silent(question.within)))
}

async fn talk(question: &Question<'_>) -> Result<Answer, HttpError> {
    let stream = connect(question).await.map_err(HttpError::Unreachable)?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(HttpError::NotHttp)?;
    // It goes with this question, whatever becomes of it.
    let _driver = AbortOnDropHandle::new(tokio::spawn(connection));
    let mut request = Request::builder()
        .method(question.method.clone())
        .uri(question.path)
        .header(header::HOST, question.server.to_string());
    if let Some(token) = question.token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await.map_err(HttpError::NotHttp)?;
    let code = answer.status().as_u16();
    let cluster_id = answer.headers().get(super::server::CLUSTER_ID);
    let cluster_id = cluster_id.and_then(|id| id.to_str().ok()).map(str::to_owned);
    let most = question.most_bytes;
    let body = Limited::new(answer.into_body(), most).collect().await;
    let body = body.map_err(|source| HttpError::Body { most, source })?.to_bytes();
    Ok(Answer { code, cluster_id, body })
}

async fn connect(question: &Question<'_>) -> io::Result<TcpStream> {
    let socket = match question.server {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if let Some(from) = question.from.filter(|from| from.is_ipv4() == question.server.is_ipv4()) {
        socket.bind(SocketAddr::new(from, 0))?;
    }
    socket.connect(question.server).await
}
