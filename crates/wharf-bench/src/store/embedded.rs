//! The embedded store: workers measure, this side checks what they left on the disk.

use std::{collections::HashSet, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use wharf_store::Page;
use wharf_testbed::process::Process;

use super::{StoreArgs, temp_dir};
use crate::{
    drive::{self, Figures},
    guard,
    report::{Report, Row},
    worker::{self, Keys, Read, Synced, Watched, Written},
};

const WATCHERS: usize = 1000;
/// Enough to see that each commit is synced.
const SYNCED_COMMITS: u64 = 300;
/// A worker that takes this much longer than asked is stuck.
const WORKER_SLACK: Duration = Duration::from_secs(120);

/// At least 0.6 of the disk's own rate.
const GOAL_ONE_WRITER: f64 = 1.0 / 0.6;
/// At least 20 times one writer's rate.
const GOAL_MANY_WRITERS: f64 = 1.0 / 20.0;

pub fn writes(args: &StoreArgs, report: &mut Report) -> Result<()> {
    eprintln!("embedded store: 1 writer, in turn with the bare disk");
    let one = run_writes(args, Keys::Ordered, 1)?;
    let raw = one.raw_record.rate();
    check_synced(args)?;
    eprintln!("embedded store: 16 writers");
    let some = run_writes(args, Keys::Ordered, 16)?;
    eprintln!("embedded store: 256 writers");
    let many = run_writes(args, Keys::Ordered, 256)?;
    eprintln!("embedded store: 256 writers, scattered keys");
    let scattered = run_writes(args, Keys::Scattered, 256)?;

    let log_bytes = one.log_bytes;
    report.add(Row::alone("bare disk, record of 1 KiB", raw, "syncs/s").with(&one.raw_record));
    report.add(
        Row::alone(
            &format!("bare disk, {log_bytes} B that the log gets"),
            one.raw_log.rate(),
            "syncs/s",
        )
        .with(&one.raw_log),
    );
    let row = Row::rate("commits, 1 writer", one.store.rate(), "bare fdatasync", raw, "commits/s");
    report.add(row.goal(GOAL_ONE_WRITER).with(&one.store));
    let single = one.store.rate();
    let row = Row::rate("commits, 16 writers", some.store.rate(), "1 writer", single, "commits/s");
    report.add(row.with(&some.store));
    let row = Row::rate("commits, 256 writers", many.store.rate(), "1 writer", single, "commits/s");
    report.add(row.goal(GOAL_MANY_WRITERS).with(&many.store));
    let rate = scattered.store.rate();
    let row =
        Row::rate("commits, 256 writers, keys scattered", rate, "1 writer", single, "commits/s");
    report.add(row.with(&scattered.store));
    let cpu =
        |written: &Written| written.usage.cpu.as_secs_f64() * 1e6 / written.store.count as f64;
    report.add(Row::alone("processor time a commit, 1 writer", cpu(&one), "µs"));
    report.add(Row::alone("processor time a commit, 256 writers", cpu(&many), "µs"));
    report.add(Row::alone("memory, 256 writers", many.usage.peak_mebibytes, "MiB"));
    Ok(())
}

fn run_writes(args: &StoreArgs, keys: Keys, writers: usize) -> Result<Written> {
    let dir = temp_dir()?;
    let mut more = Vec::new();
    if keys == Keys::Scattered {
        more.extend(["--keys", "scattered"]);
    }
    if writers == 1 {
        more.push("--raw");
    }
    let written: Written = work(args, "writes", dir.path(), writers, &more)?;
    drive::runtime()?.block_on(check_writes(dir.path(), keys, &written.acknowledged))?;
    Ok(written)
}

/// Opens the store that the worker left and finds every commit that was acknowledged.
async fn check_writes(dir: &Path, keys: Keys, acknowledged: &[u64]) -> Result<()> {
    /// A page fits into memory whatever the run has written.
    const PAGE: usize = 10_000;
    let store = worker::open(dir).await?;
    let mut missing: HashSet<String> = HashSet::new();
    for (writer, count) in acknowledged.iter().enumerate() {
        missing.extend((0..*count).map(|number| keys.key_of(writer, number)));
    }
    let mut page = Page { after: None, limit: PAGE, descending: false };
    loop {
        let listing = store.list("bench/", page.clone()).await?;
        for entry in &listing.entries {
            ensure!(missing.remove(&entry.key), "{} is there and was never written", entry.key);
            ensure!(entry.value.len() == worker::VALUE_BYTES, "{} has another value", entry.key);
        }
        page.after = listing.entries.last().map(|entry| entry.key.clone());
        if !listing.more {
            break;
        }
    }
    store.close().await;
    let lost = missing.len();
    ensure!(
        lost == 0,
        "{lost} commits were acknowledged and are gone, as {:?}",
        missing.iter().next()
    );
    Ok(())
}

/// Counts the syncs of a short run of one writer.
fn check_synced(args: &StoreArgs) -> Result<()> {
    let dir = temp_dir()?;
    let trace = dir.path().join("trace");
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", "synced", "--commits", &SYNCED_COMMITS.to_string(), "--dir"]);
    command.arg(dir.path().join("data"));
    if args.fsync_off {
        command = guard::unsynced(&command);
    }
    let synced: Synced = run_worker(guard::traced(&command, &trace), WORKER_SLACK)?;
    guard::check_count("the embedded store", synced.acknowledged, guard::count_syncs(&trace)?)
}

pub fn reads(args: &StoreArgs, report: &mut Report) -> Result<()> {
    for tasks in [1, 16] {
        eprintln!("embedded store: {tasks} readers");
        let dir = temp_dir()?;
        let read: Read = work(args, "reads", dir.path(), tasks, &[])?;
        let name = format!("reads, {tasks} {}", if tasks == 1 { "task" } else { "tasks" });
        report.add(Row::alone(&name, read.figures.rate(), "reads/s").with(&read.figures));
    }
    Ok(())
}

pub fn watch(args: &StoreArgs, report: &mut Report) -> Result<()> {
    eprintln!("embedded store: {WATCHERS} watchers");
    let dir = temp_dir()?;
    let watched: Watched = work(args, "watch", dir.path(), WATCHERS, &[])?;
    let events = watched.commits as f64 * watched.watchers as f64;
    let name = |what: &str| format!("{what}, {WATCHERS} watchers");
    report.add(Row::alone(&name("changes delivered"), events / watched.seconds, "events/s"));
    let commits = watched.commits as f64 / watched.seconds;
    report.add(Row::alone(&name("commits of 1 writer"), commits, "commits/s"));
    report.add(Row::alone(
        &name("last commit until the last has it"),
        watched.lag_seconds * 1e3,
        "ms",
    ));
    let cpu = watched.usage.cpu.as_secs_f64() * 1e6 / events;
    report.add(Row::alone(&name("processor time a change"), cpu, "µs"));
    report.add(Row::alone(&name("memory"), watched.usage.peak_mebibytes, "MiB"));
    Ok(())
}

fn work<T: DeserializeOwned>(
    args: &StoreArgs,
    kind: &str,
    dir: &Path,
    clients: usize,
    more: &[&str],
) -> Result<T> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", kind, "--clients", &clients.to_string()]);
    command.args(["--seconds", &args.seconds.to_string(), "--dir"]).arg(dir).args(more);
    if args.fsync_off {
        command = guard::unsynced(&command);
    }
    run_worker(command, Duration::from_secs_f64(args.seconds * 3.0) + WORKER_SLACK)
}

fn run_worker<T: DeserializeOwned>(command: Command, deadline: Duration) -> Result<T> {
    let mut process = Process::spawn(command)?;
    let status = process.wait(deadline)?;
    let output = process.output();
    ensure!(status.success(), "a worker failed ({status}):\n{output}");
    let last = output.lines().last().context("a worker said nothing")?;
    serde_json::from_str(last).with_context(|| format!("a worker's result is not readable: {last}"))
}

impl Row {
    /// Adds the latencies behind a rate.
    fn with(self, figures: &Figures) -> Row {
        self.detail(format!("p50 {:.3} ms, p99 {:.3} ms", figures.p50(), figures.p99()))
    }
}
