//! Processes that a test starts, and their end.

use std::fs::File;
use std::net::TcpListener;
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use tempfile::NamedTempFile;

pub use rustix::process::Signal;

use crate::wait::wait_for;

/// A process of a test, in a process group of its own. Dropping it kills the whole group and
/// waits for the process, so that nothing outlives the test, also when it panics.
#[derive(Debug)]
pub struct Process {
    words: String,
    child: Child,
    log: NamedTempFile,
}

impl Process {
    /// Starts the command without input, and with standard output and error in one file.
    pub fn spawn(mut command: Command) -> Result<Self> {
        let words = command.get_program().to_string_lossy().into_owned();
        let log = NamedTempFile::new()?;
        // Both streams append, so that neither writes over the other.
        let append = || File::options().append(true).open(log.path());
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(append()?)
            .stderr(append()?)
            .spawn()
            .with_context(|| format!("cannot start {words}"))?;
        Ok(Self { words, child, log })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has printed so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log.path()).unwrap_or_default()).into_owned()
    }

    /// `None` while it runs. What a finished process left behind in its group ends too.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        // Looked at before it is waited for: as long as it is not, no other process can get its
        // number, so the group is surely ours.
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        if let Ok(Some(_)) = waitid(WaitId::Pid(Pid::from_child(&self.child)), look) {
            self.kill_group();
        }
        Ok(self.child.try_wait()?)
    }

    fn kill_group(&self) {
        // An error means that the group is gone, which is what we want.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
    }

    /// Sends a signal to the process alone (its children are its own affair).
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.status()?.is_none() {
            kill_process(Pid::from_child(&self.child), signal)
                .with_context(|| format!("cannot signal {}", self.words))?;
        }
        Ok(())
    }

    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.words);
        wait_for(&what, deadline, || self.status())
            .with_context(|| format!("it printed:\n{}", self.output()))
    }

    /// Waits until the output holds `text`; an error if the process ends without.
    pub fn wait_for_output(&mut self, text: &str, deadline: Duration) -> Result<()> {
        let what = format!("{} to print {text:?}", self.words);
        wait_for(&what, deadline, || {
            let ended = self.status()?;
            if self.output().contains(text) {
                return Ok(Some(()));
            }
            match ended {
                Some(status) => anyhow::bail!("{} ended before ({status})", self.words),
                None => Ok(None),
            }
        })
        .with_context(|| format!("it printed:\n{}", self.output()))
    }

    /// Kills the whole group at once, as a power cut would, and waits for the process.
    pub fn kill(&mut self) -> Result<()> {
        if self.status()?.is_none() {
            self.kill_group();
            self.child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("could not end {}: {error:#}", self.words);
        }
    }
}

/// The example program of that name of the crate under test, which cargo builds beside its tests:
/// a process of its own that a test may kill or stop.
pub fn example(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let profile = test.parent().and_then(Path::parent).context("the test lies nowhere")?;
    let program = profile.join("examples").join(name);
    anyhow::ensure!(
        program.exists(),
        "{} is not built; run `cargo test --examples` first, or all tests",
        program.display()
    );
    Ok(program)
}

/// The program of that name of the workspace, beside the test that asks.
pub fn binary(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let profile = test.parent().and_then(Path::parent).context("the test lies nowhere")?;
    let program = profile.join(name);
    anyhow::ensure!(
        program.exists(),
        "{} is not built; run `cargo build --workspace` first",
        program.display()
    );
    Ok(program)
}

/// Below the ports that the system gives to outgoing connections: those would take the port of a
/// server that is being started again.
const PORTS: Range<u16> = 20_000..30_000;
/// The ports that this process has in its hands. Each is a name that only one process can have and
/// that the kernel takes back at its end.
static RESERVED: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// A TCP port of the loopback address that nobody uses, and that no other test gets until this
/// process ends.
pub fn free_port() -> Result<u16> {
    // Tests that start at the same time begin at different places.
    let skipped = std::process::id() as usize * 7919 % PORTS.len();
    for port in PORTS.cycle().skip(skipped).take(PORTS.len()) {
        let name = SocketAddr::from_abstract_name(format!("wharf-port-{port}"))?;
        let Ok(reserved) = UnixDatagram::bind_addr(&name) else { continue };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(reserved);
            return Ok(port);
        }
    }
    anyhow::bail!("no port from {} to {} is free on loopback", PORTS.start, PORTS.end)
}
