//! A typed client of the API, over HTTPS or the server's Unix socket.

use std::{path::PathBuf, time::Duration};

use futures_util::{Stream, StreamExt};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    PREFIX,
    error::ErrorBody,
    event::{Event, Lost},
    user::{LoggedIn, Login},
};

/// Longer than the server's own limit for a request, so that its answer arrives first.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(40);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The server sends a comment line every 15 s; silence for longer means that it is gone.
const STREAM_SILENCE: Duration = Duration::from_secs(45);
/// Far above any event; a server that sends a longer line is not ours.
const LINE_MAX: usize = 1 << 20;

/// Where the server is and how to speak to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The local server's Unix socket: admin rights by being its owner.
    Socket(PathBuf),
    Url {
        /// `https://host:port`
        url: String,
        token: Option<String>,
        /// The only authority to trust, in PEM; without it the system's.
        ca_pem: Option<String>,
    },
}

/// Where a server was looked for: what to advise differs, so the kinds are told apart by type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    Socket(PathBuf),
    Url(String),
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            At::Socket(path) => path.display().fmt(f),
            At::Url(url) => url.fmt(f),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server answered with an error.
    #[error("{}", .0.message)]
    Api(Box<ErrorBody>),
    #[error("cannot reach the server at {at}")]
    Unreachable {
        at: At,
        #[source]
        source: reqwest::Error,
    },
    #[error("the server at {at} did not answer in time")]
    TimedOut {
        at: At,
        #[source]
        source: reqwest::Error,
    },
    #[error("the answer of {at} cannot be understood")]
    BadAnswer {
        at: At,
        #[source]
        source: reqwest::Error,
    },
    #[error("the server's authority certificate cannot be used")]
    BadCa(#[source] reqwest::Error),
    #[error("the event stream of {at} broke off: {reason}")]
    StreamBroken { at: At, reason: String },
}

/// What comes out of [`Client::events`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventItem {
    Event(Event),
    Lost(Lost),
}

/// An event with its place in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Absent where the server only says how far the stream is.
    pub item: Option<EventItem>,
    /// Everything up to this revision has been seen. It is below the event's own revision while
    /// others of the same transaction follow.
    pub complete: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    at: At,
    token: Option<String>,
}

impl Client {
    pub fn new(target: Target) -> Result<Self, ClientError> {
        let builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("wharf/", env!("CARGO_PKG_VERSION")))
            .no_proxy();
        let (builder, base, at, token) = match target {
            Target::Socket(path) => {
                let at = At::Socket(path.clone());
                // No certificate is ever checked here, and reading the system's takes longer than
                // the whole request.
                let builder = builder.unix_socket(path).tls_certs_only([]);
                (builder, "http://localhost".to_owned(), at, None)
            }
            Target::Url { url, token, ca_pem } => {
                let base = url.trim_end_matches('/').to_owned();
                let builder = match ca_pem {
                    Some(pem) => builder.tls_certs_only(
                        reqwest::Certificate::from_pem_bundle(pem.as_bytes())
                            .map_err(ClientError::BadCa)?,
                    ),
                    None => builder,
                };
                (builder, base.clone(), At::Url(base), token)
            }
        };
        let http = builder.build().map_err(ClientError::BadCa)?;
        Ok(Self { http, base, at, token })
    }

    /// The server's address, as a person would name it.
    pub fn at(&self) -> &At {
        &self.at
    }

    pub async fn login(&self, user: &str, password: &str) -> Result<LoggedIn, ClientError> {
        let body = Login { password: password.to_owned() };
        self.post(&format!("/users/{user}?action=login"), &body).await
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.read(self.request(Method::GET, path)).await
    }

    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.read(self.request(Method::POST, path).json(body)).await
    }

    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.read(self.request(Method::PUT, path).json(body)).await
    }

    /// A PUT whose answer has no body.
    pub async fn put_empty(&self, path: &str, body: &impl Serialize) -> Result<(), ClientError> {
        self.send(self.request(Method::PUT, path).json(body)).await.map(drop)
    }

    /// A POST without a body on either side.
    pub async fn post_empty(&self, path: &str) -> Result<(), ClientError> {
        self.send(self.request(Method::POST, path)).await.map(drop)
    }

    pub async fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.send(self.request(Method::DELETE, path)).await.map(drop)
    }

    /// A DELETE that answers how far it is.
    pub async fn delete_step<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.read(self.request(Method::DELETE, path)).await
    }

    /// Live changes after the revision `after`, or from now on. The stream ends with an error when
    /// the connection breaks.
    pub async fn events(
        &self,
        after: Option<u64>,
    ) -> Result<impl Stream<Item = Result<EventItem, ClientError>> + use<>, ClientError> {
        let received = self.resumable_events(after).await?;
        Ok(received.filter_map(async |next| match next {
            Ok(Received { item, .. }) => item.map(Ok),
            Err(error) => Some(Err(error)),
        }))
    }

    /// As [`Client::events`], and with each the revision to go on from after a break.
    pub async fn resumable_events(
        &self,
        after: Option<u64>,
    ) -> Result<impl Stream<Item = Result<Received, ClientError>> + use<>, ClientError> {
        let mut request = self.request_untimed(Method::GET, "/events");
        if let Some(after) = after {
            request = request.header("last-event-id", after.to_string());
        }
        let response = self.send(request).await?;
        let at = self.at.clone();
        let parser = EventParser::default();
        let bytes = Box::pin(response.bytes_stream());
        Ok(futures_util::stream::unfold((bytes, parser, at), |(mut bytes, mut parser, at)| async {
            loop {
                if let Some(item) = parser.next_item() {
                    return Some((Ok(item), (bytes, parser, at)));
                }
                let reason = match tokio::time::timeout(STREAM_SILENCE, bytes.next()).await {
                    Ok(Some(Ok(chunk))) if parser.push(&chunk) => continue,
                    Ok(Some(Ok(_))) => "a line is too long".to_owned(),
                    Ok(Some(Err(error))) => error.to_string(),
                    Ok(None) => return None,
                    Err(_) => format!("no sign of life for {} s", STREAM_SILENCE.as_secs()),
                };
                let broken = ClientError::StreamBroken { at: at.clone(), reason };
                return Some((Err(broken), (bytes, parser, at)));
            }
        }))
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.request_untimed(method, path).timeout(REQUEST_TIMEOUT)
    }

    fn request_untimed(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{PREFIX}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn read<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        let response = self.send(request).await?;
        response.json().await.map_err(|source| {
            let at = self.at.clone();
            if source.is_timeout() {
                ClientError::TimedOut { at, source }
            } else {
                ClientError::BadAnswer { at, source }
            }
        })
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let at = || self.at.clone();
        let response = request.send().await.map_err(|source| {
            if source.is_timeout() && !source.is_connect() {
                ClientError::TimedOut { at: at(), source }
            } else {
                ClientError::Unreachable { at: at(), source }
            }
        })?;
        if response.status() < StatusCode::BAD_REQUEST {
            return Ok(response);
        }
        match response.json::<ErrorBody>().await {
            Ok(body) => Err(ClientError::Api(Box::new(body))),
            Err(source) => Err(ClientError::BadAnswer { at: at(), source }),
        }
    }
}

