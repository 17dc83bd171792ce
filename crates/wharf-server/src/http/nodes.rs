//! `/clusters/{name}/nodes`

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::IntoParams;
use wharf_api::{
    drain::{DrainPlan, DrainRequest},
    error::{ErrorBody, ErrorCode},
    node::{Node, NodeOperation, UpdateRequest},
    resource::Collection,
};
use wharf_core::drain::DrainOptions;

use super::{
    answer::Tagged,
    convert,
    extract::{Path, Prefix, Query, Raw, parse_json},
};
use crate::{
    access::Caller,
    agents::{self, Wanted},
    app::App,
    clusters::nodes,
    drains,
    error::{ApiError, ApiResult},
};

/// The nodes of a cluster: those that were asked for, and those that are there.
#[utoipa::path(get, path = "/clusters/{name}/nodes", tag = "nodes", params(("name" = String, Path)), responses((status = 200, body = Collection<Node>), (status = "4XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Json<Collection<Node>>> {
    let (cluster, nodes) = nodes::list(&app, &caller, &name).await?;
    let now = Timestamp::now();
    let node = |node| convert::node::node(prefix.0, &cluster, node, now);
    let data = nodes.iter().map(node).collect();
    let path = format!("{}/clusters/{name}/nodes", prefix.0);
    Ok(Json(Collection::new("node", &path, data)))
}

/// One node.
#[utoipa::path(get, path = "/clusters/{name}/nodes/{id}", tag = "nodes", params(("name" = String, Path), ("id" = String, Path, description = "The node's name")), responses((status = 200, body = Node), (status = "4XX", body = ErrorBody)))]
pub async fn get(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult<Json<Node>> {
    let (cluster, node) = nodes::get(&app, &caller, &name, &id).await?;
    Ok(Json(convert::node::node(prefix.0, &cluster, &node, Timestamp::now())))
}

#[derive(Debug, Deserialize, IntoParams)]
pub struct Action {
    /// `cordon`: no new pods; `uncordon`: pods may come again, and a drain that runs is canceled;
    /// `drain`: begin to empty the node, or join the drain that runs; `cancelDrain`: stop it;
    /// `planDrain`: say what a drain would do to each pod, touching nothing; `reboot`, `shutdown`,
    /// `update`: let the node's agent do so after its drain; `cancelOperation`: stop that.
    action: Option<String>,
}

/// Acts on a node. `drain` and `planDrain` take a body, which may be left out; `update` takes
/// `{"image","sha256"}`. `cordon` and `uncordon` answer with the node, `planDrain` with the plan, what
/// concerns drains with the drain, the others with the operation.
#[utoipa::path(post, path = "/clusters/{name}/nodes/{id}", tag = "nodes", operation_id = "act_on_node", params(("name" = String, Path), ("id" = String, Path, description = "The node's name"), Action), request_body = Option<DrainRequest>, responses((status = 200, body = DrainPlan), (status = "4XX", body = ErrorBody)))]
pub async fn act(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
    Query(action): Query<Action>,
    Raw(body): Raw,
) -> ApiResult<Response> {
    let now = Timestamp::now();
    let cordoned = async |cordoned: bool| -> ApiResult<Response> {
        let (cluster, mut node) = nodes::get(&app, &caller, &name, &id).await?;
        // The next look at the cluster will say the same.
        if let Some(health) = &mut node.health {
            health.cordoned = cordoned;
            health.drained &= cordoned;
        }
        Ok(Json(convert::node::node(prefix.0, &cluster, &node, now)).into_response())
    };
    let operate = async |wanted: Wanted| -> ApiResult<Response> {
        agents::start(&app, &caller, &name, &id, &wanted).await?;
        operation(&app, &caller, prefix, &name, &id).await.map(IntoResponse::into_response)
    };
    match action.action.as_deref() {
        Some("cordon") => {
            drains::cordon(&app, &caller, &name, &id).await?;
            cordoned(true).await
        }
        Some("uncordon") => {
            drains::uncordon(&app, &caller, &name, &id).await?;
            cordoned(false).await
        }
        Some("drain") => {
            let options = options(&body)?;
            let drain = drains::start(&app, &caller, &name, &id, &options).await?;
            Ok(Json(convert::drain::drain(prefix.0, &drain.value, now)).into_response())
        }
        Some("cancelDrain") => {
            let drain = drains::cancel(&app, &caller, &name, &id).await?;
            Ok(Json(convert::drain::drain(prefix.0, &drain.value, now)).into_response())
        }
        Some("planDrain") => {
            let options = options(&body)?;
            let plan = drains::plan(&app, &caller, &name, &id, &options).await?;
            Ok(Json(convert::drain::plan(&name, &id, &plan)).into_response())
        }
        Some("reboot") => operate(Wanted::Reboot).await,
        Some("shutdown") => operate(Wanted::Shutdown).await,
        Some("update") => {
            let UpdateRequest { image, sha256 } = parse_json(&body)?;
            operate(Wanted::Update { image, sha256 }).await
        }
        Some("cancelOperation") => {
            agents::cancel(&app, &caller, &name, &id).await?;
            operation(&app, &caller, prefix, &name, &id).await.map(IntoResponse::into_response)
        }
        other => Err(ApiError::new(
            ErrorCode::InvalidAction,
            format!("nodes have no action {:?}", other.unwrap_or_default()),
        )
        .hint(
            "the actions are: cordon, uncordon, drain, cancelDrain, planDrain, reboot, shutdown, \
             update, cancelOperation",
        )),
    }
}

/// The last reboot, shutdown or update of a node: under way, or how it ended.
#[utoipa::path(get, path = "/clusters/{name}/nodes/{id}/operation", tag = "nodes", operation_id = "get_node_operation", params(("name" = String, Path), ("id" = String, Path, description = "The node's name")), responses((status = 200, body = NodeOperation), (status = "4XX", body = ErrorBody)))]
pub async fn get_operation(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult<Tagged<NodeOperation>> {
    operation(&app, &caller, prefix, &name, &id).await
}

async fn operation(
    app: &App,
    caller: &Caller,
    prefix: Prefix,
    cluster: &str,
    node: &str,
) -> ApiResult<Tagged<NodeOperation>> {
    let (found, agent) = agents::get(app, caller, cluster, node).await?;
    let operation = convert::node::operation(prefix.0, &found.value, agent.as_ref());
    Ok(Tagged(StatusCode::OK, found.revision, operation))
}

/// The options in a body; the usual ones in an empty one.
fn options(body: &[u8]) -> ApiResult<DrainOptions> {
    let request: DrainRequest = match body.trim_ascii().is_empty() {
        true => DrainRequest::default(),
        false => parse_json(body)?,
    };
    convert::drain::options(&request)
}
