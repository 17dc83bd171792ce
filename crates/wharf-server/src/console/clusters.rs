//! The list of clusters, and the page of one.

use std::sync::Arc;

use askama::Template;
use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use jiff::Timestamp;
use serde::Deserialize;
use wharf_api::{cluster::Cluster, error::ErrorCode, node::Node};
use wharf_core::{
    cluster::{
        ClusterRecord, ClusterState,
        life::{ClusterEvent, Life, decide_transition},
    },
    operation::OperationKind,
};
use wharf_store::{Decoded, Stored};

use super::{
    Page, PageError, PageResult, Session, fragment,
    guard::Posted,
    is_admin,
    operations::Shown,
    render::{self, Share},
};
use crate::{
    access::Caller,
    app::App,
    clusters::{self, KUBE_ADMIN, operations},
    error::ApiResult,
    http::{
        convert, events,
        extract::{Path, Query},
    },
};

#[derive(Template)]
#[template(path = "console/clusters.html")]
struct ListBody {
    rows: Vec<Row>,
    is_admin: bool,
}

struct Row {
    cluster: Cluster,
    tone: &'static str,
    shares: [Share; 2],
}

/// `GET /console/clusters`
pub async fn list(State(app): State<App>, caller: Caller, session: Session) -> PageResult {
    let body = list_body(&app, &caller).await?;
    let busy = body.rows.iter().any(|row| row.tone == "busy");
    let page = Page { title: "Clusters", session: Some((&caller, &session)), busy };
    page.show(StatusCode::OK, &body)
}

/// `GET /console/live`
pub async fn list_live(State(app): State<App>, caller: Caller) -> PageResult {
    fragment(&list_body(&app, &caller).await?)
}

async fn list_body(app: &App, caller: &Caller) -> ApiResult<ListBody> {
    let row = |shown: Arc<clusters::Shown>| {
        let cluster = convert::cluster::shown(wharf_api::PREFIX, &shown);
        let usage = &cluster.usage;
        Row {
            tone: render::tone(&cluster.status),
            shares: [
                render::cpu(usage.cpu_used, usage.cpu),
                render::memory(usage.memory_used, usage.memory),
            ],
            cluster,
        }
    };
    let shown = clusters::list(app, caller, false).await?;
    Ok(ListBody { rows: shown.into_iter().map(row).collect(), is_admin: is_admin(caller) })
}

#[derive(Template)]
#[template(path = "console/cluster.html")]
struct OneBody {
    cluster: Cluster,
    tone: &'static str,
    created: String,
    since: Option<String>,
    shares: Vec<Share>,
    nodes: Vec<NodeRow>,
    operation: Option<Shown>,
    may: Actions,
    /// Whether the cluster serves its nodes: then each has a page.
    has_node_pages: bool,
    form_token: String,
}

struct NodeRow {
    node: Node,
    tone: &'static str,
    shares: [Share; 3],
}

/// Which buttons there are.
#[derive(Default)]
struct Actions {
    cancel: bool,
    retry: Option<&'static str>,
    delete: bool,
    kubeconfig: bool,
    /// Cordon, uncordon and drain.
    nodes: bool,
}

#[derive(Debug, Deserialize)]
pub struct Seen {
    /// The operation that the page shows already; it saves looking for it.
    operation: Option<String>,
}

/// `GET /console/clusters/{name}`; what is gone is shown by what was last done to it.
pub async fn page(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path(name): Path<String>,
) -> PageResult {
    let body = match one_body(&app, &caller, &session, &name, None).await {
        Err(error) if error.body.code == ErrorCode::NotFound => {
            let last = operations::latest(&app, &caller, &name).await.map_err(|_| error)?;
            return match last.value.kind {
                OperationKind::Delete => {
                    let path = format!("/console/operations/{}", last.id);
                    Ok(Redirect::to(&path).into_response())
                }
                OperationKind::Create
                | OperationKind::Update
                | OperationKind::Reboot
                | OperationKind::Shutdown
                | OperationKind::NodeUpdate => Err(super::not_found()),
            };
        }
        other => other?,
    };
    let busy = body.tone == "busy";
    Page { title: &name, session: Some((&caller, &session)), busy }.show(StatusCode::OK, &body)
}

/// `GET /console/clusters/{name}/live`
pub async fn live(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path(name): Path<String>,
    Query(seen): Query<Seen>,
) -> PageResult {
    fragment(&one_body(&app, &caller, &session, &name, seen.operation.as_deref()).await?)
}

async fn one_body(
    app: &App,
    caller: &Caller,
    session: &Session,
    name: &str,
    seen: Option<&str>,
) -> ApiResult<OneBody> {
    let shown = clusters::get(app, caller, name).await?;
    let cluster = convert::cluster::shown(wharf_api::PREFIX, &shown);
    let operation = operation_of(app, caller, &cluster, seen).await?;
    let usage = &cluster.usage;
    let shares = vec![
        render::cpu(usage.cpu_used, usage.cpu),
        render::memory(usage.memory_used, usage.memory),
        render::pods(usage.pod_used, usage.pod),
    ];
    Ok(OneBody {
        tone: render::tone(&cluster.status),
        created: render::time(cluster.head.creation_timestamp),
        since: cluster.reason_since.map(render::time),
        shares: if usage.cpu == 0 { Vec::new() } else { shares },
        nodes: nodes_of(app, caller, &shown.record, &cluster).await?,
        operation: operation.map(|stored| Shown::of(&stored, Timestamp::now())),
        may: if is_admin(caller) { actions(&shown.record, &cluster) } else { Actions::default() },
        has_node_pages: shown.record.as_ref().is_ok_and(|stored| stored.value.state.is_served()),
        form_token: session.form_token.clone(),
        cluster,
    })
}

