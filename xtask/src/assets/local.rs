//! The components that are not Go: a program of ours, built by cargo, and one of Debian's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use wharf_bundle::catalogue::{Component, MadeFrom, parse_version};
use wharf_bundle::oci;

use super::child::{self, Interrupt, Progress};
use crate::workspace;

/// Where Debian's package puts it; found by path, since another one may come first on the PATH.
const BUSYBOX: &str = "/usr/bin/busybox";
const BUSYBOX_BEFORE_USR_MERGE: &str = "/bin/busybox";

/// The flags that cargo gives to rustc are separated by this character.
const FLAG_SEPARATOR: &str = "\x1f";

/// Builds a package of our workspace as one static program; answers which Rust did it.
///
/// It is linked to the C library of the usual target, which can be linked statically as well: so
/// nothing needs to be installed, neither a second target of Rust nor a second C library.
pub fn cargo_build(
    package: &str,
    component: &Component,
    into: &Path,
    log: &Path,
    interrupt: &Interrupt,
    mut progress: Progress,
) -> Result<String> {
    let (host, release) = rust()?;
    let target_dir = into.join(".target");
    fs::create_dir_all(log.parent().context("the log has no directory")?)?;
    _ = fs::remove_file(log);
    let mut command = Command::new(env!("CARGO"));
    command
        .current_dir(workspace())
        .args(["build", "--package", package, "--profile", package_profile(package)])
        // With a target named, the flags are for the program and not for what builds it.
        .args(["--target", &host, "--target-dir"])
        .arg(&target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", static_and_without_paths());
    child::run(&mut command, log, interrupt, &mut progress)?;
    let built = target_dir.join(&host).join(package_profile(package)).join(package);
    let file = component.files.first().context("the component has no file")?;
    let to = into.join(file.path);
    fs::create_dir_all(to.parent().context("a file has no directory")?)?;
    fs::rename(&built, to).with_context(|| format!("cargo made no {}", built.display()))?;
    fs::remove_dir_all(&target_dir)?;
    Ok(format!("rust{release}"))
}

/// Profiles are named after what they are for: `wharf-pause` has `pause`.
fn package_profile(package: &str) -> &str {
    package.trim_start_matches("wharf-")
}

fn static_and_without_paths() -> String {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    // Two machines that build the same sources get the same program.
    for (path, name) in [(Some(workspace().to_owned()), "wharf"), (home, "cargo")] {
        flags.extend(path.map(|path| format!("--remap-path-prefix={}={name}", path.display())));
    }
    flags.join(FLAG_SEPARATOR)
}

/// The machine's own target and the version of Rust.
fn rust() -> Result<(String, String)> {
    let output = Command::new(env!("CARGO")).arg("-vV").current_dir(workspace()).output()?;
    let text = String::from_utf8(output.stdout)?;
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
    let host = value("host: ").context("cargo does not say which machine it is for")?;
    let release = value("release: ").context("cargo does not say its version")?;
    Ok((host, release))
}

/// What the installed package says about itself.
pub struct Installed {
    program: PathBuf,
    /// Three numbers.
    pub version: String,
    /// The package's own version, with everything that Debian changed.
    pub origin: String,
}

/// The busybox of this machine, if it has one of which an image can be made.
pub fn installed_busybox() -> Option<Installed> {
    let program = [BUSYBOX, BUSYBOX_BEFORE_USR_MERGE].map(PathBuf::from);
    let program = program.into_iter().find(|path| oci::is_static(path).unwrap_or(false))?;
    let banner = printed(&program, &["--help"]).ok()?;
    let (version, origin) = parse_banner(&banner)?;
    Some(Installed { program, version, origin })
}

/// `BusyBox v1.35.0 (Debian 1:1.35.0-4+deb12u1) multi-call binary.`
fn parse_banner(banner: &str) -> Option<(String, String)> {
    let rest = banner.lines().next()?.strip_prefix("BusyBox v")?;
    let (version, rest) = rest.split_once(" (")?;
    let (origin, _) = rest.split_once(')')?;
    Some((parse_version(version).ok()?, origin.to_lowercase()))
}

/// Copies the program and notes what it prints; answers which package it is.
pub fn take_busybox(component: &Component, into: &Path) -> Result<String> {
    let installed = installed_busybox().context("there is no busybox on this machine")?;
    for file in component.files {
        let to = into.join(file.path);
        fs::create_dir_all(to.parent().context("a file has no directory")?)?;
        match file.made_from {
            MadeFrom::Program => _ = fs::copy(&installed.program, &to)?,
            MadeFrom::Printed(arguments) => {
                fs::write(&to, printed(&installed.program, arguments)?)?;
            }
            MadeFrom::Package(_) | MadeFrom::Yaml(_) => bail!("{} is made by Go", file.path),
        }
    }
    Ok(installed.origin)
}

fn printed(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!("{} {} failed", program.display(), arguments.join(" "));
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::parse_banner;

    #[test]
    fn the_banner_of_busybox_names_its_version_and_package() {
        let banner = "BusyBox v1.35.0 (Debian 1:1.35.0-4+deb12u1+b1) multi-call binary.\nmore";
        let (version, origin) = parse_banner(banner).unwrap();
        assert_eq!((version.as_str(), origin.as_str()), ("1.35.0", "debian 1:1.35.0-4+deb12u1+b1"));
        assert!(parse_banner("toybox 0.8").is_none());
        assert!(parse_banner("BusyBox v1.x (y) z").is_none());
    }
}
