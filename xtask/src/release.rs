//! The programs as users and hosts get them, optimised (docs/adr/0004-static-program.md).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{needs, target_dir, workspace};

/// Build `wharf`, and the `wharf-node` that it puts on hosts: static, and the agent alone
#[derive(Debug, clap::Args)]
pub struct ReleaseArgs {}

pub fn run(_: &ReleaseArgs) -> Result<()> {
    needs::ensure_build()?;
    let programs = build(&["wharf"])?;
    let node = build_node()?;
    println!("{}\n{}", programs.join("wharf").display(), node.display());
    Ok(())
}

/// Builds packages of the workspace; answers where the programs are.
pub fn build(packages: &[&str]) -> Result<PathBuf> {
    eprintln!("building {}, optimised (some minutes the first time)", packages.join(" and "));
    let mut command = cargo(&["--release"]);
    command.args(packages.iter().flat_map(|package| ["--package", package]));
    if !command.status()?.success() {
        bail!("{} could not be built", packages.join(" and "));
    }
    Ok(target_dir().join("release"))
}

/// The program for hosts, beside the others.
pub fn build_node() -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    needs::ensure_static(&target)?;
    eprintln!("building wharf-node, small and static (some minutes the first time)");
    let variable = format!("CARGO_TARGET_{}_RUSTFLAGS", target.replace('-', "_").to_uppercase());
    let built = cargo(&["--profile", "node", "--target", &target])
        .args(["--package", "wharf", "--no-default-features"])
        // It stands at a fixed place in memory: what would have to be moved at each start would be
        // memory of each agent.
        .env(variable, "-C relocation-model=static")
        .status()?;
    ensure!(built.success(), "wharf-node could not be built");
    let program = target_dir().join("release/wharf-node");
    let from = target_dir().join(target).join("node/wharf");
    fs::create_dir_all(target_dir().join("release"))?;
    fs::copy(&from, &program).with_context(|| format!("cannot copy {}", from.display()))?;
    check(&program)?;
    Ok(program)
}

fn cargo(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(workspace()).args(["build", "--locked"]).args(words);
    command
}

fn check(program: &Path) -> Result<()> {
    let is_static = wharf_bundle::oci::is_static(program);
    let is_static = is_static.with_context(|| format!("cannot read {}", program.display()))?;
    ensure!(is_static, "{} is not static: hosts may have other libraries", program.display());
    Ok(())
}
