//! The log of a cluster's last operation, as the WebSocket that existing clients know.
//!
//! A page cannot set a header on a WebSocket, so the token may also be in the console's cookie or
//! in the query. A cookie is sent for whoever opens the socket: therefore the origin is checked.

use axum::{
    extract::{
        Request, State,
        ws::{Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    http::{HeaderMap, Uri},
    response::Response,
};
use serde::Deserialize;
use utoipa::IntoParams;
use wharf_api::error::{ErrorBody, ErrorCode};
use wharf_core::operation::{OperationRecord, OperationState};
use wharf_store::typed::key_of;

use super::{
    events::{Open, end_of},
    extract::Path,
    session::{self, Source},
};
use crate::{
    access::{Caller, token},
    app::App,
    clusters::{self, operations},
    error::{ApiError, ApiResult},
    events::{Delivery, Subscription},
};

#[derive(Debug, Deserialize, IntoParams)]
pub struct Credentials {
    /// The token, for those who can set no header.
    #[allow(dead_code, reason = "read before the handler runs, here only to be described")]
    token: Option<String>,
}

/// The log of the cluster's last operation as a WebSocket: the last lines first, then new ones as
/// they come, one in a text frame; it closes when the operation ends.
#[utoipa::path(get, path = "/clusters/{name}/zkelog", tag = "clusters", operation_id = "log", params(("name" = String, Path), Credentials), responses((status = 101, description = "A WebSocket"), (status = "4XX", body = ErrorBody)))]
pub async fn follow(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    uri: Uri,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    check_source(&headers, &uri)?;
    let upgrade = upgrade.map_err(|rejection| {
        ApiError::new(ErrorCode::InvalidRequest, rejection.body_text())
            .hint("this is a WebSocket; for events over HTTP see /events")
    })?;
    let cluster = clusters::get(&app, &caller, &name).await?;
    // First the subscription, then the record: what is written in between is an event.
    let subscription = app.hub.subscribe(None).await?;
    let work = cluster.record.ok().and_then(|stored| stored.value.work);
    let operation = match work {
        Some(work) => Some(work.operation),
        None => operations::latest(&app, &caller, &name).await.ok().map(|last| last.id),
    };
    let open = Open::new(&app, &caller)?;
    Ok(upgrade.on_upgrade(async move |socket| {
        let end = end_of(app.stopping.clone(), &caller);
        let mut log = Log { app, caller, socket, subscription };
        tokio::select! {
            () = end => {}
            () = log.send_all(operation) => {}
        }
        // The other side may be gone; then there is nobody to say goodbye to.
        log.socket.send(Message::Close(None)).await.ok();
        drop(open);
    }))
}

/// The token of a request for a WebSocket: in its header, its cookie or its query.
pub(super) fn token_of(
    request: &Request,
    http: bool,
    bearer: impl Fn(&HeaderMap) -> ApiResult<Option<String>>,
) -> ApiResult<Option<String>> {
    if let Some(token) = bearer(request.headers())? {
        return Ok(Some(token));
    }
    let in_cookie = session::token_in_cookie(request.headers(), http);
    Ok(in_cookie.or_else(|| in_query(request.uri())))
}

/// Tokens hold no character that a query would escape.
fn in_query(uri: &Uri) -> Option<String> {
    let mut pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| *name == "token").map(|(_, token)| token.to_owned())
}

/// A page of somebody else's must not read the log with its visitor's cookie. Programs name no
/// origin.
fn check_source(headers: &HeaderMap, uri: &Uri) -> ApiResult<()> {
    match Source::of(headers, uri) {
        Source::Own | Source::Unknown => Ok(()),
        Source::Foreign => Err(ApiError::denied("the page is not of this server")
            .hint("open the WebSocket from the server's own pages, or without an origin")),
    }
}

struct Log {
    app: App,
    caller: Caller,
    socket: WebSocket,
    subscription: Subscription,
}

impl Log {
    /// Sends the log until the operation ends or the other side leaves.
    async fn send_all(&mut self, operation: Option<String>) {
        let Some(id) = operation else { return };
        let mut next = 0;
        loop {
            let record = match self.app.store.read::<OperationRecord>(&id).await {
                Ok(Some(stored)) => stored.value,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(?error, operation = id, "a log ends: it cannot be read");
                    return;
                }
            };
            for (number, line) in (record.log_start..).zip(&record.log) {
                if number >= next {
                    next = number + 1;
                    let frame = Message::Text(line.text.as_str().into());
                    if self.socket.send(frame).await.is_err() {
                        return;
                    }
                }
            }
            let is_over = match record.state {
                OperationState::Running => false,
                OperationState::Succeeded | OperationState::Failed | OperationState::Canceled => {
                    true
                }
            };
            if is_over || !self.changed(&id).await {
                return;
            }
        }
    }

    /// Waits until the operation's record may have changed; false when the other side left or may
    /// not see it any more.
    async fn changed(&mut self, id: &str) -> bool {
        let resource = key_of::<OperationRecord>(id);
        loop {
            tokio::select! {
                delivery = self.subscription.next() => match delivery {
                    Ok(Some(Delivery::Event(event)))
                        if self.caller.rests_on(&event.event.resource) =>
                    {
                        return false;
                    }
                    Ok(Some(Delivery::Event(event))) if event.event.resource == resource => {
                        return true;
                    }
                    Ok(Some(Delivery::Event(_))) => {}
                    Ok(Some(Delivery::Lost { .. })) => {
                        let holds = token::still_holds(&self.app.store, &self.caller).await;
                        return holds.unwrap_or(false);
                    }
                    Ok(None) | Err(_) => return false,
                },
                said = self.socket.recv() => match said {
                    // Nothing that is said matters, but pings are answered while we listen.
                    Some(Ok(Message::Text(_) | Message::Binary(_) | Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return false,
                },
            }
        }
    }
}
