//! Lines to a web server: what is handed on at once is the body of one POST.
//!
//! A connection that breaks does not tell whether the server had taken the lines: they are sent again.
//! The server knows them by their numbers, and a POST that is the same by its key.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Response, Uri, body::Bytes, body::Incoming, header};
use tokio::time::timeout;

use super::{
    reader::Entry,
    sink::{SinkError, render},
};
use crate::{
    host::files::sha256,
    web::{Connection, HttpError, connect},
};

/// From the connection to the end of the answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Who says more than this in an answer is not listened to any more.
const LONGEST_ANSWER: usize = 64 << 10;
const TYPE: &str = "application/x-ndjson";
/// Says that a POST is the same as an earlier one.
const KEY: &str = "idempotency-key";

pub struct HttpSink {
    url: String,
    /// Kept for the next lines.
    connection: Option<Connection<Full<Bytes>>>,
}

impl HttpSink {
    pub fn new(url: &str) -> Self {
        Self { url: url.to_owned(), connection: None }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub async fn deliver(&mut self, entries: &[Entry]) -> Result<(), SinkError> {
        let mut body = Vec::new();
        for entry in entries {
            render(entry, &mut body);
        }
        let post = self.post(body.into());
        match timeout(DEADLINE, post).await {
            Ok(posted) => Ok(posted?),
            Err(_) => Err(SinkError::Silent { seconds: DEADLINE.as_secs() }),
        }
    }

    async fn post(&mut self, body: Bytes) -> Result<(), HttpError> {
        let bad = |_| HttpError::BadUrl { url: self.url.clone() };
        let address: Uri = self.url.parse().map_err(bad)?;
        // A server may close a connection that it has not heard of for long.
        if let Some(connection) = self.connection.take()
            && let Ok(answer) = send(connection, &address, body.clone()).await
        {
            return self.take(answer).await;
        }
        let connection = connect(&address).await?;
        let answer = send(connection, &address, body).await?;
        self.take(answer).await
    }

    async fn take(&mut self, answer: Answer) -> Result<(), HttpError> {
        let (answer, connection) = answer;
        let status = answer.status();
        if !status.is_success() {
            return Err(HttpError::Status { url: self.url.clone(), status });
        }
        // It was taken. Only a connection from which everything was read can be used again.
        if Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await.is_ok() {
            self.connection = Some(connection);
        }
        Ok(())
    }
}

type Answer = (Response<Incoming>, Connection<Full<Bytes>>);

async fn send(
    mut connection: Connection<Full<Bytes>>,
    address: &Uri,
    body: Bytes,
) -> Result<Answer, HttpError> {
    let path = address.path_and_query().map_or("/", |path| path.as_str());
    let authority = address.authority().map_or("", |authority| authority.as_str());
    let request = Request::post(path)
        .header(header::HOST, authority)
        .header(header::USER_AGENT, "wharf")
        .header(header::CONTENT_TYPE, TYPE)
        .header(KEY, sha256(&body))
        .body(Full::new(body))
        .map_err(|_| HttpError::BadUrl { url: address.to_string() })?;
    let broken = |source| HttpError::Broken { host: connection.host.clone(), source };
    let sent = match connection.sender.ready().await {
        Ok(()) => connection.sender.send_request(request).await,
        Err(error) => Err(error),
    };
    Ok((sent.map_err(broken)?, connection))
}
