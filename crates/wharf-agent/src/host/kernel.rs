//! The kernel's modules and settings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use wharf_core::install::host::HostFailure;

use super::failure::{Telling, failure, tail};
use super::root::Root;

const MODPROBE_DEADLINE: Duration = Duration::from_secs(30);

/// A module that is part of the kernel often shows only by what it offers.
const SIGNS: &[(&str, &str)] = &[
    ("br_netfilter", "/proc/sys/net/bridge"),
    ("nf_conntrack", "/proc/sys/net/netfilter/nf_conntrack_max"),
];

/// Those of the modules that the running kernel does not have.
///
/// A kernel without loadable modules has all that it will ever have: there nothing is missing that
/// could be loaded, and a component that lacks something will say so itself.
pub(crate) fn missing_modules(root: &Root, modules: &[String]) -> BTreeSet<String> {
    if modules.is_empty() || !root.path("/proc/modules").exists() {
        return BTreeSet::new();
    }
    let loaded = fs::read_to_string(root.path("/proc/modules")).unwrap_or_default();
    let filesystems = fs::read_to_string(root.path("/proc/filesystems")).unwrap_or_default();
    let release = fs::read_to_string(root.path("/proc/sys/kernel/osrelease")).unwrap_or_default();
    let built_in = format!("/lib/modules/{}/modules.builtin", release.trim());
    let built_in = fs::read_to_string(root.path(&built_in)).unwrap_or_default();
    let present = |module: &str| {
        let name = module.replace('-', "_");
        let file = format!("/{name}.ko");
        root.path(&format!("/sys/module/{name}")).exists()
            || loaded.lines().any(|line| line.split(' ').next() == Some(&name))
            || filesystems.split_whitespace().any(|word| word == name)
            || built_in.lines().any(|line| line.replace('-', "_").ends_with(&file))
            || SIGNS.iter().any(|(of, sign)| *of == name && root.path(sign).exists())
    };
    modules.iter().filter(|module| !present(module)).cloned().collect()
}

pub(crate) fn load_module(root: &Root, name: &str) -> Result<(), HostFailure> {
    let ran = root.run("modprobe", &["--", name], MODPROBE_DEADLINE);
    if missing_modules(root, &[name.to_owned()]).is_empty() {
        return Ok(());
    }
    let detail = match ran {
        Ok(ran) => tail(&ran.stderr),
        Err(error) => error.to_string(),
    };
    Err(failure(format!("load module {name}"), format!("the kernel has no module {name}"))
        .detail(detail)
        .hint("install the kernel's modules; in a container load it on the machine below"))
}

/// The present value of each setting; `None` where the kernel has no such setting (yet).
pub(crate) fn observe_sysctls<'a>(
    root: &Root,
    keys: impl Iterator<Item = &'a String>,
) -> BTreeMap<String, Option<String>> {
    keys.map(|key| (key.clone(), read_sysctl(root, key))).collect()
}

pub(crate) fn read_sysctl(root: &Root, key: &str) -> Option<String> {
    let text = fs::read_to_string(sysctl_path(root, key)).ok()?;
    Some(plain(&text))
}

/// The kernel separates several values by tabs, people do by spaces.
pub(crate) fn plain(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) fn write_sysctl(root: &Root, key: &str, value: &str) -> Result<(), HostFailure> {
    let step = format!("set {key}");
    fs::write(sysctl_path(root, key), value).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => failure(step, format!("the kernel has no setting {key}"))
            .hint("a kernel module that offers it may be missing"),
        _ => failure(step, format!("{key} cannot be set to {value}: {error}"))
            .hint(format!("set {key}={value} on the machine below, if this is a container")),
    })
}

/// As `sysctl` reads keys: with dots, or with slashes where a name has dots itself.
fn sysctl_path(root: &Root, key: &str) -> PathBuf {
    let path = if key.contains('/') { key.to_owned() } else { key.replace('.', "/") };
    root.path(&format!("/proc/sys/{path}"))
}
