//! What this machine needs before it can build or fetch, and how it gets it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use wharf_bundle::catalogue::{Go, Source};
use wharf_bundle::mirror::Base;
use wharf_testbed::debian;

use super::{Job, local};

/// What the newest of the modules asks for.
const GO_NEEDED: (u32, u32) = (1, 26);
/// From here on Go fetches a newer toolchain by itself, unless it is told not to.
const GO_FETCHES_TOOLCHAINS: (u32, u32) = (1, 21);

/// Where Go's own installer puts it, which is not always on the path of root.
const GO_INSTALLED: &str = "/usr/local/go/bin/go";

/// The go command of this machine.
pub fn go_program() -> &'static str {
    if !starts("go", &["version"]) && Path::new(GO_INSTALLED).exists() {
        GO_INSTALLED
    } else {
        "go"
    }
}

/// Makes sure of the tools that these jobs need, installing Debian's packages where we may.
pub fn ensure(jobs: &[&Job]) -> Result<()> {
    let uses_go = jobs.iter().any(|job| built_by_go(job).is_some());
    let mut packages = Vec::new();
    if jobs.iter().any(|job| matches!(job.from, Some(Base::Url(_)))) && !starts("curl", &["-V"]) {
        packages.push("curl");
    }
    if uses_go && !starts(go_program(), &["version"]) {
        packages.push("golang-go");
    }
    if jobs.iter().filter_map(|job| built_by_go(job)).any(|go| go.cgo) {
        packages.extend(missing_for_c());
    }
    for job in jobs.iter().filter(|job| job.from.is_none()) {
        if let Source::Debian(package) = job.component.source
            && local::installed_busybox().is_none()
        {
            packages.push(package);
        }
    }
    debian::ensure_packages("building the assets", &packages)?;
    if uses_go { check_go() } else { Ok(()) }
}

fn built_by_go(job: &Job) -> Option<&'static Go> {
    match (&job.from, &job.component.source) {
        (None, Source::Go(go)) => Some(go),
        _ => None,
    }
}

fn missing_for_c() -> Vec<&'static str> {
    let mut packages = Vec::new();
    if !starts("gcc", &["--version"]) {
        packages.extend(["gcc", "libc6-dev"]);
    }
    if !starts("pkg-config", &["--version"]) {
        packages.push("pkg-config");
    }
    if !starts("pkg-config", &["--exists", "libseccomp"]) {
        packages.push("libseccomp-dev");
    }
    packages
}

fn starts(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn check_go() -> Result<()> {
    let output = Command::new(go_program())
        .args(["env", "GOVERSION", "GOTOOLCHAIN"])
        .output()
        .context("go cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    let version = lines.next().unwrap_or_default();
    let toolchain = lines.next().unwrap_or_default();
    if is_new_enough(version, toolchain) {
        return Ok(());
    }
    let (major, minor) = GO_NEEDED;
    bail!(
        "Go {major}.{minor} or newer is needed, and {version} is here; install a newer one, or take \
         release files with --from"
    );
}

fn is_new_enough(version: &str, toolchain: &str) -> bool {
    let mut numbers = version.trim_start_matches("go").split(['.', 'r', 'b', '-', ' ']);
    let mut number = || numbers.next().and_then(|n| n.parse::<u32>().ok()).unwrap_or(0);
    let found = (number(), number());
    let may_fetch = found >= GO_FETCHES_TOOLCHAINS && !toolchain.starts_with("local");
    found >= GO_NEEDED || may_fetch
}

#[cfg(test)]
mod tests {
    use super::is_new_enough;

    #[test]
    fn an_old_go_is_enough_only_if_it_may_fetch_a_newer_one() {
        assert!(is_new_enough("go1.26.8", "local"));
        assert!(is_new_enough("go1.27rc1", "local"));
        assert!(is_new_enough("go1.22.1", "auto"));
        assert!(!is_new_enough("go1.22.1", "local"));
        assert!(!is_new_enough("go1.19.8", ""));
        assert!(!is_new_enough("", ""));
    }
}
