//! Proof that the writes which were counted were also synced.
//!
//! Without a sync a store is ten times as fast and loses what it acknowledged when the power
//! goes. So the kernel must have seen a sync for each write of a single writer. A comparison of
//! rates was tried besides and taken back: on a busy machine the disk's own rate falls to a tenth
//! between two rounds, and honest runs were refused.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};

/// Refuses writes of a single writer that had no sync each.
pub fn check_count(what: &str, acknowledged: u64, syncs: u64) -> Result<()> {
    if syncs < acknowledged {
        bail!(
            "{what} acknowledged {acknowledged} writes one after the other with {syncs} syncs of \
             the disk: they were not all synced"
        );
    }
    Ok(())
}

/// The same command, with its syncs written to `trace`.
pub fn traced(command: &Command, trace: &Path) -> Command {
    let mut traced = Command::new("strace");
    traced.args(["-f", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-e", "signal=none", "-o"]);
    traced.arg(trace).arg(command.get_program()).args(command.get_args());
    traced
}

/// The same command with its syncs left out, to show that the checks refuse it.
pub fn unsynced(command: &Command) -> Command {
    let mut unsynced = Command::new("eatmydata");
    unsynced.arg(command.get_program()).args(command.get_args());
    unsynced
}

/// The syncs that succeeded so far.
pub fn count_syncs(trace: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(trace)?;
    Ok(text.lines().filter(|line| is_sync(line)).count() as u64)
}

fn is_sync(line: &str) -> bool {
    let named = line.contains(" fsync") || line.contains(" fdatasync");
    named && line.trim_end().ends_with("= 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_without_a_sync_is_refused() {
        assert!(check_count("it", 100, 99).is_err());
        assert!(check_count("it", 100, 100).is_ok());
    }

    #[test]
    fn only_syncs_that_succeeded_count() {
        let lines = [
            ("123  fdatasync(9)                      = 0", true),
            ("123  fdatasync(9 <unfinished ...>", false),
            ("123  <... fdatasync resumed>)          = 0", true),
            ("123  fsync(9)                          = -1 EIO (Input/output error)", false),
            ("123  fdatasync(9)                      = 0 (INJECTED)", false),
            ("123  +++ exited with 0 +++", false),
        ];
        for (line, counts) in lines {
            assert_eq!(is_sync(line), counts, "{line}");
        }
    }
}
