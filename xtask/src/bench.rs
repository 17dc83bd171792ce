//! `cargo xtask bench`: builds what is measured, and lets `wharf-bench` measure it.

use std::{ffi::OsString, path::PathBuf, process::Command};

use anyhow::{Result, bail};

use crate::{assets, needs, release, target_dir, workspace};

const PROGRAMS: [&str; 2] = ["wharf", "wharf-bench"];

/// Measure Wharf beside the real systems that do the same work (`-- --help` lists the options)
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Which benchmark
    #[arg(value_parser = ["store", "install", "fleet", "drain", "repair", "agent"])]
    name: String,
    /// Passed on to the benchmark: --json, --seconds N, --only PART, --strict
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

pub fn run(args: &BenchArgs) -> Result<()> {
    needs::ensure_build()?;
    needs::ensure_bench()?;
    let peers = ["etcd", "kube-apiserver", "kubeadm", "kubectl", "kwok"];
    if peers.iter().any(|name| wharf_bundle::cache::find(name).is_none()) {
        assets::run(&assets::AssetsArgs::default())?;
    }
    // The agent's is that of the program which hosts get.
    let built = match args.name.as_str() {
        "agent" => release::build(&PROGRAMS)?,
        _ => build()?,
    };
    // Not the system's directory for temporary files, which may lie in memory.
    let temporary = wharf_testbed::cache_dir()?.join("bench");
    std::fs::create_dir_all(&temporary)?;
    let status = Command::new(built.join("wharf-bench"))
        .env("TMPDIR", &temporary)
        .arg(&args.name)
        .arg("--wharf")
        .arg(built.join("wharf"))
        .arg("--out")
        .arg(target_dir().join("bench"))
        .args(&args.options)
        .status()?;
    if !status.success() {
        bail!("the benchmark {} failed", args.name);
    }
    Ok(())
}

fn build() -> Result<PathBuf> {
    eprintln!("building wharf and the benchmark, optimised (a few minutes the first time)");
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(workspace()).args(["build", "--locked", "--release"]);
    command.args(PROGRAMS.iter().flat_map(|package| ["--package", package]));
    if !command.status()?.success() {
        bail!("the benchmark could not be built");
    }
    Ok(target_dir().join("release"))
}
