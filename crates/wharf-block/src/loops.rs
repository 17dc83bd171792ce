//! Loop devices: a file as a block device.
//!
//! All containers of a machine see all its loop devices, and numbers are used again. So a device is
//! known by three things together: its number, the device and inode of its file, and the tag that was
//! given to it. A path is none of them: the kernel shows another one after an unmount or a rename.
//!
//! **Guarantee:** [`detach`] and [`cut`] touch only a device whose file and tag are those that the
//! caller named, and `Ok` of `detach` means that the device has let go of its file.

mod observe;

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, RawFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, mknodat},
    io::Errno,
};

use crate::ioctl::{
    self, LO_FLAGS_DIRECT_IO, LO_FLAGS_READ_ONLY, LO_NAME_SIZE, LoopConfig, LoopInfo,
};

pub use observe::{Observed, find, list, observe};

/// The kernel's field has 64 bytes, the last of them zero.
pub const MAX_TAG: usize = LO_NAME_SIZE - 1;

/// Others take free devices at the same time. Each turn one of us succeeds, so that as many turns as
/// there may be processes doing this at once are enough.
const ATTACH_TURNS: usize = 256;

/// Somebody who only looks at the device holds it open for a moment, and the kernel then detaches
/// when he closes it.
const DETACH_PATIENCE: Duration = Duration::from_secs(2);
const DETACH_PAUSE: Duration = Duration::from_millis(5);

/// The size of a sector of every device, whatever its disk likes: a file system that was made here
/// has to be usable on every other machine.
const BLOCK_SIZE: u32 = 512;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the tag of a loop device has 1 to {MAX_TAG} bytes and no zero, this one has {0}")]
    Tag(usize),
    #[error("others took every free loop device for {ATTACH_TURNS} turns")]
    NoneFree,
    #[error("loop device {number} is in use; it will be free when its last user closes it")]
    Busy { number: u32 },
    #[error("loop device {number} belongs to another file or another tag")]
    NotOurs { number: u32 },
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
}

impl Error {
    fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }
}

/// Which file: the same for every path to it, and also when it has none any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
}

impl FileId {
    pub fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            major: rustix::fs::major(metadata.dev()),
            minor: rustix::fs::minor(metadata.dev()),
            inode: metadata.ino(),
        })
    }

    /// From the kernel's own way of writing a device number into 64 bits.
    fn of_loop(info: &LoopInfo) -> Self {
        let [low, middle, high, top] = (info.device as u32).to_le_bytes().map(u32::from);
        Self {
            major: middle | (high & 0x0f) << 8,
            minor: low | (high & 0xf0) << 4 | top << 12,
            inode: info.inode,
        }
    }
}

/// How a device is made.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    pub read_only: bool,
    /// Around the page cache of the file, where its file system can do it. Without it what was
    /// written to the device reaches the file's disk only with a flush.
    pub direct_io: bool,
    /// What the device is called among all devices of the machine, at most [`MAX_TAG`] bytes.
    pub tag: &'a str,
}

/// A device that was made here, and what tells it from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub path: PathBuf,
    pub number: u32,
    pub file: FileId,
    pub tag: String,
    /// Whether direct I/O was asked for and is in use.
    pub direct_io: bool,
}

/// Makes a device of `file`. It stays when this process ends.
pub fn attach(file: &File, options: Options) -> Result<Device, Error> {
    let tag = tag_field(options.tag)?;
    let id = FileId::of(file).map_err(|e| Error::io("the file of a loop device", e))?;
    let control = open("/dev/loop-control", true)?;
    for _ in 0..ATTACH_TURNS {
        let number = ioctl::loop_get_free(&control)
            .map_err(|e| Error::io("asking for a free loop device", e))?;
        let Ok(number) = u32::try_from(number) else { continue };
        let Some(direct_io) = configure(number, file.as_raw_fd(), options, tag)? else { continue };
        return Ok(Device {
            path: path(number),
            number,
            file: id,
            tag: options.tag.to_owned(),
            direct_io,
        });
    }
    Err(Error::NoneFree)
}

