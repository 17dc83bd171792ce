//! The page of a node: its drain, live; and the plan of one, before it is begun.

use askama::Template;
use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use jiff::Timestamp;
use serde::Deserialize;
use wharf_api::{
    drain::{Drain, DrainPlan, DrainRequest},
    error::ErrorCode,
    node::Node,
};
use wharf_core::drain::{DrainOptions, Prospect};

use super::{
    Page, PageResult, Session, clusters::to_cluster, fragment, guard::Posted, is_admin, render,
};
use crate::{
    access::Caller,
    agents,
    app::App,
    clusters::nodes,
    drains,
    error::{ApiError, ApiResult},
    http::{
        convert,
        extract::{Path, Query},
    },
};

#[derive(Template)]
#[template(path = "console/node.html")]
struct Body {
    cluster: String,
    name: String,
    /// `None` when it is gone; its last drain may still be known.
    node: Option<Node>,
    tone: &'static str,
    drain: Option<Shown>,
    is_admin: bool,
    form_token: String,
}

/// A drain as the page shows it.
struct Shown {
    drain: Drain,
    tone: &'static str,
    is_running: bool,
    /// What is not said with a pod below.
    reason: Option<String>,
    started: String,
    lasted: String,
    percent: usize,
    pods: Vec<PodRow>,
    hidden: usize,
}

struct PodRow {
    name: String,
    reason: String,
    blocks: bool,
    age: String,
}

/// `GET /console/clusters/{name}/nodes/{id}`
pub async fn page(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path((cluster, name)): Path<(String, String)>,
) -> PageResult {
    let body = body(&app, &caller, &session, &cluster, &name).await?;
    let operates = body.node.as_ref().is_some_and(|node| node.operation.is_some());
    let busy = operates || body.drain.as_ref().is_some_and(|drain| drain.is_running);
    let title = format!("{name} in {cluster}");
    Page { title: &title, session: Some((&caller, &session)), busy }.show(StatusCode::OK, &body)
}

/// `GET /console/clusters/{name}/nodes/{id}/live`
pub async fn live(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path((cluster, name)): Path<(String, String)>,
) -> PageResult {
    fragment(&body(&app, &caller, &session, &cluster, &name).await?)
}

async fn body(
    app: &App,
    caller: &Caller,
    session: &Session,
    cluster: &str,
    name: &str,
) -> ApiResult<Body> {
    let now = Timestamp::now();
    let drain = match drains::get(app, caller, cluster, name).await {
        Ok(found) => Some(convert::drain::drain(wharf_api::PREFIX, &found.value, now)),
        Err(error) if error.body.code == ErrorCode::NotFound => None,
        Err(error) => return Err(error),
    };
    let node = match nodes::get(app, caller, cluster, name).await {
        Ok((stored, node)) => Some(convert::node::node(wharf_api::PREFIX, &stored, &node, now)),
        Err(error) if error.body.code == ErrorCode::NotFound && drain.is_some() => None,
        Err(error) => return Err(error),
    };
    Ok(Body {
        cluster: cluster.to_owned(),
        name: name.to_owned(),
        tone: node.as_ref().map_or("idle", |node| render::tone(&node.status)),
        node,
        drain: drain.map(|drain| shown(drain, now)),
        is_admin: is_admin(caller),
        form_token: session.form_token.clone(),
    })
}

fn shown(drain: Drain, now: Timestamp) -> Shown {
    let gone = drain.total.saturating_sub(drain.left);
    let is_running = drain.ended_at.is_none();
    let is_of_a_pod = |reason: &&String| is_running && reason.starts_with("pod ");
    Shown {
        tone: render::tone(&drain.state),
        is_running,
        reason: drain.reason.as_ref().filter(|reason| !is_of_a_pod(reason)).cloned(),
        started: render::time(drain.started_at),
        lasted: render::lasted(Some(drain.started_at), drain.ended_at, now),
        percent: match drain.total {
            0 if drain.state == "succeeded" => 100,
            total => (gone * 100).checked_div(total).unwrap_or(0),
        },
        pods: drain
            .pods
            .iter()
            .map(|pod| PodRow {
                name: format!("{}/{}", pod.namespace, pod.name),
                reason: pod.reason.clone(),
                blocks: pod.blocks,
                age: render::lasted(Some(pod.since), drain.ended_at, now),
            })
            .collect(),
        hidden: drain.left.saturating_sub(drain.pods.len()),
        drain,
    }
}

