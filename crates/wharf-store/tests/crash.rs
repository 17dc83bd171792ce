//! kill -9 under write load: nothing that was acknowledged is lost, nothing is half there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    collections::HashSet,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use wharf_store::{Page, Store, StoreLocation, StoreOptions};
use wharf_testbed::process::example;

/// Five times as many with `cargo verify --long`.
const ROUNDS: usize = 20;
/// A round is cut somewhere in here, counted in acknowledged writes.
const CUT_AFTER: std::ops::Range<usize> = 20..400;
/// The child makes thousands of writes a second.
const ROUND_DEADLINE: Duration = Duration::from_secs(20);
/// What the writer puts into each transaction.
const PARTS: [&str; 3] = ["a", "b", "c"];

async fn open(dir: &Path) -> Store {
    let location = StoreLocation::Embedded { data_dir: dir.to_owned() };
    Store::open(&StoreOptions { location }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_in_twenty_crashes() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = HashSet::new();
    let rounds = if std::env::var_os("WHARF_LONG").is_some() { 5 * ROUNDS } else { ROUNDS };
    for round in 0..rounds {
        let acks = crash_once(dir.path(), round);
        assert!(acks.len() >= CUT_AFTER.start, "the child wrote too little");
        acknowledged.extend(acks);
        check(dir.path(), &acknowledged).await;
    }
}

/// Lets a child write, kills it in the middle, and returns what it had acknowledged.
fn crash_once(dir: &Path, round: usize) -> Vec<String> {
    let mut child = Command::new(example("crash_writer").unwrap())
        .arg(dir)
        .arg(round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let cut_after = rand::random_range(CUT_AFTER);
    let started = Instant::now();
    let mut acks = Vec::new();
    while acks.len() < cut_after && started.elapsed() < ROUND_DEADLINE {
        let Some(line) = lines.next() else { break };
        acks.extend(ack(&line.unwrap()));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // What it had said before it died is in the pipe.
    acks.extend(lines.map_while(Result::ok).filter_map(|line| ack(&line)));
    acks
}

fn ack(line: &str) -> Option<String> {
    line.strip_prefix("ack ").and_then(|rest| rest.strip_suffix(';')).map(str::to_owned)
}

async fn check(dir: &Path, acknowledged: &HashSet<String>) {
    let store = open(dir).await;
    let listing = store.list("w/", Page::ALL).await.unwrap();
    let mut whole = HashSet::new();
    for parts in listing.entries.chunks(PARTS.len()) {
        let (id, _) = parts[0].key.rsplit_once('/').unwrap();
        let expected: Vec<_> = PARTS.iter().map(|part| format!("{id}/{part}")).collect();
        let found: Vec<_> = parts.iter().map(|entry| entry.key.clone()).collect();
        assert_eq!(found, expected, "a transaction is half there");
        assert!(parts.iter().all(|entry| entry.modified == parts[0].modified));
        whole.insert(id.to_owned());
    }
    let lost: Vec<_> = acknowledged.difference(&whole).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), acknowledged.len());
    store.close().await;
}
