//! The worker: answers the kernel for the one volume, by as many threads as requests may be under way.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::AsFd,
    path::Path,
    process::ExitCode,
    thread,
    time::Duration,
};

use super::{
    IMAGE, OPTIONS, Options, Place, WORKER, hold,
    link::{Known, Link, Shared},
    state,
};
use crate::fuse::{self, Channel, Disk};

/// There is nothing more to answer.
pub(super) const UNMOUNTED: i32 = 10;
pub(super) const CANNOT_RESEND: i32 = 11;

const MAX_THREADS: u32 = 32;

/// Between tries to reach the server for the first time.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) fn run(run_dir: &Path) -> ExitCode {
    let place = Place::new(run_dir);
    match work(&place) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            hold::log(&place, &format!("the worker ends: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn work(place: &Place) -> io::Result<i32> {
    stay_out_of_our_own_way(place);
    let options: Options = state::read(&place.file(OPTIONS))?.ok_or(io::ErrorKind::NotFound)?;
    // The holder hands it over as our standard input.
    let fuse = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let follows_another = place.file(WORKER).exists();
    let known: Option<Known> = state::read(&place.file(IMAGE))?;
    let threads = options.threads.clamp(1, MAX_THREADS);
    let shared = Shared::new(place, options, session()?, known)?;
    // It lives as long as the process; threads that answer may borrow it for ever.
    let shared: &'static Shared = Box::leak(Box::new(shared));
    if follows_another && !fuse::resend(&fuse)? {
        return Ok(CANNOT_RESEND);
    }
    spawn("heartbeat", move || shared.keep_asking())?;
    let mut first = Link::new(shared, 0);
    // The kernel cannot be told of a disk whose size is not known.
    while first.size() == 0 {
        if first.open().is_err() {
            thread::sleep(PAUSE);
        }
    }
    let channel: &'static Channel = Box::leak(Box::new(Channel::new(fuse)?));
    for slot in 1..threads {
        spawn(&format!("slot-{slot}"), move || channel.serve(&mut Link::new(shared, slot)))?;
    }
    // Without this a volume that nobody uses would not be said to serve.
    let _told = first.open();
    channel.serve(&mut first)?;
    Ok(UNMOUNTED)
}

/// When memory is short the kernel writes to disks to get some, and would wait for us while we wait for it. It
/// holds for the threads that are started later, too. Without the capability for it we go on as others do.
fn stay_out_of_our_own_way(place: &Place) {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        hold::log(place, &format!("the kernel may wait for itself when memory is short: {error}"));
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    task: impl FnOnce() -> T + Send + 'static,
) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(task).map(|_| ())
}

/// A name that no other run has.
fn session() -> io::Result<String> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
