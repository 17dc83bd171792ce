//! Whether the program runs on any x86-64 Linux: no dynamic linker, no libraries, no files.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{
    report::{Report, Row},
    temp_dir,
};

pub fn run(program: &Path, report: &mut Report) -> Result<()> {
    ensure!(
        wharf_bundle::oci::is_static(program)?,
        "{} needs a dynamic linker: build it for x86_64-unknown-linux-musl",
        program.display()
    );
    let root = temp_dir()?;
    let copy = root.path().join("wharf");
    fs::copy(program, &copy).with_context(|| format!("cannot copy {}", program.display()))?;
    let version = alone(root.path(), &["--version"])?;
    ensure!(version.starts_with("wharf "), "it says {version:?}");
    let help = alone(root.path(), &["agent", "--help"])?;
    ensure!(help.contains("network_file"), "it says {help:?}");
    let mebibytes = fs::metadata(&copy)?.len() as f64 / f64::from(1 << 20);
    let row = Row::alone("static program, runs in an empty directory", mebibytes, "MiB");
    report.add(row.detail("no interpreter; `--version` and `agent --help` by chroot".to_owned()));
    Ok(())
}

/// What it prints where there is nothing else.
fn alone(root: &Path, words: &[&str]) -> Result<String> {
    let mut command = Command::new("chroot");
    command.arg(root).arg("/wharf").args(words).env_clear().stdin(Stdio::null());
    // Found by its path: an empty environment has no PATH to search.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let output = command.env("PATH", path).output().context("cannot run chroot")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "wharf {words:?} in an empty directory: {error}");
    Ok(String::from_utf8(output.stdout)?)
}
