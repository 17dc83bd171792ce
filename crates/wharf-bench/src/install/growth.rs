//! What one more worker costs in a small cluster and in a large one.
//!
//! Three machines are real: a control plane, a worker, and the one that joins and leaves. The other
//! nodes are kwok's: objects in the API that are kept alive and never run anything.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;
use wharf_testbed::kwok::{self, FAKE};

use super::{
    InstallArgs,
    cluster::Shape,
    machines::{self, Kubectl},
    median,
    wharf::Server,
};
use crate::report::{Report, Row};

const SMALL: usize = 5;
const LARGE: usize = 50;
/// Within a fifth.
const GOAL: f64 = 1.2;
/// Before the machine joins.
const SHAPE: Shape = Shape { controlplanes: 1, workers: 1 };

pub fn run(args: &InstallArgs, report: &mut Report) -> Result<()> {
    let bed = machines::start("growth", SHAPE.machines() + 1, &[])?;
    machines::preload(&args.output.wharf, bed.hosts())?;
    let server = Server::start(&args.output.wharf, &args.output.wharf, &bed)?;
    let load = machines::load();
    server.create(&bed, SHAPE)?;
    let kubectl = Kubectl::new(server.kubeconfig()?)?;
    let _kwok = kwok::start(kubectl.kubeconfig())?;
    let grown = Shape { workers: SHAPE.workers + 1, ..SHAPE };
    let add = |nodes: usize| -> Result<f64> {
        fakes(&kubectl, nodes - SHAPE.machines())?;
        let begin = Instant::now();
        server.update(&bed, grown)?;
        let seconds = begin.elapsed().as_secs_f64();
        let ready = kubectl.ready_nodes()?;
        ensure!(ready == nodes + 1, "{ready} nodes are Ready, not {}", nodes + 1);
        server.update(&bed, SHAPE)?;
        Ok(seconds)
    };
    // The first time, programs and images are read from the disk.
    add(SMALL)?;
    let (mut small, mut large) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        small.push(add(SMALL)?);
        large.push(add(LARGE)?);
        eprintln!("growth: round {round} of {}: {small:.1?} s, {large:.1?} s", args.rounds);
    }
    bed.down()?;
    let name = format!("one more worker at {LARGE} nodes");
    let peer = format!("at {SMALL} nodes");
    let row = Row::cost(&name, median(large), &peer, median(small), "s");
    let detail = format!(
        "medians of {} rounds; {} build; load {load} {}",
        args.rounds,
        args.build(),
        machines::load()
    );
    report.add(row.goal(GOAL).detail(detail));
    Ok(())
}

/// Makes exactly so many nodes of kwok's, and waits until they are Ready.
fn fakes(kubectl: &Kubectl, count: usize) -> Result<()> {
    let names: Vec<String> = (1..=count).map(|number| format!("fake-{number}")).collect();
    let node = |name: &String| {
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"type": "fake"}, "annotations": {FAKE: "fake"}},
            "spec": {"taints": [{"key": FAKE, "value": "fake", "effect": "NoSchedule"}]},
        })
    };
    let surplus: Vec<String> = (count + 1..=LARGE).map(|number| format!("fake-{number}")).collect();
    let surplus = surplus.iter().map(String::as_str);
    let delete: Vec<&str> =
        ["delete", "node", "--ignore-not-found"].into_iter().chain(surplus).collect();
    kubectl.ask(&delete)?;
    let nodes: Vec<_> = names.iter().map(node).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": nodes});
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), list.to_string())?;
    let file = file.path().display().to_string();
    kubectl.ask(&["apply", "--server-side", "-f", &file])?;
    kubectl.wait_until_ready(&names.iter().map(String::as_str).collect::<Vec<_>>())
}
