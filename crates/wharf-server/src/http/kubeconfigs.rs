//! `/clusters/{name}/kubeconfigs`

use axum::{Json, extract::State};
use wharf_api::{error::ErrorBody, kubeconfig::Kubeconfig, resource::Collection};

use super::{
    convert,
    extract::{Path, Prefix},
};
use crate::{
    access::Caller,
    app::App,
    clusters::{self, KUBE_ADMIN},
    error::ApiResult,
};

/// The kubeconfigs of a cluster.
#[utoipa::path(get, path = "/clusters/{name}/kubeconfigs", tag = "kubeconfigs", params(("name" = String, Path)), responses((status = 200, body = Collection<Kubeconfig>), (status = "4XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Json<Collection<Kubeconfig>>> {
    let only = read(&app, prefix, &caller, &name, KUBE_ADMIN).await?;
    let path = format!("{}/clusters/{name}/kubeconfigs", prefix.0);
    Ok(Json(Collection::new("kubeconfig", &path, vec![only])))
}

/// The kubeconfig of one user; every cluster has `kube-admin`.
#[utoipa::path(get, path = "/clusters/{name}/kubeconfigs/{id}", tag = "kubeconfigs", params(("name" = String, Path), ("id" = String, Path, description = "The user's name")), responses((status = 200, body = Kubeconfig), (status = "4XX", body = ErrorBody)))]
pub async fn get(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult<Json<Kubeconfig>> {
    read(&app, prefix, &caller, &name, &id).await.map(Json)
}

async fn read(
    app: &App,
    prefix: Prefix,
    caller: &Caller,
    name: &str,
    user: &str,
) -> ApiResult<Kubeconfig> {
    let (cluster, text) = clusters::kubeconfig(app, caller, name, user).await?;
    let at = cluster.value.created_at;
    Ok(convert::cluster::kubeconfig(prefix.0, name, user, at, text))
}
