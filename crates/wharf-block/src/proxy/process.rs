//! A process beyond doubt: its number is used again after its end, its start time is not.

use std::{fs, io};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use serde::{Deserialize, Serialize};

use crate::nbd::boot_id;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// In ticks of the clock since the machine started.
    pub started: u64,
    pub boot: String,
}

impl Process {
    pub(super) fn myself() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    pub(super) fn of(pid: u32) -> io::Result<Self> {
        let started = start_time(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { pid, started, boot: boot_id()? })
    }

    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.started) && boot_id().is_ok_and(|boot| boot == self.boot)
    }

    /// Ends it, if it is the one that is meant. The descriptor stands for one process, so that looking
    /// after it is opened leaves no gap.
    pub fn kill(&self) -> io::Result<()> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if !self.is_alive() {
            return Ok(());
        }
        match pidfd_send_signal(process, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// `None` when there is no such process, or only its remains.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it is in brackets and may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_told_from_another_of_the_same_number() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.is_alive());
        let earlier = Process { started: process.started - 1, ..process.clone() };
        assert!(!earlier.is_alive());
        earlier.kill().unwrap();
        let other_boot = Process { boot: "another".to_owned(), ..process };
        other_boot.kill().unwrap();
        assert!(process.is_alive(), "only the one that is meant is ended");
        process.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_alive());
        process.kill().unwrap();
    }
}
