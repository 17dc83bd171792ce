//! Processes as `/proc` shows them.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};
use serde::{Deserialize, Serialize};

use crate::wait::wait;

/// A killed process needs no longer than this to go, on a machine that is not stuck.
const DEATH_DEADLINE: Duration = Duration::from_secs(10);

/// A process that stays the same one: its number alone may have been given to another since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub(crate) pid: i32,
    /// In clock ticks since the machine's boot.
    start_time: u64,
}

impl ProcessId {
    /// The process that has this number now.
    pub fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, start_time: Stat::read(pid)?.start_time })
    }

    pub fn own() -> Result<Self> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Self::of(pid).context("/proc does not show this process")
    }

    /// Its number and start time, to be written down.
    pub(crate) fn parts(self) -> (i32, u64) {
        (self.pid, self.start_time)
    }

    pub(crate) fn from_parts(pid: i32, start_time: u64) -> Self {
        Self { pid, start_time }
    }

    /// A zombie has ended: it only waits for its parent.
    pub fn is_alive(self) -> bool {
        Stat::read(self.pid)
            .is_some_and(|stat| stat.start_time == self.start_time && !stat.has_ended())
    }

    /// Kills the process, unless the number now belongs to another one, and waits for its end.
    pub fn kill(self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.wait_for_end(DEATH_DEADLINE)
    }

    /// Asks the process to end, and kills it if it has not within the deadline.
    pub fn terminate(self, deadline: Duration) -> Result<()> {
        self.signal(Signal::TERM)?;
        self.wait_for_end(deadline).or_else(|_| self.kill())
    }

    fn signal(self, signal: Signal) -> Result<()> {
        let Some(pid) = Pid::from_raw(self.pid) else { bail!("{} is no process id", self.pid) };
        // From here on the handle means one process for ever, so the check cannot go stale.
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
        if !self.is_alive() {
            return Ok(());
        }
        pidfd_send_signal(&handle, signal)
            .with_context(|| format!("cannot signal process {}", self.pid))
    }

    pub fn wait_for_end(self, deadline: Duration) -> Result<()> {
        let ended = wait(deadline, || {
            // Takes the zombie away if the process is our child; otherwise an error, and no harm.
            if let Some(pid) = Pid::from_raw(self.pid) {
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
            Ok((!self.is_alive()).then_some(()))
        })?;
        ended.with_context(|| format!("process {} did not end within {deadline:?}", self.pid))
    }

    /// The processes that this one started, with their command names.
    pub fn children(self) -> Vec<(ProcessId, String)> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(|pid: i32| Some((pid, Stat::read(pid)?)))
            .filter(|(_, stat)| stat.parent == self.pid)
            .map(|(pid, stat)| (ProcessId { pid, start_time: stat.start_time }, stat.command))
            .collect()
    }
}

struct Stat {
    command: String,
    state: char,
    parent: i32,
    start_time: u64,
}

impl Stat {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(line: &str) -> Option<Self> {
        // The command stands in parentheses and may itself hold any character.
        let (head, rest) = line.rsplit_once(") ")?;
        let (_, command) = head.split_once(" (")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        Some(Self {
            command: command.to_owned(),
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            start_time: fields.get(19)?.parse().ok()?,
        })
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_does_not_shift_the_fields() {
        let line = format!("7 (a) b) S 3 {} 4242 0\n", "0 ".repeat(17).trim_end());
        let stat = Stat::parse(&line).unwrap();
        assert_eq!((stat.command.as_str(), stat.state, stat.parent), ("a) b", 'S', 3));
        assert_eq!(stat.start_time, 4242);
    }

    #[test]
    fn a_number_given_to_another_process_is_neither_alive_nor_killed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let real = ProcessId::of(child.id().try_into().unwrap()).unwrap();
        let earlier = ProcessId { start_time: real.start_time - 1, ..real };
        assert!(real.is_alive() && !earlier.is_alive());
        earlier.kill().unwrap();
        assert!(child.try_wait().unwrap().is_none(), "another process was killed");
        real.kill().unwrap();
        assert!(!real.is_alive());
    }
}
