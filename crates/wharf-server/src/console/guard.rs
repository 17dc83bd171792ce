//! Who gets to a page, and what a form must carry.

use axum::{
    Form,
    extract::{FromRequest, FromRequestParts, Request, State, rejection::FormRejection},
    http::{Method, request::Parts},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
};
use subtle::ConstantTimeEq;
use wharf_api::error::ErrorCode;
use wharf_core::access::Need;

use super::{HOME, PageError};
use crate::{
    access::{Caller, CallerKind},
    app::App,
    error::ApiError,
    http::{
        extract::too_large,
        routes::caller_of,
        session::{Source, form_token, token_in_cookie},
    },
};

/// The name of the hidden field that every form carries.
const FORM_TOKEN: &str = "form_token";
/// The login page; what follows it is where to go afterwards.
const LOGIN: &str = "/console/login?next=";

/// What a page knows of the session besides who it is.
#[derive(Debug, Clone)]
pub struct Session {
    /// For the hidden field of forms.
    pub form_token: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Session {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, PageError> {
        parts.extensions.get::<Session>().cloned().ok_or_else(|| {
            ApiError::internal("a page without a session: it must not need nobody").into()
        })
    }
}

/// Lets a request through to its page if the caller may; whoever is not logged in is led to the
/// login page and back. Only the cookie counts here. It runs before the body is read.
pub async fn admit(
    State((app, need)): State<(App, Need)>,
    mut request: Request,
    next: Next,
) -> Response {
    let is_own = Source::of(request.headers(), request.uri()) == Source::Own;
    if request.method() == Method::POST && !is_own {
        return foreign().into_response();
    }
    let token = match need {
        Need::Nobody => None,
        Need::Viewer | Need::Admin => token_in_cookie(request.headers(), app.config.http),
    };
    if token.is_none() && need != Need::Nobody {
        return to_login(&request);
    }
    let (peer, id) = (request.extensions().get().cloned(), request.extensions().get().cloned());
    let session = token.as_deref().map(|token| Session { form_token: form_token(token) });
    let caller = match caller_of(&app, peer, id, Ok(token)).await {
        Ok(caller) => caller,
        Err(error) if error.body.code == ErrorCode::Unauthorized => return to_login(&request),
        Err(error) => return PageError(error).into_response(),
    };
    if need != Need::Nobody
        && let Err(error) = caller.require(need)
    {
        return PageError(error).into_response();
    }
    if let Some(session) = session {
        request.extensions_mut().insert(session);
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

fn foreign() -> PageError {
    let error = ApiError::denied("the form was not sent from a page of this server");
    error.hint("go back, load the page again and repeat it").into()
}

/// What was asked for by GET is where to go on after the login; a form that was sent in vain is not
/// sent again.
fn to_login(request: &Request) -> Response {
    let next = match request.method() {
        &Method::GET => request.uri().path_and_query().map_or(HOME, |path| path.as_str()),
        _ => HOME,
    };
    Redirect::to(&format!("{LOGIN}{}", encode(next))).into_response()
}

/// A text as it may stand in a query.
fn encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~' | b'/');
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        match plain(byte) {
            true => encoded.push(char::from(byte)),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
        encoded
    })
}

/// Where to go after the login: only to pages of the console, whatever the address says.
pub(super) fn local_path(next: &str) -> &str {
    let is_plain = next.bytes().all(|b| b.is_ascii_graphic() && b != b'\\');
    match next.starts_with("/console/") && !next.starts_with("/console/log") && is_plain {
        true => next,
        false => HOME,
    }
}

/// The fields of a form, in their order; a name may come several times.
pub struct Fields(Vec<(String, String)>);

impl Fields {
    pub fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value.as_str())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// A form without a session: the login.
impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = PageError;

    async fn from_request(request: Request, state: &S) -> Result<Self, PageError> {
        match Form::<Vec<(String, String)>>::from_request(request, state).await {
            Ok(Form(fields)) => Ok(Fields(fields)),
            Err(FormRejection::BytesRejection(error)) if error.status() == 413 => {
                Err(too_large().into())
            }
            Err(error) => Err(ApiError::new(ErrorCode::InvalidRequest, error.body_text()).into()),
        }
    }
}

/// The fields of a form that carries the text of the caller's session.
pub struct Posted(pub Fields);

impl<S: Send + Sync> FromRequest<S> for Posted {
    type Rejection = PageError;

    async fn from_request(request: Request, state: &S) -> Result<Self, PageError> {
        let session = request.extensions().get::<Session>().cloned();
        let fields = Fields::from_request(request, state).await?;
        let expected = session.map(|session| session.form_token).unwrap_or_default();
        let given = fields.get(FORM_TOKEN).as_bytes();
        match !expected.is_empty() && bool::from(expected.as_bytes().ct_eq(given)) {
            true => Ok(Posted(fields)),
            false => Err(foreign()),
        }
    }
}

/// The id of the session's token, to end it.
pub(super) fn token_id(caller: &Caller) -> Option<&str> {
    match &caller.kind {
        CallerKind::User { token, .. } => Some(token),
        CallerKind::Nobody | CallerKind::Local => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_from_the_login_stays_in_the_console() {
        for (next, expected) in [
            ("/console/clusters/demo", "/console/clusters/demo"),
            ("/console/clusters/demo?x=1", "/console/clusters/demo?x=1"),
            ("", HOME),
            ("//evil.example/console/", HOME),
            ("/\\evil.example", HOME),
            ("https://evil.example/console/", HOME),
            ("/console/\\evil", HOME),
            ("/console/x\r\nSet-Cookie: a=b", HOME),
            ("/console/login", HOME),
            ("/console/logout", HOME),
        ] {
            assert_eq!(local_path(next), expected, "{next:?}");
        }
    }

    #[test]
    fn encoding_leaves_nothing_that_means_something_in_a_query() {
        assert_eq!(encode("/console/a?b=c&d=%2F"), "/console/a%3Fb%3Dc%26d%3D%252F");
    }
}
