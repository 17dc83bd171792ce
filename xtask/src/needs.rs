//! What the other commands need on this machine, installed where we may.

use std::{path::PathBuf, process::Command};

use anyhow::{Result, bail};
use wharf_testbed::debian;

/// The version that the configuration in `deny.toml` was written for.
const CARGO_DENY: &str = "0.20.2";

/// What cargo needs to build the workspace.
pub fn ensure_build() -> Result<()> {
    debian::ensure(
        "building Wharf",
        &[
            ("protoc", "protobuf-compiler"),
            // What protoc includes; its package only recommends it.
            ("/usr/include/google/protobuf/descriptor.proto", "libprotobuf-dev"),
            ("cc", "gcc"),
            ("git", "git"),
        ],
    )
}

/// What a static program is built with: Rust's library for the target, and a C compiler.
pub fn ensure_static(target: &str) -> Result<()> {
    debian::ensure("a static program", &[("musl-gcc", "musl-tools")])?;
    let output =
        Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let there = output.is_ok_and(|output| {
        let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success() && PathBuf::from(path).exists()
    });
    if there {
        return Ok(());
    }
    eprintln!("installing Rust's library for {target}");
    let added = Command::new("rustup").args(["target", "add", target]).status();
    if !added.is_ok_and(|status| status.success()) {
        bail!("a static program needs Rust's library for {target}: `rustup target add {target}`");
    }
    Ok(())
}

/// What the benchmarks use to see the disk synced, to see that refused which is not, and to check
/// certificates.
pub fn ensure_bench() -> Result<()> {
    debian::ensure(
        "the benchmarks",
        &[("strace", "strace"), ("eatmydata", "eatmydata"), ("openssl", "openssl")],
    )
}

/// The licence and ban checker, built once into the cache.
pub fn ensure_cargo_deny() -> Result<PathBuf> {
    let root = wharf_testbed::cache_dir()?.join("tools").join(format!("cargo-deny-{CARGO_DENY}"));
    let program = root.join("bin/cargo-deny");
    if program.exists() {
        return Ok(program);
    }
    eprintln!("building cargo-deny {CARGO_DENY}, once");
    let status = Command::new(env!("CARGO"))
        // Without optimisation it builds in half the time and checks us in a second all the same.
        .args(["install", "--quiet", "--locked", "--debug", "cargo-deny"])
        .args(["--version", CARGO_DENY, "--root"])
        .arg(&root)
        .status()?;
    if !status.success() {
        bail!("cargo-deny {CARGO_DENY} could not be built");
    }
    Ok(program)
}
