//! The benchmark of a long repair queue: 10,000 machines, of which 100 are repaired at once.
//!
//! The decision is measured by itself. Memory and the time until an added machine's command runs
//! are those of a real server, whose commands are real processes.

use std::{
    collections::HashSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use wharf_core::repair::{
    Effect, Machine, Observation, Queue, RepairConfig, Request, Write, decide,
};

use crate::{
    Output,
    drive::{self, Figures},
    fleet::{
        fakes::Fakes,
        limit,
        server::{Server, resident_mebibytes},
    },
    report::{Report, Row},
    usage::Usage,
};

const AT_ONCE: usize = 100;
const PASS_MILLISECONDS: f64 = 10.0;
const MEMORY_MEBIBYTES: f64 = 64.0;
const START_SECONDS: f64 = 1.0;
/// Enough for a 99th percentile.
const PASSES: usize = 300;
/// Entries whose command is waited for, one after the other.
const STARTS: usize = 20;
/// Clients that add entries: the writes of one would wait for the disk each by itself.
const ADDERS: usize = 16;
/// How long the full queue is worked on before its memory is looked at: several rounds of health
/// checks in the background.
const WORK: Duration = Duration::from_secs(45);
const DEADLINE: Duration = Duration::from_secs(120);
const QUEUE: &str = "/api/v1/clusters/fleet-0000/repairs";
const CONFIG: &str = "/api/v1/clusters/fleet-0000/repairconfig";

#[derive(Debug, clap::Args)]
pub struct RepairArgs {
    /// How many machines are in the queue
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(200..=20_000))]
    entries: u16,
    #[command(flatten)]
    output: Output,
}

pub fn run(args: &RepairArgs) -> Result<()> {
    wharf_testbed::interrupt_on_signals()?;
    let mut report = Report::new("repair");
    let entries = usize::from(args.entries);
    measure_passes(entries, &mut report)?;
    let fakes = Fakes::start(1, 50)?;
    drive::runtime()?.block_on(measure_server(args, entries, &fakes, &mut report))?;
    report.finish(&args.output)
}

fn address(number: usize) -> String {
    format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255)
}

fn config(command: &str, health: &str) -> Value {
    json!({
        "max_concurrent_repairs": AT_ONCE,
        "repair_procedures": [{ "machine_types": ["plain"], "repair_operations": [{
            "operation": "fix",
            "health_check_command": ["sh", "-c", health, "check"],
            "health_check_interval_seconds": 1,
            "repair_steps": [{
                "repair_command": ["sh", "-c", command, "repair"],
                "command_timeout_seconds": 0,
            }],
        }]}],
    })
}

/// Decides about a queue of which as many machines are in hand as may be, all of them nodes.
fn measure_passes(entries: usize, report: &mut Report) -> Result<()> {
    let config = RepairConfig::read(&config("true", "false"))
        .map_err(|faults| anyhow::anyhow!("the configuration: {faults:?}"))?;
    let mut queue = Queue::default();
    let mut seen = Observation::default();
    let mut now = Timestamp::now();
    seen.etcd = wharf_core::repair::Etcd::Members([("192.0.2.1".to_owned(), true)].into());
    for number in 0..entries {
        let request = Request {
            operation: "fix".to_owned(),
            machine_type: "plain".to_owned(),
            address: address(number),
            serial: String::new(),
        };
        queue.add(&config, &request, "", now)?;
        let machine = Machine { node: format!("node-{number}"), ..Machine::default() };
        seen.machines.insert(address(number), machine);
    }
    let mut passes = Vec::new();
    let window = Instant::now();
    for pass in 0..PASSES {
        let begin = Instant::now();
        let decision = decide(&config, &queue, &seen, now);
        passes.push(begin.elapsed());
        let mut checked = HashSet::new();
        for action in decision.actions {
            match action.effect {
                Some(Effect::Probe(command)) => {
                    checked.insert((action.index, command.begun));
                }
                Some(Effect::Run(_)) => {
                    seen.commands.insert(action.index);
                }
                Some(
                    Effect::StartDrain { .. } | Effect::StopDrain | Effect::FenceVolumes { .. },
                )
                | None => {}
            }
            if let Write::Put(entry) = action.write {
                queue.entries.insert(action.index, *entry);
            }
        }
        for (index, begun) in checked {
            let healthy = false;
            let probed = wharf_core::repair::Probed { begun, healthy };
            seen.probes.entry(index).or_default().note(probed);
        }
        now = now.checked_add(Duration::from_secs(1))?;
        ensure!(pass < 5 || seen.commands.len() == AT_ONCE, "{} run", seen.commands.len());
    }
    let mut figures = Figures::default();
    figures.add_round(window.elapsed(), &passes);
    report.add(
        limit("decision about the whole queue, p99", figures.p99(), PASS_MILLISECONDS, "ms")
            .detail(format!("{entries} entries, {AT_ONCE} in hand; p50 {:.2} ms", figures.p50())),
    );
    Ok(())
}

