//! `wharf agent`

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::Subcommand;
use wharf_agent::{config::Config, host};

use crate::{cli::Local, failure::Told, logging, target::Wish};

/// Run the node agent, which keeps a node's network
///
/// It connects the pods of all nodes and balances between the API servers, as the network file
/// says that the installer wrote; a change of that file takes effect within a second. It tells
/// systemd when all of that is in place.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Keys of the configuration file:
  node_name     the Node that this machine is; another node's network file is then refused
  network_file  what the installer wrote [default: /etc/wharf/agent/network.json]

Examples:
  wharf agent --config /etc/wharf/agent/agent.toml"
)]
pub struct AgentArgs {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Which log lines to write, as `info` or `wharf_agent=debug,info`
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
    #[command(subcommand)]
    command: Option<AgentCommand>,
    #[command(flatten)]
    _local: Local,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// Make this machine hold what a document says, or take it all away; used by the server
    Host {
        #[command(subcommand)]
        command: HostCommand,
    },
}

#[derive(Debug, Subcommand)]
enum HostCommand {
    /// Carry out the document on standard input; the report is one line of JSON
    Apply {
        /// Only report what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Import the images of the document on standard input; the report is one line of JSON
    Import,
    /// Take away everything that was put on this machine; the report is one line of JSON
    Remove {
        /// Only report what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

/// A few connections and timers: more threads would only cost memory on each node.
const THREADS: usize = 2;

pub fn run(args: AgentArgs, wish: &Wish) -> anyhow::Result<ExitCode> {
    wish.refuse_remote("wharf agent")?;
    match args.command {
        Some(AgentCommand::Host { command: HostCommand::Apply { dry_run } }) => {
            return Ok(host::run_apply(dry_run));
        }
        Some(AgentCommand::Host { command: HostCommand::Import }) => return Ok(host::run_import()),
        Some(AgentCommand::Host { command: HostCommand::Remove { dry_run } }) => {
            return Ok(host::run_remove(dry_run));
        }
        None => {}
    }
    let path = args.config.ok_or_else(|| Told::usage("--config names the agent's file"))?;
    let config = Config::load(&path)?;
    logging::init(&args.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .context("cannot start the agent's threads")?;
    runtime.block_on(wharf_agent::run(config))?;
    Ok(ExitCode::SUCCESS)
}
