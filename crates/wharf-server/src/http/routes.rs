//! All routes, each with the role that it needs. There is no other place where a route is made.

use std::collections::{BTreeMap, BTreeSet};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    handler::Handler,
    http::{HeaderMap, Method, Uri, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing,
};
use jiff::Timestamp;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::openapi::{
    OpenApi, OpenApiBuilder, Paths, RefOr, Schema,
    path::{Operation, PathItem},
    security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme},
};
use utoipa_axum::{router::UtoipaMethodRouter, routes};
use wharf_api::error::ErrorCode;
use wharf_core::access::{Need, Role, Scope};

use super::{
    agent, apps, audit, clusters, docs, drains, events,
    extract::Prefix,
    health, kubeconfigs,
    layers::{self, Peer, RequestId},
    members, nodes, operations, repairs, tokens, users, volumes, zkelog,
};
use crate::{
    access::{Caller, CallerKind, token, unauthorized},
    app::App,
    console,
    error::{ApiError, ApiResult},
};

/// The API, under both prefixes.
fn api(app: &App) -> Table {
    Table::new(app)
        .add(Need::Nobody, routes!(docs::openapi))
        .add(Need::Nobody, routes!(docs::page))
        .add(Need::Nobody, routes!(health::version))
        .add(Need::Nobody, routes!(users::act))
        .add(Need::Viewer, routes!(users::whoami))
        .add(Need::Admin, routes!(users::list, users::create))
        .add(Need::Viewer, routes!(users::get))
        .add(Need::Admin, routes!(users::update, users::delete))
        .add(Need::Viewer, routes!(users::set_password))
        .add(Need::Viewer, routes!(tokens::list, tokens::create))
        .add(Need::Viewer, routes!(tokens::delete))
        .add(Need::Admin, routes!(audit::list))
        .add(Need::Viewer, routes!(events::stream))
        .add(Need::Viewer, routes!(events::stream_of_cluster))
        .add(Need::Viewer, routes!(clusters::list))
        .add(Need::Admin, routes!(clusters::create))
        .add(Need::Viewer, routes!(clusters::get))
        .add(Need::Admin, routes!(clusters::update, clusters::delete, clusters::act))
        .add(Need::Admin, routes!(kubeconfigs::list))
        .add(Need::Admin, routes!(kubeconfigs::get))
        .add(Need::Viewer, routes!(nodes::list))
        .add(Need::Viewer, routes!(nodes::get))
        .add(Need::Admin, routes!(nodes::act))
        .add(Need::Viewer, routes!(nodes::get_operation))
        .add(Need::Admin, routes!(apps::list, apps::create))
        .add(Need::Admin, routes!(apps::get, apps::update, apps::delete))
        .add(Need::Admin, routes!(apps::trace))
        .add(Need::Viewer, routes!(drains::list))
        .add(Need::Viewer, routes!(drains::get))
        .add(Need::Viewer, routes!(volumes::list))
        .add(Need::Viewer, routes!(volumes::get))
        .add(Need::Viewer, routes!(volumes::why))
        .add(Need::Admin, routes!(volumes::detach))
        .add(Need::Viewer, routes!(agent::get))
        .add(Need::Admin, routes!(agent::install, agent::remove))
        .add(Need::Viewer, routes!(repairs::list))
        .add(Need::Admin, routes!(repairs::act))
        .add(Need::Admin, routes!(repairs::delete))
        .add(Need::Viewer, routes!(repairs::get_config))
        .add(Need::Admin, routes!(repairs::put_config))
        .add(Need::Viewer, routes!(operations::list))
        .add(Need::Viewer, routes!(operations::get))
        .add(Need::Viewer, routes!(operations::list_of_cluster))
        .add(Need::Viewer, routes!(operations::get_of_cluster))
        .add_socket(Need::Viewer, routes!(zkelog::follow))
        .add(Need::Admin, routes!(members::list))
}

