//! Deleting a cluster: what destroys says what it will do, and asks.

use askama::Template;
use axum::{extract::State, http::StatusCode};
use wharf_core::cluster::DeleteMode;

use super::{Page, PageResult, Session, clusters::to_cluster, guard::Posted};
use crate::{access::Caller, app::App, clusters, http::convert, http::extract::Path};

#[derive(Template)]
#[template(path = "console/delete.html")]
struct Body<'a> {
    name: &'a str,
    nodes: Vec<String>,
    can_clean: bool,
    mode: &'a str,
    fault: bool,
    form_token: &'a str,
}

/// `GET /console/clusters/{name}/delete`
pub async fn show(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path(name): Path<String>,
) -> PageResult {
    ask(&app, &caller, &session, &name, "", false).await
}

/// `POST /console/clusters/{name}/delete`: only with the name, typed by hand.
pub async fn send(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path(name): Path<String>,
    Posted(fields): Posted,
) -> PageResult {
    let mode = match fields.get("mode") {
        "clean" => Some(DeleteMode::Clean),
        "force" => Some(DeleteMode::Force),
        "forget" => Some(DeleteMode::Forget),
        _ => None,
    };
    match mode {
        Some(mode) if fields.get("confirm").trim() == name => {
            clusters::delete(&app, &caller, &name, mode, None).await?;
            Ok(to_cluster(&name))
        }
        _ => ask(&app, &caller, &session, &name, fields.get("mode"), true).await,
    }
}

async fn ask(
    app: &App,
    caller: &Caller,
    session: &Session,
    name: &str,
    mode: &str,
    fault: bool,
) -> PageResult {
    let shown = clusters::get(app, caller, name).await?;
    let cluster = convert::cluster::shown(wharf_api::PREFIX, &shown);
    // Nothing is known of a cluster whose record cannot be read, and nothing of ours is on the
    // machines of one that was imported.
    let can_clean = shown.record.is_ok() && cluster.origin == "installed";
    let node = |node: wharf_api::cluster::ClusterNode| format!("{} ({})", node.name, node.address);
    let body = Body {
        name,
        nodes: cluster.nodes.into_iter().map(node).collect(),
        can_clean,
        mode: match mode {
            "clean" | "force" | "forget" => mode,
            _ if can_clean => "clean",
            _ => "forget",
        },
        fault,
        form_token: &session.form_token,
    };
    let status = if fault { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let title = format!("Delete {name}");
    Page { title: &title, session: Some((caller, session)), busy: false }.show(status, &body)
}
