//! The benchmark of a large fleet: many registered clusters, some of them dead.
//!
//! The clusters are played by [`fakes`]: API servers on loopback addresses that answer what a probe
//! asks, with nodes and pods of the size of real ones. They are imported alive; then a tenth of them
//! dies, and the server starts again. From there on everything is measured.

mod commands;
pub mod fakes;
pub mod server;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    Output,
    drive::{self, Figures},
    report::{Report, Row},
    usage::Usage,
};
use fakes::{Fakes, Life};
use server::Server;

const FIRST_LIST: Duration = Duration::from_secs(5);
const MEMORY_MEBIBYTES: f64 = 250.0;
const MEBIBYTES_A_CLUSTER: f64 = 1.0;
const LIST_MILLISECONDS: f64 = 100.0;
/// A probe is due 15 s after the last one, give or take a tenth; the rest is for the probe itself.
const GAP: Duration = Duration::from_secs(20);
/// Between two lists: often enough for a 99th percentile, and not a load of its own.
const BETWEEN_LISTS: Duration = Duration::from_millis(100);
/// Three failed probes, each of which may take ten seconds until it has failed.
const UNREACHABLE_WITHIN: Duration = Duration::from_secs(150);

#[derive(Debug, clap::Args)]
pub struct FleetArgs {
    /// How many clusters
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(20..=5000))]
    clusters: u16,
    /// How many nodes each of them has
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    nodes: u16,
    /// How long lists are asked for while the clusters are probed
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u16).range(1..=600))]
    seconds: u16,
    /// Leave out the comparison with kubectl
    #[arg(long)]
    no_commands: bool,
    #[command(flatten)]
    output: Output,
}

pub fn run(args: &FleetArgs) -> Result<()> {
    wharf_testbed::interrupt_on_signals()?;
    let mut report = Report::new("fleet");
    let fakes = Fakes::start(args.clusters.into(), args.nodes.into())?;
    drive::runtime()?.block_on(measure(args, &fakes, &mut report))?;
    report.finish(&args.output)
}

async fn measure(args: &FleetArgs, fakes: &Fakes, report: &mut Report) -> Result<()> {
    let mut server = Server::start(&args.output.wharf).await?;
    let empty = server::resident_mebibytes(server.pid())?;
    let begin = Instant::now();
    server.import(fakes).await?;
    eprintln!("fleet: {} clusters imported in {:.1?}", fakes.count(), begin.elapsed());
    let first = server.list().await?;
    check_live(&first, fakes)?;
    server.stop()?;
    kill_some(fakes);

    let begin = Instant::now();
    server.start_again()?;
    let first = server.list().await?;
    let first_list = begin.elapsed();
    ensure!(clusters_of(&first)?.len() == fakes.count(), "the first list is not complete");
    eprintln!("fleet: the first list came {first_list:.1?} after the start");
    let seen = watch(args, fakes, &server, begin).await?;
    check(&server.list().await?, fakes)?;
    add_rows(fakes, first_list, empty, &seen, report);
    if !args.no_commands {
        commands::run(&server, fakes.count(), report).await?;
    }
    server.stop()
}

/// What was seen while the clusters were probed.
struct Seen {
    lists: Figures,
    /// From the start until every dead cluster was known to be dead.
    all_known: Duration,
    /// The pauses between the probes of each live cluster, from the server's start on.
    gaps: Vec<Duration>,
    usage: Usage,
    window: Duration,
    load: String,
}

async fn watch(args: &FleetArgs, fakes: &Fakes, server: &Server, begin: Instant) -> Result<Seen> {
    let dead = (0..fakes.count()).filter(|number| is_dead(*number)).count();
    let mut connection = server.connect().await?;
    let request = server.list_request();
    let mut latencies = Vec::new();
    let mut all_known = None;
    let end = begin + Duration::from_secs(args.seconds.into());
    while Instant::now() < end || all_known.is_none() {
        wharf_testbed::wait_for("the end of the measurement", Duration::ZERO, || Ok(Some(())))?;
        let before = Instant::now();
        let answer = connection.send(&request).await?;
        latencies.push(before.elapsed());
        let body = answer.expect(200)?.body;
        if all_known.is_none() {
            let known = count(&body, b"\"status\":\"Unreachable\"");
            all_known = (known >= dead).then(|| begin.elapsed());
            ensure!(
                all_known.is_some() || begin.elapsed() < UNREACHABLE_WITHIN,
                "only {known} of the {dead} dead clusters are known to be dead"
            );
        }
        tokio::time::sleep(BETWEEN_LISTS).await;
    }
    let window = begin.elapsed();
    let mut lists = Figures::default();
    lists.add_round(window, &latencies);
    Ok(Seen {
        lists,
        all_known: all_known.unwrap_or_default(),
        gaps: fakes.gaps(begin, begin + window),
        usage: Usage::of(server.pid())?,
        window,
        load: std::fs::read_to_string("/proc/loadavg")?,
    })
}