/// What is not part of the API: for machines that watch over the server.
fn service(app: &App) -> Table {
    Table::new(app)
        .add(Need::Nobody, routes!(health::healthz))
        .add(Need::Nobody, routes!(health::readyz))
        .add(Need::Nobody, routes!(health::metrics))
}

/// The console's pages, which are not part of the API either.
fn pages(app: &App) -> Table {
    use console::{assets, clusters, delete, form, login, nodes, operations, repairs, volumes};
    Table::new(app)
        .page(Need::Nobody, Method::GET, "/", console::home)
        .page(Need::Nobody, Method::GET, "/console", console::home)
        .page(Need::Nobody, Method::GET, "/console/login", login::show)
        .page(Need::Nobody, Method::POST, "/console/login", login::enter)
        .page(Need::Viewer, Method::POST, "/console/logout", login::leave)
        .page(Need::Nobody, Method::GET, "/console/assets/{name}", assets::get)
        .page(Need::Viewer, Method::GET, "/console/events", clusters::stream)
        .page(Need::Viewer, Method::GET, "/console/clusters", clusters::list)
        .page(Need::Viewer, Method::GET, "/console/live", clusters::list_live)
        // Not below the clusters: one may have that name.
        .page(Need::Admin, Method::GET, "/console/new-cluster", form::show)
        .page(Need::Admin, Method::POST, "/console/new-cluster", form::send)
        .page(Need::Viewer, Method::GET, "/console/clusters/{name}", clusters::page)
        .page(Need::Viewer, Method::GET, "/console/clusters/{name}/live", clusters::live)
        .page(Need::Admin, Method::GET, "/console/clusters/{name}/kubeconfig", clusters::kubeconfig)
        .page(Need::Admin, Method::POST, "/console/clusters/{name}/cancel", clusters::cancel)
        .page(Need::Admin, Method::POST, "/console/clusters/{name}/retry", clusters::retry)
        .page(Need::Admin, Method::GET, "/console/clusters/{name}/delete", delete::show)
        .page(Need::Admin, Method::POST, "/console/clusters/{name}/delete", delete::send)
        .page(Need::Viewer, Method::GET, "/console/clusters/{name}/nodes/{id}", nodes::page)
        .page(Need::Viewer, Method::GET, "/console/clusters/{name}/nodes/{id}/live", nodes::live)
        .page(Need::Admin, Method::POST, "/console/clusters/{name}/nodes/{id}", nodes::act)
        .page(Need::Admin, Method::GET, "/console/clusters/{name}/nodes/{id}/plan", nodes::plan)
        .page(Need::Viewer, Method::GET, "/console/clusters/{name}/volumes", volumes::page)
        .page(Need::Viewer, Method::GET, "/console/clusters/{name}/volumes/live", volumes::live)
        .page(Need::Viewer, Method::GET, "/console/clusters/{name}/repairs", repairs::page)
        .page(Need::Viewer, Method::GET, "/console/clusters/{name}/repairs/live", repairs::live)
        .page(Need::Admin, Method::POST, "/console/clusters/{name}/repairs", repairs::act)
        .page(Need::Admin, Method::GET, "/console/clusters/{name}/new-repair", repairs::form)
        .page(Need::Admin, Method::POST, "/console/clusters/{name}/new-repair", repairs::add)
        .page(Need::Viewer, Method::GET, "/console/operations", operations::list)
        .page(Need::Viewer, Method::GET, "/console/operations/{id}", operations::page)
        .page(Need::Viewer, Method::GET, "/console/operations/{id}/live", operations::live)
}

/// What existing clients look for under a prefix of its own.
fn sockets(app: &App) -> Table {
    Table::new(app).add_socket(Need::Viewer, routes!(zkelog::follow))
}

/// One route as it stands in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub method: Method,
    /// The path below the prefix, with `{names}`.
    pub path: String,
    pub need: Need,
}

