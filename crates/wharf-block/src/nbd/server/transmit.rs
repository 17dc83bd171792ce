//! Requests of an open export, one after the other.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IoSlice},
    net::TcpStream,
    num::NonZeroU64,
    os::unix::fs::FileExt,
};

use rustix::{
    fs::{Advice, FallocateFlags, fadvise, fallocate},
    io::{Errno, ReadWriteFlags, pwritev2},
};

use super::{gate::Admission, store::Image};
use crate::nbd::wire::{
    CMD_DISC, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE,
    CMD_WRITE_ZEROES, EINVAL, EIO, ENOSPC, EPERM, MAX_PAYLOAD, Reply, Request, read_head,
    read_whole, write_parts,
};

/// Larger requests go in pieces, so that a connection costs no more memory than this.
const PIECE: usize = 1 << 20;

/// From this size on data goes around the page cache: to copy it there, to account for it and to write
/// it back costs more than all the rest of the way. Smaller writes are gathered there, and what is read
/// in small pieces is read ahead.
const DIRECT_FROM: usize = 256 << 10;

/// What every disk is content with when it is written around the page cache.
const ALIGNMENT: usize = 4096;

/// Small writes come with their headers, many in one call of the kernel.
const READ_AHEAD: usize = 128 << 10;

/// So much may be held, and a read of less is copied there.
const HELD: usize = 64 << 10;

type Incoming<'a> = BufReader<&'a TcpStream>;

/// Serves until the client leaves, breaks the rules or is cut.
pub(super) fn run(admission: &Admission, stream: &TcpStream) -> io::Result<()> {
    let mut incoming = BufReader::with_capacity(READ_AHEAD, stream);
    let mut outgoing = Outgoing { stream, held: Vec::with_capacity(READ_AHEAD) };
    let mut memory = vec![0; PIECE + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let Some(piece) = memory.get_mut(start..).and_then(|rest| rest.get_mut(..PIECE)) else {
        return Ok(());
    };
    // Whoever writes in large pieces goes on so.
    let mut large = false;
    loop {
        outgoing.release_before(&incoming, Request::SIZE)?;
        if !large && incoming.buffer().is_empty() {
            expect(&admission.image, incoming.fill_buf()?);
        }
        let header = read_head::<{ Request::SIZE }>(&mut incoming, large)?;
        let Some(request) = Request::decode(&header) else { return Ok(()) };
        let carries = matches!(request.command, CMD_READ | CMD_WRITE);
        if request.command == CMD_DISC || (carries && request.length > MAX_PAYLOAD) {
            return outgoing.release();
        }
        large = request.command == CMD_WRITE && request.length as usize > READ_AHEAD;
        match request.command {
            CMD_READ => read(admission, &mut outgoing, &request, piece)?,
            CMD_WRITE => {
                outgoing.release_before(&incoming, request.length as usize)?;
                let error = write(admission, &mut incoming, &request, piece)?;
                outgoing.answer(&request, error);
            }
            _ => {
                outgoing.release()?;
                outgoing.answer(&request, change(admission, &request));
            }
        }
    }
}

/// Has the disk begin with all reads that are asked for together, which are then answered in turn.
fn expect(image: &Image, asked: &[u8]) {
    let (asked, _) = asked.as_chunks::<{ Request::SIZE }>();
    if asked.len() < 2 {
        return;
    }
    for request in asked.iter().map_while(Request::decode) {
        let length = NonZeroU64::new(u64::from(request.length));
        if request.command != CMD_READ || length.is_none() {
            return;
        }
        // It is only a hint.
        let _later = fadvise(&image.file, request.offset, length, Advice::WillNeed);
    }
}

/// Answers. They are held until there is nothing more to do without waiting for the client, so that a
/// client that has sent several requests gets their answers together.
struct Outgoing<'a> {
    stream: &'a TcpStream,
    held: Vec<u8>,
}

impl Outgoing<'_> {
    fn answer(&mut self, request: &Request, error: u32) {
        let reply = Reply { error, cookie: request.cookie };
        self.held.extend_from_slice(&reply.encode());
    }

    /// Sends what is held, unless so many bytes of the client are here already.
    fn release_before(&mut self, incoming: &Incoming, bytes: usize) -> io::Result<()> {
        if incoming.buffer().len() >= bytes && self.held.len() < HELD {
            return Ok(());
        }
        self.release()
    }

    fn release(&mut self) -> io::Result<()> {
        self.send(&[])
    }

    /// What is held, and the data after it.
    fn send(&mut self, data: &[u8]) -> io::Result<()> {
        write_parts(self.stream, &mut [IoSlice::new(&self.held), IoSlice::new(data)])?;
        self.held.clear();
        Ok(())
    }
}

/// Zero, or the protocol's number for what went wrong.
fn code(outcome: io::Result<()>) -> u32 {
    match outcome {
        Ok(()) => 0,
        Err(error) if error.kind() == io::ErrorKind::StorageFull => ENOSPC,
        Err(_) => EIO,
    }
}

