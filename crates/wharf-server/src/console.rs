//! The console: pages for people, made on the server.
//!
//! Pages call the same functions as the API ([`crate::clusters`], [`crate::access`]) and show the
//! same resources. A small script ([`assets`]) listens to events and fetches the changed part of
//! a page; without it everything works, a page under way then reloads itself.
//!
//! **Invariant:** nothing comes from another origin and nothing is inline, so that the policy sent
//! with every page can forbid both. What changes something is a POST that passed [`guard::admit`]
//! and whose form carries the session's text ([`guard::Posted`]).
//!
//! Start reading at [`crate::http::routes`] for the list of pages.

pub mod assets;
pub mod clusters;
pub mod delete;
mod field;
pub mod form;
pub mod guard;
pub mod login;
pub mod nodes;
pub mod operations;
mod render;
pub mod repairs;
pub mod volumes;
mod wish;

use std::sync::Arc;

use askama::Template;
use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Redirect, Response},
};
use wharf_api::error::ErrorCode;
use wharf_core::access::{Need, Role};

pub use guard::Session;

use crate::{access::Caller, error::ApiError, http::answer::Failure};

/// Where everything begins.
pub const HOME: &str = "/console/clusters";

/// Nothing but what this server serves itself, nothing inline, in nobody's frame.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
);
/// Not `no-referrer`: with that, browsers hide the origin of our own forms too.
const REFERRER: HeaderValue = HeaderValue::from_static("same-origin");

pub type PageResult = Result<Response, PageError>;

/// An error that is shown as a page.
#[derive(Debug)]
pub struct PageError(ApiError);

impl From<ApiError> for PageError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<askama::Error> for PageError {
    fn from(error: askama::Error) -> Self {
        Self(ApiError::internal(error))
    }
}

#[derive(Template)]
#[template(path = "console/error.html")]
struct ErrorBody<'a> {
    status: u16,
    message: &'a str,
    hint: Option<&'a str>,
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let Self(mut error) = self;
        if error.cause.is_some() && error.body.hint.is_none() {
            error.body.hint = Some("the server's log has the details".to_owned());
        }
        let status = StatusCode::from_u16(error.body.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = ErrorBody {
            status: status.as_u16(),
            message: &error.body.message,
            hint: error.body.hint.as_deref(),
        };
        let page = Page { title: "Error", session: None, busy: false };
        let mut response = match page.show(status, &body) {
            Ok(response) => response,
            // A page that cannot be made must not end in another that cannot.
            Err(_) => (status, error.body.message.clone()).into_response(),
        };
        if let Some(cause) = error.cause {
            let failure = Failure { cause: Arc::from(cause), body: error.body };
            response.extensions_mut().insert(failure);
        }
        response
    }
}

/// What surrounds the body of every page.
pub(crate) struct Page<'a> {
    pub title: &'a str,
    pub session: Option<(&'a Caller, &'a Session)>,
    /// Something is under way, so a page without script reloads itself.
    pub busy: bool,
}

#[derive(Template)]
#[template(path = "console/base.html")]
struct Layout<'a> {
    title: &'a str,
    who: Option<Who<'a>>,
    busy: bool,
    assets: &'a str,
    version: &'static str,
    body: String,
}

struct Who<'a> {
    name: &'a str,
    role: &'static str,
    is_admin: bool,
    form_token: &'a str,
}

impl Page<'_> {
    /// The whole page around a body.
    pub(crate) fn show(
        &self,
        status: StatusCode,
        body: &impl Template,
    ) -> Result<Response, PageError> {
        let who = self.session.map(|(caller, session)| Who {
            name: &caller.name,
            role: if caller.role == Role::Admin { "admin" } else { "viewer" },
            is_admin: is_admin(caller),
            form_token: &session.form_token,
        });
        let layout = Layout {
            title: self.title,
            who,
            busy: self.busy,
            assets: assets::version(),
            version: env!("CARGO_PKG_VERSION"),
            body: body.render()?,
        };
        Ok(guarded((status, Html(layout.render()?)).into_response()))
    }
}

/// Only the body: what the script puts in the place of the old one.
pub(crate) fn fragment(body: &impl Template) -> PageResult {
    Ok(guarded(Html(body.render()?).into_response()))
}

/// Adds what tells a browser how little a page may do.
fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(header::REFERRER_POLICY, REFERRER);
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    let opener = HeaderName::from_static("cross-origin-opener-policy");
    headers.insert(opener, HeaderValue::from_static("same-origin"));
    response
}

pub(crate) fn is_admin(caller: &Caller) -> bool {
    caller.role.satisfies(Need::Admin)
}

/// `/` and `/console`
pub async fn home() -> Redirect {
    Redirect::to(HOME)
}

/// Whatever is below `/console` and not there.
pub fn not_found() -> PageError {
    let error = ApiError::new(ErrorCode::NotFound, "There is no such page");
    error.hint("the list of clusters is a good place to start").into()
}
