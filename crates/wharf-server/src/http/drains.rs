//! `/clusters/{name}/drains`, and the drain of one node.

use axum::{Json, extract::State, http::StatusCode};
use jiff::Timestamp;
use wharf_api::{drain::Drain, error::ErrorBody, resource::Collection};

use super::{
    answer::Tagged,
    convert::drain as convert,
    extract::{Path, Prefix},
};
use crate::{access::Caller, app::App, drains, error::ApiResult};

/// The last drain of every node that had one.
#[utoipa::path(get, path = "/clusters/{name}/drains", tag = "nodes", operation_id = "list_drains", params(("name" = String, Path)), responses((status = 200, body = Collection<Drain>), (status = "4XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Json<Collection<Drain>>> {
    let (found, now) = (drains::list(&app, &caller, &name).await?, Timestamp::now());
    let data = found.iter().map(|drain| convert::drain(prefix.0, &drain.value, now)).collect();
    let path = format!("{}/clusters/{name}/drains", prefix.0);
    Ok(Json(Collection::new("drain", &path, data)))
}

/// The last drain of a node: under way, or how it ended.
#[utoipa::path(get, path = "/clusters/{name}/nodes/{id}/drain", tag = "nodes", operation_id = "get_drain", params(("name" = String, Path), ("id" = String, Path, description = "The node's name")), responses((status = 200, body = Drain), (status = "4XX", body = ErrorBody)))]
pub async fn get(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult<Tagged<Drain>> {
    let found = drains::get(&app, &caller, &name, &id).await?;
    let drain = convert::drain(prefix.0, &found.value, Timestamp::now());
    Ok(Tagged(StatusCode::OK, found.revision, drain))
}
