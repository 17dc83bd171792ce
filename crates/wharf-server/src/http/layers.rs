//! What surrounds every request: an id, a log line, metrics, a time limit.

use std::time::{Duration, Instant};

use axum::{
    Json,
    extract::{MatchedPath, Request, State},
    http::{HeaderName, HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use wharf_api::error::ErrorCode;

use super::answer::Failure;
use crate::{
    access::random_text,
    app::App,
    error::{ApiError, chain},
    metrics::{RequestLabels, RouteLabels},
};

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longer ids are replaced: they would only fill logs.
const REQUEST_ID_MAX: usize = 64;

/// The id of a request: the caller's own if it is reasonable, otherwise a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(pub String);

/// Where a connection came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// The Unix socket, which only the owner of the data directory can open.
    Local,
    Address(std::net::IpAddr),
}

/// Names the request, logs its end, counts it.
pub async fn observe(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let id = request_id(&request);
    request.extensions_mut().insert(id.clone());
    let started = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str);
    let route = route.to_owned();
    let mut response = next.run(request).await;
    let status = response.status().as_u16();
    let elapsed = started.elapsed();
    match response.extensions_mut().remove::<Failure>() {
        Some(Failure { cause, mut body }) => {
            let cause = chain(cause.as_ref());
            tracing::error!(request_id = id.0, %method, path, status, cause, "request failed");
            if body.hint.is_none() {
                body.hint = Some(format!("the server's log has the details under {}", id.0));
                response = (response.status(), Json(body)).into_response();
            }
        }
        None => tracing::debug!(request_id = id.0, %method, path, status, ?elapsed, "request"),
    }
    let method = known_method(&method);
    let labels = RequestLabels { method, route: route.clone(), status };
    app.metrics.requests.get_or_create(&labels).inc();
    let seconds = elapsed.as_secs_f64();
    app.metrics.request_seconds.get_or_create(&RouteLabels { route }).observe(seconds);
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        headers.insert(REQUEST_ID, value);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Methods can be invented without end, and each would be a series of its own for ever.
fn known_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

fn request_id(request: &Request) -> RequestId {
    let good = |text: &&str| {
        !text.is_empty()
            && text.len() <= REQUEST_ID_MAX
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    RequestId(given.filter(good).map_or_else(random_text::<16>, str::to_owned))
}

/// Ends requests that take too long. Event streams have their head at once and are not touched.
pub async fn time_limit(State(app): State<App>, request: Request, next: Next) -> Response {
    let limit = Duration::from_secs(app.config.limits.request_seconds);
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::new(
            ErrorCode::RequestTimeout,
            format!("the request took longer than {} s", limit.as_secs()),
        )
        .into_response(),
    }
}

/// A panic of a handler is a defect: it is logged, and the caller learns no detail.
pub fn caught_panic(panic: Box<dyn std::any::Any + Send>) -> Response {
    let text = match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map_or("a panic without words", |text| *text).into(),
    };
    ApiError::internal(format!("a handler panicked: {text}")).into_response()
}
