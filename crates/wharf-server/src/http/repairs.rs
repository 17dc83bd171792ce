//! `/clusters/{name}/repairs` and `/clusters/{name}/repairconfig`

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::IntoParams;
use wharf_api::{
    error::{ErrorBody, ErrorCode},
    repair::{RepairChanges, RepairConfig, RepairEntry, RepairQueue, RepairRequest},
    resource::Collection,
};
use wharf_core::repair::Request;
use wharf_store::Revision;

use super::{
    answer::Tagged,
    convert,
    extract::{Document, IfMatch, Path, Prefix, Query, Raw, parse_json},
};
use crate::{
    access::Caller,
    app::App,
    error::{ApiError, ApiResult},
    repair,
};

/// The repair queue of a cluster.
#[utoipa::path(get, path = "/clusters/{name}/repairs", tag = "repairs", params(("name" = String, Path)), responses((status = 200, body = RepairQueue), (status = "4XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Json<RepairQueue>> {
    let listed = repair::list(&app, &caller, &name).await?;
    let entries = listed.entries.into_iter();
    let data = entries.map(|(entry, live)| convert::repair::entry(entry, live)).collect();
    let path = format!("{}/clusters/{name}/repairs", prefix.0);
    let collection = Collection::new("repair", &path, data);
    Ok(Json(RepairQueue { enabled: listed.enabled, collection }))
}

#[derive(Debug, Deserialize, IntoParams)]
pub struct Action {
    /// Without one the body is appended to the queue. `enable`, `disable`, `resetBackoff`,
    /// `deleteFinished` and `deleteUnfinished` take no body and answer which entries they changed.
    action: Option<String>,
}

/// Appends a machine to the repair queue, or acts on the whole queue.
#[utoipa::path(post, path = "/clusters/{name}/repairs", tag = "repairs", params(("name" = String, Path), Action), request_body = RepairRequest, responses((status = 201, body = RepairEntry), (status = 200, body = RepairChanges), (status = "4XX", body = ErrorBody)))]
pub async fn act(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    Query(action): Query<Action>,
    Raw(body): Raw,
) -> ApiResult<Response> {
    let changed = match action.action.as_deref() {
        None => {
            let request = request_of(parse_json(&body)?);
            let entry = repair::add(&app, &caller, &name, &request).await?;
            let entry = convert::repair::entry(entry, None);
            return Ok((StatusCode::CREATED, Json(entry)).into_response());
        }
        Some("enable") => {
            repair::set_enabled(&app, &caller, &name, true).await?;
            Vec::new()
        }
        Some("disable") => {
            repair::set_enabled(&app, &caller, &name, false).await?;
            Vec::new()
        }
        Some("resetBackoff") => repair::reset_backoff(&app, &caller, &name).await?,
        Some("deleteFinished") => repair::delete_finished(&app, &caller, &name).await?,
        Some("deleteUnfinished") => repair::delete_unfinished(&app, &caller, &name).await?,
        Some(other) => {
            let message = format!("the repair queue has no action {other:?}");
            return Err(ApiError::new(ErrorCode::InvalidAction, message).hint(
                "the actions are: enable, disable, resetBackoff, deleteFinished, deleteUnfinished",
            ));
        }
    };
    let indexes = changed.iter().map(u64::to_string).collect();
    Ok(Json(RepairChanges { indexes }).into_response())
}

fn request_of(request: RepairRequest) -> Request {
    let RepairRequest { operation, machine_type, address, serial } = request;
    Request { operation, machine_type, address, serial: serial.unwrap_or_default() }
}

/// Takes an entry out of the queue: at once, or when the command that runs for it has ended.
#[utoipa::path(delete, path = "/clusters/{name}/repairs/{index}", tag = "repairs", params(("name" = String, Path), ("index" = String, Path)), responses((status = 204), (status = "4XX", body = ErrorBody)))]
pub async fn delete(
    State(app): State<App>,
    caller: Caller,
    Path((name, index)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    repair::delete(&app, &caller, &name, &index).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How machines are repaired, with the defaults of what nobody has set.
#[utoipa::path(get, path = "/clusters/{name}/repairconfig", tag = "repairs", operation_id = "get_config", params(("name" = String, Path)), responses((status = 200, body = RepairConfig), (status = "4XX", body = ErrorBody)))]
pub async fn get_config(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Tagged<RepairConfig>> {
    tagged(repair::config(&app, &caller, &name).await?)
}

/// Checks and stores how machines are repaired. The body may be YAML (`application/yaml`).
#[utoipa::path(put, path = "/clusters/{name}/repairconfig", tag = "repairs", operation_id = "put_config", params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag that the change is based on")), request_body = RepairConfig, responses((status = 200, body = RepairConfig), (status = "4XX", body = ErrorBody)))]
pub async fn put_config(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    IfMatch(revision): IfMatch,
    Document(value): Document,
) -> ApiResult<Tagged<RepairConfig>> {
    tagged(repair::set_config(&app, &caller, &name, &value, revision).await?)
}

fn tagged(
    (config, revision): (wharf_core::repair::RepairConfig, Revision),
) -> ApiResult<Tagged<RepairConfig>> {
    let value = serde_json::to_value(&config).map_err(ApiError::internal)?;
    Ok(Tagged(StatusCode::OK, revision, RepairConfig(value)))
}
