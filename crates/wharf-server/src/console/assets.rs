//! The console's style, script and sign, out of the binary.

use std::sync::LazyLock;

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};
use wharf_api::error::ErrorCode;

use crate::{
    error::{ApiError, ApiResult},
    http::extract::Path,
};

struct Asset {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

const ASSETS: [Asset; 3] = [
    Asset {
        name: "console.css",
        kind: "text/css; charset=utf-8",
        text: include_str!("../../assets/console/console.css"),
    },
    Asset {
        name: "console.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("../../assets/console/console.js"),
    },
    Asset {
        name: "wharf.svg",
        kind: "image/svg+xml",
        text: include_str!("../../assets/console/wharf.svg"),
    },
];

/// Pages ask for assets with this in the address, so that a browser may keep them for long and
/// still gets the new ones with a new server.
const KEEP: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for asset in &ASSETS {
        hash.update(asset.text.as_bytes());
    }
    let mut text = hex::encode(hash.finalize());
    text.truncate(16);
    text
});

/// A text that changes whenever an asset does.
pub fn version() -> &'static str {
    &VERSION
}

/// `GET /console/assets/{name}`
pub async fn get(Path(name): Path<String>, headers: HeaderMap) -> ApiResult<Response> {
    let asset = ASSETS
        .iter()
        .find(|asset| asset.name == name)
        .ok_or_else(|| ApiError::new(ErrorCode::NotFound, "there is nothing at this path"))?;
    let tag = format!("\"{}\"", version());
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_known = known.is_some_and(|known| known.split(',').any(|one| one.trim() == tag));
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, HeaderValue::from_static(asset.kind))], asset.text)
            .into_response(),
    };
    response.headers_mut().insert(header::CACHE_CONTROL, KEEP);
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    Ok(response)
}
