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
    mem,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    path::Path,
    sync::{Mutex, PoisonError},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
    mount::{MountFlags, mount},
};

use crate::nbd::client::Piece;
use wire::{Attributes, DISK, Message, Operation, ROOT};

/// What the kernel puts into one request at most, in both directions.
pub(crate) const MAX_TRANSFER: usize = 1 << 20;
/// The payload, and the largest header before it in whole pages.
const BUFFER: usize = MAX_TRANSFER + 4096;
/// When so many bytes are to be read or written, no more requests are taken with them.
const GATHERED: usize = 64 << 10;

/// The name of the file.
pub(crate) const DISK_NAME: &str = "disk";

/// What is behind the file.
pub(crate) trait Disk {
    fn size(&self) -> u64;
    fn read_only(&self) -> bool;
    /// An error for all of them; what went wrong with one is noted there.
    fn read(&mut self, pieces: &mut [Piece<&mut [u8]>]) -> Result<(), Errno>;
    fn write(&mut self, pieces: &mut [Piece<&[u8]>]) -> Result<(), Errno>;
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

/// The open `/dev/fuse`. One thread at a time takes requests from it, and takes several when they are
/// there already: to wake a thread costs more than a small read.
pub(crate) struct Channel {
    fuse: File,
    taking: Mutex<()>,
}

impl Channel {
    pub(crate) fn new(fuse: File) -> io::Result<Self> {
        let flags = fcntl_getfl(&fuse)?;
        fcntl_setfl(&fuse, flags | OFlags::NONBLOCK)?;
        Ok(Self { fuse, taking: Mutex::default() })
    }

    /// Answers requests until the file system is unmounted or its connection aborted. Several threads
    /// do this at once.
    pub(crate) fn serve(&self, disk: &mut impl Disk) -> io::Result<()> {
        let mut incoming = vec![0; BUFFER + GATHERED];
        let mut outgoing = vec![0; MAX_TRANSFER + GATHERED];
        loop {
            let messages = self.take(&mut incoming)?;
            if messages.is_empty() {
                return Ok(());
            }
            self.read(&messages, disk, &mut outgoing)?;
            self.write(&messages, disk)?;
            for message in &messages {
                match answer(message, disk) {
                    Outcome::Nothing => {}
                    Outcome::Bytes(bytes) => self.reply(message.unique, Ok(&bytes))?,
                    Outcome::Error(error) => self.reply(message.unique, Err(error))?,
                }
            }
        }
    }

