//! The benchmark of the node agent: what it costs a node, and how fast it answers there.
//!
//! Memory, processor time and the balancer are those of an agent that the installer put on a machine of
//! the test bed, beside a real kubelet and before a real API server.

mod balancer;
mod cluster;
mod connections;
mod program;
mod size;
mod tracker;

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use crate::{Output, report::Report};
use cluster::World;

pub use balancer::{Calls, Hold, work_calls, work_hold};
pub use connections::{Connections, work as work_connections};

#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// Only this part; repeat it for several
    #[arg(long, value_name = "NAME")]
    only: Vec<Part>,
    /// How many pods are on the node; kubelet takes 110
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=105))]
    pods: u8,
    /// How long memory and processor time are looked at
    #[arg(long, value_name = "N", default_value_t = 240, value_parser = clap::value_parser!(u16).range(30..=3600))]
    seconds: u16,
    /// How many connections the balancer holds
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(1..=15_000))]
    connections: u16,
    /// The program that hosts get
    #[arg(long, value_name = "FILE", default_value = "target/release/wharf-node")]
    agent: PathBuf,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Whether the program needs nothing but a kernel
    Program,
    /// `/app` of a node with 100 applications
    Tracker,
    /// Memory and processor time beside kubelet and node_exporter
    Size,
    /// API calls through the balancer, and many connections
    Balancer,
    /// Many connections where the kernel allows the files for them
    Connections,
}

pub fn run(args: &AgentArgs) -> Result<()> {
    wharf_testbed::interrupt_on_signals()?;
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let mut report = Report::new("agent");
    if wanted(Part::Program) {
        program::run(&args.agent, &mut report)?;
    }
    if wanted(Part::Tracker) {
        tracker::run(&args.agent, &mut report)?;
    }
    if wanted(Part::Connections) {
        connections::run(&args.agent, args.connections, &mut report)?;
    }
    if wanted(Part::Size) || wanted(Part::Balancer) {
        let world = World::start(&args.output.wharf, &args.agent)?;
        if wanted(Part::Size) {
            size::run(args, &world, &mut report)?;
        }
        if wanted(Part::Balancer) {
            balancer::run(args, &world, &mut report)?;
        }
        world.end()?;
    }
    report.finish(&args.output)
}
