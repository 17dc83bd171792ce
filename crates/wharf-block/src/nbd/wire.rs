//! The bytes of the protocol, and of TCP beneath it.

use std::{
    io::{self, BufReader, IoSlice, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
pub(crate) const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const REPLY_MAGIC: u32 = 0x6744_6698;

pub(crate) const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub(crate) const FLAG_NO_ZEROES: u16 = 2;

pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_ABORT: u32 = 2;
pub(crate) const OPT_LIST: u32 = 3;
pub(crate) const OPT_INFO: u32 = 6;
pub(crate) const OPT_GO: u32 = 7;
/// Ours: a JSON body of [`super::control`], answered by a reply of the same number.
pub(crate) const OPT_WHARF: u32 = u32::from_be_bytes(*b"WHAR");

pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const REP_ERROR: u32 = 1 << 31;
pub(crate) const REP_ERR_UNSUP: u32 = REP_ERROR | 1;
pub(crate) const REP_ERR_POLICY: u32 = REP_ERROR | 2;
pub(crate) const REP_ERR_INVALID: u32 = REP_ERROR | 3;
pub(crate) const REP_ERR_UNKNOWN: u32 = REP_ERROR | 6;
pub(crate) const REP_ERR_SHUTDOWN: u32 = REP_ERROR | 7;
pub(crate) const REP_ERR_TOO_BIG: u32 = REP_ERROR | 9;

pub(crate) const INFO_EXPORT: u16 = 0;
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

pub(crate) const EXPORT_HAS_FLAGS: u16 = 1;
pub(crate) const EXPORT_READ_ONLY: u16 = 2;
pub(crate) const EXPORT_FLUSH: u16 = 4;
pub(crate) const EXPORT_FUA: u16 = 8;
pub(crate) const EXPORT_TRIM: u16 = 32;
pub(crate) const EXPORT_WRITE_ZEROES: u16 = 64;
pub(crate) const EXPORT_MULTI_CONN: u16 = 256;

pub(crate) const CMD_READ: u16 = 0;
pub(crate) const CMD_WRITE: u16 = 1;
pub(crate) const CMD_DISC: u16 = 2;
pub(crate) const CMD_FLUSH: u16 = 3;
pub(crate) const CMD_TRIM: u16 = 4;
pub(crate) const CMD_WRITE_ZEROES: u16 = 6;

pub(crate) const CMD_FLAG_FUA: u16 = 1;
pub(crate) const CMD_FLAG_NO_HOLE: u16 = 2;

/// Errors have numbers of their own in the protocol, which are those of Linux.
pub(crate) const EPERM: u32 = 1;
pub(crate) const EIO: u32 = 5;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;

/// The most that one request may carry. Every client of the protocol keeps to it.
pub(crate) const MAX_PAYLOAD: u32 = 32 << 20;
/// What an option or its reply may carry; an answer with a page of images is the longest.
pub(crate) const MAX_OPTION: u32 = 256 << 10;

/// Fields read one after the other. `None` when too little is left.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn be16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    pub(crate) fn be32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    pub(crate) fn be64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    /// In the order of this machine, as the kernel writes it.
    pub(crate) fn ne32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_ne_bytes)
    }

    pub(crate) fn ne64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_ne_bytes)
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl Request {
    pub(crate) const SIZE: usize = 28;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::SIZE);
        bytes.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes.extend_from_slice(&self.flags.to_be_bytes());
        bytes.extend_from_slice(&self.command.to_be_bytes());
        bytes.extend_from_slice(&self.cookie.to_be_bytes());
        bytes.extend_from_slice(&self.offset.to_be_bytes());
        bytes.extend_from_slice(&self.length.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.be32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: fields.be16()?,
            command: fields.be16()?,
            cookie: fields.be64()?,
            offset: fields.be64()?,
            length: fields.be32()?,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    pub error: u32,
    pub cookie: u64,
}

