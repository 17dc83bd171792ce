//! Running Ceph's programs: each with a deadline, in a process group of its own, and heard only so far.

use std::{
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

use super::Error;

/// A ledger has some lines, a list of clients some dozens.
const MOST_OUTPUT: u64 = 1 << 20;
/// Of what a program said, people read the end.
const MOST_WORDS: usize = 400;
const PAUSE: Duration = Duration::from_millis(5);
/// Pipes end with their last user, which is dead by then.
const DRAIN: Duration = Duration::from_secs(2);

/// How a program ended by itself.
#[derive(Debug)]
pub struct Ran {
    /// Ceph's programs end with the number of the error.
    pub code: Option<i32>,
    pub stdout: String,
    stderr: String,
}

impl Ran {
    pub fn succeeded(self, program: &str) -> Result<String, Error> {
        if self.code == Some(0) {
            return Ok(self.stdout);
        }
        Err(Error::failed(program, &self.stderr))
    }
}

impl Error {
    pub(super) fn failed(program: &str, said: &str) -> Self {
        let said = said.trim();
        let begin = said.ceil_char_boundary(said.len().saturating_sub(MOST_WORDS));
        let said = said.get(begin..).unwrap_or_default().replace('\n', " ");
        Self::Program { program: program.to_owned(), said }
    }
}

/// A program of the machine, without what the caller's environment says about Ceph.
pub fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .env_remove("CEPH_ARGS")
        .env_remove("CEPH_CONF")
        .env_remove("CEPH_KEYRING")
        .stdin(Stdio::null());
    command
}

/// Runs it to its end. At the deadline the whole group is killed; one that hangs in the kernel all the
/// same is left there.
pub fn run(mut command: Command, within: Duration) -> Result<Ran, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |source: io::Error| Error::Run { program: name.clone(), source };
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take().map(listen), child.stderr.take().map(listen));
    let deadline = Instant::now() + within;
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                end(child);
                return Err(Error::Slow { program: name, seconds: within.as_secs() });
            }
            None => thread::sleep(PAUSE),
        }
    };
    let heard = |pipe: Option<Receiver<String>>| {
        pipe.and_then(|pipe| pipe.recv_timeout(DRAIN).ok()).unwrap_or_default()
    };
    Ok(Ran { code: status.code(), stdout: heard(stdout), stderr: heard(stderr) })
}

fn listen(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut pipe = pipe.take(MOST_OUTPUT);
        // What could be read until an error is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
        let _late = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

fn end(mut child: Child) {
    // An error means that the group is gone.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    thread::spawn(move || child.wait());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_ended_with_all_it_started_and_what_fails_is_quoted() {
        let mut hangs = program("sh");
        hangs.args(["-c", "sleep 1000 & wait"]);
        let begun = Instant::now();
        let slow = run(hangs, Duration::from_millis(200)).unwrap_err();
        assert_eq!(slow.to_string(), "sh did not end within 0 s");
        assert!(begun.elapsed() < Duration::from_secs(30));
        let mut fails = program("sh");
        fails.args(["-c", "yes | head -n 100000; echo it broke >&2; exit 2"]);
        let ran = run(fails, Duration::from_secs(30)).unwrap();
        assert_eq!((ran.code, ran.stdout.len()), (Some(2), 200_000));
        assert_eq!(ran.succeeded("sh").unwrap_err().to_string(), "sh failed: it broke");
    }
}
