//! For machines that watch over the server: is it alive, is it ready, what does it count.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use wharf_api::server::Version;

use crate::{app::App, error::ApiError};

/// A store that takes longer than this is as good as away.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

/// The process runs.
#[utoipa::path(get, path = "/healthz", tag = "server", responses((status = 200, body = String)))]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// The server takes requests: it is not stopping and its store answers.
#[utoipa::path(get, path = "/readyz", tag = "server", responses((status = 200, body = String), (status = 503, body = String)))]
pub async fn readyz(State(app): State<App>) -> Response {
    let unready = |why: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response();
    if app.stopping.is_cancelled() {
        return unready("the server is stopping");
    }
    match tokio::time::timeout(STORE_PATIENCE, app.store.revision()).await {
        Ok(Ok(_)) => "ok\n".into_response(),
        Ok(Err(_)) | Err(_) => unready("the store does not answer"),
    }
}

/// Counters in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "server", responses((status = 200, body = String)))]
pub async fn metrics(State(app): State<App>) -> Response {
    let owned = i64::try_from(app.owned.borrow().len()).unwrap_or(i64::MAX);
    app.metrics.clusters_owned.set(owned);
    let member = app.is_member.load(std::sync::atomic::Ordering::Acquire);
    app.metrics.is_member.set(i64::from(member));
    match app.metrics.render() {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], text).into_response()
        }
        Err(error) => ApiError::internal(error).into_response(),
    }
}

/// The server's version.
#[utoipa::path(get, path = "/version", tag = "server", responses((status = 200, body = Version)))]
pub async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION").to_owned() })
}
