//! What handlers take out of a request, with errors that name the fault.

use axum::{
    body::Bytes,
    extract::{
        FromRequest, FromRequestParts, Query as AxumQuery, Request, rejection::BytesRejection,
    },
    http::{HeaderMap, header, request::Parts},
};
use serde::de::DeserializeOwned;
use wharf_api::error::{ErrorCode, FieldFault};
use wharf_store::Revision;

use crate::{
    access::Caller,
    error::{ApiError, ApiResult},
};

/// A JSON body of a known form.
pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let Raw(bytes) = Raw::from_request(request, state).await?;
        parse_json(&bytes).map(Body)
    }
}

/// A body whose form depends on something else of the request; [`parse_json`] reads it.
pub struct Raw(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        check_media_type(request.headers())?;
        bytes_of(request, state).await.map(Raw)
    }
}

async fn bytes_of<S: Send + Sync>(request: Request, state: &S) -> ApiResult<Bytes> {
    Bytes::from_request(request, state).await.map_err(|rejection| match rejection {
        BytesRejection::FailedToBufferBody(inner) if inner.status() == 413 => too_large(),
        _ => ApiError::new(ErrorCode::MalformedBody, "the body broke off"),
    })
}

pub fn too_large() -> ApiError {
    ApiError::new(ErrorCode::BodyTooLarge, "the body is too large")
        .hint("the server's limits.body_bytes says how much it takes")
}

/// A document that people write by hand: JSON, or YAML by its media type.
pub struct Document(pub serde_json::Value);

impl<S: Send + Sync> FromRequest<S> for Document {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let is_yaml = matches!(
            media_type(request.headers()),
            Some("application/yaml" | "application/x-yaml" | "text/yaml")
        );
        if !is_yaml {
            return Body::from_request(request, state).await.map(|Body(value)| Document(value));
        }
        let bytes = bytes_of(request, state).await?;
        parse_yaml(&bytes).map(Document)
    }
}

/// The place of a fault alone is told: the text around it may be a secret.
fn parse_yaml(bytes: &[u8]) -> ApiResult<serde_json::Value> {
    let malformed = |place: String| {
        ApiError::new(ErrorCode::MalformedBody, format!("the body is not YAML{place}"))
    };
    let text = std::str::from_utf8(bytes)
        .map_err(|error| malformed(format!(": no UTF-8 at byte {}", error.valid_up_to())))?;
    serde_saphyr::from_str(text).map_err(|error| {
        let place = error.location();
        let place = place.map(|at| format!(" (line {}, column {})", at.line(), at.column()));
        malformed(place.unwrap_or_default())
    })
}

/// A body in another language than JSON is refused, so that a web page of somebody else's cannot
/// post a form to the server in a user's name.
fn check_media_type(headers: &HeaderMap) -> ApiResult<()> {
    match media_type(headers) {
        None | Some("application/json") => Ok(()),
        Some(other) => Err(ApiError::new(
            ErrorCode::UnsupportedMediaType,
            format!("the body must be application/json, not {other:?}"),
        )
        .hint("send the header `Content-Type: application/json`")),
    }
}

fn media_type(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get(header::CONTENT_TYPE).map(|v| v.to_str().unwrap_or_default());
    given.map(|v| v.split(';').next().unwrap_or_default().trim())
}

/// Reads JSON; all unknown fields are reported at once with their paths.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let place = error.valid_up_to();
        ApiError::new(ErrorCode::MalformedBody, format!("the body is not UTF-8 at byte {place}"))
    })?;
    let mut json = serde_json::Deserializer::from_str(text);
    let parsed = parse_known(&mut json)?;
    json.end().map_err(|error| malformed(&error, "."))?;
    Ok(parsed)
}

/// As [`parse_json`], for a value that was read already.
pub fn parse_value<T: DeserializeOwned>(value: serde_json::Value) -> ApiResult<T> {
    parse_known(value)
}

fn parse_known<'de, T: DeserializeOwned>(
    json: impl serde::Deserializer<'de, Error = serde_json::Error>,
) -> ApiResult<T> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(json, &mut track);
    let parsed = serde_ignored::deserialize(tracked, |path| unknown.push(render_path(&path)));
    let parsed: T = parsed.map_err(|error| malformed(&error, &track.path().to_string()))?;
    if unknown.is_empty() {
        return Ok(parsed);
    }
    let faults = unknown.into_iter().map(|field| FieldFault {
        message: format!("there is no field {field:?}"),
        code: ErrorCode::InvalidBodyContent,
        field,
    });
    Err(ApiError::invalid(faults.collect()))
}

fn malformed(error: &serde_json::Error, path: &str) -> ApiError {
    match error.classify() {
        serde_json::error::Category::Data => {
            let message = format!("{path}: {}", without_values(error));
            ApiError::field(path, ErrorCode::InvalidBodyContent, message)
        }
        _ => ApiError::new(ErrorCode::MalformedBody, format!("the body is not JSON: {error}")),
    }
}