#[derive(Template)]
#[template(path = "console/plan.html")]
struct PlanBody<'a> {
    cluster: &'a str,
    name: &'a str,
    plan: DrainPlan,
    verdict: String,
    tone: &'static str,
    jobs: [(&'static str, &'static str, bool); 4],
    /// The node's agent can be asked for more.
    is_linked: bool,
    form_token: &'a str,
}

#[derive(Debug, Deserialize)]
pub struct Wanted {
    jobs: Option<String>,
}

/// `GET /console/clusters/{name}/nodes/{id}/plan`: what a drain would do; beginning it is the form
/// below.
pub async fn plan(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path((cluster, name)): Path<(String, String)>,
    Query(wanted): Query<Wanted>,
) -> PageResult {
    let options = options(wanted.jobs.as_deref().unwrap_or_default(), "")?;
    let plan = drains::plan(&app, &caller, &cluster, &name, &options).await?;
    let chosen = wanted.jobs.as_deref().unwrap_or("block");
    let (stored, node) = nodes::get(&app, &caller, &cluster, &name).await?;
    let node = convert::node::node(wharf_api::PREFIX, &stored, &node, Timestamp::now());
    let body = PlanBody {
        cluster: &cluster,
        name: &name,
        plan: convert::drain::plan(&cluster, &name, &plan),
        verdict: render::capital(&plan.prospect.to_string()),
        tone: match plan.prospect {
            Prospect::Clear | Prospect::InTurns => "good",
            Prospect::Blocked => "warn",
            Prospect::Never => "bad",
        },
        jobs: [
            ("block", "Fail at once and touch nothing"),
            ("wait", "Wait until they have finished"),
            ("evict", "Evict them like others"),
            ("delete", "Delete them"),
        ]
        .map(|(value, text)| (value, text, value == chosen)),
        is_linked: node.agent.is_some_and(|agent| agent.link == "linked"),
        form_token: &session.form_token,
    };
    let title = format!("Drain {name}");
    let page = Page { title: &title, session: Some((&caller, &session)), busy: false };
    page.show(StatusCode::OK, &body)
}

/// `POST /console/clusters/{name}/nodes/{id}`
pub async fn act(
    State(app): State<App>,
    caller: Caller,
    Path((cluster, name)): Path<(String, String)>,
    Posted(fields): Posted,
) -> PageResult {
    match fields.get("action") {
        "cordon" => drains::cordon(&app, &caller, &cluster, &name).await?,
        "uncordon" => drains::uncordon(&app, &caller, &cluster, &name).await?,
        "drain" => {
            let options = options(fields.get("jobs"), fields.get("minutes"))?;
            drains::start(&app, &caller, &cluster, &name, &options).await?;
        }
        "cancel" => {
            drains::cancel(&app, &caller, &cluster, &name).await?;
        }
        "reboot" => {
            agents::start(&app, &caller, &cluster, &name, &agents::Wanted::Reboot).await?;
        }
        "shutdown" => {
            agents::start(&app, &caller, &cluster, &name, &agents::Wanted::Shutdown).await?;
        }
        "cancelOperation" => {
            agents::cancel(&app, &caller, &cluster, &name).await?;
        }
        _ => return Err(super::not_found()),
    }
    match fields.get("back") {
        "cluster" => Ok(to_cluster(&cluster)),
        _ => Ok(to_node(&cluster, &name)),
    }
}

/// What the form asks for; what was left empty is as usual.
fn options(jobs: &str, minutes: &str) -> ApiResult<DrainOptions> {
    let minutes = match minutes.trim() {
        "" => None,
        text => Some(text.parse::<i64>().map_err(|_| {
            ApiError::field("minutes", ErrorCode::InvalidFormat, "the minutes must be a number")
        })?),
    };
    let request = DrainRequest {
        jobs: (!jobs.is_empty()).then(|| jobs.to_owned()),
        timeout_seconds: minutes.map(|minutes| minutes.saturating_mul(60)),
        ..DrainRequest::default()
    };
    convert::drain::options(&request)
}

fn to_node(cluster: &str, name: &str) -> Response {
    Redirect::to(&format!("/console/clusters/{cluster}/nodes/{name}")).into_response()
}
