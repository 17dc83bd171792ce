//! Logging in and out.

use askama::Template;
use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use jiff::Timestamp;
use serde::Deserialize;
use wharf_api::error::ErrorBody;

use super::{
    Page, PageError, PageResult,
    guard::{Fields, Posted, local_path, token_id},
};
use crate::{
    access::{Caller, login, token},
    app::App,
    error::{ApiError, ApiResult},
    http::{extract::Query, session},
};

#[derive(Debug, Deserialize)]
pub struct Way {
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "console/login.html")]
struct Body<'a> {
    user: &'a str,
    next: &'a str,
    fault: Option<&'a ErrorBody>,
}

/// `GET /console/login`
pub async fn show(way: ApiResult<Query<Way>>) -> PageResult {
    let Query(way) = way?;
    let next = local_path(way.next.as_deref().unwrap_or_default());
    form(StatusCode::OK, &Body { user: "", next, fault: None })
}

fn form(status: StatusCode, body: &Body<'_>) -> PageResult {
    Page { title: "Log in", session: None, busy: false }.show(status, body)
}

/// `POST /console/login`
pub async fn enter(State(app): State<App>, caller: Caller, fields: Fields) -> PageResult {
    let (user, next) = (fields.get("user").trim(), local_path(fields.get("next")));
    match login::login(&app, &caller, user, fields.get("password")).await {
        Ok(logged_in) => {
            let left = logged_in.expires_at.duration_since(Timestamp::now()).as_secs();
            let cookie = session::set_cookie(&logged_in.token, left, app.config.http);
            Ok(with_cookie(Redirect::to(next).into_response(), cookie))
        }
        Err(error) if error.cause.is_some() => Err(error.into()),
        Err(error) => {
            app.metrics.logins_refused.inc();
            refused(user, next, &error)
        }
    }
}

fn refused(user: &str, next: &str, error: &ApiError) -> PageResult {
    let status = StatusCode::from_u16(error.body.status).unwrap_or(StatusCode::UNAUTHORIZED);
    let mut response = form(status, &Body { user, next, fault: Some(&error.body) })?;
    if let Some(seconds) = error.retry_after_seconds {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(response)
}

/// `POST /console/logout`: the token ends, and with it whatever else uses it.
pub async fn leave(
    State(app): State<App>,
    caller: Caller,
    Posted(_): Posted,
) -> Result<Response, PageError> {
    if let Some(id) = token_id(&caller) {
        token::delete(&app, &caller, &caller.name, id).await?;
    }
    let cookie = session::clear_cookie(app.config.http);
    Ok(with_cookie(Redirect::to("/console/login").into_response(), cookie))
}

fn with_cookie(mut response: Response, cookie: Option<HeaderValue>) -> Response {
    if let Some(cookie) = cookie {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}
