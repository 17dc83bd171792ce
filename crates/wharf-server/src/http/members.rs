//! `/members`

use axum::{Json, extract::State};
use wharf_api::{error::ErrorBody, resource::Collection, server};

use super::{convert, extract::Prefix};
use crate::{app::App, engine::Member, error::ApiResult};

/// The servers that share the work.
#[utoipa::path(get, path = "/members", tag = "server", responses((status = 200, body = Collection<server::Member>), (status = "4XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<App>,
    prefix: Prefix,
) -> ApiResult<Json<Collection<server::Member>>> {
    let (members, _) = app.store.read_all::<Member>("").await?;
    let data = members
        .into_iter()
        .flatten()
        .map(|member| convert::member(prefix.0, &member.value, member.value.id == app.me))
        .collect();
    Ok(Json(Collection::new("member", &format!("{}/members", prefix.0), data)))
}
