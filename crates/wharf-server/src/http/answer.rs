//! How results become responses.

use std::sync::Arc;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use wharf_api::error::{ErrorBody, ErrorCode};
use wharf_store::Revision;

use crate::error::ApiError;

/// Why the server failed, for the log, and what it said; see [`super::layers`].
#[derive(Clone)]
pub struct Failure {
    pub cause: Arc<dyn std::error::Error + Send + Sync>,
    pub body: Box<ErrorBody>,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.body.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let code = self.body.code;
        let mut response = (status, Json(&self.body)).into_response();
        if code == ErrorCode::Unauthorized {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(cause) = self.cause {
            let failure = Failure { cause: Arc::from(cause), body: self.body };
            response.extensions_mut().insert(failure);
        }
        response
    }
}

/// A resource with its revision as ETag.
pub struct Tagged<T>(pub StatusCode, pub Revision, pub T);

impl<T: Serialize> IntoResponse for Tagged<T> {
    fn into_response(self) -> Response {
        let Tagged(status, revision, body) = self;
        let tag = HeaderValue::from_str(&format!("\"{revision}\""));
        let mut response = (status, Json(body)).into_response();
        if let Ok(tag) = tag {
            response.headers_mut().insert(header::ETAG, tag);
        }
        response
    }
}
