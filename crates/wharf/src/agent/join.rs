//! `wharf agent join-wait`

use std::{path::PathBuf, process::ExitCode, time::Duration};

use wharf_agent::{
    config::Config,
    status::join::{self, Failure, JoinError, Patience},
};

use crate::{
    block_on,
    failure::{Exit, Told, render_causes},
    logging,
};

/// Wait until the server that this node joins is a cluster, and the one that it shall join
///
/// The first node of a cluster does not wait, and neither does one that has joined before.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  0  the node may be started            1  something on this machine is wrong
  4  the node is not to join (any more) 5  the server cannot be asked    6  timed out

Examples:
  wharf agent join-wait --config /etc/wharf/agent/agent.toml --timeout-seconds 600")]
pub struct JoinArgs {
    /// The agent's configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Give up after so long; without it the wait has no end
    #[arg(long, value_name = "SECONDS")]
    timeout_seconds: Option<u64>,
    /// Wait so long for the node's membership to be published, for an agent that starts meanwhile
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    config_within_seconds: u64,
    /// End well if nobody tells this node to join a cluster
    #[arg(long)]
    if_configured: bool,
}

pub fn run(args: &JoinArgs) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.config)?;
    logging::init("info")?;
    let patience = Patience {
        config: Duration::from_secs(args.config_within_seconds),
        limit: args.timeout_seconds.map(Duration::from_secs),
        if_configured: args.if_configured,
    };
    block_on(async { join::wait(&config, patience).await.map_err(|error| told(error).into()) })?;
    Ok(ExitCode::SUCCESS)
}

fn told(error: JoinError) -> Told {
    let exit = match &error {
        JoinError::Ended(Failure::Withdrawn) => Exit::Refused,
        JoinError::Ended(Failure::Broken(_)) => Exit::Unreachable,
        JoinError::TimedOut { .. } => Exit::TimedOut,
        JoinError::Files(_) | JoinError::Mark { .. } => Exit::Failed,
    };
    let hint = error.hint();
    Told::new(exit, render_causes(&error.into())).hint(hint)
}