struct Table {
    app: App,
    router: Router<App>,
    rows: Vec<Row>,
    paths: Paths,
    schemas: BTreeMap<String, RefOr<Schema>>,
}

impl Table {
    fn new(app: &App) -> Self {
        Self {
            app: app.clone(),
            router: Router::new(),
            rows: Vec::new(),
            paths: Paths::new(),
            schemas: BTreeMap::new(),
        }
    }

    fn add(self, need: Need, routes: UtoipaMethodRouter<App>) -> Self {
        self.add_guarded(need, Token::InHeader, routes)
    }

    /// A route for WebSockets: a page cannot set a header there, so the token may be elsewhere.
    fn add_socket(self, need: Need, routes: UtoipaMethodRouter<App>) -> Self {
        self.add_guarded(need, Token::Anywhere, routes)
    }

    /// A page of the console: the caller is known by the console's cookie.
    fn page<H, T>(mut self, need: Need, method: Method, path: &str, handler: H) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        let handler = match method {
            Method::POST => routing::post(handler),
            _ => routing::get(handler),
        };
        let guard = from_fn_with_state((self.app.clone(), need), console::guard::admit);
        self.router = self.router.route(path, handler.layer(guard));
        self.rows.push(Row { method, path: path.to_owned(), need });
        self
    }

    fn add_guarded(
        mut self,
        need: Need,
        token: Token,
        (schemas, paths, handler): UtoipaMethodRouter<App>,
    ) -> Self {
        let guard = from_fn_with_state((self.app.clone(), need, token), admit);
        let handler = handler.layer(guard);
        for (path, mut item) in paths.paths {
            self.router = self.router.route(&path, handler.clone());
            for (method, operation) in operations(&mut item) {
                self.rows.push(Row { method, path: path.clone(), need });
                complete(operation, need);
            }
            match self.paths.paths.get_mut(&path) {
                Some(known) => known.merge_operations(item),
                None => {
                    self.paths.paths.insert(path, item);
                }
            }
        }
        self.schemas.extend(schemas);
        self
    }
}

/// Adds to an operation's description what is the same for all: a name that is unique, the role,
/// and a word for each status.
fn complete(operation: &mut Operation, need: Need) {
    operation.security = Some(match need {
        Need::Nobody => Vec::new(),
        Need::Viewer => vec![SecurityRequirement::new("bearer", ["viewer"])],
        Need::Admin => vec![SecurityRequirement::new("bearer", ["admin"])],
    });
    let tag = operation.tags.iter().flatten().next().cloned().unwrap_or_default();
    let name = operation.operation_id.take().unwrap_or_default();
    operation.operation_id = Some(format!("{tag}_{name}"));
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            response.description = match status.as_str() {
                "200" => "Done",
                "201" => "Made",
                "202" => "Begun",
                "204" => "Done; there is nothing to say",
                _ => "Refused; the body says why",
            }
            .to_owned();
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    [
        (Method::GET, &mut item.get),
        (Method::POST, &mut item.post),
        (Method::PUT, &mut item.put),
        (Method::DELETE, &mut item.delete),
    ]
    .into_iter()
    .filter_map(|(method, operation)| operation.as_mut().map(|operation| (method, operation)))
}

/// The rows of the API's table, for the test that calls every route in every role.
pub fn rows(app: &App) -> Vec<Row> {
    api(app).rows
}

/// The rows of the console's table.
pub fn console_rows(app: &App) -> Vec<Row> {
    pages(app).rows
}

/// The description of the API, made from the handlers themselves.
pub fn openapi(app: &App) -> OpenApi {
    let table = api(app);
    let mut doc = OpenApiBuilder::new()
        .info(
            utoipa::openapi::InfoBuilder::new()
                .title("Wharf")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some("Kubernetes clusters on machines you own."))
                .build(),
        )
        .servers(Some([utoipa::openapi::Server::new(wharf_api::PREFIX)]))
        .paths(table.paths)
        .build();
    let components = doc.components.get_or_insert_default();
    components.schemas.extend(table.schemas);
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    components.security_schemes.insert("bearer".to_owned(), bearer.into());
    doc
}

