//! The benchmark of drains: against `kubectl drain`, on the same cluster and with the same pods.
//!
//! The API server, its disruption controller, its other controllers and its scheduler are real; what
//! kubelets would say is said by kwok. Both sides are processes of their own, and their whole time
//! counts, from the start to the end. They take turns.

mod world;

use std::{path::PathBuf, process::Command, time::Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use futures_util::future::try_join_all;
use jiff::{Timestamp, ToSpan};
use wharf_core::drain::Policy;
use wharf_kube::Cluster;
use wharf_testbed::watcher::Watcher;

use crate::{
    Output, drive,
    install::{machines, median},
    report::{Report, Row},
};
use world::World;

/// As many as a node takes by default.
const FULL: usize = 110;
const NODES: usize = 20;
const PODS_A_NODE: usize = 100;
const REPLICAS: usize = 20;
const ONE_NODE: f64 = 0.5;
const MANY_NODES: f64 = 1.0 / 12.0;
const IN_TURNS: f64 = 1.0 / 8.0;
const WRITES_A_POD: f64 = 1.5;
const LISTS_A_POD: f64 = 0.2;
const PEER: &str = "kubectl drain";

#[derive(Debug, Clone, clap::Args)]
pub struct DrainArgs {
    /// Only this part; repeat it for several
    #[arg(long, value_name = "NAME")]
    only: Vec<Part>,
    /// How often each side drains; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=20))]
    rounds: u8,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// One node with 110 pods
    Node,
    /// 20 nodes with 2,000 pods
    Nodes,
    /// A Deployment of 20 replicas of which one may be missing
    Budget,
}

pub fn run(args: &DrainArgs) -> Result<()> {
    wharf_testbed::interrupt_on_signals()?;
    let world = World::start()?;
    let mut report = Report::new("drain");
    let parts: [(Part, Measure); 3] =
        [(Part::Node, one_node), (Part::Nodes, many_nodes), (Part::Budget, in_turns)];
    for (part, measure) in parts {
        if args.only.is_empty() || args.only.contains(&part) {
            measure(args, &world, &mut report)?;
        }
    }
    report.finish(&args.output)
}

/// Measures one part and adds its rows.
type Measure = fn(&DrainArgs, &World, &mut Report) -> Result<()>;

fn one_node(args: &DrainArgs, world: &World, report: &mut Report) -> Result<()> {
    let nodes = [name_of("full", 1)];
    world.make_nodes(&nodes)?;
    for (budgets, suffix) in [(false, ""), (true, ", half of them under budgets")] {
        let name = format!("one node with {FULL} pods{suffix}");
        let race = Race::run(args, world, &name, &nodes, || {
            world.fill(&nodes, FULL, budgets)?;
            Ok(None)
        })?;
        report.add(race.row(&name).goal(ONE_NODE));
        race.add_requests(&name, FULL, report);
    }
    Ok(())
}

fn many_nodes(args: &DrainArgs, world: &World, report: &mut Report) -> Result<()> {
    let pods = NODES * PODS_A_NODE;
    let name = format!("{NODES} nodes with {pods} pods");
    let nodes: Vec<String> = (1..=NODES).map(|number| name_of("many", number)).collect();
    world.make_nodes(&nodes)?;
    // The peer takes minutes: once must do.
    let once = DrainArgs { rounds: 1, ..args.clone() };
    let race = Race::run(&once, world, &name, &nodes, || {
        world.fill(&nodes, PODS_A_NODE, false)?;
        Ok(None)
    })?;
    report.add(race.row(&name).goal(MANY_NODES));
    race.add_requests(&name, pods, report);
    Ok(())
}

/// All replicas are on one node; the others take what leaves.
fn in_turns(args: &DrainArgs, world: &World, report: &mut Report) -> Result<()> {
    let name = format!("{REPLICAS} replicas, one at a time");
    let (here, others) = (name_of("here", 1), [name_of("spare", 1), name_of("spare", 2)]);
    world.make_nodes(std::slice::from_ref(&here))?;
    world.make_nodes(&others)?;
    let race = Race::run(args, world, &name, std::slice::from_ref(&here), || {
        world.deploy("web", REPLICAS, &here, &others)?;
        Watcher::start(world.kubectl()?, "web", REPLICAS).map(Some)
    })?;
    let detail = format!("{}; the budget was never broken", race.detail());
    report.add(race.row(&name).goal(IN_TURNS).detail(detail));
    Ok(())
}

fn name_of(kind: &str, number: usize) -> String {
    format!("{kind}-{number}")
}

/// Both sides in turn.
struct Race {
    ours: Vec<f64>,
    peer: Vec<f64>,
    /// Of ours, over all rounds.
    writes: usize,
    lists: usize,
    load: String,
}

impl Race {
    fn run(
        args: &DrainArgs,
        world: &World,
        what: &str,
        nodes: &[String],
        mut prepare: impl FnMut() -> Result<Option<Watcher>>,
    ) -> Result<Race> {
        let mut race =
            Race { ours: vec![], peer: vec![], writes: 0, lists: 0, load: machines::load() };
        for round in 1..=args.rounds {
            let watcher = prepare()?;
            race.peer.push(timed(&mut peer(world, nodes)?)?);
            check(world, nodes, watcher)?;
            let watcher = prepare()?;
            let requests = world.requests("wharf")?;
            race.ours.push(timed(&mut ours(world, nodes)?)?);
            check(world, nodes, watcher)?;
            let (writes, lists) = world.requests("wharf")?;
            (race.writes, race.lists) =
                (race.writes + writes - requests.0, race.lists + lists - requests.1);
            let Race { ours, peer, .. } = &race;
            eprintln!(
                "drain: {what}: round {round} of {}: {ours:.2?} s, {peer:.2?} s",
                args.rounds
            );
        }
        Ok(race)
    }

    fn row(&self, name: &str) -> Row {
        let row = Row::cost(name, median(self.ours.clone()), PEER, median(self.peer.clone()), "s");
        row.detail(self.detail())
    }

    fn detail(&self) -> String {
        let Race { ours, peer, load, .. } = self;
        format!("ours {ours:.2?}, peer {peer:.2?}; load {load} {}", machines::load())
    }

    fn add_requests(&self, name: &str, pods: usize, report: &mut Report) {
        let a_pod = |count: usize| count as f64 / (pods * self.ours.len()) as f64;
        let limit = |what: &str, count: usize, limit: f64| {
            let name = format!("{name}: {what} a pod");
            Row::cost(&name, a_pod(count), "limit", limit, "requests").goal(1.0)
        };
        report.add(limit("API writes", self.writes, WRITES_A_POD));
        report.add(limit("lists", self.lists, LISTS_A_POD));
    }
}

fn check(world: &World, nodes: &[String], watcher: Option<Watcher>) -> Result<()> {
    world.check_drained(nodes)?;
    watcher.map_or(Ok(()), Watcher::finish)
}

fn peer(world: &World, nodes: &[String]) -> Result<Command> {
    let mut command = world.kubectl()?;
    command.args(["drain", "--ignore-daemonsets", "--delete-emptydir-data", "--force"]);
    command.args(["--timeout=900s"]).args(nodes);
    Ok(command)
}

fn ours(world: &World, nodes: &[String]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", "drain", "--kubeconfig"]).arg(world.kubeconfig()).args(nodes);
    Ok(command)
}

fn timed(command: &mut Command) -> Result<f64> {
    let begin = Instant::now();
    let output = command.output().context("cannot start it")?;
    let seconds = begin.elapsed().as_secs_f64();
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{:?} failed: {error}", command.get_program());
    Ok(seconds)
}

/// The part of ours that runs in a process of its own.
#[derive(Debug, clap::Args)]
pub struct Drain {
    #[arg(long)]
    kubeconfig: PathBuf,
    nodes: Vec<String>,
}

const OWNER: &str = "bench";

pub fn work(args: &Drain) -> Result<()> {
    drive::runtime()?.block_on(async {
        let cluster = Cluster::from_kubeconfig(&std::fs::read_to_string(&args.kubeconfig)?)?;
        let drains = args.nodes.iter().map(async |node| {
            let policy = Policy::removal(OWNER, Timestamp::now() + 300.seconds());
            wharf_kube::drain::run(&cluster, node, &policy, |_| {}).await?;
            // As the drain that a person asks for: the cordon stays, as his.
            cluster.keep_cordon(node, OWNER).await?;
            anyhow::Ok(())
        });
        try_join_all(drains).await.map(drop)
    })
}
