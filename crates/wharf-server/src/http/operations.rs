//! `/operations`, and those of one cluster.

use axum::{Json, extract::State, http::StatusCode};
use serde::Deserialize;
use utoipa::IntoParams;
use wharf_api::{error::ErrorBody, operation::Operation, resource::Collection};

use super::{
    answer::Tagged,
    convert::operation as convert,
    extract::{Path, Prefix, Query},
};
use crate::{
    access::Caller,
    app::App,
    clusters::{
        self,
        operations::{self, Filter},
    },
    error::ApiResult,
};

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

#[derive(Debug, Deserialize, IntoParams)]
pub struct Which {
    /// Only those of this cluster, which need not be there any more.
    cluster: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
pub struct Window {
    /// How many; 100 by default, 1000 at most.
    limit: Option<usize>,
    /// Only operations older than the one with this id.
    before: Option<String>,
}

/// What was done to clusters, newest first, also to those that are gone.
#[utoipa::path(get, path = "/operations", tag = "operations", params(Which, Window), responses((status = 200, body = Collection<Operation>), (status = "4XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Query(which): Query<Which>,
    Query(window): Query<Window>,
) -> ApiResult<Json<Collection<Operation>>> {
    let path = format!("{}/operations", prefix.0);
    let query = which.cluster.as_ref().map(|name| format!("&cluster={name}")).unwrap_or_default();
    collect(&app, prefix, &caller, which.cluster.as_deref(), window, &path, &query).await
}

/// What was done to a cluster, newest first.
#[utoipa::path(get, path = "/clusters/{name}/operations", tag = "operations", operation_id = "list_of_cluster", params(("name" = String, Path), Window), responses((status = 200, body = Collection<Operation>), (status = "4XX", body = ErrorBody)))]
pub async fn list_of_cluster(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
    Query(window): Query<Window>,
) -> ApiResult<Json<Collection<Operation>>> {
    clusters::get(&app, &caller, &name).await?;
    let path = format!("{}/clusters/{name}/operations", prefix.0);
    collect(&app, prefix, &caller, Some(&name), window, &path, "").await
}

async fn collect(
    app: &App,
    prefix: Prefix,
    caller: &Caller,
    cluster: Option<&str>,
    window: Window,
    path: &str,
    query: &str,
) -> ApiResult<Json<Collection<Operation>>> {
    let limit = window.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let filter = Filter { cluster, before: window.before.as_deref(), limit };
    let (found, more) = operations::list(app, caller, &filter).await?;
    let next = found.last().filter(|_| more).map(|last| last.id.clone());
    let data = found.iter().map(|operation| convert::operation(prefix.0, operation)).collect();
    let mut collection = Collection::new("operation", path, data);
    if let Some(id) = next {
        let next = format!("{path}?limit={limit}&before={id}{query}");
        collection.links.insert("next".to_owned(), next);
    }
    Ok(Json(collection))
}

/// One operation with the last lines of its log.
#[utoipa::path(get, path = "/operations/{id}", tag = "operations", params(("id" = String, Path)), responses((status = 200, body = Operation), (status = "4XX", body = ErrorBody)))]
pub async fn get(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(id): Path<String>,
) -> ApiResult<Tagged<Operation>> {
    let found = operations::get(&app, &caller, &id).await?;
    Ok(Tagged(StatusCode::OK, found.revision, convert::operation_with_log(prefix.0, &found)))
}

/// One operation of a cluster.
#[utoipa::path(get, path = "/clusters/{name}/operations/{id}", tag = "operations", operation_id = "get_of_cluster", params(("name" = String, Path), ("id" = String, Path)), responses((status = 200, body = Operation), (status = "4XX", body = ErrorBody)))]
pub async fn get_of_cluster(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult<Tagged<Operation>> {
    let found = operations::get(&app, &caller, &id).await?;
    if found.value.cluster != name {
        return Err(crate::error::ApiError::not_found("operation", &id));
    }
    Ok(Tagged(StatusCode::OK, found.revision, convert::operation_with_log(prefix.0, &found)))
}
