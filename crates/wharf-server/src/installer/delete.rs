//! Delete: every host is cleaned, or it is said what is left where. It always ends.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use wharf_core::{
    cluster::{ClusterRecord, DeleteMode, NodeRecord, NodeSpec, Origin},
    install::host::{Leftover as HostLeftover, place},
    operation::Leftover,
};

use super::{Done, Failure, Job, Outcome, hosts::all, world::World};

/// A host that reboots is back by then; one that is not is gone.
const PATIENCE: Duration = Duration::from_secs(60);
const TRY_EVERY: Duration = Duration::from_secs(5);

pub async fn delete(job: &Job) -> Outcome<Done> {
    let record = job.record().await?;
    let journal = &job.journal;
    journal.plan(&["clean"]);
    let hosts = all_hosts(&record);
    let left = |reason: &str| {
        let leave = |node: &NodeSpec| leftover(&node.name, reason.to_owned(), everything());
        Done { leftovers: hosts.iter().map(leave).collect() }
    };
    if record.origin == Origin::Imported || job.delete == DeleteMode::Forget {
        return Ok(left("the cluster was forgotten; its machines were left as they are"));
    }
    let world = match open(job, &record).await {
        Ok(world) => world,
        Err(failure) => return Ok(left(&failure.sentence())),
    };
    let patience = if job.delete == DeleteMode::Clean { PATIENCE } else { Duration::ZERO };
    let clean = async |node: &NodeSpec| {
        let clean = async { Ok(clean_patiently(&world, &record.nodes, node, patience).await) };
        journal.step("clean", &node.name, "clean", clean).await
    };
    let work = all(hosts.iter().map(clean).collect());
    let leftovers: Vec<Leftover> =
        journal.phase("clean", work).await?.into_iter().flatten().collect();
    for left in &leftovers {
        journal.log(format!("{}: something is left: {}", left.host, left.reason));
    }
    Ok(Done { leftovers })
}

async fn open(job: &Job, record: &ClusterRecord) -> Outcome<World> {
    let vault = job.vault().await?;
    World::open(&job.app, record.spec.clone(), vault)
}

/// Those of the wish and those that were installed once, each once.
fn all_hosts(record: &ClusterRecord) -> Vec<NodeSpec> {
    let mut hosts: BTreeMap<&str, &NodeSpec> = BTreeMap::new();
    let known = record.nodes.values().map(|node| &node.spec);
    for node in known.chain(&record.spec.nodes) {
        hosts.insert(&node.name, node);
    }
    hosts.into_values().cloned().collect()
}

async fn clean_patiently(
    world: &World,
    known: &BTreeMap<String, NodeRecord>,
    node: &NodeSpec,
    patience: Duration,
) -> Option<Leftover> {
    let begun = Instant::now();
    loop {
        let left = clean_host(world, known, node).await;
        if left.is_none() || begun.elapsed() + TRY_EVERY > patience {
            return left;
        }
        tokio::time::sleep(TRY_EVERY).await;
    }
}

/// Removes from a host what was made on it; says what is left.
pub async fn clean_host(
    world: &World,
    known: &BTreeMap<String, NodeRecord>,
    node: &NodeSpec,
) -> Option<Leftover> {
    match try_clean(world, known, node).await {
        Ok(items) if items.is_empty() => None,
        Ok(items) => Some(leftover(&node.name, "not everything could be removed".into(), items)),
        Err(failure) => Some(leftover(&node.name, failure.sentence(), everything())),
    }
}

async fn try_clean(
    world: &World,
    known: &BTreeMap<String, NodeRecord>,
    node: &NodeSpec,
) -> Outcome<Vec<String>> {
    let host = world.reach(known).connect(node).await?;
    // On a bare host nothing is uploaded only to be removed.
    if !host.exists(place::MADE).await? && !host.exists(place::PROGRAMS).await? {
        return Ok(Vec::new());
    }
    let facts = world.observe(&host).await?;
    if let Some(other) = facts.cluster.filter(|cluster| *cluster != world.spec.name) {
        let message = format!("it belongs to the cluster {other} now and was left alone");
        return Err(Failure::on(&node.name, message));
    }
    let wharf = &world.supply.wharf;
    for file in host.not_uploaded(std::slice::from_ref(wharf)).await? {
        host.upload_one(&file, &world.supply).await?;
    }
    let report = host.remove(wharf).await?;
    let item = |left: HostLeftover| format!("{}: {}", left.item, left.reason);
    Ok(report.leftovers.into_iter().map(item).collect())
}

fn leftover(host: &str, reason: String, items: Vec<String>) -> Leftover {
    Leftover { host: host.to_owned(), reason, items }
}

/// Where to look on a host that could not be cleaned.
fn everything() -> Vec<String> {
    [place::PROGRAMS, place::CONFIG, place::DATA, place::RUN, "/var/lib/kubelet", "wharf-*.service"]
        .map(str::to_owned)
        .to_vec()
}
