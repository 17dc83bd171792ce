//! A volume of a node that is lost: how long after the end of its lease another has it.

use std::{
    fs::{self, File},
    io::Write,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use jiff::{SignedDuration, Timestamp};

use super::{
    fio::BlockServer,
    world::{Node, World, volume},
};
use crate::{fleet::limit, report::Report};

const SECONDS: f64 = 20.0;
/// As kubelet's first tries.
const AGAIN: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(180);

pub fn run(world: &World, report: &mut Report) -> Result<()> {
    eprintln!("volumes: a node is lost");
    let server = BlockServer::start(world, "net-takeover")?;
    server.image("moved", super::world::IMAGE_BYTES)?;
    world.create(&[volume("net-takeover", "moved")])?;
    let mut lost = world.second("lost")?;
    let before = world.pod(&lost, "before")?;
    lost.mount("net-takeover", &before, "moved")?;
    let mut file = File::create(lost.dir_of(&before, "moved").join("kept"))?;
    file.write_all(b"synced before the loss")?;
    file.sync_all()?;

    lost.process.kill()?;
    let ends = end_of_lease(world)?;
    let after = world.pod(&world.node, "after")?;
    let begun = Instant::now();
    let taken = loop {
        match world.node.mount("net-takeover", &after, "moved") {
            Ok(_) => break Timestamp::now(),
            Err(error) if begun.elapsed() > LONGEST => bail!("never taken over: {error}"),
            Err(_) => thread::sleep(AGAIN),
        }
    };
    let kept = fs::read_to_string(world.node.dir_of(&after, "moved").join("kept"))?;
    anyhow::ensure!(kept == "synced before the loss", "the data is another: {kept:?}");
    world.node.unmount(&after, "moved")?;
    let name = "takeover after the end of the lost node's lease";
    let detail = "block server, agent killed; asked every 0.5 s".to_owned();
    report.add(limit(name, taken.duration_since(ends).as_secs_f64(), SECONDS, "s").detail(detail));
    tidy(world, lost)
}

/// When the lost node's lease ends.
fn end_of_lease(world: &World) -> Result<Timestamp> {
    let path = "jsonpath={.spec.renewTime} {.spec.leaseDurationSeconds}";
    let lease =
        world.kubectl(&["get", "lease", "volumes-lost", "-n", "wharf-system", "-o", path])?;
    let (renewed, lasts) = lease.trim().split_once(' ').context("the lease says nothing")?;
    let renewed: Timestamp = renewed.parse()?;
    Ok(renewed + SignedDuration::from_secs(lasts.parse()?))
}

/// What the lost node had mounted is its machine's, which goes with it.
fn tidy(world: &World, lost: Node) -> Result<()> {
    drop(lost);
    wharf_testbed::devices::remove_below(&world.dir.path().join("lost"));
    Ok(())
}
