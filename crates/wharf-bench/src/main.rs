//! Measures Wharf beside the real systems that do the same work, on this machine, in one run.
//!
//! `cargo xtask bench NAME` builds everything and calls this program. [`store`] is the benchmark
//! of durable writes, [`install`] that of installing clusters, [`drain`] that of drains, [`fleet`]
//! that of many clusters, [`repair`] that of a long repair queue, [`agent`] that of the node agent,
//! [`volumes`] that of volumes; [`drive`] makes the load, [`report`] and [`plot`] show what came of it.
//!
//! **Invariant:** a figure is only reported after what was acknowledged has been found again by a
//! new process, and after the disk has been shown to be synced ([`guard`]).
//!
//! **Invariant:** all traffic stays on loopback, and is bounded in count and time.

mod agent;
mod drain;
mod drive;
mod fleet;
mod guard;
mod http;
mod install;
mod plot;
mod repair;
mod report;
mod store;
mod usage;
mod volumes;
mod worker;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "wharf-bench")]
enum Command {
    /// Durable writes: against the bare disk, etcd and kube-apiserver
    Store(store::StoreArgs),
    /// Installing clusters: against kubeadm
    Install(install::InstallArgs),
    /// Drains of nodes: against kubectl
    Drain(drain::DrainArgs),
    /// A thousand clusters, some of them dead, and their list against kubectl's
    Fleet(fleet::FleetArgs),
    /// A repair queue of ten thousand machines
    Repair(repair::RepairArgs),
    /// The node agent: beside kubelet and node_exporter on a full node
    Agent(agent::AgentArgs),
    /// Volumes: beside losetup and mount, and a loop device
    Volumes(volumes::VolumesArgs),
    /// The part of a measurement that runs in a process of its own
    #[command(subcommand, hide = true)]
    Worker(worker::Worker),
}

/// What every benchmark takes.
#[derive(Debug, Clone, clap::Args)]
struct Output {
    /// The program to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/wharf")]
    wharf: PathBuf,
    /// Print one JSON object a row instead of a table
    #[arg(long)]
    json: bool,
    /// Where the JSON and the plot are written
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
    /// Fail when a goal is missed
    #[arg(long)]
    strict: bool,
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Store(args) => store::run(&args),
        Command::Install(args) => install::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Repair(args) => repair::run(&args),
        Command::Agent(args) => agent::run(&args),
        Command::Volumes(args) => volumes::run(&args),
        Command::Worker(worker) => worker::run(&worker),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn temp_dir() -> anyhow::Result<tempfile::TempDir> {
    Ok(tempfile::Builder::new().prefix("wharf-bench-").tempdir()?)
}
