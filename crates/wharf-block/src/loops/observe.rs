//! Which loop devices there are.
//!
//! The kernel's own list is in sysfs and always answers. File and tag have to be asked of the device
//! itself, and the kernel then asks the file, which may hang for ever (a dead network file system). So
//! each device is asked in a thread of its own with a limit, and while it has not answered nobody
//! asks it again. Of one that hangs, the path that sysfs shows is all that is known.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::ioctl::{self, LO_FLAGS_DIRECT_IO, LO_FLAGS_READ_ONLY};

use super::{Device, Error, FileId, open_device, path, tag_of};

const SYS_BLOCK: &str = "/sys/block";

/// A device answers in microseconds, or its file hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// A device that is being detached refuses to answer until it is. One that refuses for longer waits for
/// requests that hang.
const DETACHED_WITHIN: Duration = Duration::from_millis(300);
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// The devices that have not answered yet, and since when.
static ASKED: Mutex<BTreeMap<u32, Instant>> = Mutex::new(BTreeMap::new());

/// A loop device that has a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    Known {
        device: Device,
        read_only: bool,
    },
    /// Its file hangs. The path is as the kernel sees it now: after an unmount it begins later, and
    /// after a rename it ends otherwise.
    Silent {
        number: u32,
        file: PathBuf,
    },
}

/// Every loop device of the machine that has a file, also those of others.
pub fn list() -> Result<Vec<Observed>, Error> {
    Ok(numbers()?.into_iter().filter_map(ask).collect())
}

/// The devices of the file at this path. Looks at nothing that could hang.
pub(super) fn of_file(file: &Path) -> Result<Vec<u32>, Error> {
    Ok(numbers()?.into_iter().filter(|number| is_of_file(*number, file)).collect())
}

pub(super) fn is_of_file(number: u32, file: &Path) -> bool {
    file_of(number).is_some_and(|shown| shown == file)
}

fn file_of(number: u32) -> Option<PathBuf> {
    let mut shown = fs::read(format!("{SYS_BLOCK}/loop{number}/loop/backing_file")).ok()?;
    shown.pop_if(|last| *last == b'\n');
    Some(OsString::from_vec(shown).into())
}

fn numbers() -> Result<Vec<u32>, Error> {
    let entries = fs::read_dir(SYS_BLOCK).map_err(|e| Error::io("reading /sys/block", e))?;
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("loop")?.parse().ok())
        .filter(|number| is_bound(*number))
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// One device, if it has a file.
pub fn observe(number: u32) -> Option<Observed> {
    is_bound(number).then(|| ask(number)).flatten()
}

/// The devices of this file with this tag. There may be several: nothing keeps two processes from
/// attaching one file twice.
pub fn find(file: FileId, tag: &str) -> Result<Vec<Device>, Error> {
    let found = list()?.into_iter().filter_map(|observed| match observed {
        Observed::Known { device, .. } => Some(device),
        Observed::Silent { .. } => None,
    });
    Ok(found.filter(|device| device.file == file && device.tag == tag).collect())
}

/// Whether the device has a file. Looks at nothing that could hang.
pub(super) fn is_bound(number: u32) -> bool {
    PathBuf::from(format!("{SYS_BLOCK}/loop{number}/loop")).exists()
}

pub(super) fn device_number(number: u32) -> Result<(u32, u32), Error> {
    let file = format!("{SYS_BLOCK}/loop{number}/dev");
    let text = fs::read_to_string(&file).map_err(|e| Error::io(format!("reading {file}"), e))?;
    text.trim()
        .split_once(':')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .ok_or_else(|| Error::io(format!("reading {file}"), io::ErrorKind::InvalidData))
}

/// `None` when it lost its file meanwhile.
fn ask(number: u32) -> Option<Observed> {
    let end = Instant::now() + DETACHED_WITHIN;
    loop {
        match ask_once(number) {
            Some(Some(observed)) => return Some(observed),
            Some(None) if !is_bound(number) => return None,
            Some(None) if Instant::now() < end => thread::sleep(ASK_AGAIN),
            Some(None) | None => return Some(Observed::Silent { number, file: file_of(number)? }),
        }
    }
}

/// `None` when it does not answer in time.
fn ask_once(number: u32) -> Option<Option<Observed>> {
    let asked = || ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    if asked().entry(number).or_insert_with(Instant::now).elapsed() > ANSWER_WITHIN {
        return None;
    }
    let (answer, answered) = mpsc::channel();
    let asking = thread::Builder::new().name(format!("ask-loop{number}")).spawn(move || {
        let observed = look(number);
        asked().remove(&number);
        // Nobody listens any more when the answer came too late.
        let _late = answer.send(observed);
    });
    if asking.is_err() {
        asked().remove(&number);
        return None;
    }
    answered.recv_timeout(ANSWER_WITHIN).ok()
}

fn look(number: u32) -> Option<Observed> {
    let device = open_device(number, false).ok()?;
    let info = ioctl::loop_get_status(device).ok()?;
    let device = Device {
        path: path(number),
        number,
        file: FileId::of_loop(&info),
        tag: tag_of(&info),
        direct_io: info.flags & LO_FLAGS_DIRECT_IO != 0,
    };
    Some(Observed::Known { device, read_only: info.flags & LO_FLAGS_READ_ONLY != 0 })
}
