//! The bytes between the kernel and us, as in `linux/fuse.h`, in the order of this machine.

use crate::nbd::Fields;

pub(super) const ROOT: u64 = 1;
pub(super) const DISK: u64 = 2;

/// As of the version in which requests can be sent again.
const MAJOR: u32 = 7;
const MINOR: u32 = 40;

const ASYNC_READ: u64 = 1;
const BIG_WRITES: u64 = 1 << 5;
const ASYNC_DIO: u64 = 1 << 15;
const MAX_PAGES: u64 = 1 << 22;
const INIT_EXT: u64 = 1 << 30;
const HAS_RESEND: u64 = 1 << 39;
const WANTED: u64 = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES | INIT_EXT | HAS_RESEND;

const FOPEN_DIRECT_IO: u32 = 1;
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

const NOTIFY_RESEND: i32 = 7;

/// Nothing here changes without us. So the kernel never has to ask for it, and `stat` answers also
/// while the disk behind hangs.
const VALID_SECONDS: u64 = 365 * 24 * 3600;

/// How many requests of a queue the kernel sends before it waits for answers.
const MAX_BACKGROUND: u16 = 64;
const CONGESTION: u16 = 48;

pub(super) struct Message<'a> {
    pub unique: u64,
    pub node: u64,
    pub operation: Operation<'a>,
}

pub(super) enum Operation<'a> {
    Init {
        flags: u64,
    },
    Lookup {
        name: &'a [u8],
    },
    GetAttributes,
    SetAttributes {
        size: Option<u64>,
    },
    Open,
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        offset: u64,
        bytes: &'a [u8],
    },
    Fsync,
    Fallocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    ReadDirectory {
        offset: u64,
    },
    FileSystem,
    /// Closing, also of a directory, and the question whether one may.
    Close,
    /// What must not be answered.
    Silent,
    Unknown,
}

impl<'a> Message<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let length = fields.ne32()?;
        if usize::try_from(length).ok()? != bytes.len() {
            return None;
        }
        let opcode = fields.ne32()?;
        let unique = fields.ne64()?;
        let node = fields.ne64()?;
        // User, group, process, extensions.
        fields.take(16)?;
        Some(Self { unique, node, operation: Operation::parse(opcode, fields)? })
    }
}

impl<'a> Operation<'a> {
    /// How many bytes are read or written by it, if that is all it does.
    pub(super) fn weight(&self) -> Option<usize> {
        match self {
            Self::Read { size, .. } => Some(*size as usize),
            Self::Write { bytes, .. } => Some(bytes.len()),
            _ => None,
        }
    }

    fn parse(opcode: u32, mut fields: Fields<'a>) -> Option<Self> {
        Some(match opcode {
            1 => Self::Lookup { name: fields.0.split(|byte| *byte == 0).next()? },
            // Forget, interrupt, destroy, forget many.
            2 | 36 | 38 | 42 => Self::Silent,
            3 => Self::GetAttributes,
            4 => {
                const SIZE: u32 = 1 << 3;
                let valid = fields.ne32()?;
                fields.take(12)?;
                let size = fields.ne64()?;
                Self::SetAttributes { size: (valid & SIZE != 0).then_some(size) }
            }
            14 | 27 => Self::Open,
            15 => {
                fields.take(8)?;
                Self::Read { offset: fields.ne64()?, size: fields.ne32()? }
            }
            16 => {
                fields.take(8)?;
                let offset = fields.ne64()?;
                let size = fields.ne32()?;
                fields.take(20)?;
                Self::Write { offset, bytes: fields.take(usize::try_from(size).ok()?)? }
            }
            17 => Self::FileSystem,
            18 | 25 | 29 | 34 => Self::Close,
            20 => Self::Fsync,
            26 => {
                fields.take(12)?;
                let low = u64::from(fields.ne32()?);
                let high = u64::from(fields.ne32().unwrap_or(0));
                Self::Init { flags: low | high << 32 }
            }
            28 => {
                fields.take(8)?;
                Self::ReadDirectory { offset: fields.ne64()? }
            }
            43 => {
                fields.take(8)?;
                let (offset, length) = (fields.ne64()?, fields.ne64()?);
                Self::Fallocate { offset, length, mode: fields.ne32()? }
            }
            _ => Self::Unknown,
        })
    }
}

/// Numbers one after the other.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }
}

