//! `cargo xtask bench`: builds what is measured, and lets `wharf-bench` measure it.

use std::{ffi::OsString, process::Command};

use anyhow::{Result, bail};

use crate::{assets, needs, release, target_dir};

const PROGRAMS: [&str; 2] = ["wharf", "wharf-bench"];

/// Measure Wharf beside the real systems that do the same work (`-- --help` lists the options)
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Which benchmark
    #[arg(value_parser = ["store", "install", "fleet", "drain", "repair", "agent", "volumes"])]
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
    let built = release::build(&PROGRAMS)?;
    // Benchmarks of what runs on nodes measure the program which hosts get.
    let node = if ["agent", "volumes"].contains(&args.name.as_str()) {
        Some(release::build_node()?)
    } else {
        None
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
        .args(node.iter().flat_map(|node| ["--agent".as_ref(), node.as_os_str()]))
        .args(&args.options)
        .status()?;
    if !status.success() {
        bail!("the benchmark {} failed", args.name);
    }
    Ok(())
}
