//! Proxy I/O: a volume of a block server as a file of this machine, without a kernel module.
//!
//! For each volume there is a directory (the run directory) and two processes that outlive whoever
//! started them. The holder ([`hold`]) opens `/dev/fuse`, mounts a file system with the single file
//! `disk`, and does nothing else that could go wrong. The worker ([`work`]) answers the kernel and speaks
//! with the block server. When it dies the holder starts another, which gets every unanswered request
//! again: nobody sees an error.
//!
//! **Guarantees.** A request is answered with success only when the server has carried it out. When the
//! server cannot be reached for longer than the bound, everything gets an I/O error; when it refuses our
//! generation, at once and for good. Processes are known by number and start time, and no other is ever
//! ended.
//!
//! **Assumption:** the starter does not end its children when it ends itself (`KillMode=process` in a
//! unit of systemd).
//!
//! Start reading at [`start`].

mod hold;
mod link;
pub mod mounts;
mod process;
mod state;
mod work;

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::{fuse::DISK_NAME, nbd::ImageName};

pub use process::Process;
pub use state::{Health, Observed};

/// From the start of the processes to the first answer of the server, or the bound if that is shorter.
const START_WITHIN: Duration = Duration::from_secs(20);
/// From the unmount to the end of the processes; longer, and they are killed.
const END_WITHIN: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(5);

pub const DEFAULT_DEAD_AFTER: Duration = Duration::from_secs(30);
/// Each is a thread with two buffers of a mebibyte and a connection. With more of them small requests
/// come in smaller groups, and each group wakes threads on both sides.
pub const DEFAULT_THREADS: u32 = 4;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the proxy in {0} serves another volume, generation or server")]
    Different(String),
    #[error("the block server refuses: {0}")]
    Refused(String),
    #[error("the block server cannot be reached: {0}")]
    Unreachable(String),
    #[error("{0} is in use")]
    Busy(String),
    #[error("the processes of {0} did not end")]
    StillThere(String),
    #[error("there is no proxy in {0}")]
    Missing(String),
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
}

impl Error {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// Which volume, and how. Processes of another version read it while the program is replaced: what they do not
/// know they pass over, and what is added later needs a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// The block server, `HOST:PORT`.
    pub address: String,
    pub image: ImageName,
    pub generation: u64,
    pub read_only: bool,
    /// How long the server may be away before everything gets an I/O error.
    pub dead_after: Duration,
    /// How many requests may be under way at once.
    pub threads: u32,
}

/// How this program runs one of the [`Role`]s: the name of the role and the run directory are the last
/// two arguments.
#[derive(Debug, Clone)]
pub struct Program {
    pub path: PathBuf,
    pub arguments: Vec<OsString>,
}

/// The processes of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Starts the holder and ends, so that the holder is nobody's child.
    Launch,
    Hold,
    Work,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Launch => "launch",
            Role::Hold => "hold",
            Role::Work => "work",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [Role::Launch, Role::Hold, Role::Work].into_iter().find(|role| role.name() == name)
    }
}

/// What the hidden subcommand does. The arguments of the process have to end with the role and the
/// run directory.
pub fn run(role: Role, run_dir: &Path) -> ExitCode {
    match role {
        Role::Launch => hold::launch(run_dir),
        Role::Hold => hold::run(run_dir),
        Role::Work => work::run(run_dir),
    }
}

/// A proxy that serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    pub dir: PathBuf,
    /// The file to make a loop device of, with direct I/O.
    pub disk: PathBuf,
}

/// The file that a proxy shows in its run directory, whether it does now or not.
pub fn disk(run_dir: &Path) -> PathBuf {
    Place::new(run_dir).disk()
}

/// The places in a run directory.
#[derive(Debug, Clone)]
struct Place {
    dir: PathBuf,
}

impl Place {
    fn new(run_dir: &Path) -> Self {
        Self { dir: run_dir.to_owned() }
    }

    fn mount_point(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    fn disk(&self) -> PathBuf {
        self.mount_point().join(DISK_NAME)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn name(&self) -> String {
        self.dir.display().to_string()
    }
}

const OPTIONS: &str = "options.json";
const HOLDER: &str = "holder.json";
const WORKER: &str = "worker.json";
const IMAGE: &str = "image.json";
const LOG: &str = "log";
const OLD_LOG: &str = "log.old";
const START_LOCK: &str = "start.lock";
const HOLDER_LOCK: &str = "holder.lock";
const FILES: [&str; 8] = [OPTIONS, HOLDER, WORKER, IMAGE, LOG, OLD_LOG, START_LOCK, HOLDER_LOCK];

/// Makes sure that the volume is served in the run directory. A proxy that serves it already is the
/// answer, whoever started it.
pub fn start(program: &Program, run_dir: &Path, options: &Options) -> Result<Started, Error> {
    fs::create_dir_all(run_dir).map_err(Error::io("making the run directory"))?;
    let run_dir = run_dir.canonicalize().map_err(Error::io("finding the run directory"))?;
    let place = Place::new(&run_dir);
    let _alone = start_lock(&place)?;
    let started = Started { dir: run_dir.clone(), disk: place.disk() };
    if let Some(observed) = look(&place)?
        && observed.lives()
    {
        if &observed.options != options {
            return Err(Error::Different(place.name()));
        }
        return wait_until_serving(&place, options).map(|()| started);
    }
    clear(&place)?;
    state::write(&place.file(OPTIONS), options).map_err(Error::io("writing the options"))?;
    fs::create_dir_all(place.mount_point()).map_err(Error::io("making the mount point"))?;
    launch(program, &run_dir)?;
    match wait_until_serving(&place, options) {
        Ok(()) => Ok(started),
        Err(error) => {
            // What failed to start must not stay half started; the first error says why.
            let _second = end(&place);
            Err(error)
        }
    }
}

fn launch(program: &Program, run_dir: &Path) -> Result<(), Error> {
    let status = Command::new(&program.path)
        .args(&program.arguments)
        .arg(Role::Launch.name())
        .arg(run_dir)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(Error::io("starting the proxy"))?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::io("starting the proxy")(io::Error::other(status.to_string()))),
    }
}

