//! Programs that the agent starts and that must not outlive it.
//!
//! The agent's unit ends the agent alone (`KillMode=process`), for the sake of what serves volumes, and
//! an agent that is killed ends nobody. So a program carries a [`Mark`] in its environment, which all
//! that it starts inherit, and the next agent ends whoever carries it before it goes on. Notes of
//! process numbers were rejected: an agent that is killed between the start and the note leaves none,
//! and a number says nothing any more when the first of a group has ended.

use std::{ffi::OsString, fs, io, os::unix::ffi::OsStrExt, path::Path, time::Duration};

use rustix::process::{
    Pid, PidfdFlags, Signal, getpgid, getpgrp, getpid, kill_process_group, pidfd_open,
    pidfd_send_signal,
};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

const VARIABLE: &str = "WHARF_STARTED_FOR";
/// What was killed is gone at once, unless it hangs in the kernel.
const GONE_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    #[error("cannot look for programs that were left")]
    Look(#[source] io::Error),
    #[error("process {pid} cannot be ended")]
    Refused {
        pid: i32,
        #[source]
        source: io::Error,
    },
    #[error("process {pid} was killed and does not end")]
    Stuck { pid: i32 },
    #[error("nobody looked for programs that were left")]
    Lost(#[from] tokio::task::JoinError),
}

/// What tells the programs of one agent, for one purpose, from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(OsString);

impl Mark {
    /// Of the agent that has this folder to itself.
    pub fn new(folder: &Path, purpose: &str) -> Self {
        let mut mark = folder.as_os_str().to_owned();
        mark.push(":");
        mark.push(purpose);
        Self(mark)
    }

    /// Has a program start with it, in a group of its own that is [`Group`].
    pub fn put_on(&self, command: &mut Command) {
        command.env(VARIABLE, &self.0).process_group(0).kill_on_drop(true);
    }

    /// Ends all who carry it, with their groups, and returns when they are gone.
    pub async fn end_all(&self) -> Result<(), ProgramsError> {
        let given_up = Instant::now() + GONE_WITHIN;
        loop {
            let mark = self.clone();
            let left = tokio::task::spawn_blocking(move || mark.kill_all()).await??;
            match left {
                None => return Ok(()),
                Some(pid) if Instant::now() >= given_up => {
                    return Err(ProgramsError::Stuck { pid: pid.as_raw_nonzero().get() });
                }
                Some(_) => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// One of those who carry it and were just killed.
    fn kill_all(&self) -> Result<Option<Pid>, ProgramsError> {
        let mut found = None;
        for pid in processes().map_err(ProgramsError::Look)? {
            if pid != getpid() && self.is_on(pid) {
                self.kill(pid).map_err(|source| ProgramsError::Refused {
                    pid: pid.as_raw_nonzero().get(),
                    source,
                })?;
                found = Some(pid);
            }
        }
        Ok(found)
    }

    fn kill(&self, pid: Pid) -> io::Result<()> {
        // The handle stands for one process; looking after it is opened leaves no gap.
        let killed = pidfd_open(pid, PidfdFlags::empty()).and_then(|process| {
            if !self.is_on(pid) {
                return Ok(());
            }
            // Of those in its group, one may have emptied its environment.
            let group = getpgid(Some(pid)).ok().filter(|group| *group != getpgrp());
            if let Some(group) = group {
                kill_process_group(group, Signal::KILL)?;
            }
            pidfd_send_signal(process, Signal::KILL)
        });
        match killed {
            Err(error) if error != rustix::io::Errno::SRCH => Err(error.into()),
            // It has just ended.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// A process that has ended, and those of others that we may not look at, have no environment.
    fn is_on(&self, pid: Pid) -> bool {
        let entry = [VARIABLE.as_bytes(), b"=", self.0.as_bytes()].concat();
        let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
        let environment = fs::read(path).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|line| line == entry)
    }
}

fn processes() -> io::Result<Vec<Pid>> {
    let all = fs::read_dir("/proc")?.flatten();
    let numbers = all.filter_map(|process| process.file_name().to_str()?.parse().ok());
    Ok(numbers.filter_map(Pid::from_raw).collect())
}

/// The group of a program that was started as its first. It ends with the value, unless it was let go.
#[derive(Debug)]
pub struct Group(Option<Pid>);

impl Group {
    /// Of a program that was just started.
    pub fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)))
    }

    /// Sends a signal to all of it. One that has ended is no error.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match self.0.map_or(Ok(()), |group| kill_process_group(group, signal)) {
            Err(error) if error != rustix::io::Errno::SRCH => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// What is in it may go on.
    pub fn let_go(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Whoever could not be told is met by the next agent.
        let _ = self.signal(Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell that starts another program, in a group of its own, and says who both are.
    fn start(mark: Option<&Mark>, said: &Path) -> (Child, Vec<u32>) {
        let script =
            format!("sleep 600 & echo $$ $! >{0}.new; mv {0}.new {0}; wait", said.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        match mark {
            Some(mark) => mark.put_on(&mut command),
            None => {
                command.process_group(0);
            }
        }
        let child = command.kill_on_drop(false).spawn().unwrap();
        let text = loop {
            match fs::read_to_string(said) {
                Ok(text) => break text,
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        (child, text.split_whitespace().map(|pid| pid.parse().unwrap()).collect())
    }

    /// Whether it runs; who is dead need not be buried.
    fn runs(pid: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    #[tokio::test]
    async fn whoever_carries_the_mark_is_ended_with_all_that_it_started_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, others) = (Mark::new(dir.path(), "console"), Mark::new(dir.path(), "update"));
        // A killed agent leaves both the program and its child.
        let (child, marked) = start(Some(&ours), &dir.path().join("a"));
        let (_other, spared) = start(Some(&others), &dir.path().join("b"));
        let (_plain, unmarked) = start(None, &dir.path().join("c"));
        // What is left when the first of a group has ended is found too.
        let (first, rest) = start(Some(&ours), &dir.path().join("d"));
        let pid = Pid::from_raw(rest[0].cast_signed()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        ours.end_all().await.unwrap();
        assert!(marked.iter().chain(&rest).all(|pid| !runs(*pid)));
        assert!(spared.iter().chain(&unmarked).all(|pid| runs(*pid)));
        ours.end_all().await.unwrap();
        drop((child, first));
        others.end_all().await.unwrap();
        let group = Pid::from_raw(unmarked[0].cast_signed()).unwrap();
        kill_process_group(group, Signal::KILL).unwrap();
    }

    #[tokio::test]
    async fn a_group_ends_with_its_value_unless_it_was_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let (mut child, all) = start(None, &dir.path().join("a"));
        let mut group = Group::of(&child);
        group.let_go();
        drop(group);
        assert!(all.iter().all(|pid| runs(*pid)));
        drop(Group::of(&child));
        child.wait().await.unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while all.iter().any(|pid| runs(*pid)) {
            assert!(Instant::now() < end, "{all:?}");
            sleep(LOOK_EVERY).await;
        }
    }
}
