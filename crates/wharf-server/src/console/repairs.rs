//! The repair queue of a cluster.

use askama::Template;
use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use wharf_api::{error::ErrorCode, repair::RepairEntry};
use wharf_core::repair::{RepairConfig, Request};

use super::{Page, PageResult, Session, fragment, guard::Posted, is_admin, render};
use crate::{
    access::Caller,
    app::App,
    error::{ApiError, ApiResult},
    http::{convert, extract::Path},
    repair,
};

/// A page of more would be slow to read and to send; the command line lists all.
const SHOWN: usize = 500;

#[derive(Template)]
#[template(path = "console/repairs.html")]
struct Body {
    cluster: String,
    enabled: bool,
    rows: Vec<Row>,
    hidden: usize,
    unfinished: usize,
    finished: usize,
    is_admin: bool,
    form_token: String,
}

struct Row {
    entry: RepairEntry,
    tone: &'static str,
    is_finished: bool,
    since: String,
}

/// `GET /console/clusters/{name}/repairs`
pub async fn page(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path(name): Path<String>,
) -> PageResult {
    let body = body(&app, &caller, &session, &name).await?;
    let title = format!("Repairs of {name}");
    let busy = body.unfinished > 0;
    Page { title: &title, session: Some((&caller, &session)), busy }.show(StatusCode::OK, &body)
}

/// `GET /console/clusters/{name}/repairs/live`
pub async fn live(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path(name): Path<String>,
) -> PageResult {
    fragment(&body(&app, &caller, &session, &name).await?)
}

async fn body(app: &App, caller: &Caller, session: &Session, name: &str) -> ApiResult<Body> {
    let listed = repair::list(app, caller, name).await?;
    let row = |(entry, live): (wharf_core::repair::Entry, _)| {
        let (is_finished, since) = (entry.is_finished(), render::time(entry.last_transition));
        let entry = convert::repair::entry(entry, live);
        Row { tone: render::tone(&entry.status), is_finished, since, entry }
    };
    let mut rows: Vec<Row> = listed.entries.into_iter().map(row).collect();
    let finished = rows.iter().filter(|row| row.is_finished).count();
    let unfinished = rows.len() - finished;
    // What is under way comes first; of what is over, the newest.
    let (mut over, mut under_way): (Vec<Row>, Vec<Row>) =
        rows.drain(..).partition(|row| row.is_finished);
    over.reverse();
    under_way.append(&mut over);
    let hidden = under_way.len().saturating_sub(SHOWN);
    under_way.truncate(SHOWN);
    Ok(Body {
        cluster: name.to_owned(),
        enabled: listed.enabled,
        rows: under_way,
        hidden,
        unfinished,
        finished,
        is_admin: is_admin(caller),
        form_token: session.form_token.clone(),
    })
}

/// `POST /console/clusters/{name}/repairs`
pub async fn act(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    Posted(fields): Posted,
) -> PageResult {
    match fields.get("action") {
        "enable" => repair::set_enabled(&app, &caller, &name, true).await?,
        "disable" => repair::set_enabled(&app, &caller, &name, false).await?,
        "reset-backoff" => drop(repair::reset_backoff(&app, &caller, &name).await?),
        "delete-finished" => drop(repair::delete_finished(&app, &caller, &name).await?),
        "delete" => repair::delete(&app, &caller, &name, fields.get("index")).await?,
        _ => return Err(super::not_found()),
    }
    Ok(to_queue(&name))
}

#[derive(Template)]
#[template(path = "console/new_repair.html")]
struct Form<'a> {
    cluster: &'a str,
    operations: Vec<String>,
    machine_types: Vec<String>,
    request: Request,
    faults: Vec<String>,
    form_token: &'a str,
}

/// `GET /console/clusters/{name}/new-repair`
pub async fn form(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path(name): Path<String>,
) -> PageResult {
    ask(&app, &caller, &session, &name, Request::default(), None).await
}

/// `POST /console/clusters/{name}/new-repair`
pub async fn add(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path(name): Path<String>,
    Posted(fields): Posted,
) -> PageResult {
    let field = |name| fields.get(name).trim().to_owned();
    let request = Request {
        operation: field("operation"),
        machine_type: field("machine_type"),
        address: field("address"),
        serial: field("serial"),
    };
    match repair::add(&app, &caller, &name, &request).await {
        Ok(_) => Ok(to_queue(&name)),
        Err(error) if error.body.code == ErrorCode::InvalidBodyContent => {
            ask(&app, &caller, &session, &name, request, Some(error)).await
        }
        Err(error) => Err(error.into()),
    }
}

async fn ask(
    app: &App,
    caller: &Caller,
    session: &Session,
    name: &str,
    request: Request,
    error: Option<ApiError>,
) -> PageResult {
    let (config, _) = repair::config(app, caller, name).await?;
    let (operations, machine_types) = choices(&config);
    let status = if error.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let faults = error.map(|error| error.body.details).unwrap_or_default();
    let body = Form {
        cluster: name,
        operations,
        machine_types,
        request,
        faults: faults.into_iter().map(|fault| fault.message).collect(),
        form_token: &session.form_token,
    };
    let title = format!("Repair a machine of {name}");
    Page { title: &title, session: Some((caller, session)), busy: false }.show(status, &body)
}

/// The names of operations and of machine types that the configuration knows.
fn choices(config: &RepairConfig) -> (Vec<String>, Vec<String>) {
    let procedures = || config.repair_procedures.iter();
    let mut operations: Vec<String> = procedures()
        .flat_map(|procedure| &procedure.repair_operations)
        .map(|operation| operation.operation.clone())
        .collect();
    let mut types: Vec<String> =
        procedures().flat_map(|procedure| procedure.machine_types.clone()).collect();
    for names in [&mut operations, &mut types] {
        names.sort();
        names.dedup();
    }
    (operations, types)
}

fn to_queue(name: &str) -> Response {
    Redirect::to(&format!("/console/clusters/{name}/repairs")).into_response()
}