fn add_rows(fakes: &Fakes, first_list: Duration, empty: f64, seen: &Seen, report: &mut Report) {
    let count = fakes.count();
    let about = format!("{count} clusters, a tenth dead, {} nodes each", fakes.nodes());
    let load = seen.load.split(' ').take(2).collect::<Vec<_>>().join(" ");
    report.add(
        limit("start to first list", first_list.as_secs_f64(), FIRST_LIST.as_secs_f64(), "s")
            .detail(about.clone()),
    );
    let peak = seen.usage.peak_mebibytes;
    let grown = (peak - empty).max(0.0) / count as f64;
    report.add(
        limit("resident memory, peak", peak, MEMORY_MEBIBYTES, "MiB")
            .detail(format!("{about}; {empty:.0} MiB without clusters")),
    );
    report.add(
        limit("resident memory for each cluster", grown, MEBIBYTES_A_CLUSTER, "MiB")
            .detail(format!("{} nodes each", fakes.nodes())),
    );
    let cpu = seen.usage.cpu.as_secs_f64() / seen.window.as_secs_f64();
    report.add(
        limit("list of all while probing, p99", seen.lists.p99(), LIST_MILLISECONDS, "ms").detail(
            format!(
                "{} lists, p50 {:.1} ms; the server used {cpu:.2} processors; load {load}",
                seen.lists.count,
                seen.lists.p50()
            ),
        ),
    );
    let mut gaps = seen.gaps.clone();
    gaps.sort_unstable();
    let longest = gaps.last().copied().unwrap_or(Duration::MAX).as_secs_f64();
    let median = gaps.get(gaps.len() / 2).copied().unwrap_or_default();
    report.add(
        limit("longest pause between probes of a live cluster", longest, GAP.as_secs_f64(), "s")
            .detail(format!("{} pauses, median {median:.1?}", gaps.len())),
    );
    let known = seen.all_known.as_secs_f64();
    let row = Row::alone("start until all dead are known", known, "s");
    report.add(row.detail("three failed probes each".to_owned()));
}

/// A figure that must not be above a limit.
pub fn limit(name: &str, ours: f64, limit: f64, unit: &'static str) -> Row {
    Row::cost(name, ours, "limit", limit, unit).goal(1.0)
}

fn is_dead(number: usize) -> bool {
    number % 10 == 3
}

/// Half of the dead refuse; the others take connections and say nothing, before TLS or after it.
fn kill_some(fakes: &Fakes) {
    for number in (0..fakes.count()).filter(|number| is_dead(*number)) {
        fakes.turn(
            number,
            match number / 10 % 4 {
                0 | 1 => Life::Refuses,
                2 => Life::SaysNothing,
                _ => Life::AnswersNothing,
            },
        );
    }
}

fn clusters_of(list: &Value) -> Result<&Vec<Value>> {
    list.get("data").and_then(Value::as_array).context("no list of clusters")
}

fn check_live(list: &Value, fakes: &Fakes) -> Result<()> {
    let clusters = clusters_of(list)?;
    ensure!(clusters.len() == fakes.count(), "{} clusters are listed", clusters.len());
    clusters.iter().try_for_each(|cluster| check_one(cluster, fakes, "Running"))
}

/// Every live cluster runs with all its nodes, every dead one is known to be dead.
fn check(list: &Value, fakes: &Fakes) -> Result<()> {
    let clusters = clusters_of(list)?;
    ensure!(clusters.len() == fakes.count(), "{} clusters are listed", clusters.len());
    for (number, cluster) in clusters.iter().enumerate() {
        let status = if is_dead(number) { "Unreachable" } else { "Running" };
        check_one(cluster, fakes, status)?;
    }
    Ok(())
}

fn check_one(cluster: &Value, fakes: &Fakes, status: &str) -> Result<()> {
    let field = |name: &str| cluster.get(name).cloned().unwrap_or_default();
    let nodes = Value::from(fakes.nodes());
    ensure!(
        field("status") == status
            && field("nodeCount") == nodes
            && field("readyNodeCount") == nodes
            && field("version") == fakes::VERSION,
        "{} is {} with {} nodes ({} ready) and version {}, expected {status}",
        field("name"),
        field("status"),
        field("nodeCount"),
        field("readyNodeCount"),
        field("version"),
    );
    Ok(())
}

fn count(text: &[u8], part: &[u8]) -> usize {
    text.windows(part.len()).filter(|window| *window == part).count()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cluster_in_another_state_or_without_its_nodes_is_refused() {
        let fakes = Fakes::start(20, 3).unwrap();
        let cluster = |status: &str, ready: usize| {
            json!({"name": "a", "status": status, "nodeCount": 3, "readyNodeCount": ready,
                "version": fakes::VERSION})
        };
        assert!(check_one(&cluster("Running", 3), &fakes, "Running").is_ok());
        assert!(check_one(&cluster("Running", 2), &fakes, "Running").is_err());
        assert!(check_one(&cluster("Running", 3), &fakes, "Unreachable").is_err());
        let all = json!({"data": vec![cluster("Running", 3); 20]});
        assert!(check_live(&all, &fakes).is_ok());
        assert!(check(&all, &fakes).is_err(), "dead ones that run");
    }

    #[test]
    fn a_figure_above_its_limit_misses_the_goal() {
        assert_eq!(limit("a", 5.1, 5.0, "s").met, Some(false));
        assert_eq!(limit("a", 4.9, 5.0, "s").met, Some(true));
    }
}
