//! The program as users and hosts get it: optimised, and static (docs/adr/0004-static-program.md).

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{needs, target_dir, workspace};

/// Build the program that runs on any Linux of this machine's kind
#[derive(Debug, clap::Args)]
pub struct ReleaseArgs {}

pub fn run(_: &ReleaseArgs) -> Result<()> {
    needs::ensure_build()?;
    let program = build(&["wharf"])?.join("wharf");
    println!("{}", program.display());
    Ok(())
}

/// Builds packages of the workspace, `wharf` among them; answers where the programs are.
pub fn build(packages: &[&str]) -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    needs::ensure_static(&target)?;
    eprintln!(
        "building {}, optimised (a quarter of an hour the first time)",
        packages.join(" and ")
    );
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(workspace()).args(["build", "--locked", "--release", "--target", &target]);
    command.args(packages.iter().flat_map(|package| ["--package", package]));
    if !command.status()?.success() {
        bail!("the release could not be built");
    }
    let built = target_dir().join(&target).join("release");
    check(&built.join("wharf"))?;
    Ok(built)
}

fn check(program: &Path) -> Result<()> {
    let is_static = wharf_bundle::oci::is_static(program);
    let is_static = is_static.with_context(|| format!("cannot read {}", program.display()))?;
    ensure!(is_static, "{} is not static: hosts may have other libraries", program.display());
    Ok(())
}
