//! `wharf agent`

use std::path::PathBuf;

use crate::{
    cli::Local,
    failure::{Exit, Told},
    target::Wish,
};

/// Run the node agent (not part of this version yet)
#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    _local: Local,
}

pub fn run(_args: &AgentArgs, wish: &Wish) -> anyhow::Result<()> {
    wish.refuse_remote("wharf agent")?;
    let version = env!("CARGO_PKG_VERSION");
    Err(Told::new(Exit::Failed, format!("the node agent is not part of wharf {version} yet"))
        .into())
}