async fn measure_server(
    args: &RepairArgs,
    entries: usize,
    fakes: &Fakes,
    report: &mut Report,
) -> Result<()> {
    let mut server = Server::start(&args.output.wharf).await?;
    server.import(fakes).await?;
    let marks = crate::temp_dir()?;
    let starts = measure_starts(&server, marks.path()).await?;
    report.add(
        limit("added until its command runs, longest", starts.longest, START_SECONDS, "s")
            .detail(format!("{STARTS} entries, median {:.3} s", starts.median)),
    );
    let idle = resident_mebibytes(server.pid())?;

    let forever = format!("touch {}/run-$1; exec sleep 600", marks.path().display());
    put(&server, CONFIG, &config(&forever, "false")).await?;
    let begin = Instant::now();
    fill(&server, entries).await?;
    let filled = begin.elapsed();
    eprintln!("repair: {entries} entries added in {filled:.1?}");
    wait_for(DEADLINE, || {
        let running = std::fs::read_dir(marks.path()).map_or(0, |files| {
            files
                .flatten()
                .filter(|file| file.file_name().as_encoded_bytes().starts_with(b"run-"))
                .count()
        });
        running >= AT_ONCE
    })
    .await
    .context("not all commands began")?;
    let before = Usage::of(server.pid())?;
    tokio::time::sleep(WORK).await;
    let used = Usage::of(server.pid())?.since(before);
    let list = call(&server, "GET", QUEUE, "").await?;
    let listed = list.get("data").and_then(Value::as_array).map_or(0, Vec::len);
    ensure!(listed == entries + STARTS, "the list has {listed} entries");
    let peak = Usage::of(server.pid())?.peak_mebibytes;
    let cpu = used.cpu.as_secs_f64() / WORK.as_secs_f64();
    report.add(
        limit("memory above idle, peak", (peak - idle).max(0.0), MEMORY_MEBIBYTES, "MiB").detail(
            format!("{entries} entries, {AT_ONCE} commands run; idle {idle:.0} MiB, with one list; {cpu:.2} processors"),
        ),
    );
    let row = Row::alone("entries added", entries as f64 / filled.as_secs_f64(), "1/s");
    report.add(row.detail(format!("{ADDERS} clients, each entry durable")));
    server.stop()
}

struct Starts {
    median: f64,
    longest: f64,
}

/// Adds machines one by one, each when the one before is done.
async fn measure_starts(server: &Server, marks: &Path) -> Result<Starts> {
    let dir = marks.display();
    let heal = format!("touch {dir}/begun-$1");
    let health = format!("[ -e {dir}/begun-$1 ] && echo true");
    put(server, CONFIG, &config(&heal, &health)).await?;
    let mut times = Vec::new();
    for number in 0..STARTS {
        let address = format!("192.168.0.{number}");
        let begun = marks.join(format!("begun-{address}"));
        let begin = Instant::now();
        add(server, &address).await?;
        wait_for(DEADLINE, || begun.exists()).await.context("an entry did not start")?;
        times.push(begin.elapsed().as_secs_f64());
        let end = Instant::now() + DEADLINE;
        loop {
            let queue = call(server, "GET", QUEUE, "").await?;
            let last = queue.get("data").and_then(Value::as_array).and_then(|data| data.last());
            if last.and_then(|entry| entry.get("status")) == Some(&json!("succeeded")) {
                break;
            }
            ensure!(Instant::now() < end, "an entry did not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |place: usize| times.get(place).copied().unwrap_or(f64::INFINITY);
    Ok(Starts { median: at(STARTS / 2), longest: at(STARTS - 1) })
}

async fn fill(server: &Server, entries: usize) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..ADDERS {
        let (next, mut connection) = (next.clone(), server.connect().await?);
        let make = server.requester();
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= entries {
                    return anyhow::Ok(());
                }
                let body = wish(&address(number)).to_string();
                connection.send(&make("POST", QUEUE, &body)).await?.expect(201)?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

fn wish(address: &str) -> Value {
    json!({"operation": "fix", "machine_type": "plain", "address": address})
}

async fn add(server: &Server, address: &str) -> Result<()> {
    let request = server.requester()("POST", QUEUE, &wish(address).to_string());
    server.connect().await?.send(&request).await?.expect(201).map(drop)
}

async fn put(server: &Server, path: &str, body: &Value) -> Result<()> {
    call(server, "PUT", path, &body.to_string()).await.map(drop)
}

async fn call(server: &Server, method: &str, path: &str, body: &str) -> Result<Value> {
    let request = server.requester()(method, path, body);
    server.connect().await?.send(&request).await?.expect(200)?.json()
}

async fn wait_for(deadline: Duration, holds: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + deadline;
    while !holds() {
        ensure!(Instant::now() < end, "it did not happen within {deadline:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}
