//! The wire between driver and agent: one request and one reply, each a frame of bounded JSON.
//!
//! A frame is three letters, the version of the wire, the length of the body as four bytes with the
//! highest first, and the body. The agent installs the driver that fits it; the version is for the
//! driver of an older agent that is still running when the new one starts.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Read, Write},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

const MAGIC: [u8; 3] = *b"WFX";
pub const VERSION: u8 = 1;
pub const HEADER: usize = 8;
/// A mount call carries the secrets of a volume, which Kubernetes limits far below; the kernel limits
/// one argument of the driver to twice as much.
pub const MAX_BODY: usize = 64 * 1024;

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "lowercase")]
pub enum Request {
    /// kubelet has found the driver of this version.
    Init {
        version: String,
    },
    Mount {
        dir: String,
        options: BTreeMap<String, String>,
    },
    Unmount {
        dir: String,
    },
}

/// Without the values of the options: some are secrets.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Init { version } => f.debug_struct("Init").field("version", version).finish(),
            Request::Mount { dir, options } => {
                let keys: Vec<&String> = options.keys().collect();
                f.debug_struct("Mount").field("dir", dir).field("options", &keys).finish()
            }
            Request::Unmount { dir } => f.debug_struct("Unmount").field("dir", dir).finish(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    pub status: Status,
    /// A sentence for people; kubelet shows it as an event of the pod.
    #[serde(default)]
    pub message: String,
}

/// The words are kubelet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    Success,
    Failure,
    #[serde(rename = "Not supported")]
    NotSupported,
}

#[derive(Debug)]
pub enum FrameError {
    /// It does not begin like a frame.
    NotAFrame,
    Version(u8),
    /// So many bytes are too many.
    TooLong(usize),
    Json(serde_json::Error),
    /// Reading or writing failed, or the other side ended in the middle.
    Io(io::Error),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::NotAFrame => f.write_str("what came is not a frame"),
            FrameError::Version(version) => {
                write!(f, "the other side speaks version {version} and this one {VERSION}")
            }
            FrameError::TooLong(length) => {
                write!(f, "a frame of {length} bytes is longer than {MAX_BODY}")
            }
            FrameError::Json(error) => write!(f, "the frame holds no valid JSON ({error})"),
            FrameError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the connection ended early")
            }
            FrameError::Io(error) => write!(f, "the connection failed ({error})"),
        }
    }
}

impl std::error::Error for FrameError {}

/// The bytes of a frame.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; HEADER];
    serde_json::to_writer(&mut bytes, value).map_err(FrameError::Json)?;
    let length = bytes.len() - HEADER;
    let size = u32::try_from(length).ok().filter(|_| length <= MAX_BODY);
    let size = size.ok_or(FrameError::TooLong(length))?;
    let header = MAGIC.into_iter().chain([VERSION]).chain(size.to_be_bytes());
    for (to, from) in bytes.iter_mut().zip(header) {
        *to = from;
    }
    Ok(bytes)
}

/// The length of the body that follows this header. Nothing is set aside before it is known to be
/// allowed.
pub fn body_length(header: [u8; HEADER]) -> Result<usize, FrameError> {
    let [a, b, c, version, size @ ..] = header;
    if [a, b, c] != MAGIC {
        return Err(FrameError::NotAFrame);
    }
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    let length = usize::try_from(u32::from_be_bytes(size)).unwrap_or(usize::MAX);
    if length > MAX_BODY { Err(FrameError::TooLong(length)) } else { Ok(length) }
}

pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(body).map_err(FrameError::Json)
}

pub fn write<T: Serialize>(to: &mut impl Write, value: &T) -> Result<(), FrameError> {
    let bytes = encode(value)?;
    to.write_all(&bytes).and_then(|()| to.flush()).map_err(FrameError::Io)
}

pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<T, FrameError> {
    let mut header = [0; HEADER];
    from.read_exact(&mut header).map_err(FrameError::Io)?;
    let mut body = vec![0; body_length(header)?];
    from.read_exact(&mut body).map_err(FrameError::Io)?;
    decode(&body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount() -> Request {
        let options =
            BTreeMap::from([("kubernetes.io/secret/key".to_owned(), "s3cret".to_owned())]);
        Request::Mount { dir: "/pods/u/pv".to_owned(), options }
    }

    #[test]
    fn what_is_written_is_read() {
        let requests = [
            Request::Init { version: "1".to_owned() },
            mount(),
            Request::Unmount { dir: "/pods/u/pv".to_owned() },
        ];
        for request in requests {
            let bytes = encode(&request).unwrap();
            assert_eq!(&bytes[..4], b"WFX\x01");
            assert_eq!(read::<Request>(&mut bytes.as_slice()).unwrap(), request);
        }
        let reply = Reply { status: Status::NotSupported, message: String::new() };
        let bytes = encode(&reply).unwrap();
        assert_eq!(&bytes[HEADER..], br#"{"status":"Not supported","message":""}"#);
        assert_eq!(read::<Reply>(&mut bytes.as_slice()).unwrap(), reply);
    }

    #[test]
    fn secrets_are_not_in_what_is_logged() {
        let text = format!("{:?}", mount());
        assert!(text.contains("kubernetes.io/secret/key") && !text.contains("s3cret"), "{text}");
    }

    #[test]
    fn what_is_no_frame_is_refused_before_it_is_read() {
        let sentence = |bytes: &[u8]| read::<Reply>(&mut &*bytes).unwrap_err().to_string();
        for (bytes, expected) in [
            (&b"HTTP/1.1 400"[..], "what came is not a frame"),
            (b"WFX\x02\0\0\0\0", "the other side speaks version 2 and this one 1"),
            (b"WFX\x01\xff\xff\xff\xff", "a frame of 4294967295 bytes is longer than 65536"),
            (b"WFX\x01\0\x01\0\x01", "a frame of 65537 bytes is longer than 65536"),
            (b"WFX", "the connection ended early"),
            (b"WFX\x01\0\0\0\x09{}", "the connection ended early"),
        ] {
            assert_eq!(sentence(bytes), expected);
        }
        assert!(sentence(b"WFX\x01\0\0\0\x02[]").starts_with("the frame holds no valid JSON"));
        let long = Request::Unmount { dir: "x".repeat(MAX_BODY) };
        assert!(matches!(encode(&long), Err(FrameError::TooLong(_))));
    }
}
