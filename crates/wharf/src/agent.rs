//! `wharf agent`

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::Subcommand;
use wharf_agent::{
    config::Config,
    host,
    launch::{self, Container},
    volumes::{self, Places},
};

use crate::{block_on, failure::Told, logging, output::Format};

mod join;
mod operation;
mod status;

/// Run the node agent, or see how it is
///
/// It connects the pods of all nodes and balances between the API servers, as the network file
/// says that the installer wrote; a change of that file takes effect within a second. It tells
/// systemd when all of that is in place. Everything else it does in tasks of their own, which
/// `wharf agent status` shows.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Keys of the configuration file:
  node_name        the Node that this machine is; another node's network file is then refused
  network_file     what the installer wrote; \"\" where somebody else keeps the network
                   [default: /etc/wharf/agent/network.json]
  kubeconfig       reads the cluster; without it nothing of the cluster is done
  node_kubeconfig  the node's own identity, which cordons and evicts [default: kubeconfig]
  run_dir          where agents publish their files [default: /run]
  persist_dir      what outlives a reboot [default: /persist]
  status_port      of the status server on the cluster's address [default: 12346]
  publish_as       other agents that this one plays: zedagent, nodeagent, baseosmgr, zedmanager,
                   domainmgr, volumemgr [default: none]
  app_namespace    [default: eve-kube-app]
  lease_name       [default: eve-kube-stats-leader]
  open_trace       the tracker answers without a token if there is no token file [default: true]
  trace_token_file what whoever asks the tracker must know
  cordon_retry_seconds [5], drain_retry_seconds [300], drain_timeout_seconds [86400],
  api_skip_seconds [300], unknown_to_halting_seconds [300]
  console_command  program and arguments that serve the console of {vmi} in {namespace} at {port};
                   [] leaves that to who watches vmiVNC.run
                   [default: virtctl vnc {vmi} -n {namespace} --port {port} --proxy-only]
  update_command   program and arguments that put a fetched image in place
  min_cluster_nodes  fewer are no cluster [default: 3]
  server           the management server's port for agents, as host:port; several with commas
  link_identity    the link's certificate and key [default: /etc/wharf/pki/agent-link.pem]
  link_authority   who signs what servers show [default: /etc/wharf/pki/agents-ca.crt]
  [volumes]        volumes for pods; without state_dir there are none
    state_dir      where the agent keeps what it does with them
    kubelet_root   [default: as kubelet runs, or /var/lib/kubelet]
    plugin_dir     [default: as kubelet runs, or its default]
    driver         the driver for kubelet [default: wharf-flex beside this program]
    takeover_policy  by_proof, or the unsafe by_name [default: by_proof]
    rwo_scope      what once means: pod or node [default: pod]
    self_fence     cut volumes off before the lease ends [default: where the storage cannot]
    self_fence_reboot  restart the machine where they cannot be cut off [default: false]
    lease_seconds  [default: 20]
    scan_seconds   how often the elected agent looks at all records [default: 15]
  [logs]           where the lines of applications go; what is not given gets none
    file           a file that is appended to
    journal        true: the journal of systemd [default: false]
    url            a web server to which they are posted, http:// or https://
    pods_dir       where the kubelet keeps the logs of pods [default: /var/log/pods]

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
    #[cfg(feature = "full")]
    #[command(flatten)]
    _local: crate::cli::Local,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    Status(status::StatusArgs),
    JoinWait(join::JoinArgs),
    /// Reboot this machine, once its node is drained
    Reboot(operation::OperationArgs),
    /// Switch this machine off, once its node is drained
    Shutdown(operation::OperationArgs),
    Update(operation::UpdateArgs),
    /// Cut volumes off when the agent's lease ends; started by the agent itself
    #[command(hide = true)]
    VolumeGuard {
        /// Where the agent keeps what it does with volumes
        #[arg(long, value_name = "DIR")]
        state_dir: PathBuf,
        /// kubelet's own directory
        #[arg(long, value_name = "DIR")]
        kubelet_root: PathBuf,
        /// Force the machine down through this file when volumes cannot be cut off
        #[arg(long, value_name = "FILE")]
        reboot_through: Option<PathBuf>,
    },
    /// Put the agent on this pod's host and follow it there; run by the pods of the DaemonSet
    #[command(hide = true)]
    Launch,
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

fn done(result: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    result.map(|()| ExitCode::SUCCESS)
}

pub fn run(args: AgentArgs, format: Format) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(AgentCommand::Status(args)) => return status::run(&args, format),
        Some(AgentCommand::JoinWait(args)) => return join::run(&args),
        Some(AgentCommand::Reboot(args)) => return done(operation::run(&args, "reboot", format)),
        Some(AgentCommand::Shutdown(args)) => {
            return done(operation::run(&args, "shutdown", format));
        }
        Some(AgentCommand::Update(args)) => return done(operation::run_update(&args, format)),
        Some(AgentCommand::VolumeGuard { state_dir, kubelet_root, reboot_through }) => {
            logging::init(&args.log)?;
            let places = Places::of_guard(state_dir, kubelet_root, reboot_through);
            return done(Ok(volumes::guard(&places)?));
        }
        Some(AgentCommand::Launch) => {
            logging::init(&args.log)?;
            // Before there are threads: each would have mounts of its own.
            let container = Container::leave()?;
            return done(block_on(async { Ok(launch::run(container).await?) }));
        }
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
    let result = runtime.block_on(wharf_agent::run(config));
    // A step with a volume may take minutes, or hang, and nobody renews the lease any more: it is
    // left to the next agent, as if this one had been killed.
    runtime.shutdown_background();
    result?;
    Ok(ExitCode::SUCCESS)
}