    /// Waits for a request and takes more that are there, as long as they are small. None: it is over.
    fn take<'b>(&self, mut buffer: &'b mut [u8]) -> io::Result<Vec<Message<'b>>> {
        let _alone = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut messages = Vec::new();
        let mut gathered = 0;
        while gathered < GATHERED && buffer.len() >= BUFFER {
            let size = match rustix::io::read(&self.fuse, &mut *buffer) {
                Ok(size) => size,
                // The request was withdrawn before we had it.
                Err(Errno::NOENT | Errno::INTR) => continue,
                Err(Errno::AGAIN) if messages.is_empty() => {
                    self.wait()?;
                    continue;
                }
                Err(Errno::AGAIN | Errno::NODEV | Errno::CONNABORTED) => break,
                Err(error) => return Err(error.into()),
            };
            let (taken, rest) = mem::take(&mut buffer).split_at_mut(size);
            buffer = rest;
            let message = Message::parse(taken).ok_or(io::ErrorKind::InvalidData)?;
            gathered += message.operation.weight().unwrap_or(GATHERED);
            messages.push(message);
        }
        Ok(messages)
    }

    fn wait(&self) -> io::Result<()> {
        match poll(&mut [PollFd::new(&self.fuse, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read(
        &self,
        messages: &[Message],
        disk: &mut impl Disk,
        mut outgoing: &mut [u8],
    ) -> io::Result<()> {
        let (mut asked, mut pieces) = (Vec::new(), Vec::new());
        for message in messages {
            let Operation::Read { offset, size } = message.operation else { continue };
            let rest = usize::try_from(disk.size().saturating_sub(offset)).unwrap_or(usize::MAX);
            let count = rest.min(size as usize);
            match mem::take(&mut outgoing).split_at_mut_checked(count) {
                // Behind the end.
                Some((_, rest)) if count == 0 => {
                    outgoing = rest;
                    self.reply(message.unique, Ok(&[]))?;
                }
                Some((bytes, rest)) => {
                    outgoing = rest;
                    asked.push(message.unique);
                    pieces.push(Piece::new(offset, bytes));
                }
                None => self.reply(message.unique, Err(Errno::INVAL))?,
            }
        }
        if pieces.is_empty() {
            return Ok(());
        }
        let all = disk.read(&mut pieces);
        for (unique, piece) in asked.into_iter().zip(pieces) {
            self.reply(unique, all.and(checked(piece.error)).map(|()| &*piece.bytes))?;
        }
        Ok(())
    }

    fn write(&self, messages: &[Message], disk: &mut impl Disk) -> io::Result<()> {
        let (mut asked, mut pieces) = (Vec::new(), Vec::new());
        for message in messages {
            let Operation::Write { offset, bytes } = message.operation else { continue };
            match may_write(disk, offset, bytes) {
                Ok(()) => {
                    asked.push(message.unique);
                    pieces.push(Piece::new(offset, bytes));
                }
                Err(error) => self.reply(message.unique, Err(error))?,
            }
        }
        if pieces.is_empty() {
            return Ok(());
        }
        let all = disk.write(&mut pieces);
        for (unique, piece) in asked.into_iter().zip(pieces) {
            let answer = wire::write_answer(piece.bytes.len() as u32);
            self.reply(unique, all.and(checked(piece.error)).map(|()| answer.as_slice()))?;
        }
        Ok(())
    }

    fn reply(&self, unique: u64, outcome: Result<&[u8], Errno>) -> io::Result<()> {
        let (data, error) = match outcome {
            Ok(data) => (data, 0),
            Err(error) => (&[][..], -error.raw_os_error()),
        };
        let head = wire::out_header(data.len(), error, unique);
        // The kernel takes an answer in one piece or not at all.
        match rustix::io::writev(&self.fuse, &[IoSlice::new(&head), IoSlice::new(data)]) {
            Ok(_) => Ok(()),
            // The request was withdrawn, or the connection aborted: the next read says which.
            Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn checked(error: u32) -> Result<(), Errno> {
    match error {
        0 => Ok(()),
        error => Err(Errno::from_raw_os_error(i32::try_from(error).unwrap_or(5))),
    }
}

enum Outcome {
    /// This kind of request has no answer, or has it already.
    Nothing,
    Bytes(Vec<u8>),
    Error(Errno),
}

impl From<Result<Outcome, Errno>> for Outcome {
    fn from(result: Result<Outcome, Errno>) -> Self {
        result.unwrap_or_else(Outcome::Error)
    }
}

fn answer(message: &Message, disk: &mut impl Disk) -> Outcome {
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
        Operation::Fsync => done(disk.flush()),
        Operation::Fallocate { offset, length, mode } => {
            done(fallocate(disk, offset, length, mode))
        }
        Operation::ReadDirectory { offset } => Outcome::Bytes(wire::directory(offset, DISK_NAME)),
        Operation::Close => done(Ok(())),
        Operation::FileSystem => Outcome::Bytes(wire::file_system(disk.size())),
        Operation::Read { .. } | Operation::Write { .. } | Operation::Silent => Outcome::Nothing,
        Operation::Unknown => Outcome::Error(Errno::NOSYS),
    }
}

fn may_write(disk: &impl Disk, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
    if disk.read_only() {
        return Err(Errno::ROFS);
    }
    let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::INVAL)?;
    if end > disk.size() {
        return Err(Errno::NOSPC);
    }
    Ok(())
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