/// The library's text quotes the value that does not fit, which may be a password. Only the name of
/// a field that is missing is passed on: it is ours.
fn without_values(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let missing = text.strip_prefix("missing field `").and_then(|rest| rest.split_once('`'));
    match missing {
        Some((field, _)) => format!("{field} is missing"),
        None => "it has another form than it should have".to_owned(),
    }
}

/// `nodes[1].address`, as the other errors write it.
fn render_path(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", render_path(parent)),
        Path::Map { parent, key } => match render_path(parent) {
            parent if parent.is_empty() => key.clone(),
            parent => format!("{parent}.{key}"),
        },
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => render_path(parent),
    }
}

/// Query parameters of a known form.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match AxumQuery::<T>::from_request_parts(parts, state).await {
            Ok(AxumQuery(query)) => Ok(Query(query)),
            Err(error) => Err(ApiError::new(ErrorCode::InvalidRequest, error.body_text())),
        }
    }
}

/// The parts of the path, percent-decoded.
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(path)) => Ok(Path(path)),
            Err(_) => Err(ApiError::new(ErrorCode::NotFound, "there is nothing at this path")),
        }
    }
}

/// The caller, put there by [`super::routes`] before the handler runs.
impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(|| {
            ApiError::internal("a route without a caller: it is missing in the table of routes")
        })
    }
}

/// The revision that `If-Match` asks for; `*` and its absence ask for none.
pub struct IfMatch(pub Option<Revision>);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let Some(value) = parts.headers.get(header::IF_MATCH) else { return Ok(IfMatch(None)) };
        let text = value.to_str().unwrap_or_default().trim();
        if text == "*" {
            return Ok(IfMatch(None));
        }
        let number = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(text);
        match number.parse() {
            Ok(revision) => Ok(IfMatch(Some(Revision(revision)))),
            Err(_) => Err(ApiError::new(
                ErrorCode::InvalidRequest,
                format!("If-Match must be a revision in quotes, not {text:?}"),
            )),
        }
    }
}

/// The prefix under which the request came, for the links in the answer.
#[derive(Debug, Clone, Copy)]
pub struct Prefix(pub &'static str);

impl<S: Send + Sync> FromRequestParts<S> for Prefix {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(parts.extensions.get::<Prefix>().copied().unwrap_or(Prefix(wharf_api::PREFIX)))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Order {
        name: String,
        #[serde(default)]
        items: Vec<Item>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Item {
        count: u32,
    }

    fn fault(text: &[u8]) -> (u16, ErrorCode, Vec<String>) {
        let error = parse_json::<Order>(text).unwrap_err();
        let fields = error.body.details.into_iter().map(|d| d.field).collect();
        (error.body.status, error.body.code, fields)
    }

    #[test]
    fn good_json_is_read() {
        let order: Order = parse_json(br#"{"name":"a","items":[{"count":1}]}"#).unwrap();
        assert_eq!(order, Order { name: "a".to_owned(), items: vec![Item { count: 1 }] });
    }

    #[test]
    fn all_unknown_fields_are_named_with_their_paths() {
        let text = br#"{"name":"a","nmae":1,"items":[{"count":1},{"count":2,"cuont":3}]}"#;
        let (status, _, fields) = fault(text);
        assert_eq!((status, fields), (422, vec!["nmae".to_owned(), "items[1].cuont".to_owned()]));
    }

    #[test]
    fn a_wrong_type_is_named_with_its_path() {
        let (status, code, fields) = fault(br#"{"name":"a","items":[{"count":"x"}]}"#);
        assert_eq!((status, code), (422, ErrorCode::InvalidBodyContent));
        assert_eq!(fields, ["items[0].count"]);
    }

    #[test]
    fn a_value_of_the_body_is_never_told_again() {
        for (text, message) in [
            (r#"{"name":123456}"#, "name: it has another form than it should have"),
            (
                r#"{"name":"a","items":[{"count":"123456"}]}"#,
                "items[0].count: it has another form than it should have",
            ),
            (r#"{"name":"a","items":[{}]}"#, "items[0]: count is missing"),
        ] {
            let error = parse_json::<Order>(text.as_bytes()).unwrap_err();
            assert_eq!(error.body.message, message);
        }
    }

    #[test]
    fn what_is_no_json_is_malformed() {
        let deep = "[".repeat(100_000);
        for text in
            [&b""[..], b"{", b"{} {}", b"nonsense", b"\xff\xfe", b"\"\xc3\"", deep.as_bytes()]
        {
            let (status, code, _) = fault(text);
            assert!(
                code == ErrorCode::MalformedBody || status == 422,
                "{:?}: {code:?}",
                &text[..text.len().min(20)]
            );
        }
        assert_eq!(fault(b"\xff").1, ErrorCode::MalformedBody);
        assert_eq!(fault(b"{").1, ErrorCode::MalformedBody);
        assert_eq!(fault(br#"{"name":"a"} x"#).1, ErrorCode::MalformedBody);
    }
}
