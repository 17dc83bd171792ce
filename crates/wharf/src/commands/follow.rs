//! Following a resource until it is over, through restarts of the server.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use wharf_api::client::{Client, ClientError, EventItem};

/// Events tell when to look again; this is for those that are lost.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A server that restarts is back by then.
const PATIENCE: Duration = Duration::from_secs(60);

/// Shows the resource at `path` whenever it changed, which events name `resource`, and every other
/// second. Returns it once `show` says that it is over.
pub async fn until<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    resource: &str,
    mut show: impl FnMut(&T) -> bool,
) -> anyhow::Result<T> {
    let mut away_since = None;
    loop {
        // First the stream, then the look: nothing happens between them unseen.
        let events = client.events(None).await;
        match client.get::<T>(path).await {
            Ok(found) => {
                away_since = None;
                if show(&found) {
                    return Ok(found);
                }
            }
            Err(error) if is_away(&error) => {
                let since = *away_since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    return Err(error.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
        let Ok(events) = events else {
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        };
        let mut events = pin!(events);
        // Until the stream breaks.
        loop {
            let next = tokio::time::timeout(LOOK_EVERY, events.next()).await;
            match next {
                Ok(Some(Ok(EventItem::Event(event)))) if event.resource != resource => continue,
                Ok(Some(Ok(_))) | Err(_) => {}
                Ok(Some(Err(_)) | None) => break,
            }
            let Ok(found) = client.get::<T>(path).await else { break };
            if show(&found) {
                return Ok(found);
            }
        }
    }
}

fn is_away(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { .. } | ClientError::TimedOut { .. } => true,
        ClientError::Api(body) => body.status >= 500,
        ClientError::StreamBroken { .. }
        | ClientError::BadAnswer { .. }
        | ClientError::BadCa(_) => false,
    }
}
