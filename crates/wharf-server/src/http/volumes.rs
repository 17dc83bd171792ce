//! `/clusters/{name}/volumes`

use axum::{Json, extract::State};
use wharf_api::{
    error::ErrorBody,
    resource::Collection,
    volume::{DetachRequest, Detached, Volume, VolumeWhy},
};

use super::{
    convert::volume as convert,
    extract::{Body, Path, Prefix},
};
use crate::{access::Caller, app::App, error::ApiResult, volumes};

/// The volumes of a cluster that are ours, those first that need a person.
#[utoipa::path(get, path = "/clusters/{name}/volumes", tag = "volumes", params(("name" = String, Path)), responses((status = 200, body = Collection<Volume>), (status = "4XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Json<Collection<Volume>>> {
    let looked = volumes::look(&app, &caller, &name).await?;
    let names = looked.names();
    let data = names.iter().map(|volume| convert::volume(prefix.0, &looked, volume)).collect();
    let path = format!("{}/clusters/{name}/volumes", prefix.0);
    Ok(Json(Collection::new("volume", &path, data)))
}

/// One volume: who holds it, and who waits for it.
#[utoipa::path(get, path = "/clusters/{name}/volumes/{id}", tag = "volumes", params(("name" = String, Path), ("id" = String, Path, description = "The name of the PersistentVolume")), responses((status = 200, body = Volume), (status = "4XX", body = ErrorBody)))]
pub async fn get(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult<Json<Volume>> {
    let looked = volumes::look_at(&app, &caller, &name, &id).await?;
    Ok(Json(convert::volume(prefix.0, &looked, &id)))
}

/// Why a volume is as it is: who holds it and by what right, which proof is missing to take it over
/// and from when on it would be there, what pods wait for, what is left where, and what to do.
#[utoipa::path(get, path = "/clusters/{name}/volumes/{id}/why", tag = "volumes", params(("name" = String, Path), ("id" = String, Path, description = "The name of the PersistentVolume")), responses((status = 200, body = VolumeWhy), (status = "4XX", body = ErrorBody)))]
pub async fn why(
    State(app): State<App>,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult<Json<VolumeWhy>> {
    let looked = volumes::look_at(&app, &caller, &name, &id).await?;
    Ok(Json(convert::why(&looked, &id)))
}

/// Says that a holder does not write any more, so that others may have the volume. Whoever says so
/// answers for it. Without `force` nothing is changed, and the answer says what would be and what
/// may be lost.
#[utoipa::path(post, path = "/clusters/{name}/volumes/{id}/detach", tag = "volumes", params(("name" = String, Path), ("id" = String, Path, description = "The name of the PersistentVolume")), request_body = DetachRequest, responses((status = 200, body = Detached), (status = "4XX", body = ErrorBody)))]
pub async fn detach(
    State(app): State<App>,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
    Body(request): Body<DetachRequest>,
) -> ApiResult<Json<Detached>> {
    let detachment = volumes::detach(&app, &caller, &name, &id, &request).await?;
    Ok(Json(convert::detached(&detachment, &id)))
}