pub(super) fn out_header(data: usize, error: i32, unique: u64) -> Vec<u8> {
    let length = u32::try_from(data + 16).unwrap_or(u32::MAX);
    Out::default().u32(length).u32(error.cast_unsigned()).u64(unique).0
}

/// A notice is an answer to nothing, with its kind where the error would be.
pub(super) fn resend_notice() -> Vec<u8> {
    out_header(0, NOTIFY_RESEND, 0)
}

pub(super) fn init_answer(offered: u64) -> Vec<u8> {
    let flags = offered & WANTED;
    let pages = super::MAX_TRANSFER / 4096;
    Out::default()
        .u32(MAJOR)
        .u32(MINOR)
        .u32(super::MAX_TRANSFER as u32)
        .u32(flags as u32)
        .u16(MAX_BACKGROUND)
        .u16(CONGESTION)
        .u32(super::MAX_TRANSFER as u32)
        .u32(1)
        .u16(pages as u16)
        .u16(0)
        .u32((flags >> 32) as u32)
        .zeros(28)
        .0
}

/// Around the page cache: the loop device above has one, and what is written has to be at the server
/// when it is answered.
pub(super) fn open_answer(disk: bool) -> Vec<u8> {
    let flags = if disk { FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES } else { 0 };
    Out::default().u64(0).u32(flags).u32(0).0
}

pub(super) fn write_answer(size: u32) -> Vec<u8> {
    Out::default().u32(size).u32(0).0
}

pub(super) fn file_system(size: u64) -> Vec<u8> {
    const BLOCK: u64 = 4096;
    Out::default()
        .u64(size / BLOCK)
        .zeros(32)
        .u32(BLOCK as u32)
        .u32(255)
        .u32(BLOCK as u32)
        .zeros(28)
        .0
}

pub(super) fn directory(offset: u64, name: &str) -> Vec<u8> {
    const REGULAR: u32 = 8;
    if offset > 0 {
        return Vec::new();
    }
    let mut out = Out::default().u64(DISK).u64(1).u32(name.len() as u32).u32(REGULAR);
    out.0.extend_from_slice(name.as_bytes());
    let padding = out.0.len().next_multiple_of(8) - out.0.len();
    out.zeros(padding).0
}

pub(super) struct Attributes {
    pub node: u64,
    pub size: u64,
    pub read_only: bool,
}

impl Attributes {
    fn fields(&self, out: Out) -> Out {
        let (mode, size, links) = match (self.node, self.read_only) {
            (DISK, false) => (0o100_600, self.size, 1),
            (DISK, true) => (0o100_400, self.size, 1),
            _ => (0o040_700, 0, 2),
        };
        out.u64(self.node)
            .u64(size)
            .u64(size / 512)
            .zeros(24 + 12)
            .u32(mode)
            .u32(links)
            .zeros(12)
            .u32(4096)
            .u32(0)
    }

    pub(super) fn answer(&self) -> Vec<u8> {
        self.fields(Out::default().u64(VALID_SECONDS).u32(0).u32(0)).0
    }

    pub(super) fn entry(&self) -> Vec<u8> {
        let times = Out::default().u64(VALID_SECONDS).u64(VALID_SECONDS).u32(0).u32(0);
        let head = Out::default().u64(self.node).u64(0);
        self.fields(Out([head.0, times.0].concat())).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_kernels_size() {
        let disk = Attributes { node: DISK, size: 4096, read_only: false };
        assert_eq!(disk.answer().len(), 104);
        assert_eq!(disk.entry().len(), 128);
        assert_eq!(init_answer(u64::MAX).len(), 64);
        assert_eq!(open_answer(true).len(), 16);
        assert_eq!(file_system(4096).len(), 80);
        assert_eq!(write_answer(1).len(), 8);
        assert_eq!(directory(0, "disk").len(), 32);
        assert_eq!(out_header(3, -5, 9).len(), 16);
    }

    #[test]
    fn a_message_whose_length_is_not_its_own_is_none() {
        assert!(Message::parse(&[]).is_none());
        assert!(Message::parse(&[1; 40]).is_none());
        let mut bytes = Out::default().u32(40).u32(3).u64(7).u64(1).zeros(16).0;
        let message = Message::parse(&bytes).unwrap();
        assert_eq!((message.unique, message.node), (7, 1));
        bytes.push(0);
        assert!(Message::parse(&bytes).is_none());
    }
}
