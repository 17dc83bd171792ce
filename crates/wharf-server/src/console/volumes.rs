//! The volumes of a cluster: who holds what, and why.

use askama::Template;
use axum::{extract::State, http::StatusCode};
use wharf_api::volume::{Volume, VolumeWhy};

use super::{Page, PageResult, Session, fragment, render};
use crate::{
    access::Caller,
    app::App,
    error::ApiResult,
    http::{convert, extract::Path},
    volumes::{self, Looked},
};

/// A page of more would be slow to read and to send; the command line lists all.
const SHOWN: usize = 500;

#[derive(Template)]
#[template(path = "console/volumes.html")]
struct Body {
    cluster: String,
    rows: Vec<Row>,
    hidden: usize,
    stuck: usize,
}

struct Row {
    volume: Volume,
    why: VolumeWhy,
    tone: &'static str,
    /// Since when it has been held, as HTML.
    since: Option<String>,
}

/// `GET /console/clusters/{name}/volumes`
pub async fn page(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path(name): Path<String>,
) -> PageResult {
    let body = body(&app, &caller, &name).await?;
    let title = format!("Volumes of {name}");
    let busy = body.rows.iter().any(|row| row.tone != "good" && row.tone != "idle");
    Page { title: &title, session: Some((&caller, &session)), busy }.show(StatusCode::OK, &body)
}

/// `GET /console/clusters/{name}/volumes/live`
pub async fn live(State(app): State<App>, caller: Caller, Path(name): Path<String>) -> PageResult {
    fragment(&body(&app, &caller, &name).await?)
}

async fn body(app: &App, caller: &Caller, name: &str) -> ApiResult<Body> {
    let looked = volumes::look(app, caller, name).await?;
    let names = looked.names();
    let rows: Vec<Row> = names.iter().take(SHOWN).map(|volume| row(&looked, volume)).collect();
    Ok(Body {
        cluster: name.to_owned(),
        stuck: rows.iter().filter(|row| row.tone == "bad").count(),
        hidden: names.len().saturating_sub(rows.len()),
        rows,
    })
}

fn row(looked: &Looked, name: &str) -> Row {
    let volume = convert::volume::volume(wharf_api::PREFIX, looked, name);
    Row {
        tone: match volume.state.as_str() {
            "stuck" => "bad",
            "waiting" | "leaving" => "warn",
            "held" => "good",
            _ => "idle",
        },
        since: volume.holders.first().and_then(|holder| holder.since).map(render::time),
        why: convert::volume::why(looked, name),
        volume,
    }
}
