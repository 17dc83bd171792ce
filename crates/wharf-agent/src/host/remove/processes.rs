//! Processes of our containers that no unit stops.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::{Pid, Signal, getpid, kill_process};

use super::super::images::CONTAINERD_SOCKET;
use super::super::root::Root;

const SHIM: &str = "containerd-shim";

/// The processes that watch over containers of our containerd; another containerd's have another
/// address on their command line.
pub(super) fn shims(root: &Root) -> BTreeSet<i32> {
    all(root).filter(|pid| is_our_shim(&arguments(root, *pid))).collect()
}

fn is_our_shim(arguments: &[String]) -> bool {
    let program = arguments.first().and_then(|program| program.rsplit('/').next());
    let addressed = arguments.windows(2).any(
        |pair| matches!(pair, [flag, value] if flag == "-address" && value == CONTAINERD_SOCKET),
    );
    program.is_some_and(|program| program.starts_with(SHIM)) && addressed
}

fn arguments(root: &Root, pid: i32) -> Vec<String> {
    let line = fs::read(root.path(&format!("/proc/{pid}/cmdline"))).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// All processes that the host sees.
pub(super) fn all(root: &Root) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(root.path("/proc")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Ends processes at once; never ourselves, and never the machine's first.
pub(super) fn kill(root: &Root, pids: &BTreeSet<i32>) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        // A test's root has no processes of its own that could be meant.
        let there = root.path(&format!("/proc/{}", pid.as_raw_nonzero())).exists();
        if there && pid != Pid::INIT && pid != getpid() {
            // An error means that it has just ended.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shims_of_our_own_containerd_are_ended() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let ours = "/opt/wharf/bin/containerd-shim-runc-v2 -namespace k8s.io -id a -address \
            /run/wharf/containerd/containerd.sock";
        assert!(is_our_shim(&words(ours)));
        for foreign in [
            "/usr/bin/containerd-shim-runc-v2 -namespace moby -id a -address /run/containerd/containerd.sock",
            "grep -address /run/wharf/containerd/containerd.sock",
            "/usr/bin/containerd-shim-runc-v2",
            "",
        ] {
            assert!(!is_our_shim(&words(foreign)), "{foreign}");
        }
    }
}