fn fits(admission: &Admission, request: &Request) -> bool {
    let end = request.offset.checked_add(u64::from(request.length));
    end.is_some_and(|end| end <= admission.image.size())
}

fn read(
    admission: &Admission,
    outgoing: &mut Outgoing,
    request: &Request,
    piece: &mut [u8],
) -> io::Result<()> {
    if !fits(admission, request) {
        outgoing.answer(request, EINVAL);
        return Ok(());
    }
    let mut offset = request.offset;
    let mut left = request.length as usize;
    let mut begun = false;
    while left > 0 || !begun {
        let size = left.min(piece.len());
        let Some(part) = piece.get_mut(..size) else { return Ok(()) };
        match (read_at(&admission.image, part, offset), begun) {
            (Ok(()), true) => {}
            (Ok(()), false) => outgoing.answer(request, 0),
            // Once the reply has begun there is no way to say it but to hang up.
            (Err(_), true) => return Err(io::ErrorKind::InvalidData.into()),
            (Err(_), false) => {
                outgoing.answer(request, EIO);
                return Ok(());
            }
        }
        begun = true;
        if size < HELD {
            outgoing.held.extend_from_slice(part);
        } else {
            outgoing.send(part)?;
        }
        offset += size as u64;
        left -= size;
    }
    Ok(())
}

fn read_at(image: &Image, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    match direct(image, bytes.len(), offset) {
        // Whatever a disk does not like about it, the usual way may still go.
        Some(direct) => match direct.read_exact_at(bytes, offset) {
            Ok(()) => Ok(()),
            Err(_) => image.file.read_exact_at(bytes, offset),
        },
        None => image.file.read_exact_at(bytes, offset),
    }
}

/// The file to use around the page cache, if this is something for it.
fn direct(image: &Image, length: usize, offset: u64) -> Option<&File> {
    let aligned = offset.is_multiple_of(ALIGNMENT as u64) && length.is_multiple_of(ALIGNMENT);
    image.direct.as_ref().filter(|_| aligned && length >= DIRECT_FROM)
}

/// Takes the payload whatever comes of it, since the next request is behind it.
fn write(
    admission: &Admission,
    incoming: &mut Incoming,
    request: &Request,
    piece: &mut [u8],
) -> io::Result<u32> {
    let mut error = if !admission.may_write() {
        EPERM
    } else if !fits(admission, request) {
        ENOSPC
    } else {
        0
    };
    let durable = request.flags & CMD_FLAG_FUA != 0;
    let mut offset = request.offset;
    let mut left = request.length as usize;
    while left > 0 {
        let size = left.min(piece.len());
        let Some(part) = piece.get_mut(..size) else { return Ok(EIO) };
        read_whole(incoming, part)?;
        if admission.is_cut() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if error == 0 {
            error = code(write_at(&admission.image, part, offset, durable));
        }
        offset = offset.saturating_add(size as u64);
        left -= size;
    }
    Ok(error)
}

fn write_at(image: &Image, mut bytes: &[u8], mut offset: u64, durable: bool) -> io::Result<()> {
    let direct = direct(image, bytes.len(), offset);
    let file = direct.unwrap_or(&image.file);
    let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
    while !bytes.is_empty() {
        match pwritev2(file, &[IoSlice::new(bytes)], offset, flags) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            // A disk that wants more than the usual alignment.
            Err(Errno::INVAL) if direct.is_some() => {
                image.file.write_all_at(bytes, offset)?;
                return if durable { image.file.sync_data() } else { Ok(()) };
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The requests without payload.
fn change(admission: &Admission, request: &Request) -> u32 {
    let file = &admission.image.file;
    if request.command == CMD_FLUSH {
        return code(file.sync_data());
    }
    if !matches!(request.command, CMD_TRIM | CMD_WRITE_ZEROES) {
        return EINVAL;
    }
    if !admission.may_write() || admission.is_cut() {
        return EPERM;
    }
    if !fits(admission, request) {
        return EINVAL;
    }
    let (offset, length) = (request.offset, u64::from(request.length));
    let keep_room = request.flags & CMD_FLAG_NO_HOLE != 0;
    let mut error = code(match request.command {
        CMD_TRIM => trim(file, offset, length),
        _ => zero(file, offset, length, keep_room),
    });
    if error == 0 && request.flags & CMD_FLAG_FUA != 0 {
        error = code(file.sync_data());
    }
    error
}

/// Gives the room back where the file system can; it is only a hint.
fn trim(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match length {
        0 => Ok(()),
        _ => match fallocate(file, hole, offset, length) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        },
    }
}

fn zero(file: &File, offset: u64, length: u64, keep_room: bool) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let kind = if keep_room { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
    match fallocate(file, kind | FallocateFlags::KEEP_SIZE, offset, length) {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    let zeros = vec![0; PIECE];
    let end = offset + length;
    let mut at = offset;
    while at < end {
        let size = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
        file.write_all_at(zeros.get(..size).unwrap_or_default(), at)?;
        at += size as u64;
    }
    Ok(())
}
