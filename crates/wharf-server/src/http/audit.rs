//! `/audit`

use axum::{Json, extract::State};
use serde::Deserialize;
use utoipa::IntoParams;
use wharf_api::{error::ErrorBody, resource::Collection, user::Audit};

use super::{
    convert,
    extract::{Prefix, Query},
};
use crate::{access::audit, app::App, error::ApiResult};

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

#[derive(Debug, Deserialize, IntoParams)]
pub struct Window {
    /// How many; 100 by default, 1000 at most.
    limit: Option<usize>,
    /// Only records older than the one with this id.
    before: Option<String>,
}

/// Who did what, newest first.
#[utoipa::path(get, path = "/audit", tag = "audit", params(Window), responses((status = 200, body = Collection<Audit>), (status = "4XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<App>,
    prefix: Prefix,
    Query(window): Query<Window>,
) -> ApiResult<Json<Collection<Audit>>> {
    let limit = window.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let (records, more) = audit::list(&app.store, window.before.as_deref(), limit).await?;
    let path = format!("{}/audit", prefix.0);
    let next = records.last().filter(|_| more).map(|last| last.id.clone());
    let data = records.into_iter().map(|record| convert::audit(prefix.0, record)).collect();
    let mut collection = Collection::new("audit", &path, data);
    if let Some(id) = next {
        let next = format!("{path}?limit={limit}&before={id}");
        collection.links.insert("next".to_owned(), next);
    }
    Ok(Json(collection))
}
