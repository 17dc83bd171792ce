//! Namespaces, links, tables and routes that pods and the agent left.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use wharf_core::install::network::ROUTE_PROTOCOL;

use super::super::files;
use super::super::made::NAMESPACES;
use super::super::root::{Ran, Root};
use super::{mounts, processes};

/// The table in which the CNI plugin of every container runtime opens ports of the host.
pub(super) const HOST_PORTS: &str = "ip cni_hostport";
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
    for point in mounts::below(root, &directory, true)? {
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

/// What a program says, or why it says nothing. Without the program nobody made what it shows.
fn told(ran: io::Result<Ran>) -> io::Result<String> {
    match ran {
        Ok(ran) if ran.success => Ok(ran.stdout),
        Ok(ran) => Err(io::Error::other(ran.stderr.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// All tables that there are, each as `family name`.
pub(super) fn tables(root: &Root) -> io::Result<BTreeSet<String>> {
    let text = told(root.run("nft", &["list", "tables"], DEADLINE))?;
    let name = |line: &str| line.trim().strip_prefix("table ").map(str::to_owned);
    Ok(text.lines().filter_map(name).collect())
}

pub(super) fn remove_table(root: &Root, name: &str) -> io::Result<()> {
    let mut arguments = vec!["delete", "table"];
    arguments.extend(name.split(' '));
    told(root.run("nft", &arguments, DEADLINE)).map(drop)
}

/// The rules of [`HOST_PORTS`] that were made for containers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HostPorts {
    /// The words that name a rule to `nft`, and a text that names it to a person.
    pub ours: Vec<(Vec<String>, String)>,
    pub others: bool,
}

/// The plugin notes the container as a rule's comment; rules without one serve all of them.
pub(super) fn host_ports(root: &Root, sandboxes: &BTreeSet<String>) -> io::Result<HostPorts> {
    let mut arguments = vec!["-a", "list", "table"];
    arguments.extend(HOST_PORTS.split(' '));
    let text = told(root.run("nft", &arguments, DEADLINE))?;
    Ok(parse_host_ports(&text, sandboxes))
}

fn parse_host_ports(text: &str, sandboxes: &BTreeSet<String>) -> HostPorts {
    let mut found = HostPorts::default();
    let mut chain = "";
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("chain ") {
            chain = rest.split(' ').next().unwrap_or_default();
        }
        let Some((rule, rest)) = line.split_once(" comment \"") else { continue };
        let Some((container, handle)) = rest.split_once("\" # handle ") else { continue };
        if sandboxes.contains(container) {
            let name = format!("{HOST_PORTS} {chain}: {rule}");
            let words = HOST_PORTS.split(' ').chain([chain, "handle", handle]);
            found.ours.push((words.map(str::to_owned).collect(), name));
        } else {
            found.others = true;
        }
    }
    found
}

pub(super) fn remove_rule(root: &Root, rule: &[String]) -> io::Result<()> {
    let mut arguments = vec!["delete", "rule"];
    arguments.extend(rule.iter().map(String::as_str));
    told(root.run("nft", &arguments, DEADLINE)).map(drop)
}

/// Bridges that carry an address, so that what is behind them is routed through this host.
pub(super) fn routed_bridges(root: &Root) -> io::Result<BTreeSet<String>> {
    let shown = root.run("ip", &["-4", "-o", "addr", "show", "type", "bridge"], DEADLINE);
    let name = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
    Ok(told(shown)?.lines().filter_map(name).collect())
}

/// Routes that the agent makes carry this number, so that they can be told from others.
pub(super) fn routes() -> String {
    format!("routes of proto {ROUTE_PROTOCOL}")
}

fn with_routes(root: &Root, verb: &str) -> io::Result<String> {
    let number = ROUTE_PROTOCOL.to_string();
    told(root.run("ip", &["route", verb, "table", "all", "proto", &number], DEADLINE))
}

pub(super) fn has_routes(root: &Root) -> io::Result<bool> {
    with_routes(root, "show").map(|shown| !shown.trim().is_empty())
}

pub(super) fn remove_routes(root: &Root) -> io::Result<()> {
    let flushed = with_routes(root, "flush");
    // Some versions fail after their work; what is left then is what counts.
    if has_routes(root)? { flushed.map(drop) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_for_ports_of_the_host_are_told_apart_by_their_container() {
        let text = "table ip cni_hostport { # handle 2
            \tcomment \"CNI portmap plugin\"
            \tchain hostports { # handle 1
            \t\ttcp dport 8080 dnat to 10.42.0.5:80 comment \"ours\" # handle 11
            \t\ttcp dport 9090 dnat to 10.4.0.5:80 comment \"theirs\" # handle 14
            \t}
            \tchain prerouting { # handle 6
            \t\ttype nat hook prerouting priority dstnat; policy accept;
            \t\tfib daddr type local jump hostports_all # handle 7
            \t}
            }";
        let ids = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let found = parse_host_ports(text, &ids(&["ours"]));
        let words = ["ip", "cni_hostport", "hostports", "handle", "11"].map(str::to_owned).to_vec();
        let name = "ip cni_hostport hostports: tcp dport 8080 dnat to 10.42.0.5:80".to_owned();
        assert_eq!(found, HostPorts { ours: vec![(words, name)], others: true });
        assert!(!parse_host_ports(text, &ids(&["ours", "theirs"])).others);
    }
}
