//! Which loop devices there are.
//!
//! The kernel's own list is in sysfs and always answers. File and tag have to be asked of the device
//! itself, and the kernel then asks the file, which may hang for ever (a dead network file system). So
//! each device is asked in a thread of its own with a limit, and while it has not answered nobody
//! asks it again.

use std::{
    collections::BTreeMap,
    fs, io,
    path::PathBuf,
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::ioctl::{self, LO_FLAGS_DIRECT_IO, LO_FLAGS_READ_ONLY};

use super::{Device, Error, FileId, open_device, path, tag_of};

const SYS_BLOCK: &str = "/sys/block";

/// A device answers in microseconds, or its file hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// The devices that have not answered yet, and since when.
static ASKED: Mutex<BTreeMap<u32, Instant>> = Mutex::new(BTreeMap::new());

/// A loop device that has a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    Known {
        device: Device,
        read_only: bool,
    },
    /// Its file hangs, or it went away while it was asked.
    Silent {
        number: u32,
    },
}

/// Every loop device of the machine that has a file, also those of others.
pub fn list() -> Result<Vec<Observed>, Error> {
    let entries = fs::read_dir(SYS_BLOCK).map_err(|e| Error::io("reading /sys/block", e))?;
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("loop")?.parse().ok())
        .filter(|number| is_bound(*number))
        .collect();
    numbers.sort_unstable();
    Ok(numbers.into_iter().map(ask).collect())
}

/// One device, if it has a file.
pub fn observe(number: u32) -> Option<Observed> {
    is_bound(number).then(|| ask(number))
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

fn ask(number: u32) -> Observed {
    let silent = Observed::Silent { number };
    let asked = || ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    if asked().entry(number).or_insert_with(Instant::now).elapsed() > ANSWER_WITHIN {
        return silent;
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
        return silent;
    }
    answered.recv_timeout(ANSWER_WITHIN).ok().flatten().unwrap_or(silent)
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
