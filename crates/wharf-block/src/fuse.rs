//! A file system with one file, spoken over `/dev/fuse` without a library.
//!
//! The kernel is told once how we speak (`INIT`) and knows it for as long as the file system is
//! mounted. So the process that answers can be replaced by another that has the same open
//! `/dev/fuse`: it asks for everything that the first one had taken and not answered ([`resend`]), and
//! no request is lost. That is why this is not built on a library, which would wait for its `INIT`.

mod wire;

use std::{
    ffi::CString,
    fs::{File, OpenOptions},
    io::{self, IoSlice, Write},
    os::{
        fd::{AsFd, AsRawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::{
    io::Errno,
    mount::{MountFlags, mount},
};

use wire::{Attributes, DISK, Message, Operation, ROOT};

/// What the kernel puts into one request at most, in both directions.
pub(crate) const MAX_TRANSFER: usize = 1 << 20;
/// The payload, and the largest header before it in whole pages.
const BUFFER: usize = MAX_TRANSFER + 4096;

/// The name of the file.
pub(crate) const DISK_NAME: &str = "disk";

/// What is behind the file.
pub(crate) trait Disk {
    fn size(&self) -> u64;
    fn read_only(&self) -> bool;
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Errno>;
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Errno>;
    fn flush(&mut self) -> Result<(), Errno>;
    fn zero(&mut self, offset: u64, length: u64, keep_room: bool) -> Result<(), Errno>;
    fn grow(&mut self, size: u64) -> Result<(), Errno>;
}

/// Mounts a file system that nobody answers for yet.
pub(crate) fn mount_on(directory: &Path, image: &str) -> io::Result<File> {
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd());
    let source = CString::new(format!("wharf:{image}").as_bytes())?;
    let target = CString::new(directory.as_os_str().as_bytes())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(source.as_c_str(), target.as_c_str(), c"fuse", flags, CString::new(data)?.as_c_str())?;
    Ok(fuse)
}

/// Asks for every request that was taken and not answered. It has to come before the first request
/// is taken here, or that one would come twice. `false`: this kernel cannot do it.
pub(crate) fn resend(fuse: &File) -> io::Result<bool> {
    match (&mut &*fuse).write_all(&wire::resend_notice()) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Answers requests until the file system is unmounted or its connection aborted. Several threads do
/// this at once.
pub(crate) fn serve(fuse: &File, disk: &mut impl Disk) -> io::Result<()> {
    let mut incoming = vec![0; BUFFER];
    let mut outgoing = vec![0; MAX_TRANSFER];
    loop {
        let size = match rustix::io::read(fuse, incoming.as_mut_slice()) {
            Ok(size) => size,
            // The request was withdrawn before we had it.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let Some(message) = Message::parse(incoming.get(..size).unwrap_or_default()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match answer(&message, disk, &mut outgoing) {
            Outcome::Nothing => {}
            Outcome::Bytes(bytes) => reply(fuse, message.unique, Ok(&bytes))?,
            Outcome::Data(count) => {
                reply(fuse, message.unique, Ok(outgoing.get(..count).unwrap_or_default()))?;
            }
            Outcome::Error(error) => reply(fuse, message.unique, Err(error))?,
        }
    }
}

enum Outcome {
    /// This kind of request has no answer.
    Nothing,
    Bytes(Vec<u8>),
    /// So much of the outgoing buffer.
    Data(usize),
    Error(Errno),
}

impl From<Result<Outcome, Errno>> for Outcome {
    fn from(result: Result<Outcome, Errno>) -> Self {
        result.unwrap_or_else(Outcome::Error)
    }
}

fn answer(message: &Message, disk: &mut impl Disk, outgoing: &mut [u8]) -> Outcome {
    let done = |result: Result<(), Errno>| result.map(|()| Outcome::Bytes(Vec::new())).into();
    let attributes =
        |disk: &dyn Disk, node| Attributes { node, size: disk.size(), read_only: disk.read_only() };
    match message.operation {
        Operation::Init { flags } => Outcome::Bytes(wire::init_answer(flags)),
        Operation::Lookup { name } if message.node == ROOT && name == DISK_NAME.as_bytes() => {
            Outcome::Bytes(attributes(disk, DISK).entry())
        }
        Operation::Lookup { .. } => Outcome::Error(Errno::NOENT),
        Operation::GetAttributes => Outcome::Bytes(attributes(disk, message.node).answer()),
        Operation::SetAttributes { size } => {
            let grown = match size {
                Some(size) if message.node == DISK => grow(disk, size),
                _ => Ok(()),
            };
            grown.map(|()| Outcome::Bytes(attributes(disk, message.node).answer())).into()
        }
        Operation::Open => Outcome::Bytes(wire::open_answer(message.node == DISK)),
        Operation::Read { offset, size } => read(disk, offset, size, outgoing).into(),
        Operation::Write { offset, bytes } => write(disk, offset, bytes).into(),
        Operation::Fsync => done(disk.flush()),
        Operation::Fallocate { offset, length, mode } => {
            done(fallocate(disk, offset, length, mode))
        }
        Operation::ReadDirectory { offset } => Outcome::Bytes(wire::directory(offset, DISK_NAME)),
        Operation::Close => done(Ok(())),
        Operation::FileSystem => Outcome::Bytes(wire::file_system(disk.size())),
        Operation::Silent => Outcome::Nothing,
        Operation::Unknown => Outcome::Error(Errno::NOSYS),
    }
}

fn read(
    disk: &mut (impl Disk + ?Sized),
    offset: u64,
    size: u32,
    outgoing: &mut [u8],
) -> Result<Outcome, Errno> {
    let rest = usize::try_from(disk.size().saturating_sub(offset)).unwrap_or(usize::MAX);
    let count = rest.min(size as usize);
    let Some(part) = outgoing.get_mut(..count) else { return Err(Errno::INVAL) };
    if count > 0 {
        disk.read(offset, part)?;
    }
    Ok(Outcome::Data(count))
}

fn write(disk: &mut impl Disk, offset: u64, bytes: &[u8]) -> Result<Outcome, Errno> {
    if disk.read_only() {
        return Err(Errno::ROFS);
    }
    let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::INVAL)?;
    if end > disk.size() {
        return Err(Errno::NOSPC);
    }
    disk.write(offset, bytes)?;
    Ok(Outcome::Bytes(wire::write_answer(bytes.len() as u32)))
}

fn grow(disk: &mut impl Disk, size: u64) -> Result<(), Errno> {
    if disk.read_only() {
        return Err(Errno::ROFS);
    }
    match size.cmp(&disk.size()) {
        std::cmp::Ordering::Less => Err(Errno::INVAL),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => disk.grow(size),
    }
}

/// The kernel asks for holes and zeros by the same call; a hole has to read as zeros here.
fn fallocate(disk: &mut impl Disk, offset: u64, length: u64, mode: u32) -> Result<(), Errno> {
    const KEEP_SIZE: u32 = 1;
    const PUNCH_HOLE: u32 = 2;
    const ZERO_RANGE: u32 = 16;
    if disk.read_only() {
        return Err(Errno::ROFS);
    }
    let end = offset.checked_add(length).ok_or(Errno::INVAL)?;
    if end > disk.size() {
        return Err(Errno::INVAL);
    }
    match mode & !KEEP_SIZE {
        PUNCH_HOLE => disk.zero(offset, length, false),
        ZERO_RANGE => disk.zero(offset, length, true),
        _ => Err(Errno::OPNOTSUPP),
    }
}

fn reply(fuse: &File, unique: u64, outcome: Result<&[u8], Errno>) -> io::Result<()> {
    let (data, error) = match outcome {
        Ok(data) => (data, 0),
        Err(error) => (&[][..], -error.raw_os_error()),
    };
    let head = wire::out_header(data.len(), error, unique);
    // The kernel takes an answer in one piece or not at all.
    match rustix::io::writev(fuse.as_fd(), &[IoSlice::new(&head), IoSlice::new(data)]) {
        Ok(_) => Ok(()),
        // The request was withdrawn, or the connection aborted: the next read says which.
        Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
