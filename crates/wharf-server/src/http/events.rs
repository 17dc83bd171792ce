//! `/events`: live changes as server-sent events.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, HeaderName},
    response::{IntoResponse, Response, Sse, sse},
};
use futures_util::{Stream, stream};
use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;
use wharf_api::{
    error::{ErrorBody, ErrorCode},
    event::{Event, Lost},
};
use wharf_store::Revision;

use crate::{
    access::{Caller, CallerKind},
    app::App,
    error::{ApiError, ApiResult},
    events::{Delivery, Subscription},
};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// A stream that has run for this long ends; its listener comes back where it was.
const LONGEST_STREAM: Duration = Duration::from_secs(24 * 3600);
/// How often a quiet stream shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Live changes of what the caller may see. `Last-Event-ID` resumes after that revision; what
/// cannot be told any more is reported as an event `lost`.
#[utoipa::path(get, path = "/events", tag = "events", params(("Last-Event-ID" = Option<u64>, Header, description = "Only changes after this revision")), responses((status = 200, content_type = "text/event-stream", body = Event), (status = "4XX", body = ErrorBody)))]
pub async fn stream(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let open = Open::new(&app)?;
    let subscription = app.hub.subscribe(last_seen(&headers)?).await?;
    let events = deliver(app, caller, subscription, open);
    Ok(Sse::new(events).keep_alive(sse::KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

fn last_seen(headers: &HeaderMap) -> ApiResult<Option<Revision>> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    match text.trim().parse() {
        Ok(revision) => Ok(Some(Revision(revision))),
        Err(_) => Err(ApiError::new(
            ErrorCode::InvalidRequest,
            format!("Last-Event-ID must be a revision, not {text:?}"),
        )),
    }
}

fn deliver(
    app: App,
    caller: Caller,
    subscription: Subscription,
    open: Open,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let end = end_of(app.stopping.clone(), &caller);
    let state = (app, caller, subscription, open);
    let events = stream::unfold(state, |(app, caller, mut subscription, open)| async move {
        loop {
            let event = match subscription.next().await? {
                // Whoever comes back is looked at anew, and may get less or nothing.
                Delivery::Event(published) if caller.rests_on(&published.event.resource) => {
                    return None;
                }
                Delivery::Event(published) if published.is_for(&caller.role) => {
                    sse::Event::default()
                        .id(published.complete.to_string())
                        .event(&published.event.type_)
                        .data(&published.json)
                }
                Delivery::Event(_) => continue,
                Delivery::Lost { resumed_at, reason } => {
                    app.metrics.events_lost.inc();
                    let lost = Lost { resumed_at: resumed_at.0, reason: reason.to_owned() };
                    sse::Event::default()
                        .id(resumed_at.to_string())
                        .event("lost")
                        .data(serde_json::to_string(&lost).unwrap_or_default())
                }
            };
            return Some((Ok(event), (app, caller, subscription, open)));
        }
    });
    futures_util::StreamExt::take_until(events, end)
}

/// When the server stops or the caller's token expires.
fn end_of(stopping: CancellationToken, caller: &Caller) -> impl Future<Output = ()> + use<> {
    let left = match caller.kind {
        CallerKind::User { until, .. } => until.duration_since(Timestamp::now()),
        CallerKind::Nobody | CallerKind::Local => SignedDuration::MAX,
    };
    let left = Duration::try_from(left).unwrap_or_default().min(LONGEST_STREAM);
    async move {
        tokio::select! {
            () = stopping.cancelled() => {}
            () = tokio::time::sleep(left) => {}
        }
    }
}

/// Counts an open stream for as long as it lives.
struct Open {
    app: App,
}

impl Open {
    fn new(app: &App) -> ApiResult<Self> {
        let before = app.metrics.event_streams.inc();
        let open = Self { app: Arc::clone(app) };
        let limit = app.config.limits.event_streams;
        if usize::try_from(before).is_ok_and(|before| before >= limit) {
            return Err(ApiError::new(
                ErrorCode::Unavailable,
                format!("there are already {limit} event streams"),
            )
            .hint("close some, or raise limits.event_streams"));
        }
        Ok(open)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.app.metrics.event_streams.dec();
    }
}
