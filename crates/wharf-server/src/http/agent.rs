//! `/clusters/{name}/agent`

use axum::{Json, extract::State};
use wharf_api::{
    agent::{AgentInstallation, AgentRemoval, InstallAgent},
    error::ErrorBody,
};

use super::{
    convert::agent as convert,
    extract::{Body, Path},
};
use crate::{access::Caller, agent_pods, app::App, error::ApiResult};

/// The agents of a cluster that was imported: the DaemonSet and its pods.
#[utoipa::path(get, path = "/clusters/{name}/agent", tag = "agent", params(("name" = String, Path)), responses((status = 200, body = AgentInstallation), (status = "4XX", body = ErrorBody)))]
pub async fn get(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Json<AgentInstallation>> {
    let looked = agent_pods::look(&app, &caller, &name).await?;
    Ok(Json(convert::installation(&looked)))
}

/// Puts agents on the nodes of a cluster that was imported, or changes them: the DaemonSet and all that
/// it needs is applied. With `dryRun` nothing is touched, and the answer has the manifests. A cluster
/// that Wharf installed has its agents already and is refused.
#[utoipa::path(post, path = "/clusters/{name}/agent", tag = "agent", params(("name" = String, Path)), request_body = InstallAgent, responses((status = 200, body = AgentInstallation), (status = "4XX", body = ErrorBody)))]
pub async fn install(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    Body(request): Body<InstallAgent>,
) -> ApiResult<Json<AgentInstallation>> {
    let wish = convert::wish(&request);
    if request.dry_run {
        let manifests = agent_pods::render(&app, &caller, &name, &wish).await?;
        return Ok(Json(convert::rendered(&name, request, manifests)));
    }
    let looked = agent_pods::install(&app, &caller, &name, &wish).await?;
    Ok(Json(convert::installation(&looked)))
}

/// Takes the agents away, as far as that can be done now; whoever asks again gets it further. Refused
/// while volumes are in use. The kinds of volumes stay while anything is kept in them.
#[utoipa::path(delete, path = "/clusters/{name}/agent", tag = "agent", params(("name" = String, Path)), responses((status = 200, body = AgentRemoval), (status = "4XX", body = ErrorBody)))]
pub async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Json<AgentRemoval>> {
    let removal = agent_pods::remove(&app, &caller, &name).await?;
    Ok(Json(convert::removal(&name, removal)))
}