/// Gives the device its file and says whether direct I/O is in use; `None` when somebody else took
/// the device, or took it away, in between.
fn configure(
    number: u32,
    file: RawFd,
    options: Options,
    tag: [u8; LO_NAME_SIZE],
) -> Result<Option<bool>, Error> {
    let device = match open_device(number, !options.read_only) {
        Ok(device) => device,
        Err(Error::Io { source, .. }) if vanished(&source) => return Ok(None),
        Err(error) => return Err(error),
    };
    let read_only = if options.read_only { LO_FLAGS_READ_ONLY } else { 0 };
    let direct_io = if options.direct_io { LO_FLAGS_DIRECT_IO } else { 0 };
    let config = |flags| LoopConfig {
        fd: file.cast_unsigned(),
        block_size: BLOCK_SIZE,
        info: LoopInfo::new(flags, tag),
        reserved: [0; 8],
    };
    let mut outcome = ioctl::loop_configure(&device, config(read_only | direct_io));
    // Kernels of today go on without direct I/O by themselves where the file system cannot do it.
    if outcome == Err(Errno::INVAL) && options.direct_io {
        outcome = ioctl::loop_configure(&device, config(read_only));
    }
    match outcome {
        Ok(()) => {}
        Err(Errno::BUSY | Errno::NXIO) => return Ok(None),
        Err(error) => return Err(Error::io(format!("configuring loop device {number}"), error)),
    }
    let info = ioctl::loop_get_status(&device)
        .map_err(|e| Error::io(format!("reading back loop device {number}"), e))?;
    Ok(Some(info.flags & LO_FLAGS_DIRECT_IO != 0))
}

/// Lets the device go of its file, and sees that it has. A device that is gone already, or has been
/// taken for another file, is as good.
///
/// It waits for the device's unwritten data to reach the file: cut a hung file off first.
pub fn detach(device: &Device) -> Result<(), Error> {
    let deadline = Instant::now() + DETACH_PATIENCE;
    loop {
        let Some((opened, _)) = open_or_gone(device)? else { return Ok(()) };
        match ioctl::loop_clear(&opened) {
            Ok(()) | Err(Errno::NXIO) => {}
            Err(Errno::BUSY) => return Err(Error::Busy { number: device.number }),
            Err(error) => {
                return Err(Error::io(format!("detaching loop device {}", device.number), error));
            }
        }
        drop(opened);
        if !observe::is_bound(device.number) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::Busy { number: device.number });
        }
        std::thread::sleep(DETACH_PAUSE);
    }
}

/// Lets go of every device of the file at this path, at once or when the last user closes it. The file
/// need not answer, and neither does the device then: whose it is says the kernel's own list, as long as
/// the file system of the file is mounted.
pub fn release(file: &Path) -> Result<(), Error> {
    for number in observe::of_file(file)? {
        let opened = open_device(number, false)?;
        // It may have been another's before it was opened.
        if !observe::is_of_file(number, file) {
            continue;
        }
        match ioctl::loop_clear(&opened) {
            Ok(()) | Err(Errno::NXIO) => {}
            Err(error) => {
                return Err(Error::io(format!("releasing loop device {number}"), error));
            }
        }
    }
    Ok(())
}

/// Makes the device as large as its file is now.
pub fn grow(device: &Device) -> Result<(), Error> {
    let (opened, _) = open_ours(device)?.ok_or(Error::NotOurs { number: device.number })?;
    ioctl::loop_set_capacity(opened)
        .map_err(|e| Error::io(format!("growing loop device {}", device.number), e))
}

