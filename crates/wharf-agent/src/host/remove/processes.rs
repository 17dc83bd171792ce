//! Processes of our containers that no unit stops, and the sockets they listen on.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, getpid, kill_process};

use wharf_core::install::components::{agent, containerd::SOCKET};

use super::super::root::Root;

const SHIM: &str = "containerd-shim";
/// Where our containerd keeps what belongs to each of its tasks, by namespace and container.
const TASKS: &str = "/run/wharf/containerd/io.containerd.runtime.v2.task";
/// Every containerd's shims listen in this one directory, which cannot be chosen.
const SOCKETS: &str = "/run/containerd/s";

/// The processes that outlive who started them: those that watch over containers of our containerd
/// (another containerd's have another address on their command line), and the guard of volumes.
pub(super) fn watchers(root: &Root) -> BTreeSet<i32> {
    let shims = all(root).filter(|pid| is_our_shim(&arguments(root, *pid)));
    shims.chain(guards(root, agent::VOLUMES)).collect()
}

/// The guard of volumes that keeps its state in this directory.
pub(super) fn guards(root: &Root, state_dir: &str) -> BTreeSet<i32> {
    all(root).filter(|pid| is_guard(&arguments(root, *pid), state_dir)).collect()
}

fn is_guard(arguments: &[String], state_dir: &str) -> bool {
    let words: Vec<&str> = arguments.iter().map(String::as_str).take(5).collect();
    matches!(words.as_slice(), [_, "agent", "volume-guard", "--state-dir", dir] if *dir == state_dir)
}

fn is_our_shim(arguments: &[String]) -> bool {
    let program = arguments.first().and_then(|program| program.rsplit('/').next());
    let addressed = arguments
        .windows(2)
        .any(|pair| matches!(pair, [flag, value] if flag == "-address" && value == SOCKET));
    program.is_some_and(|program| program.starts_with(SHIM)) && addressed
}

fn arguments(root: &Root, pid: i32) -> Vec<String> {
    let line = fs::read(root.path(&format!("/proc/{pid}/cmdline"))).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The sockets of our shims, as our containerd has noted them; a killed shim leaves its own behind.
pub(super) fn shim_sockets(root: &Root) -> BTreeSet<String> {
    let notes =
        task_directories(root).flat_map(|task| [task.join("bootstrap.json"), task.join("address")]);
    let text = |note: &Path| fs::read_to_string(note).unwrap_or_default();
    let sockets = notes.flat_map(|note| sockets_in(&text(&note)));
    sockets.filter(|socket| root.path(socket).symlink_metadata().is_ok()).collect()
}

/// The names of the containers that our containerd runs.
pub(super) fn tasks(root: &Root) -> impl Iterator<Item = String> {
    task_directories(root).filter_map(|task| Some(task.file_name()?.to_str()?.to_owned()))
}

fn task_directories(root: &Root) -> impl Iterator<Item = PathBuf> {
    let namespaces = entries(&root.path(TASKS)).map(|namespace| namespace.path());
    namespaces.flat_map(|namespace| entries(&namespace).map(|task| task.path()))
}

/// Paths of sockets of shims in a note, which is JSON or the bare address.
fn sockets_in(note: &str) -> Vec<String> {
    let found = note.split("unix://").skip(1).filter_map(|rest| {
        let path = rest.split(['"', '\n', ' ']).next()?;
        let name = path.strip_prefix(SOCKETS)?.strip_prefix('/')?;
        let plain = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric());
        plain.then(|| path.to_owned())
    });
    found.collect()
}

fn entries(directory: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten()
}

/// All processes that the host sees.
pub(super) fn all(root: &Root) -> impl Iterator<Item = i32> {
    entries(&root.path("/proc")).filter_map(|entry| entry.file_name().to_str()?.parse().ok())
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

    #[test]
    fn only_plain_sockets_of_shims_are_read_from_a_note() {
        let note =
            r#"{"version":3,"address":"unix:///run/containerd/s/2db6405b","protocol":"ttrpc"}"#;
        assert_eq!(sockets_in(note), ["/run/containerd/s/2db6405b"]);
        assert_eq!(sockets_in("unix:///run/containerd/s/ab12\n"), ["/run/containerd/s/ab12"]);
        for note in ["", "unix:///run/containerd/s/../../../etc/passwd", "unix:///run/docker.sock"]
        {
            assert!(sockets_in(note).is_empty(), "{note}");
        }
    }
}
