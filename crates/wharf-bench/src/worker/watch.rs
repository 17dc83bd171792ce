//! One writer, many watchers: each must see every change, in order.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, task::JoinSet};
use wharf_store::{Change, Outcome, Store, Txn, Watch};

use super::{Load, open};
use crate::usage::Usage;

const PREFIX: &str = "watched/";
const VALUE_BYTES: usize = 128;
/// A watcher that has not seen the last change after this long has lost it.
const LAST_CHANGE_DEADLINE: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
pub struct Watched {
    pub watchers: usize,
    pub commits: u64,
    /// From the first commit until the last watcher had the last change.
    pub seconds: f64,
    /// From the begin of the last commit until the last watcher had its change.
    pub lag_seconds: f64,
    pub usage: Usage,
}

pub async fn run(load: &Load) -> Result<Watched> {
    let store = open(&load.dir).await?;
    let now = store.revision().await?;
    // None while the writer writes; then the number of changes that every watcher must have.
    let (total_sender, total) = watch::channel(None);
    let mut watchers = JoinSet::new();
    for _ in 0..load.clients {
        let watch = store.watch(PREFIX, now).await?;
        watchers.spawn(follow(watch, total.clone()));
    }
    let before = Usage::own()?;
    let begin = Instant::now();
    let (commits, last_commit) = write(&store, Duration::from_secs_f64(load.seconds)).await?;
    total_sender.send(Some(commits))?;
    let all = tokio::time::timeout(LAST_CHANGE_DEADLINE, watchers.join_all()).await;
    let ends = all.context("a watcher never saw the last change")?;
    let ends = ends.into_iter().collect::<Result<Vec<Instant>>>()?;
    let last = ends.into_iter().max().context("there was no watcher")?;
    Ok(Watched {
        watchers: load.clients,
        commits,
        seconds: (last - begin).as_secs_f64(),
        lag_seconds: last.saturating_duration_since(last_commit).as_secs_f64(),
        usage: Usage::own()?.since(before),
    })
}

/// Commits one change after the other; how many, and when the last was begun.
async fn write(store: &Store, time: Duration) -> Result<(u64, Instant)> {
    let end = Instant::now() + time;
    let mut written = 0;
    loop {
        let begin = Instant::now();
        let txn = Txn::new().put(format!("{PREFIX}{written:08}"), vec![b'x'; VALUE_BYTES]);
        let Outcome::Committed(_) = store.commit(txn).await? else { bail!("refused") };
        written += 1;
        if Instant::now() >= end {
            return Ok((written, begin));
        }
    }
}

/// Follows until the last change; the time at which it came.
async fn follow(mut watch: Watch, mut total: watch::Receiver<Option<u64>>) -> Result<Instant> {
    let mut seen: u64 = 0;
    let mut seen_at = Instant::now();
    loop {
        let known = *total.borrow_and_update();
        if known == Some(seen) {
            return Ok(seen_at);
        }
        tokio::select! {
            changes = watch.next() => {
                for change in changes? {
                    let Change::Put(entry) = change else { bail!("nothing was deleted") };
                    let expected = format!("{PREFIX}{seen:08}");
                    ensure!(entry.key == expected, "{} came instead of {expected}", entry.key);
                    seen += 1;
                }
                seen_at = Instant::now();
            }
            changed = total.changed(), if known.is_none() => changed?,
        }
    }
}
