//! `cargo xtask sim`: many simulated worlds, in each of which everything goes wrong that can.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{needs, release};

/// Try many simulated worlds and name the seeds of those that break a promise
#[derive(Debug, clap::Args)]
pub struct SimArgs {
    /// Which simulation
    #[arg(value_parser = ["volumes"])]
    name: String,
    /// How many worlds
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    seeds: u64,
    /// The seed of the first; with `--seeds 1` a world that failed is looked at again
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
}

pub fn run(args: &SimArgs) -> Result<()> {
    needs::ensure_build()?;
    let built = release::build(&["wharf-sim"])?;
    let status = Command::new(built.join("wharf-sim"))
        .args([&args.name, &args.seeds.to_string(), &args.first.to_string()])
        .status()?;
    if !status.success() {
        bail!("a promise was broken in the worlds that are named above");
    }
    Ok(())
}
