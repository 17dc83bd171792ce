//! `/clusters/{name}/apps`

use axum::{Json, extract::State, http::StatusCode};
use serde_json::Value;
use wharf_api::{
    app::{App as Wire, AppSpec},
    error::ErrorBody,
    resource::Collection,
    trace::ClusterTrace,
};

use super::{
    answer::Tagged,
    convert::app as convert,
    extract::{Document, IfMatch, Path, Prefix, parse_value},
};
use crate::{access::Caller, app::App, apps, error::ApiResult};

/// What a resource says and a wish does not: the body of a GET can be sent back.
const READ_ONLY: [&str; 9] = [
    "id",
    "type",
    "links",
    "creationTimestamp",
    "deletionTimestamp",
    "uuid",
    "kubeName",
    "status",
    "reason",
];

fn spec_of(mut value: Value) -> ApiResult<AppSpec> {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| !READ_ONLY.contains(&name.as_str()));
    }
    parse_value(value)
}

/// The applications of a cluster.
#[utoipa::path(get, path = "/clusters/{name}/apps", tag = "apps", params(("name" = String, Path)), responses((status = 200, body = Collection<Wire>), (status = "4XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Json<Collection<Wire>>> {
    let apps = apps::list(&app, &caller, &name).await?;
    let data = apps.iter().map(|one| convert::app(prefix.0, &one.value)).collect();
    Ok(Json(Collection::new("app", &format!("{}/clusters/{name}/apps", prefix.0), data)))
}

/// Wishes for an application. Its objects are applied to the cluster, and every node is told of it.
/// The body may be YAML (`application/yaml`).
#[utoipa::path(post, path = "/clusters/{name}/apps", tag = "apps", params(("name" = String, Path)), request_body = AppSpec, responses((status = 201, body = Wire), (status = "4XX", body = ErrorBody)))]
pub async fn create(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
    Document(body): Document,
) -> ApiResult<Tagged<Wire>> {
    let made = apps::create(&app, &caller, &name, &spec_of(body)?).await?;
    Ok(Tagged(StatusCode::CREATED, made.revision, convert::app(prefix.0, &made.value)))
}

/// One application.
#[utoipa::path(get, path = "/clusters/{name}/apps/{id}", tag = "apps", params(("name" = String, Path), ("id" = String, Path, description = "The application's UUID or name")), responses((status = 200, body = Wire), (status = "4XX", body = ErrorBody)))]
pub async fn get(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult<Tagged<Wire>> {
    let found = apps::get(&app, &caller, &name, &id).await?;
    Ok(Tagged(StatusCode::OK, found.revision, convert::app(prefix.0, &found.value)))
}

/// Changes an application; its name and UUID stay.
#[utoipa::path(put, path = "/clusters/{name}/apps/{id}", tag = "apps", params(("name" = String, Path), ("id" = String, Path, description = "The application's UUID or name"), ("If-Match" = Option<String>, Header, description = "The ETag that the change is based on")), request_body = AppSpec, responses((status = 200, body = Wire), (status = "4XX", body = ErrorBody)))]
pub async fn update(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
    IfMatch(revision): IfMatch,
    Document(body): Document,
) -> ApiResult<Tagged<Wire>> {
    let changed = apps::update(&app, &caller, &name, &id, &spec_of(body)?, revision).await?;
    Ok(Tagged(StatusCode::OK, changed.revision, convert::app(prefix.0, &changed.value)))
}

/// Begins to delete an application; it is gone when its objects are.
#[utoipa::path(delete, path = "/clusters/{name}/apps/{id}", tag = "apps", params(("name" = String, Path), ("id" = String, Path, description = "The application's UUID or name")), responses((status = 202), (status = "4XX", body = ErrorBody)))]
pub async fn delete(
    State(app): State<App>,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    apps::delete(&app, &caller, &name, &id).await?;
    Ok(StatusCode::ACCEPTED)
}

/// What every agent of the cluster knows of an application, asked through the link to one of them.
#[utoipa::path(get, path = "/clusters/{name}/apps/{id}/trace", tag = "apps", params(("name" = String, Path), ("id" = String, Path, description = "The application's UUID or name")), responses((status = 200, body = Value), (status = "4XX", body = ErrorBody)))]
pub async fn trace(
    State(app): State<App>,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult<Json<ClusterTrace>> {
    Ok(Json(apps::trace(&app, &caller, &name, &id).await?))
}