/// What is under way, otherwise what was last done.
async fn operation_of(
    app: &App,
    caller: &Caller,
    cluster: &Cluster,
    seen: Option<&str>,
) -> ApiResult<Option<Stored<wharf_core::operation::OperationRecord>>> {
    if let Some(id) = cluster.operation.as_deref().or(seen)
        && let Ok(found) = operations::get(app, caller, id).await
        && found.value.cluster == cluster.name
    {
        return Ok(Some(found));
    }
    match operations::latest(app, caller, &cluster.name).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.body.code == ErrorCode::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The nodes as they are where the cluster serves them, as they were asked for otherwise.
async fn nodes_of(
    app: &App,
    caller: &Caller,
    record: &Decoded<ClusterRecord>,
    cluster: &Cluster,
) -> ApiResult<Vec<NodeRow>> {
    let Ok(stored) = record else { return Ok(Vec::new()) };
    let now = Timestamp::now();
    let nodes: Vec<Node> = match stored.value.state.is_served() {
        true => {
            let (stored, nodes) = clusters::nodes::list(app, caller, &cluster.name).await?;
            nodes.iter().map(|n| convert::node::node(wharf_api::PREFIX, &stored, n, now)).collect()
        }
        false => {
            let nodes = clusters::nodes::asked_for(&stored.value);
            let node = |n| convert::node::node(wharf_api::PREFIX, stored, n, now);
            nodes
                .iter()
                .map(node)
                .map(|n| Node { status: "Planned".into(), reason: None, ..n })
                .collect()
        }
    };
    let row = |node: Node| NodeRow {
        tone: render::tone(&node.status),
        shares: [
            render::cpu(node.usage.cpu_used, node.usage.cpu),
            render::memory(node.usage.memory_used, node.usage.memory),
            render::pods(node.usage.pod_used, node.usage.pod),
        ],
        node,
    };
    Ok(nodes.into_iter().map(row).collect())
}

/// What the state allows; it is asked again when the button is pressed.
fn actions(record: &Decoded<ClusterRecord>, cluster: &Cluster) -> Actions {
    let Ok(stored) = record else { return Actions { delete: true, ..Actions::default() } };
    let state = stored.value.state;
    let allows = |event| decide_transition(Life::Recorded(state), event).is_ok();
    Actions {
        cancel: matches!(state, ClusterState::Creating | ClusterState::Updating)
            && !cluster.canceling,
        retry: match state {
            ClusterState::CreateFailed => Some("Continue creating"),
            ClusterState::Running if !cluster.pending.is_empty() => Some("Repeat the update"),
            _ => None,
        },
        delete: allows(ClusterEvent::Delete),
        kubeconfig: state.is_served(),
        nodes: state.is_served(),
    }
}

/// `POST /console/clusters/{name}/cancel`
pub async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    Posted(_): Posted,
) -> PageResult {
    clusters::cancel(&app, &caller, &name).await?;
    Ok(to_cluster(&name))
}

/// `POST /console/clusters/{name}/retry`: the same wish once more, as if it were read and sent back.
pub async fn retry(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    Posted(_): Posted,
) -> PageResult {
    let shown = clusters::get(&app, &caller, &name).await?;
    let cluster = convert::cluster::shown(wharf_api::PREFIX, &shown);
    let text = serde_json::to_vec(&cluster).map_err(crate::error::ApiError::internal)?;
    let draft = convert::cluster::draft(&text)?;
    let revision = Some(shown.revision);
    clusters::update(&app, &caller, &name, &draft, revision, |record, names| {
        let app = app.clone();
        async move { clusters::storage_nodes(&app, &record, names).await }
    })
    .await?;
    Ok(to_cluster(&name))
}

pub(super) fn to_cluster(name: &str) -> Response {
    Redirect::to(&format!("/console/clusters/{name}")).into_response()
}

/// `GET /console/clusters/{name}/kubeconfig`
pub async fn kubeconfig(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
) -> PageResult {
    let (cluster, text) = clusters::kubeconfig(&app, &caller, &name, KUBE_ADMIN).await?;
    // The name of a cluster that exists holds nothing but letters, digits, dots and hyphens.
    let file = format!("attachment; filename=\"{}.kubeconfig\"", cluster.id);
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
    if let Ok(file) = HeaderValue::from_str(&file) {
        headers.insert(header::CONTENT_DISPOSITION, file);
    }
    Ok(response)
}

#[derive(Debug, Deserialize)]
pub struct Which {
    cluster: Option<String>,
}

/// `GET /console/events`: live changes, for the script.
pub async fn stream(
    State(app): State<App>,
    caller: Caller,
    Query(which): Query<Which>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    Ok(events::start(app, caller, &headers, which.cluster).await?)
}