fn wait_until_serving(place: &Place, options: &Options) -> Result<(), Error> {
    let deadline = Instant::now() + START_WITHIN.min(options.dead_after);
    loop {
        let health = look(place)?.and_then(|observed| observed.health);
        let reason = match health {
            Some(Health::Serving) => return Ok(()),
            Some(Health::Fenced { reason }) => return Err(Error::Refused(reason)),
            Some(Health::Dead { reason, for_good: true }) => {
                return Err(Error::Unreachable(reason));
            }
            Some(Health::Reconnecting { reason } | Health::Dead { reason, .. }) => reason,
            None => "the proxy says nothing".to_owned(),
        };
        if Instant::now() >= deadline {
            return Err(Error::Unreachable(reason));
        }
        thread::sleep(PAUSE);
    }
}

/// What there is of the proxy; `None` when nothing was ever started there. Looks at nothing that could
/// hang.
pub fn observe(run_dir: &Path) -> Result<Option<Observed>, Error> {
    match run_dir.canonicalize() {
        Ok(run_dir) => look(&Place::new(&run_dir)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("finding the run directory")(error)),
    }
}

fn look(place: &Place) -> Result<Option<Observed>, Error> {
    state::observe(place).map_err(Error::io(format!("reading the state of {}", place.name())))
}

/// Ends every request of the volume with an error, now and from now on, also those of a proxy or server
/// that hangs, and ends the processes, so that nothing more leaves this machine. Whoever waits for the
/// disk is freed; then it can be unmounted.
pub fn abort(run_dir: &Path) -> Result<(), Error> {
    let Some(observed) = observe(run_dir)? else { return Ok(()) };
    if let Some(minor) = observed.fuse_minor {
        mounts::abort(minor).map_err(Error::io("aborting the connection"))?;
    }
    kill(&observed, &run_dir.display().to_string())
}

/// Makes the image of a serving proxy larger, and the file with it. The loop device above has to be told
/// after.
pub fn grow(run_dir: &Path, size: u64) -> Result<(), Error> {
    let run_dir = run_dir.canonicalize().map_err(Error::io("finding the run directory"))?;
    let place = Place::new(&run_dir);
    match look(&place)? {
        Some(Observed { worker: Some(_), fuse_minor: Some(_), .. }) => {}
        _ => return Err(Error::Missing(place.name())),
    }
    let disk = OpenOptions::new().write(true).open(place.disk());
    disk.and_then(|disk| disk.set_len(size)).map_err(Error::io("growing the disk"))
}

/// Unmounts, ends the processes, sees that both are gone, and removes the run directory. What is not
/// there is as good.
pub fn stop(run_dir: &Path) -> Result<(), Error> {
    let run_dir = match run_dir.canonicalize() {
        Ok(run_dir) => run_dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("finding the run directory")(error)),
    };
    let place = Place::new(&run_dir);
    let _alone = start_lock(&place)?;
    end(&place)
}

fn end(place: &Place) -> Result<(), Error> {
    clear(place)?;
    for file in FILES {
        remove(fs::remove_file(place.file(file)))?;
    }
    remove(fs::remove_dir(place.mount_point()))?;
    remove(fs::remove_dir(&place.dir))
}

fn remove(removed: io::Result<()>) -> Result<(), Error> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("removing the run directory")(error))
        }
        _ => Ok(()),
    }
}

/// Unmounts what is mounted there and ends what runs.
fn clear(place: &Place) -> Result<(), Error> {
    mounts::unmount(&place.mount_point()).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => Error::Busy(place.mount_point().display().to_string()),
        _ => Error::io("unmounting the proxy")(error),
    })?;
    let Some(observed) = look(place)? else { return Ok(()) };
    let deadline = Instant::now() + END_WITHIN;
    while processes(&observed).any(Process::is_alive) && Instant::now() < deadline {
        thread::sleep(PAUSE);
    }
    kill(&observed, &place.name())?;
    for file in [HOLDER, WORKER, IMAGE] {
        remove(fs::remove_file(place.file(file)))?;
    }
    Ok(())
}

/// The holder first: it would start the worker again.
fn processes(observed: &Observed) -> impl Iterator<Item = &Process> {
    observed.holder.iter().chain(&observed.worker)
}

/// Ends the processes at once and sees that they are gone.
fn kill(observed: &Observed, name: &str) -> Result<(), Error> {
    for process in processes(observed) {
        process.kill().map_err(Error::io("ending the proxy"))?;
    }
    let deadline = Instant::now() + END_WITHIN;
    while processes(observed).any(Process::is_alive) {
        if Instant::now() >= deadline {
            return Err(Error::StillThere(name.to_owned()));
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// One starts or stops at a time.
fn start_lock(place: &Place) -> Result<File, Error> {
    let what = "locking the run directory";
    let lock = File::create(place.file(START_LOCK)).map_err(Error::io(what))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| Error::io(what)(e.into()))?;
    Ok(lock)
}
