//! The benchmark of volumes: what the driver, the agent and the API server cost beside the same steps by
//! hand, how long a volume of a lost node is away, and what the proxy leaves of a disk's speed.
//!
//! Agents are those that hosts get, called as kubelet calls them, before a real API server.

mod fio;
mod mounts;
mod takeover;
mod world;

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use crate::{Output, report::Report};
use world::World;

#[derive(Debug, clap::Args)]
pub struct VolumesArgs {
    /// Only this part; repeat it for several
    #[arg(long, value_name = "NAME")]
    only: Vec<Part>,
    /// How long each pattern of reads and writes runs
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=600))]
    seconds: u16,
    /// The program that hosts get, with those for volumes beside it
    #[arg(long, value_name = "FILE", default_value = "target/release/wharf-node")]
    agent: PathBuf,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Mounts one by one, and 50 at once, beside losetup and mount
    Mounts,
    /// A volume of a node that is lost
    Takeover,
    /// Reads and writes through the proxy beside a loop device
    Fio,
}

pub fn run(args: &VolumesArgs) -> Result<()> {
    wharf_testbed::interrupt_on_signals()?;
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let mut report = Report::new("volumes");
    let world = World::start(&args.agent)?;
    if wanted(Part::Mounts) {
        mounts::run(&world, &mut report)?;
    }
    if wanted(Part::Takeover) {
        takeover::run(&world, &mut report)?;
    }
    if wanted(Part::Fio) {
        fio::run(&world, args.seconds, &mut report)?;
    }
    world.end()?;
    report.finish(&args.output)
}
