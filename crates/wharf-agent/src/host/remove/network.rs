//! Namespaces, links, tables and routes that pods and the agent left.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::super::files;
use super::super::made::NAMESPACES;
use super::super::root::Root;
use super::{mounts, processes};

/// Routes that the agent makes carry this number, so that they can be told from others.
pub(super) const ROUTES: &str = "routes of proto 117";
const ROUTE_PROTOCOL: &str = "117";
const DEADLINE: Duration = Duration::from_secs(30);

/// Namespaces by the prefixes of their names. One in which a process still lives after all our
/// containers have ended belongs to somebody else who names them alike.
pub(super) fn namespaces(root: &Root, prefixes: &[String]) -> Vec<String> {
    if prefixes.is_empty() {
        return Vec::new();
    }
    let entries = fs::read_dir(root.path(NAMESPACES)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let ours = |name: &String| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let named: Vec<String> = names.filter(ours).collect();
    if named.is_empty() {
        return named;
    }
    let in_use: BTreeSet<(u64, u64)> = processes::all(root)
        .filter_map(|pid| identity(&root.path(&format!("/proc/{pid}/ns/net"))))
        .collect();
    let free = |name: &String| {
        let path = root.path(&format!("{NAMESPACES}/{name}"));
        identity(&path).is_none_or(|identity| !in_use.contains(&identity))
    };
    named.into_iter().filter(free).collect()
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

pub(super) fn remove_namespace(path: &Path) -> io::Result<()> {
    mounts::unmount(path)?;
    files::remove_file(path).map(drop)
}

/// The directory of namespaces may be mounted on itself, as `ip netns` does it. One that is not
/// empty is somebody's, and stays.
pub(super) fn remove_namespaces_directory(root: &Root) -> io::Result<()> {
    let directory = root.path(NAMESPACES);
    for point in mounts::below(root, &directory, true) {
        mounts::unmount(&point)?;
    }
    fs::remove_dir(&directory)
}

/// The named links that exist, each bridge after what is plugged into it: a pod's end of a pair
/// goes with its namespace, which the kernel takes its time for.
pub(super) fn links(root: &Root, names: &[String]) -> Vec<String> {
    let mut links = Vec::new();
    for name in names.iter().filter(|name| !name.contains('/') && !name.is_empty()) {
        let device = root.path(&format!("/sys/class/net/{name}"));
        if !device.exists() {
            continue;
        }
        let ports = fs::read_dir(device.join("brif")).into_iter().flatten().flatten();
        links.extend(ports.filter_map(|port| port.file_name().into_string().ok()));
        links.push(name.clone());
    }
    links
}

pub(super) fn remove_link(root: &Root, name: &str) -> io::Result<()> {
    let ran = root.run("ip", &["link", "delete", "dev", name], DEADLINE)?;
    let gone = !root.path(&format!("/sys/class/net/{name}")).exists();
    if gone { Ok(()) } else { Err(io::Error::other(ran.stderr.trim().to_owned())) }
}

/// The named tables that exist. Without `nft` nobody made one.
pub(super) fn tables(root: &Root, names: &[String]) -> Vec<String> {
    if names.is_empty() {
        return Vec::new();
    }
    let text = root.run("nft", &["list", "tables"], DEADLINE).map(|ran| ran.stdout);
    let text = text.unwrap_or_default();
    let there = |name: &&String| text.lines().any(|line| line.trim() == format!("table {name}"));
    names.iter().filter(there).cloned().collect()
}

pub(super) fn remove_table(root: &Root, name: &str) -> io::Result<()> {
    let mut arguments = vec!["delete", "table"];
    arguments.extend(name.split(' '));
    let ran = root.run("nft", &arguments, DEADLINE)?;
    if ran.success { Ok(()) } else { Err(io::Error::other(ran.stderr.trim().to_owned())) }
}

pub(super) fn has_routes(root: &Root) -> bool {
    let shown =
        root.run("ip", &["route", "show", "table", "all", "proto", ROUTE_PROTOCOL], DEADLINE);
    shown.is_ok_and(|ran| !ran.stdout.trim().is_empty())
}

pub(super) fn remove_routes(root: &Root) -> io::Result<()> {
    let ran =
        root.run("ip", &["route", "flush", "table", "all", "proto", ROUTE_PROTOCOL], DEADLINE)?;
    if ran.success || !has_routes(root) {
        Ok(())
    } else {
        Err(io::Error::other(ran.stderr.trim().to_owned()))
    }
}
