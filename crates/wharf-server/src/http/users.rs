//! `/users`

use axum::{Json, extract::State, http::StatusCode};
use serde::Deserialize;
use utoipa::IntoParams;
use wharf_api::{
    error::{ErrorBody, ErrorCode},
    resource::Collection,
    user::{ChangePassword, CreateUser, LoggedIn, Login, UpdateUser, User, WhoAmI},
};

use super::{
    answer::Tagged,
    convert,
    extract::{Body, IfMatch, Path, Prefix, Query},
};
use crate::{
    access::{Caller, login, user},
    app::App,
    error::{ApiError, ApiResult},
};

/// All users.
#[utoipa::path(get, path = "/users", tag = "users", responses((status = 200, body = Collection<User>), (status = "4XX", body = ErrorBody)))]
pub async fn list(State(app): State<App>, prefix: Prefix) -> ApiResult<Json<Collection<User>>> {
    let users = user::list(&app.store).await?;
    let data = users.iter().map(|u| convert::user(prefix.0, u, None)).collect();
    Ok(Json(Collection::new("user", &format!("{}/users", prefix.0), data)))
}

/// Makes a user. Without a password the server chooses one and answers it once.
#[utoipa::path(post, path = "/users", tag = "users", request_body = CreateUser, responses((status = 201, body = User), (status = "4XX", body = ErrorBody)))]
pub async fn create(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Body(new): Body<CreateUser>,
) -> ApiResult<Tagged<User>> {
    let role = convert::role_from_wire(new.role, new.clusters)?;
    let (made, password) = user::create(&app, &caller, &new.name, role, new.password).await?;
    let resource = convert::user(prefix.0, &made, password);
    Ok(Tagged(StatusCode::CREATED, made.revision, resource))
}

/// One user; users may look at themselves.
#[utoipa::path(get, path = "/users/{name}", tag = "users", params(("name" = String, Path)), responses((status = 200, body = User), (status = "4XX", body = ErrorBody)))]
pub async fn get(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
) -> ApiResult<Tagged<User>> {
    let user = user::get(&app, &caller, &name).await?;
    Ok(Tagged(StatusCode::OK, user.revision, convert::user(prefix.0, &user, None)))
}

/// Changes a user's role. The last admin stays one.
#[utoipa::path(put, path = "/users/{name}", tag = "users", params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag that the change is based on")), request_body = UpdateUser, responses((status = 200, body = User), (status = "4XX", body = ErrorBody)))]
pub async fn update(
    State(app): State<App>,
    prefix: Prefix,
    caller: Caller,
    Path(name): Path<String>,
    IfMatch(revision): IfMatch,
    Body(change): Body<UpdateUser>,
) -> ApiResult<Tagged<User>> {
    let role = convert::role_from_wire(change.role, change.clusters)?;
    let user = user::set_role(&app, &caller, &name, role, revision).await?;
    Ok(Tagged(StatusCode::OK, user.revision, convert::user(prefix.0, &user, None)))
}

/// Deletes a user and with it all their tokens.
#[utoipa::path(delete, path = "/users/{name}", tag = "users", params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag that the deletion is based on")), responses((status = 204), (status = "4XX", body = ErrorBody)))]
pub async fn delete(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    IfMatch(revision): IfMatch,
) -> ApiResult<StatusCode> {
    user::delete(&app, &caller, &name, revision).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets a password: one's own with the old one, or as an admin anybody's.
#[utoipa::path(put, path = "/users/{name}/password", tag = "users", params(("name" = String, Path)), request_body = ChangePassword, responses((status = 204), (status = "4XX", body = ErrorBody)))]
pub async fn set_password(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    Body(change): Body<ChangePassword>,
) -> ApiResult<StatusCode> {
    let old = change.old_password.as_deref();
    user::set_password(&app, &caller, &name, &change.password, old).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
pub struct Action {
    /// `login`
    action: Option<String>,
}

/// Logs in: exchanges a password for a token. Limited in rate.
#[utoipa::path(post, path = "/users/{name}", tag = "users", params(("name" = String, Path), Action), request_body = Login, responses((status = 200, body = LoggedIn), (status = "4XX", body = ErrorBody)))]
pub async fn act(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    Query(action): Query<Action>,
    Body(credentials): Body<Login>,
) -> ApiResult<Json<LoggedIn>> {
    match action.action.as_deref() {
        Some("login") => {
            let result = login::login(&app, &caller, &name, &credentials.password).await;
            if result.is_err() {
                app.metrics.logins_refused.inc();
            }
            result.map(Json)
        }
        other => Err(ApiError::new(
            ErrorCode::InvalidAction,
            format!("users have no action {:?}", other.unwrap_or_default()),
        )
        .hint("the actions are: login")),
    }
}

/// Who the caller is.
#[utoipa::path(get, path = "/whoami", tag = "users", responses((status = 200, body = WhoAmI), (status = "4XX", body = ErrorBody)))]
pub async fn whoami(caller: Caller) -> Json<WhoAmI> {
    let (role, clusters) = convert::role_to_wire(&caller.role);
    Json(WhoAmI { name: caller.name, role, clusters })
}