/// Ends all reading and writing through the device, for good and whoever has it open: what was
/// written to it before is in the file when this returns, and everything later gets an I/O error.
///
/// A file system alone cannot promise that: what its journal holds already is written to its place by
/// the kernel later, behind its back. So the device gets a size of nothing, which the kernel does
/// only after it has written all that and waited for every request.
pub fn cut(device: &Device) -> Result<(), Error> {
    let Some((opened, info)) = open_or_gone(device)? else { return Ok(()) };
    // Less than one sector is a size of zero; zero itself would mean no limit.
    let closed = LoopInfo { size_limit: 1, ..info };
    ioctl::loop_set_status(&opened, closed)
        .map_err(|e| Error::io(format!("cutting loop device {}", device.number), e))?;
    // Without direct I/O the file's own unwritten pages would reach its disk some time later. The
    // first call may tell of blocks that came too late, which is no fault; it is told only once.
    let flushed = opened.sync_all().or_else(|_| opened.sync_all());
    flushed.map_err(|e| Error::io(format!("flushing loop device {}", device.number), e))
}

/// Opens the device and looks that it is the one that is meant; `None` when it has no file any more.
/// While it is open nobody can give it another file.
fn open_ours(device: &Device) -> Result<Option<(File, LoopInfo)>, Error> {
    if !observe::is_bound(device.number) {
        return Ok(None);
    }
    let opened = match open_device(device.number, false) {
        Ok(opened) => opened,
        Err(Error::Io { source, .. }) if vanished(&source) => return Ok(None),
        Err(error) => return Err(error),
    };
    let info = match ioctl::loop_get_status(&opened) {
        Ok(info) => info,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => {
            return Err(Error::io(format!("asking loop device {}", device.number), error));
        }
    };
    if FileId::of_loop(&info) == device.file && tag_of(&info) == device.tag {
        Ok(Some((opened, info)))
    } else {
        Err(Error::NotOurs { number: device.number })
    }
}

/// The same, where a number that serves another file by now is as good as a device that is gone.
fn open_or_gone(device: &Device) -> Result<Option<(File, LoopInfo)>, Error> {
    match open_ours(device) {
        Err(Error::NotOurs { .. }) => Ok(None),
        other => other,
    }
}

fn vanished(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NXIO | Errno::NODEV | Errno::NOENT))
}

fn path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// Opens `/dev/loopN`, and makes it first where a container has no such node.
fn open_device(number: u32, write: bool) -> Result<File, Error> {
    let path = path(number);
    match open(&path, write) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    let (major, minor) = observe::device_number(number)?;
    let device = rustix::fs::makedev(major, minor);
    match mknodat(CWD, &path, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, device) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(Error::io(format!("making {}", path.display()), error)),
    }
    open(&path, write)
}

fn open(path: impl AsRef<Path>, write: bool) -> Result<File, Error> {
    let flags = OFlags::CLOEXEC.bits().cast_signed();
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(flags)
        .open(path.as_ref())
        .map_err(|e| Error::io(format!("opening {}", path.as_ref().display()), e))
}

fn tag_field(tag: &str) -> Result<[u8; LO_NAME_SIZE], Error> {
    let bytes = tag.as_bytes();
    if bytes.is_empty() || bytes.len() > MAX_TAG || bytes.contains(&0) {
        return Err(Error::Tag(bytes.len()));
    }
    let mut field = [0; LO_NAME_SIZE];
    for (place, byte) in field.iter_mut().zip(bytes) {
        *place = *byte;
    }
    Ok(field)
}

fn tag_of(info: &LoopInfo) -> String {
    let bytes = info.file_name.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_device_numbers_are_read_as_those_of_stat() {
        for (major, minor) in
            [(7, 3), (0, 41), (8, 1), (254, 300), (4095, 0xf_ffff), (259, 0x1_2345)]
        {
            // As `new_encode_dev` of the kernel writes it.
            let device = (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
            let mut info = LoopInfo::new(0, [0; LO_NAME_SIZE]);
            info.device = u64::from(device);
            info.inode = 9;
            assert_eq!(FileId::of_loop(&info), FileId { major, minor, inode: 9 });
        }
    }

    #[test]
    fn a_tag_that_does_not_fit_is_refused() {
        assert!(tag_field(&"x".repeat(MAX_TAG)).is_ok());
        for bad in ["", "a\0b", &"x".repeat(MAX_TAG + 1)] {
            assert!(matches!(tag_field(bad), Err(Error::Tag(n)) if n == bad.len()), "{bad:?}");
        }
    }
}
