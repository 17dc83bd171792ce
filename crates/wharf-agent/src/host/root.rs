//! The host's `/` and its programs, so that tests can bring a directory and programs of their own.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use wharf_core::install::host::HostFailure;

use super::failure::{Telling, failure};

/// How often a wait looks again, at first and at most. Looking costs a process each time.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_millis(200);

/// A unit's start may take 90 s; whoever comes second waits that long and a little.
const LOCK_DEADLINE: Duration = Duration::from_secs(120);

const LOCK: &str = "/run/wharf-host.lock";

/// Of what a program prints, more than this is cut off: a report is read by people.
const OUTPUT_LIMIT: u64 = 8 * 1024 * 1024;

/// Where the host's `/` is, and how its programs are run.
pub struct Root {
    base: PathBuf,
    commands: Box<dyn Commands>,
}

/// What runs programs of the host.
pub trait Commands: Send + Sync {
    fn run(&self, program: &str, arguments: &[&str], deadline: Duration) -> io::Result<Ran>;
}

/// How a program ended.
#[derive(Debug, Clone, Default)]
pub struct Ran {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Root {
    /// This machine.
    pub fn machine() -> Self {
        Self::new("/", Box::new(System))
    }

    pub fn new(base: impl Into<PathBuf>, commands: Box<dyn Commands>) -> Self {
        Self { base: base.into(), commands }
    }

    /// Where a path of the host is for us. The path is absolute; see `place_is_sound`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.base.join(path.trim_start_matches('/'))
    }

    /// The path on the host for one of ours; the opposite of [`Root::path`].
    pub fn on_host(&self, path: &Path) -> String {
        let below = path.strip_prefix(&self.base).unwrap_or(path);
        format!("/{}", below.display())
    }

    pub fn run(&self, program: &str, arguments: &[&str], deadline: Duration) -> io::Result<Ran> {
        self.commands.run(program, arguments, deadline)
    }

    /// Only one process at a time changes a host: a server that was started again must not meet
    /// what it has begun before. The lock ends with the process, and its file with the lock.
    pub(crate) fn lock(&self) -> Result<Lock, HostFailure> {
        let told = |error: io::Error| failure("lock the host", error.to_string());
        let path = self.path(LOCK);
        let taken = wait_until(LOCK_DEADLINE, || Lock::take(&path).map_err(told))?;
        taken.ok_or_else(|| {
            failure("lock the host", "another `wharf agent host` is at work")
                .hint("wait until it has ended, then try again")
        })
    }
}

/// A locked file that only root can open, so that nobody else can hold the lock.
pub(crate) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// `None` while another holds it.
    fn take(path: &Path) -> io::Result<Option<Self>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(open(path, flags, Mode::RUSR | Mode::WUSR)?);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // Whoever held it before may have removed the file in between.
        let inode = |metadata: std::fs::Metadata| metadata.ino();
        let same = std::fs::symlink_metadata(path)
            .is_ok_and(|found| file.metadata().is_ok_and(|ours| inode(ours) == inode(found)));
        Ok(same.then(|| Self { path: path.to_owned(), _file: file }))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A file that stays is taken by the next one.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Looks again and again until there is something or the deadline has passed (`None`).
pub(crate) fn wait_until<T, E>(
    deadline: Duration,
    mut look: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let end = Instant::now() + deadline;
    let mut pause = FIRST_LOOK;
    loop {
        if let Some(value) = look()? {
            return Ok(Some(value));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_LOOK);
    }
}

/// The machine's own programs.
struct System;

impl Commands for System {
    fn run(&self, program: &str, arguments: &[&str], deadline: Duration) -> io::Result<Ran> {
        let mut child = Command::new(program)
            .args(arguments)
            // A login shell's PATH may lack the directories of the system's tools.
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().map(|pipe| thread::spawn(move || read_all(pipe)));
        let stderr = child.stderr.take().map(|pipe| thread::spawn(move || read_all(pipe)));
        let Some(status) = wait_until(deadline, || child.try_wait())? else {
            child.kill()?;
            child.wait()?;
            let message = format!("{program} did not end within {} s", deadline.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        };
        let text = |reader: Option<thread::JoinHandle<String>>| {
            reader.and_then(|thread| thread.join().ok()).unwrap_or_default()
        };
        Ok(Ran { success: status.success(), stdout: text(stdout), stderr: text(stderr) })
    }
}

fn read_all(pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    let mut pipe = pipe.take(OUTPUT_LIMIT);
    // What could be read until an error is still worth showing.
    let _ = pipe.read_to_end(&mut bytes);
    // A program that says more would wait for somebody to listen.
    let _ = io::copy(&mut pipe.into_inner(), &mut io::sink());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::testing::fake_root;
    use super::*;

    #[test]
    fn the_lock_is_a_file_for_root_alone_that_goes_with_its_holder() {
        let (_directory, root) = fake_root();
        let path = root.path(LOCK);
        let held = root.lock().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Lock::take(&path).unwrap().is_none());
        drop(held);
        assert!(!path.exists());
        assert!(Lock::take(&path).unwrap().is_some());
    }
}
