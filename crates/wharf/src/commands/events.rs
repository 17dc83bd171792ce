//! `wharf events`

use std::{pin::pin, time::Duration};

use futures_util::StreamExt;
use wharf_api::{
    client::{Client, ClientError, EventItem},
    event::{Event, Lost},
};

use crate::{
    failure::Told,
    output::{self, Format},
};

/// The server sends what it has at once; silence for this long means that this was all.
const REPLAY_SILENCE: Duration = Duration::from_secs(1);
/// Between two tries to reach a server that went away: short enough to miss nothing of its start,
/// long enough to leave it in peace.
const RECONNECT: Duration = Duration::from_secs(1);

/// Show what has changed
///
/// Without --follow it prints the changes that the server still keeps and ends when nothing more
/// has come for a second. With --follow it goes on with changes as they happen, connects again when
/// the connection breaks, and ends with Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With -o json there is one object a line.

Examples:
  wharf events --follow
  wharf events --since 1200 -o json")]
pub struct EventsArgs {
    /// Go on with changes as they happen; begins with the next change unless --since is given
    #[arg(long, short)]
    follow: bool,
    /// Only changes after this revision
    #[arg(long, value_name = "REVISION")]
    since: Option<u64>,
}

/// Why a stream is no longer read.
enum End {
    /// There is no more, or nobody wants it.
    Done,
    /// The connection broke; the text says how.
    Broken(String),
}

pub async fn run(args: &EventsArgs, client: &Client, format: Format) -> anyhow::Result<()> {
    if format == Format::Yaml {
        return Err(Told::usage("events come as lines: use -o table or -o json").into());
    }
    tokio::select! {
        result = show(args, client, format) => result,
        // Ctrl-C is how following ends.
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn show(args: &EventsArgs, client: &Client, format: Format) -> anyhow::Result<()> {
    if !args.follow {
        let mut last = Some(args.since.unwrap_or(0));
        return match read(client, &mut last, Some(REPLAY_SILENCE), format).await? {
            End::Done => Ok(()),
            End::Broken(reason) => {
                let at = client.at().clone();
                Err(ClientError::StreamBroken { at, reason }.into())
            }
        };
    }
    let mut last = args.since;
    // The first connection must succeed: a wrong address is not worth waiting for.
    let mut end = read(client, &mut last, None, format).await?;
    loop {
        let reason = match end {
            End::Done => "the server ended it".to_owned(),
            End::Broken(reason) => reason,
        };
        let from = last.map_or_else(
            || "with the next change".to_owned(),
            |last| format!("after revision {last}"),
        );
        output::note(&format!("the stream broke off ({reason}); going on {from}"));
        end = reconnect(client, &mut last, format).await?;
    }
}

/// Tries again until the server is back; only what waiting cannot mend is an error.
async fn reconnect(client: &Client, last: &mut Option<u64>, format: Format) -> anyhow::Result<End> {
    loop {
        tokio::time::sleep(RECONNECT).await;
        match read(client, last, None, format).await {
            Err(error) if passes(&error) => {}
            other => return other,
        }
    }
}

fn passes(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Api(body)) => body.status >= 500 || body.status == 429,
        Some(ClientError::Unreachable { source, .. }) => {
            crate::trust::certificate_fault(source).is_none()
        }
        Some(ClientError::TimedOut { .. } | ClientError::StreamBroken { .. }) => true,
        Some(ClientError::BadAnswer { .. } | ClientError::BadCa(_)) | None => false,
    }
}

/// Prints what comes after the revision `last` and keeps it up to date.
async fn read(
    client: &Client,
    last: &mut Option<u64>,
    silence: Option<Duration>,
    format: Format,
) -> anyhow::Result<End> {
    let mut stream = pin!(client.resumable_events(*last).await?);
    loop {
        let next = match silence {
            None => stream.next().await,
            Some(silence) => match tokio::time::timeout(silence, stream.next()).await {
                Ok(next) => next,
                Err(_) => return Ok(End::Done),
            },
        };
        let received = match next {
            None => return Ok(End::Done),
            Some(Err(ClientError::StreamBroken { reason, .. })) => return Ok(End::Broken(reason)),
            Some(Err(other)) => return Err(other.into()),
            Some(Ok(received)) => received,
        };
        match &received.item {
            None => {}
            Some(EventItem::Event(event)) => print(event, format)?,
            Some(EventItem::Lost(lost)) => {
                let Lost { resumed_at, reason } = lost;
                output::note(&format!("changes up to revision {resumed_at} are missing: {reason}"));
            }
        }
        *last = received.complete.or(*last);
    }
}

fn print(event: &Event, format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::line(&serde_json::to_string(event)?);
    }
    let time = output::time(event.time);
    let Event { type_, resource, revision, .. } = event;
    let cluster = event.cluster.as_ref().map(|c| format!(" cluster={c}")).unwrap_or_default();
    output::line(&format!("{time}  {revision:>8}  {type_:<20}  {resource}{cluster}"))
}
