//! The logs of applications: which there are on this node, and how far each was read, so that each
//! line is handed on once and in order.
//!
//! They are read where the container runtime writes them, in the kubelet's folder of logs
//! (`<namespace>_<pod>_<uid>/<container>/<start>.log`), and not asked of the API server. The kubelet
//! answers from the newest file alone: whatever was rotated away since the last question is never
//! told, and one that follows loses what comes between its last read and a rotation. The files hold
//! all of it, over as many rotations as the kubelet keeps. They need no cluster that answers, no
//! rights in it, and no copy of its pods, for their names say which pod and which start it is.
//! The price is that the agent must see that folder.
//!
//! **Guarantee:** what a [`Cursor`] hands on depends only on what is in the files. Whoever stores it
//! with what was handed on, and reads again from there, gets the following lines with the same
//! numbers.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::names::{PodKind, pod_of_app};

/// Of the pod that runs a virtual machine, this container says what the machine says.
const GUEST_CONSOLE: &str = "guest-console-log";
/// A longer line is handed on in several: it must fit in memory, and in a message of the journal.
const LONGEST_LINE: usize = 64 << 10;
/// Runtimes cut lines at 16 KiB. What goes on for so long without an end is cut here.
pub const LONGEST_PIECE: usize = 64 << 10;
/// So much of a file's first line tells it from the others: the time to the nanosecond is in it.
const FIRST: usize = 128;

/// An application, as far as its pods are to be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct App {
    pub uuid: String,
    /// What it is called in the cluster.
    pub kube_name: String,
    /// It is meant for this node.
    pub designated: bool,
    /// Nobody wants its logs (`DisableLogs`). It is listed all the same, so that its pods are not taken
    /// for those of one with a shorter name.
    pub silent: bool,
}

/// Whose log the one of this container is.
pub fn app_of<'a>(pod: &str, container: &str, apps: &'a [App]) -> Option<&'a App> {
    let named = apps.iter().filter_map(|app| Some((pod_of_app(pod, &app.kube_name)?, app)));
    let (kind, app) = named.max_by_key(|(_, app)| app.kube_name.len())?;
    match kind {
        PodKind::Plain => Some(app),
        PodKind::Launcher => (container == GUEST_CONSOLE).then_some(app),
    }
}

/// What the name of a pod's folder says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFolder {
    pub namespace: String,
    pub pod: String,
    pub uid: String,
}

impl PodFolder {
    /// None of the three has an underscore in it.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('_').map(str::to_owned);
        let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
        (parts.next().is_none() && !uid.is_empty()).then_some(Self { namespace, pod, uid })
    }
}

/// A file of a container's log. They are ordered as they were written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogFile {
    /// How often the container had been started again.
    pub restarts: u32,
    age: Age,
    pub compressed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Age {
    /// When it was put aside, as the kubelet writes it.
    Rotated(String),
    Current,
}

impl LogFile {
    fn parse(name: &str) -> Option<Self> {
        let (restarts, rest) = name.split_once(".log")?;
        let restarts = restarts.parse().ok()?;
        let (rest, compressed) = match rest.strip_suffix(".gz") {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let age = match rest.strip_prefix('.') {
            None if rest.is_empty() && !compressed => Age::Current,
            Some(time) if time.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') => {
                Age::Rotated(time.to_owned())
            }
            // One that is being compressed, or somebody else's.
            None | Some(_) => return None,
        };
        Some(Self { restarts, age, compressed })
    }

    /// The files of a container, in their order. While one is compressed it is there twice.
    pub fn all<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Self> {
        let mut files: Vec<Self> = names.filter_map(Self::parse).collect();
        files.sort();
        files.dedup_by(|next, kept| (next.restarts, &next.age) == (kept.restarts, &kept.age));
        files
    }

    pub fn name(&self) -> String {
        let rotated = match &self.age {
            Age::Rotated(time) => format!(".{time}"),
            Age::Current => String::new(),
        };
        let end = if self.compressed { ".gz" } else { "" };
        format!("{}.log{rotated}{end}", self.restarts)
    }
}

/// What tells a file from the others of its container, whatever it is called and whether it is
/// compressed: how it begins. `None` as long as its first line is not whole.
pub fn first_line(beginning: &[u8]) -> Option<u64> {
    let end = beginning.iter().position(|byte| *byte == b'\n');
    let first = match end {
        Some(end) => beginning.get(..end.min(FIRST)),
        None => beginning.get(..FIRST),
    };
    first.map(fingerprint)
}

/// How much of a file [`first_line`] has to see.
pub const BEGINNING: usize = FIRST + 1;

/// It must be the same in the next version, for it is stored.
fn fingerprint(bytes: &[u8]) -> u64 {
    let digest = Sha256::digest(bytes);
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A file, and how it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub restarts: u32,
    pub first: Option<u64>,
}