impl Reply {
    pub(crate) const SIZE: usize = 16;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::SIZE);
        bytes.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
        bytes.extend_from_slice(&self.error.to_be_bytes());
        bytes.extend_from_slice(&self.cookie.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.be32()? != REPLY_MAGIC {
            return None;
        }
        Some(Self { error: fields.be32()?, cookie: fields.be64()? })
    }
}

/// A reply to an option, with what belongs to it.
pub(crate) fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(20 + data.len());
    bytes.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

pub(crate) fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + data.len());
    bytes.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// A stream whose every call ends at one moment, however slowly the other side drips.
pub(crate) struct Until<'a> {
    pub stream: &'a TcpStream,
    pub deadline: Instant,
}

impl Until<'_> {
    fn remaining(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn vec(&mut self, length: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.remaining()?))?;
        (&mut &*self.stream).read(buffer)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.remaining()?))?;
        (&mut &*self.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A header. It is taken alone if something large is to come after it, which then goes to its place at once
/// ([`read_whole`]).
pub(crate) fn read_head<const N: usize>(
    from: &mut BufReader<impl Read>,
    large: bool,
) -> io::Result<[u8; N]> {
    let mut head = [0; N];
    if large && from.buffer().is_empty() {
        from.get_mut().read_exact(&mut head)?;
    } else {
        from.read_exact(&mut head)?;
    }
    Ok(head)
}

/// Fills all of it: with what is here already, and past the reader's memory where the rest is so much that
/// copying it twice costs more than asking for it alone.
pub(crate) fn read_whole(from: &mut BufReader<impl Read>, to: &mut [u8]) -> io::Result<()> {
    let here = from.buffer().len();
    match to.split_at_mut_checked(here) {
        Some((start, rest)) if rest.len() >= from.capacity() / 2 => {
            from.read_exact(start)?;
            from.get_mut().read_exact(rest)
        }
        _ => from.read_exact(to),
    }
}

/// All parts whole, with as few calls as the kernel allows.
pub(crate) fn write_parts(mut to: impl Write, mut parts: &mut [IoSlice]) -> io::Result<()> {
    // Those that are empty at the beginning would look like nothing written.
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match to.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut parts, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_are_read_as_they_were_written() {
        let request =
            Request { flags: 1, command: CMD_WRITE, cookie: 9, offset: 1 << 40, length: 4096 };
        let bytes: [u8; 28] = request.encode().try_into().unwrap();
        assert_eq!(Request::decode(&bytes), Some(request));
        let reply = Reply { error: EIO, cookie: 9 };
        let bytes: [u8; 16] = reply.encode().try_into().unwrap();
        assert_eq!(Reply::decode(&bytes), Some(reply));
    }

    #[test]
    fn bytes_without_their_magic_are_nothing() {
        assert_eq!(Request::decode(&[7; 28]), None);
        assert_eq!(Reply::decode(&[7; 16]), None);
    }

    #[test]
    fn both_parts_arrive_whole_through_a_writer_that_takes_little_at_a_time() {
        struct Sip(Vec<u8>);
        impl Write for Sip {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let few = bytes.len().min(3);
                self.0.extend(bytes.iter().take(few));
                Ok(few)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut sip = Sip(Vec::new());
        let mut parts = [b"" as &[u8], b"head", b"and the data"].map(IoSlice::new);
        write_parts(&mut sip, &mut parts).unwrap();
        assert_eq!(sip.0, b"headand the data");
    }

    #[test]
    fn what_is_large_goes_past_the_readers_memory_and_nothing_is_lost_on_the_way() {
        let bytes: Vec<u8> = (0..=255).collect();
        for large in [false, true] {
            let mut from = BufReader::with_capacity(16, bytes.as_slice());
            let mut read = read_head::<4>(&mut from, large).unwrap().to_vec();
            assert_eq!(from.buffer().is_empty(), large);
            for length in [100, 3, 12, 8, 129] {
                let mut part = vec![0; length];
                read_whole(&mut from, &mut part).unwrap();
                read.extend(part);
            }
            assert_eq!(read, bytes);
            assert!(read_whole(&mut from, &mut [0]).is_err());
        }
    }
}
