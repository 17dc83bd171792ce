//! `/clusters/{name}/nodes`

use axum::{Json, extract::State};
use wharf_api::{error::ErrorBody, node::Node, resource::Collection};

use super::{
    convert,
    extract::{Path, Prefix},
};
use crate::{access::Caller, app::App, clusters::nodes, error::ApiResult};

/// The nodes of a cluster: those that were asked for, and those that are there.
#[utoipa::path(get, path = "/clusters/{name}/nodes", tag = "nodes", params(("name" = String, Path)), responses((status = 200, body = Collection<Node>), (status = "4XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Json<Collection<Node>>> {
    let (cluster, nodes) = nodes::list(&app, &caller, &name).await?;
    let data = nodes.iter().map(|node| convert::node::node(prefix.0, &cluster, node)).collect();
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
    Ok(Json(convert::node::node(prefix.0, &cluster, &node)))
}
