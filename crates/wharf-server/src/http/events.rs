//! `/events`: live changes as server-sent events.

use std::{
    convert::Infallible,
    sync::{Arc, PoisonError},
    time::Duration,
};

use axum::{
    extract::State,
    http::{HeaderMap, HeaderName},
    response::{IntoResponse, Response, Sse, sse},
};
use futures_util::{Stream, StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;
use wharf_api::{
    error::{ErrorBody, ErrorCode},
    event::{Event, Lost},
};
use wharf_core::access::Role;
use wharf_store::Revision;

use super::extract::Path;
use crate::{
    access::{Caller, CallerKind, token},
    app::App,
    clusters,
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
    start(app, caller, &headers, None).await
}

/// Live changes of one cluster and of what belongs to it; otherwise as `/events`.
#[utoipa::path(get, path = "/clusters/{name}/events", tag = "events", operation_id = "stream_of_cluster", params(("name" = String, Path), ("Last-Event-ID" = Option<u64>, Header, description = "Only changes after this revision")), responses((status = 200, content_type = "text/event-stream", body = Event), (status = "4XX", body = ErrorBody)))]
pub async fn stream_of_cluster(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    clusters::get(&app, &caller, &name).await?;
    start(app, caller, &headers, Some(name)).await
}

/// Begins a stream of what the caller may see, of one cluster if it is named.
pub(crate) async fn start(
    app: App,
    caller: Caller,
    headers: &HeaderMap,
    cluster: Option<String>,
) -> ApiResult<Response> {
    let open = Open::new(&app, &caller)?;
    let subscription = app.hub.subscribe(last_seen(headers)?).await?;
    let events = deliver(app, caller, subscription, open, cluster);
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
    cluster: Option<String>,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let end = end_of(app.stopping.clone(), &caller);
    // At once and without an event: where to resume, should the stream break before the first.
    let position = sse::Event::default().id(subscription.position().to_string());
    let state = (app, caller, subscription, open, cluster);
    let events = stream::unfold(state, |(app, caller, mut subscription, open, cluster)| async {
        let event = next_event(&app, &caller, &mut subscription, cluster.as_deref()).await?;
        Some((Ok(event), (app, caller, subscription, open, cluster)))
    });
    stream::once(async { Ok(position) }).chain(events).take_until(end)
}

/// The next event that the caller may see; `None` ends the stream, and whoever comes back is
/// looked at anew.
async fn next_event(
    app: &App,
    caller: &Caller,
    subscription: &mut Subscription,
    cluster: Option<&str>,
) -> Option<sse::Event> {
    loop {
        let delivery = match subscription.next().await {
            Ok(delivery) => delivery?,
            Err(error) => {
                tracing::warn!(?error, "an event stream ends: the store does not answer");
                return None;
            }
        };
        match delivery {
            // Only what is new: the past was looked at when the caller was let in.
            Delivery::Event(published)
                if subscription.is_news(&published.event)
                    && caller.rests_on(&published.event.resource) =>
            {
                return None;
            }
            Delivery::Event(published)
                if published.is_for(&caller.role)
                    && cluster
                        .is_none_or(|name| published.event.cluster.as_deref() == Some(name)) =>
            {
                let event = sse::Event::default().id(published.complete.to_string());
                return Some(event.event(&published.event.type_).data(&published.json));
            }
            Delivery::Event(_) => {}
            Delivery::Lost { resumed_at, reason } => {
                app.metrics.events_lost.inc();
                // Among what was lost may be the end of the caller's own rights.
                if !token::still_holds(&app.store, caller).await.unwrap_or(false) {
                    return None;
                }
                let lost = Lost { resumed_at: resumed_at.0, reason: reason.to_owned() };
                let event = sse::Event::default().id(resumed_at.to_string()).event("lost");
                return Some(event.data(serde_json::to_string(&lost).unwrap_or_default()));
            }
        }
    }
}

/// When the server stops or the caller's token expires.
pub(super) fn end_of(
    stopping: CancellationToken,
    caller: &Caller,
) -> impl Future<Output = ()> + use<> {
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

/// A viewer's streams at once: a few browsers and scripts, not all there are.
const STREAMS_PER_VIEWER: usize = 50;

/// Counts an open stream for as long as it lives.
pub(super) struct Open {
    app: App,
    user: String,
}

impl Open {
    pub(super) fn new(app: &App, caller: &Caller) -> ApiResult<Self> {
        let limit = app.config.limits.event_streams;
        let own_limit = if caller.role == Role::Admin { limit } else { STREAMS_PER_VIEWER };
        let mut streams = app.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = streams.values().sum();
        let own = streams.entry(caller.name.clone()).or_default();
        if all >= limit || *own >= own_limit {
            let message = format!("there are already {all} event streams, {own} of them yours");
            return Err(ApiError::new(ErrorCode::Unavailable, message)
                .hint("close some, or raise limits.event_streams"));
        }
        *own += 1;
        app.metrics.event_streams.inc();
        Ok(Self { app: Arc::clone(app), user: caller.name.clone() })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.app.metrics.event_streams.dec();
        let mut streams = self.app.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = streams.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                streams.remove(&self.user);
            }
        }
    }
}
