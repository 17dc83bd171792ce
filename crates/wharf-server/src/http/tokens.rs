//! `/users/{name}/tokens`

use axum::{Json, extract::State, http::StatusCode};
use wharf_api::{
    error::ErrorBody,
    resource::Collection,
    user::{CreateToken, Token},
};

use super::{
    convert,
    extract::{Body, Path, Prefix},
};
use crate::{
    access::{Caller, token},
    app::App,
    error::ApiResult,
};

/// The tokens of a user, without their secrets.
#[utoipa::path(get, path = "/users/{name}/tokens", tag = "tokens", params(("name" = String, Path)), responses((status = 200, body = Collection<Token>), (status = "4XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Json<Collection<Token>>> {
    let tokens = token::list(&app, &caller, &name).await?;
    let data = tokens.iter().map(|t| convert::token(prefix.0, &t.value, None)).collect();
    let path = format!("{}/users/{name}/tokens", prefix.0);
    Ok(Json(Collection::new("token", &path, data)))
}

/// Makes a token, for oneself or, as an admin, for anybody. The answer holds it once.
#[utoipa::path(post, path = "/users/{name}/tokens", tag = "tokens", params(("name" = String, Path)), request_body = CreateToken, responses((status = 201, body = Token), (status = "4XX", body = ErrorBody)))]
pub async fn create(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
    Body(new): Body<CreateToken>,
) -> ApiResult<(StatusCode, Json<Token>)> {
    let lifetime = new.expires_in_seconds;
    let (record, text) = token::create(&app, &caller, &name, &new.description, lifetime).await?;
    Ok((StatusCode::CREATED, Json(convert::token(prefix.0, &record, Some(text)))))
}

/// Deletes a token; it holds no longer at once.
#[utoipa::path(delete, path = "/users/{name}/tokens/{id}", tag = "tokens", params(("name" = String, Path), ("id" = String, Path)), responses((status = 204), (status = "4XX", body = ErrorBody)))]
pub async fn delete(
    State(app): State<App>,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    token::delete(&app, &caller, &name, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
