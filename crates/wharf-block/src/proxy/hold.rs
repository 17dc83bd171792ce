//! The holder: keeps the mounted `/dev/fuse` open, and a worker alive.
//!
//! It survives what started it: it leads a session of its own, has nobody as its parent, and no open
//! file of anybody.

use std::{
    env,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::Path,
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::{
    fs::{FlockOperation, flock},
    process::setsid,
};

use super::{
    HOLDER, HOLDER_LOCK, LOG, OLD_LOG, OPTIONS, Options, Place, Process, Role, mounts,
    state::{self, HolderFile},
    work,
};
use crate::fuse;

/// A worker that lived as long as this may be followed at once.
const LIVED_WELL: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The log is cut when it is longer, and the part before is kept once.
const LOG_LIMIT: u64 = 256 << 10;

/// Starts the holder and leaves it.
pub(super) fn launch(run_dir: &Path) -> ExitCode {
    // Fails only for who leads a session already, which is as good.
    let _leads = setsid();
    let place = Place::new(run_dir);
    let started = log_file(&place).and_then(|log| {
        again(Role::Hold, run_dir)?
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map(|_| ())
    });
    match started {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(&place, &format!("the holder cannot be started: {error}"));
            ExitCode::FAILURE
        }
    }
}

pub(super) fn run(run_dir: &Path) -> ExitCode {
    let _leads = setsid();
    let place = Place::new(run_dir);
    match hold(&place) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(&place, &format!("the holder ends: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn hold(place: &Place) -> io::Result<()> {
    let lock = File::create(place.file(HOLDER_LOCK))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    let options: Options = state::read(&place.file(OPTIONS))?.ok_or(io::ErrorKind::NotFound)?;
    let holder = Process::myself()?;
    let fuse = fuse::mount_on(&place.mount_point(), options.image.as_str())?;
    let mut pause = FIRST_PAUSE;
    for starts in 1.. {
        let begun = Instant::now();
        let mut worker = again(Role::Work, &place.dir)?
            .stdin(fuse.try_clone()?)
            .stdout(Stdio::null())
            .stderr(log_file(place)?)
            .spawn()?;
        let process = Process::of(worker.id()).ok();
        let file = HolderFile { holder: holder.clone(), worker: process, starts };
        state::write(&place.file(HOLDER), &file)?;
        let status = worker.wait()?;
        match status.code() {
            Some(work::UNMOUNTED) => return Ok(()),
            Some(work::CANNOT_RESEND) => {
                log(place, "this kernel cannot send requests again: they all get an error");
                if let Some(minor) = mounts::fuse_minor(&place.mount_point())? {
                    mounts::abort(minor)?;
                }
                return Ok(());
            }
            _ => log(place, &format!("the worker ended ({status}) and is started again")),
        }
        pause = match begun.elapsed() > LIVED_WELL {
            true => FIRST_PAUSE,
            false => (pause * 2).min(LONGEST_PAUSE),
        };
        thread::sleep(pause);
    }
    Ok(())
}

/// This program in another role: the same arguments but for the last two. By the kernel's name for the
/// running file, which stays the same when the program is replaced on disk.
fn again(role: Role, run_dir: &Path) -> io::Result<Command> {
    let mut arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let kept = arguments.len().checked_sub(2).ok_or(io::ErrorKind::InvalidInput)?;
    arguments.truncate(kept);
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).arg(role.name()).arg(run_dir).current_dir("/");
    Ok(command)
}

fn log_file(place: &Place) -> io::Result<File> {
    let path = place.file(LOG);
    if fs::metadata(&path).is_ok_and(|metadata| metadata.len() > LOG_LIMIT) {
        fs::rename(&path, place.file(OLD_LOG))?;
    }
    OpenOptions::new().append(true).create(true).open(path)
}

/// A line of the proxy's own log. There is nobody to tell when it cannot be written.
pub(super) fn log(place: &Place, line: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let _unwritten = log_file(place).and_then(|mut log| writeln!(log, "{} {line}", now.as_secs()));
}