/// Everything that the server serves.
pub fn router(app: &App) -> Router {
    let api = api(app).router;
    let under = |prefix| api.clone().layer(axum::Extension(Prefix(prefix)));
    service(app)
        .router
        .merge(pages(app).router)
        .nest(wharf_api::PREFIX, under(wharf_api::PREFIX))
        .nest(wharf_api::LEGACY_PREFIX, under(wharf_api::LEGACY_PREFIX))
        .nest(wharf_api::LEGACY_SOCKETS, sockets(app).router)
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(app.config.limits.body_bytes))
        .layer(from_fn_with_state(app.clone(), layers::time_limit))
        .layer(CatchPanicLayer::custom(layers::caught_panic))
        .layer(from_fn_with_state(app.clone(), layers::observe))
        .with_state(app.clone())
}

async fn not_found(uri: Uri) -> Response {
    if uri.path().starts_with("/console/") {
        return console::not_found().into_response();
    }
    ApiError::new(ErrorCode::NotFound, "there is nothing at this path")
        .hint(format!("{}/docs describes the API", wharf_api::PREFIX))
        .into_response()
}

async fn wrong_method() -> ApiError {
    ApiError::new(ErrorCode::MethodNotAllow, "this path does not take that method")
        .hint(format!("{}/docs describes the API", wharf_api::PREFIX))
}

/// Where a route looks for the caller's token.
#[derive(Clone, Copy)]
enum Token {
    InHeader,
    /// The header, the console's cookie or the query.
    Anywhere,
}

/// Lets a request through to its handler if the caller may. It runs before the body is read.
async fn admit(
    State((app, need, place)): State<(App, Need, Token)>,
    mut request: Request,
    next: Next,
) -> Response {
    let (peer, id) = (request.extensions().get().cloned(), request.extensions().get().cloned());
    // Where nobody is needed nobody is looked for: health does not depend on the store.
    let token = match (need, place) {
        (Need::Nobody, _) => Ok(None),
        (Need::Viewer | Need::Admin, Token::InHeader) => bearer(request.headers()),
        (Need::Viewer | Need::Admin, Token::Anywhere) => {
            zkelog::token_of(&request, app.config.http, bearer)
        }
    };
    let caller = match caller_of(&app, peer, id, token).await {
        Ok(caller) => caller,
        Err(error) => return error.into_response(),
    };
    if let Err(error) = caller.require(need) {
        return error.into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

pub(crate) async fn caller_of(
    app: &App,
    peer: Option<Peer>,
    id: Option<RequestId>,
    token: ApiResult<Option<String>>,
) -> ApiResult<Caller> {
    let origin = match &peer {
        Some(Peer::Address(address)) => address.to_string(),
        Some(Peer::Local) => "socket".to_owned(),
        None => "unknown".to_owned(),
    };
    let request_id = id.map(|id| id.0).unwrap_or_default();
    let caller = |name: String, role, kind| Caller { name, role, kind, origin, request_id };
    if let Some(text) = token? {
        let found = token::authenticate(&app.store, &text, Timestamp::now()).await?;
        let (user, token) = found.ok_or_else(unauthorized)?;
        let kind = CallerKind::User { token: token.id, until: token.expires_at };
        return Ok(caller(user.id, user.value.role, kind));
    }
    if peer == Some(Peer::Local) {
        return Ok(caller("local".to_owned(), Role::Admin, CallerKind::Local));
    }
    let nothing = Role::Viewer { clusters: Scope::Only(BTreeSet::new()) };
    Ok(caller("nobody".to_owned(), nothing, CallerKind::Nobody))
}

/// The token in the header; a header that is there but no bearer token is not let through.
fn bearer(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
            Ok(Some(token.trim().to_owned()))
        }
        _ => Err(unauthorized()),
    }
}
