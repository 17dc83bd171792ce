//! `/clusters`

use axum::{
    Json,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::IntoParams;
use wharf_api::{
    cluster::{Cluster, ClusterRequest, ImportCluster},
    error::{ErrorBody, ErrorCode},
    resource::Collection,
};
use wharf_core::cluster::{DeleteMode, validate::Draft};

use super::{
    answer::Tagged,
    convert,
    extract::{IfMatch, Path, Prefix, Query, Raw, parse_json},
};
use crate::{
    access::Caller,
    app::App,
    clusters::{self, Import},
    error::{ApiError, ApiResult},
};

#[derive(Debug, Deserialize, IntoParams)]
pub struct Filter {
    /// Only clusters that are Running or Unreachable.
    #[serde(default)]
    onlyready: bool,
}

/// The clusters that the caller may see.
#[utoipa::path(get, path = "/clusters", tag = "clusters", params(Filter), responses((status = 200, body = Collection<Cluster>), (status = "4XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Query(filter): Query<Filter>,
) -> ApiResult<impl IntoResponse> {
    let shown = clusters::list(&app, &caller, filter.onlyready).await?;
    let body = convert::cluster::collection(prefix.0, &shown).map_err(ApiError::internal)?;
    Ok(([(header::CONTENT_TYPE, JSON)], body))
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// One cluster. One that the caller may not see looks like one that is not there.
#[utoipa::path(get, path = "/clusters/{name}", tag = "clusters", params(("name" = String, Path)), responses((status = 200, body = Cluster), (status = "4XX", body = ErrorBody)))]
pub async fn get(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Tagged<Cluster>> {
    let shown = clusters::get(&app, &caller, &name).await?;
    Ok(Tagged(StatusCode::OK, shown.revision, convert::cluster::shown(prefix.0, &shown)))
}

/// Checks a wish for a cluster and begins to create it.
#[utoipa::path(post, path = "/clusters", tag = "clusters", request_body = ClusterRequest, responses((status = 201, body = Cluster), (status = "4XX", body = ErrorBody)))]
pub async fn create(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Raw(body): Raw,
) -> ApiResult<Tagged<Cluster>> {
    let draft = convert::cluster::draft(&body)?;
    let made = clusters::create(&app, &caller, &draft).await?;
    let cluster = convert::cluster::cluster(prefix.0, &made.value, None);
    Ok(Tagged(StatusCode::CREATED, made.revision, cluster))
}

/// Checks a changed wish and begins to change the cluster, or goes on with its creation. What was
/// read may be sent back: read-only fields are passed over, an empty `sshKey` keeps the old one,
/// `network` and `clusterUpstreamDNS` are ignored.
#[utoipa::path(put, path = "/clusters/{name}", tag = "clusters", params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag that the change is based on")), request_body = ClusterRequest, responses((status = 200, body = Cluster), (status = "4XX", body = ErrorBody)))]
pub async fn update(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
    IfMatch(revision): IfMatch,
    Raw(body): Raw,
) -> ApiResult<Tagged<Cluster>> {
    let draft = convert::cluster::draft(&body)?;
    let changed = clusters::update(&app, &caller, &name, &draft, revision, |record, names| {
        let app = app.clone();
        async move { clusters::storage_nodes(&app, &record, names).await }
    })
    .await?;
    let health = clusters::health(&app, &name).await;
    let cluster = convert::cluster::cluster(prefix.0, &changed.value, health.as_ref());
    Ok(Tagged(StatusCode::OK, changed.revision, cluster))
}

#[derive(Debug, Deserialize, IntoParams)]
pub struct Removal {
    /// `clean` (default): clean every host, for a bounded time; `force`: clean the hosts that answer
    /// at once; `forget`: touch no host.
    mode: Option<String>,
}

/// Begins to delete a cluster; its operation tells how that went.
#[utoipa::path(delete, path = "/clusters/{name}", tag = "clusters", params(("name" = String, Path), Removal, ("If-Match" = Option<String>, Header, description = "The ETag that the deletion is based on")), responses((status = 202), (status = "4XX", body = ErrorBody)))]
pub async fn delete(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    Query(removal): Query<Removal>,
    IfMatch(revision): IfMatch,
) -> ApiResult<StatusCode> {
    let mode = match removal.mode.as_deref() {
        None | Some("" | "clean") => DeleteMode::Clean,
        Some("force") => DeleteMode::Force,
        Some("forget") => DeleteMode::Forget,
        Some(other) => {
            let message = format!("mode {other} isn't included in options [clean force forget]");
            return Err(ApiError::new(ErrorCode::InvalidOption, message));
        }
    };
    clusters::delete(&app, &caller, &name, mode, revision).await?;
    Ok(StatusCode::ACCEPTED)
}

#[derive(Debug, Deserialize, IntoParams)]
pub struct Action {
    /// `cancel`: stop what is under way, without a body; `import`: take in a cluster that exists
    /// already under this name, which must be free; `plan` and `preflight`: say what would be done
    /// and what is wrong with the machines, for the body of a create or an update, or for the
    /// cluster as it is.
    action: Option<String>,
}

/// Acts on a cluster.
#[utoipa::path(post, path = "/clusters/{name}", tag = "clusters", params(("name" = String, Path), Action), request_body = ImportCluster, responses((status = 200, body = Cluster), (status = "4XX", body = ErrorBody)))]
pub async fn act(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
    Query(action): Query<Action>,
    Raw(body): Raw,
) -> ApiResult<Response> {
    match action.action.as_deref() {
        Some("cancel") => {
            clusters::cancel(&app, &caller, &name).await?;
            Ok(StatusCode::OK.into_response())
        }
        Some("import") => {
            let import = import_of(parse_json(&body)?)?;
            let made = clusters::import(&app, &caller, &name, import, clusters::probe).await?;
            let health = clusters::health(&app, &name).await;
            let cluster = convert::cluster::cluster(prefix.0, &made.value, health.as_ref());
            Ok(Tagged(StatusCode::OK, made.revision, cluster).into_response())
        }
        Some("plan") => {
            let draft = optional_draft(&body)?;
            let hosts = clusters::plan(&app, &caller, &name, draft.as_ref()).await?;
            Ok(Json(convert::cluster::plan(hosts)).into_response())
        }
        Some("preflight") => {
            let draft = optional_draft(&body)?;
            let findings = clusters::preflight(&app, &caller, &name, draft.as_ref()).await?;
            Ok(Json(convert::cluster::preflight(findings)).into_response())
        }
        other => Err(ApiError::new(
            ErrorCode::InvalidAction,
            format!("clusters have no action {:?}", other.unwrap_or_default()),
        )
        .hint("the actions are: cancel, import, plan, preflight")),
    }
}

/// The wish in a body; none in an empty one.
fn optional_draft(body: &[u8]) -> ApiResult<Option<Draft>> {
    match body.trim_ascii().is_empty() {
        true => Ok(None),
        false => convert::cluster::draft(body).map(Some),
    }
}

fn import_of(body: ImportCluster) -> ApiResult<Import> {
    let is_there = |value: &serde_json::Value| value.as_object().is_some_and(|o| !o.is_empty());
    let current = body.current_state.map(|secret| secret.0).filter(is_there);
    let desired = body.desired_state.map(|secret| secret.0).filter(is_there);
    let kubeconfig = body.kube_config.map(|secret| secret.0).filter(|text| !text.trim().is_empty());
    match (kubeconfig, current, desired) {
        (Some(text), None, None) => Ok(Import::Kubeconfig(text)),
        (None, Some(state), _) => Ok(Import::State("currentState", state)),
        (None, None, Some(state)) => Ok(Import::State("desiredState", state)),
        (None, None, None) => Err(ApiError::field(
            "kubeConfig",
            ErrorCode::MissingRequired,
            "field kubeConfig is missing: give a kubeconfig, or the state document",
        )),
        (Some(_), _, _) => Err(ApiError::field(
            "kubeConfig",
            ErrorCode::InvalidBodyContent,
            "give either a kubeconfig or the state document",
        )),
    }
}