/// Where reading goes on, in a list of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In this one, where the cursor stands.
    Here(usize),
    /// With this one, from its beginning. What the cursor stood in may have been thrown away before it
    /// was read to its end.
    Begin { file: usize, lost: bool },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Counted over all files and starts of the container, from 1.
    pub number: u64,
    pub time: Timestamp,
    pub text: String,
}

/// How far the log of one container was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// Whose it is. It stays so while the pod is there, also when the application is taken away:
    /// its last words count.
    pub app: String,
    pub restarts: u32,
    /// The file that it stands in, by its first line; `None` before the first one.
    pub file: Option<u64>,
    /// So many bytes of the file were taken, as they are when it is not compressed.
    pub offset: u64,
    /// So many lines were handed on.
    pub lines: u64,
    /// Of the last line.
    time: Timestamp,
    /// Lines whose ends have not come yet. A rotation cuts lines in two.
    begun: Vec<Begun>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Begun {
    stream: String,
    time: Timestamp,
    text: Vec<u8>,
}

impl Cursor {
    pub fn new(app: &str) -> Self {
        Self { app: app.to_owned(), ..Self::default() }
    }

    /// Where to go on. `None`: there is nothing yet.
    pub fn place(&self, files: &[Seen]) -> Option<Place> {
        let this = |file: &Seen| file.restarts == self.restarts && file.first == self.file;
        if self.file.is_some()
            && let Some(here) = files.iter().position(this)
        {
            return Some(Place::Here(here));
        }
        // The oldest go first: all that is left is newer.
        let left = |file: &Seen| file.restarts >= self.restarts && file.first.is_some();
        let file = files.iter().position(left)?;
        Some(Place::Begin { file, lost: self.file.is_some() })
    }

    /// From now on it stands at the beginning of this file. A line that was not ended goes on in the
    /// next file, but not in the next start.
    pub fn begin(&mut self, restarts: u32, first: u64) -> Vec<Line> {
        let ended = if restarts == self.restarts { Vec::new() } else { self.end() };
        (self.restarts, self.file, self.offset) = (restarts, Some(first), 0);
        ended
    }

    pub fn has_begun(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Nothing more comes: what was begun is all there is.
    pub fn end(&mut self) -> Vec<Line> {
        let begun = std::mem::take(&mut self.begun);
        begun.into_iter().map(|begun| self.line(begun.time, &begun.text)).collect()
    }

    /// Takes the whole lines among what follows in the file. The offset says how many bytes that were.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Line> {
        let last = bytes.iter().rposition(|byte| *byte == b'\n');
        let whole = match last {
            Some(last) => last + 1,
            None if bytes.len() >= LONGEST_PIECE => bytes.len(),
            None => return Vec::new(),
        };
        self.offset += whole as u64;
        let bytes = bytes.get(..whole).unwrap_or_default();
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        bytes.split(|byte| *byte == b'\n').filter_map(|raw| self.take_one(raw)).collect()
    }

    fn take_one(&mut self, raw: &[u8]) -> Option<Line> {
        let Some(piece) = Piece::parse(raw) else {
            // Not the runtime's: a line that was cut, or what a crash left. It is somebody's words.
            return Some(self.line(self.time, raw));
        };
        let begun = self.begun.iter().position(|begun| begun.stream == piece.stream);
        let mut line = match begun {
            Some(begun) => self.begun.swap_remove(begun),
            None => Begun { stream: piece.stream.to_owned(), time: piece.time, text: Vec::new() },
        };
        line.text.extend_from_slice(piece.text);
        if piece.goes_on && line.text.len() < LONGEST_LINE {
            self.begun.push(line);
            return None;
        }
        Some(self.line(line.time, &line.text))
    }

    fn line(&mut self, time: Timestamp, text: &[u8]) -> Line {
        self.lines += 1;
        self.time = time;
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        Line { number: self.lines, time, text: String::from_utf8_lossy(text).into_owned() }
    }
}

/// A line of a file: time, stream, whether the line of the application goes on, and what it says.
struct Piece<'a> {
    time: Timestamp,
    stream: &'a str,
    goes_on: bool,
    text: &'a [u8],
}

impl<'a> Piece<'a> {
    fn parse(raw: &'a [u8]) -> Option<Self> {
        let mut parts = raw.splitn(4, |byte| *byte == b' ');
        let mut word = || std::str::from_utf8(parts.next()?).ok();
        let (time, stream, tags) = (word()?.parse().ok()?, word()?, word()?);
        let goes_on = match tags.split(':').next()? {
            "F" => false,
            "P" => true,
            _ => return None,
        };
        if !matches!(stream, "stdout" | "stderr") {
            return None;
        }
        Some(Self { time, stream, goes_on, text: parts.next().unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests;
