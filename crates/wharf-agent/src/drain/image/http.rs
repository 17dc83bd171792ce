//! Getting one thing from a web server.

use http_body_util::{BodyExt, Empty};
use hyper::{
    Request, Response, Uri,
    body::{Bytes, Incoming},
    header,
};
use tokio_util::task::AbortOnDropHandle;

pub use crate::web::HttpError;
use crate::web::{Connection, connect};

const MOST_REDIRECTIONS: usize = 5;

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
    let Connection { host, mut sender, task } = connect(address).await?;
    let path = address.path_and_query().map_or("/", |path| path.as_str());
    let authority = address.authority().map_or("", |authority| authority.as_str());
    let request = Request::get(path)
        .header(header::HOST, authority)
        .header(header::USER_AGENT, "wharf")
        .body(Empty::<Bytes>::new())
        .map_err(|_| HttpError::BadUrl { url: address.to_string() })?;
    let broken = |source| HttpError::Broken { host: host.clone(), source };
    let response = sender.send_request(request).await.map_err(broken)?;
    Ok((response, host, task))
}