/// Cuts a stream of bytes into events, as the HTML standard describes them.
#[derive(Default)]
struct EventParser {
    buffer: Vec<u8>,
    id: Option<u64>,
    name: String,
    data: String,
}

impl EventParser {
    /// Takes bytes in; false if a line grows beyond reason.
    fn push(&mut self, chunk: &[u8]) -> bool {
        self.buffer.extend_from_slice(chunk);
        self.buffer.len() <= LINE_MAX
    }

    fn next_item(&mut self) -> Option<Received> {
        while let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if let Some(name) = line.strip_prefix("event:") {
                name.trim_start().clone_into(&mut self.name);
            } else if let Some(id) = line.strip_prefix("id:") {
                self.id = id.trim().parse().ok();
            } else if let Some(data) = line.strip_prefix("data:") {
                self.data.push_str(data.trim_start());
            } else if line.is_empty() {
                let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
                let item = parse_item(&name, &data);
                if item.is_some() || (data.is_empty() && self.id.is_some()) {
                    return Some(Received { item, complete: self.id });
                }
            }
        }
        None
    }
}

/// An event that this client does not understand is passed over: a newer server may have more.
fn parse_item(name: &str, data: &str) -> Option<EventItem> {
    if name == "lost" {
        serde_json::from_str(data).ok().map(EventItem::Lost)
    } else {
        serde_json::from_str(data).ok().map(EventItem::Event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(chunks: &[&str]) -> Vec<Received> {
        let mut parser = EventParser::default();
        let mut items = Vec::new();
        for chunk in chunks {
            assert!(parser.push(chunk.as_bytes()));
            while let Some(item) = parser.next_item() {
                items.push(item);
            }
        }
        items
    }

    const DATA: &str = r#"{"type":"user.created","cluster":null,"resource":"user/a","revision":7,"time":"2026-01-01T00:00:00Z"}"#;

    #[test]
    fn events_are_cut_wherever_the_chunks_break() {
        let text = format!(
            ":\n\nid: 5\n\nid: 6\nevent: user.created\ndata: {DATA}\n\nid: 8\nevent: lost\ndata: {{\"resumedAt\":9,\"reason\":\"slow\"}}\n\n"
        );
        let whole = items(&[&text]);
        assert_eq!(whole.len(), 3);
        assert!(whole[0].item.is_none());
        assert!(matches!(&whole[1].item, Some(EventItem::Event(e)) if e.revision == 7));
        assert!(matches!(&whole[2].item, Some(EventItem::Lost(l)) if l.resumed_at == 9));
        assert_eq!([0, 1, 2].map(|i| whole[i].complete), [Some(5), Some(6), Some(8)]);
        let singles: Vec<String> = text.chars().map(String::from).collect();
        let singles: Vec<&str> = singles.iter().map(String::as_str).collect();
        assert_eq!(items(&singles), whole);
    }

    #[test]
    fn what_is_not_understood_is_passed_over() {
        assert!(items(&["event: new\ndata: {\"x\":1}\n\n", "data: nonsense\n\n"]).is_empty());
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut parser = EventParser::default();
        assert!(!parser.push(&vec![b'x'; LINE_MAX + 1]));
    }
}
