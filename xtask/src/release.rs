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

/// The programs for hosts, and what they are called beside the others.
const FOR_HOSTS: [(&str, &str); 3] =
    [("wharf", "wharf-node"), ("wharf-flex", "wharf-flex"), ("wharf-block", "wharf-block")];

/// The programs for hosts: the agent, whose place is answered, and beside it what volumes need.
pub fn build_node() -> Result<PathBuf> {
    eprintln!("building wharf-node, small and static (some minutes the first time)");
    build_static("node", "node", &target_dir().join("release"))
}

/// The same programs, static and neither small nor fast, in a directory of their own.
pub fn build_node_quickly() -> Result<PathBuf> {
    eprintln!("building wharf-node, static (some minutes the first time)");
    build_static("dev", "debug", &target_dir().join("debug/node"))
}

/// `built` is what cargo calls the directory of the profile.
fn build_static(profile: &str, built: &str, place: &Path) -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    needs::ensure_static(&target)?;
    let variable = format!("CARGO_TARGET_{}_RUSTFLAGS", target.replace('-', "_").to_uppercase());
    let status = cargo(&["--profile", profile, "--target", &target])
        .args(FOR_HOSTS.iter().flat_map(|(package, _)| ["--package", package]))
        .arg("--no-default-features")
        // It stands at a fixed place in memory: what would have to be moved at each start would be
        // memory of each agent.
        .env(variable, "-C relocation-model=static")
        // Nobody debugs on hosts.
        .env("CARGO_PROFILE_DEV_STRIP", "symbols")
        .status()?;
    ensure!(status.success(), "wharf-node could not be built");
    fs::create_dir_all(place)?;
    for (from, to) in FOR_HOSTS {
        let from = target_dir().join(&target).join(built).join(from);
        let program = place.join(to);
        fs::copy(&from, &program).with_context(|| format!("cannot copy {}", from.display()))?;
        check(&program)?;
    }
    Ok(place.join("wharf-node"))
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
