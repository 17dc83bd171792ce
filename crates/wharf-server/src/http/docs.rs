//! The API's description: for programs as OpenAPI 3.1, for people as a page.

use askama::Template;
use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::{Html, IntoResponse, Response},
};
use serde_json::Value;
use wharf_api::{PREFIX, error::ErrorCode};

use super::routes;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// This description.
#[utoipa::path(get, path = "/openapi.json", tag = "server", responses((status = 200, body = Value)))]
pub async fn openapi(State(app): State<App>) -> ApiResult<Response> {
    let text = routes::openapi(&app).to_pretty_json().map_err(ApiError::internal)?;
    let kind = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// This description, for people.
#[utoipa::path(get, path = "/docs", tag = "server", responses((status = 200, content_type = "text/html", body = String)))]
pub async fn page(State(app): State<App>) -> ApiResult<Response> {
    let doc = serde_json::to_value(routes::openapi(&app)).map_err(ApiError::internal)?;
    let html = Page::of(&doc).render().map_err(ApiError::internal)?;
    // The page is one piece: its own style, no script, nothing from elsewhere.
    let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
    Ok(([(header::CONTENT_SECURITY_POLICY, policy)], Html(html)).into_response())
}

#[derive(Template)]
#[template(path = "api.html")]
struct Page {
    version: &'static str,
    prefix: &'static str,
    groups: Vec<Group>,
    codes: Vec<(String, u16)>,
}

struct Group {
    name: String,
    operations: Vec<Operation>,
}

struct Operation {
    method: String,
    path: String,
    summary: String,
    need: String,
    parameters: Vec<Field>,
    body: Vec<Field>,
    answers: Vec<Answer>,
}

struct Field {
    name: String,
    kind: String,
    required: bool,
    text: String,
}

struct Answer {
    status: String,
    fields: Vec<Field>,
}

impl Page {
    fn of(doc: &Value) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        for (path, item) in entries(doc.get("paths")) {
            for (method, operation) in entries(Some(item)) {
                let name = text(operation.pointer("/tags/0"));
                let operation = Operation::of(doc, method, path, operation);
                match groups.iter_mut().find(|group| group.name == name) {
                    Some(group) => group.operations.push(operation),
                    None => groups.push(Group { name, operations: vec![operation] }),
                }
            }
        }
        let codes = ErrorCode::ALL.iter().map(|code| (format!("{code:?}"), code.status()));
        Self { version: env!("CARGO_PKG_VERSION"), prefix: PREFIX, groups, codes: codes.collect() }
    }
}

impl Operation {
    fn of(doc: &Value, method: &str, path: &str, operation: &Value) -> Self {
        let parameters = operation.get("parameters").and_then(Value::as_array);
        let parameters = parameters.into_iter().flatten().map(|parameter| Field {
            name: text(parameter.get("name")),
            kind: format!("{} {}", text(parameter.get("in")), kind_of(parameter.get("schema"))),
            required: parameter.get("required").and_then(Value::as_bool).unwrap_or(false),
            text: text(parameter.get("description")),
        });
        let body = operation.pointer("/requestBody/content/application~1json/schema");
        let answers = entries(operation.get("responses")).map(|(status, response)| {
            let schema = response.pointer("/content/application~1json/schema");
            let shown = if status.starts_with('2') { fields(doc, schema) } else { Vec::new() };
            Answer { status: status.clone(), fields: shown }
        });
        Self {
            method: method.to_uppercase(),
            path: path.to_owned(),
            summary: [operation.get("summary"), operation.get("description")]
                .map(text)
                .join(" ")
                .trim()
                .to_owned(),
            need: match operation.pointer("/security/0/bearer/0").and_then(Value::as_str) {
                Some(role) => format!("needs a token of role {role}"),
                None => "needs no token".to_owned(),
            },
            parameters: parameters.collect(),
            body: fields(doc, body),
            answers: answers.collect(),
        }
    }
}

fn entries(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten()
}

fn text(value: Option<&Value>) -> String {
    value.and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn resolve<'a>(doc: &'a Value, schema: &'a Value) -> &'a Value {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#'));
    target.and_then(|pointer| doc.pointer(pointer)).unwrap_or(schema)
}

/// The fields of an object, those of its parts (`allOf`) among them.
fn fields(doc: &Value, schema: Option<&Value>) -> Vec<Field> {
    let Some(schema) = schema.map(|schema| resolve(doc, schema)) else { return Vec::new() };
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let parts = schema.get("allOf").and_then(Value::as_array).into_iter().flatten();
    let inherited = parts.flat_map(|part| fields(doc, Some(part)));
    let own = entries(schema.get("properties")).map(|(name, field)| Field {
        name: name.clone(),
        kind: kind_of(Some(field)),
        required: required.contains(&name.as_str()),
        text: text(field.get("description")),
    });
    inherited.chain(own).collect()
}

fn kind_of(schema: Option<&Value>) -> String {
    let Some(schema) = schema else { return String::new() };
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        return reference.rsplit('/').next().unwrap_or_default().to_owned();
    }
    if let Some(options) = schema.get("oneOf").and_then(Value::as_array) {
        let kinds: Vec<String> = options.iter().map(|option| kind_of(Some(option))).collect();
        return kinds.join(" or ");
    }
    match schema.get("type") {
        Some(Value::String(kind)) if kind == "array" => {
            format!("list of {}", kind_of(schema.get("items")))
        }
        Some(Value::String(kind)) => kind.clone(),
        Some(Value::Array(kinds)) => {
            let kinds: Vec<&str> = kinds.iter().filter_map(Value::as_str).collect();
            kinds.join(" or ")
        }
        _ => "any".to_owned(),
    }
}
