//! `/clusters`

use axum::{Json, extract::State, http::StatusCode};
use serde::Deserialize;
use utoipa::IntoParams;
use wharf_api::{cluster::Cluster, error::ErrorBody, resource::Collection};
use wharf_core::{cluster::ClusterRecord, name::check_cluster_name};

use super::{
    answer::Tagged,
    convert,
    extract::{Path, Prefix, Query},
};
use crate::{
    access::Caller,
    app::App,
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
) -> ApiResult<Json<Collection<Cluster>>> {
    let (records, _) = app.store.read_all::<ClusterRecord>("").await?;
    let data = records
        .iter()
        .filter(|record| match record {
            Ok(stored) => {
                let shown = !filter.onlyready || stored.value.state.is_ready();
                shown && caller.role.sees_cluster(&stored.id)
            }
            Err(unreadable) => caller.role.sees_cluster(&unreadable.id),
        })
        .map(|record| match record {
            Ok(stored) => convert::cluster(prefix.0, stored),
            Err(unreadable) => convert::unreadable_cluster(prefix.0, unreadable),
        })
        .collect();
    Ok(Json(Collection::new("cluster", &format!("{}/clusters", prefix.0), data)))
}

/// One cluster. One that the caller may not see looks like one that is not there.
#[utoipa::path(get, path = "/clusters/{name}", tag = "clusters", params(("name" = String, Path)), responses((status = 200, body = Cluster), (status = "4XX", body = ErrorBody)))]
pub async fn get(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Tagged<Cluster>> {
    let missing = || ApiError::not_found("cluster", &name);
    if check_cluster_name(&name).is_err() || !caller.role.sees_cluster(&name) {
        return Err(missing());
    }
    let entry = app.store.get(&wharf_store::typed::key_of::<ClusterRecord>(&name)).await?;
    let entry = entry.ok_or_else(missing)?;
    let cluster = match wharf_store::Stored::<ClusterRecord>::decode(&entry) {
        Ok(stored) => convert::cluster(prefix.0, &stored),
        Err(unreadable) => convert::unreadable_cluster(prefix.0, &unreadable),
    };
    Ok(Tagged(StatusCode::OK, entry.modified, cluster))
}
