//! The log of one container, read to its end and followed.
//!
//! One file is open at a time, and stays so while it is renamed or removed: what was written to it
//! is not lost with its name. Which file is next is decided by [`Cursor::place`].

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use flate2::read::MultiGzDecoder;
use tracing::warn;
use wharf_core::node::logs::{BEGINNING, Cursor, Line, LogFile, Place, Seen, first_line};

use super::listed::Listed;

/// After a rotation the runtime may still write to the old file what it had in its hands.
const SETTLED: Duration = Duration::from_secs(1);
/// A line whose end does not come for so long has none: the container ended with it.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// Whose words they are.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    pub app: String,
    pub pod_uid: String,
    pub container: String,
}

pub struct Tail {
    pub source: Arc<Source>,
    pub folder: PathBuf,
    pub cursor: Cursor,
    /// Since when the folder is not there any more.
    pub gone: Option<Instant>,
    /// It is not read for now.
    pub silent: bool,
    listed: Listed,
    /// As they were last listed.
    files: Vec<LogFile>,
    open: Option<Open>,
    /// Since when there is nothing more in the open file.
    ended: Option<Instant>,
}

struct Open {
    content: Content,
    /// The beginning of a line.
    rest: Vec<u8>,
    /// The files among which it was found, and whether it was the newest of them.
    known: Vec<LogFile>,
    newest: bool,
}

enum Content {
    Plain(File),
    Compressed(Box<MultiGzDecoder<File>>),
}

impl Tail {
    pub fn new(source: Source, folder: PathBuf, cursor: Cursor) -> Self {
        Self {
            source: Arc::new(source),
            folder,
            cursor,
            gone: None,
            silent: false,
            listed: Listed::default(),
            files: Vec::new(),
            open: None,
            ended: None,
        }
    }

    /// Looks which files there are.
    pub fn list(&mut self, now: Instant) -> io::Result<()> {
        if !self.listed.is_old(&self.folder) {
            return Ok(());
        }
        let files = list(&self.folder).inspect_err(|_| self.listed.forget())?;
        match files {
            Some(_) => self.gone = None,
            None => _ = self.gone.get_or_insert(now),
        }
        let files = files.unwrap_or_default();
        if files != self.files {
            self.ended = None;
            self.files = files;
        }
        Ok(())
    }

    /// Reads on, at most as much as the buffer holds. `false`: there is nothing more for now.
    pub fn read(
        &mut self,
        buffer: &mut [u8],
        lines: &mut Vec<Line>,
        now: Instant,
    ) -> io::Result<bool> {
        let Some(open) = &mut self.open else { return absent(self.find(lines)) };
        let count = open.content.read(buffer)?;
        if count == 0 {
            return absent(self.at_end(lines, now));
        }
        self.ended = None;
        open.rest.extend_from_slice(buffer.get(..count).unwrap_or_default());
        let before = self.cursor.offset;
        lines.extend(self.cursor.take(&open.rest));
        let taken = usize::try_from(self.cursor.offset - before).unwrap_or(usize::MAX);
        open.rest = open.rest.split_off(taken.min(open.rest.len()));
        Ok(true)
    }

    /// Nothing is kept open; it is found again by what the cursor says.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Opens the file that the cursor stands in, or the first that it has not read.
    fn find(&mut self, lines: &mut Vec<Line>) -> io::Result<bool> {
        match self.cursor.place(&self.seen()?) {
            None => Ok(false),
            Some(Place::Here(here)) => {
                let Some(file) = self.files.get(here) else { return Ok(false) };
                let mut content = Content::open(&self.folder, file)?;
                // It may have been renamed since it was seen.
                if content.first(&self.folder, file)? != self.cursor.file {
                    return Ok(false);
                }
                content.skip(self.cursor.offset)?;
                self.hold(content, here);
                Ok(true)
            }
            Some(Place::Begin { file, lost }) => {
                let begun = self.begin(file, lines)?;
                if begun && lost {
                    let folder = self.folder.display();
                    warn!(%folder, "lines were thrown away before they were read");
                }
                Ok(begun)
            }
        }
    }

    /// Whether the next file is to be read, and what to do with a line that has no end.
    fn at_end(&mut self, lines: &mut Vec<Line>, now: Instant) -> io::Result<bool> {
        let silence = now.duration_since(*self.ended.get_or_insert(now));
        if self.gone.is_some() {
            self.open = None;
            lines.extend(self.cursor.end());
            return Ok(false);
        }
        let Some(open) = &mut self.open else { return Ok(false) };
        if open.content.length()?.is_some_and(|length| length < self.cursor.offset) {
            // Somebody cut it off; it is another file now.
            self.open = None;
            return Ok(false);
        }
        match self.following()? {
            Some((file, last)) if !last || silence >= SETTLED => self.begin(file, lines),
            Some(_) => Ok(false),
            None => {
                if self.cursor.has_begun() && silence >= LAST_WORDS {
                    lines.extend(self.cursor.end());
                }
                Ok(false)
            }
        }
    }

    /// The next file with anything in it, and whether it is the last: then the one before may not be
    /// complete yet.
    fn following(&mut self) -> io::Result<Option<(usize, bool)>> {
        if self.open.as_ref().is_some_and(|open| open.newest && open.known == self.files) {
            return Ok(None);
        }
        let seen = self.seen()?;
        let here = match self.cursor.place(&seen) {
            Some(Place::Here(here)) => here,
            // It was removed, and was read to its end.
            Some(Place::Begin { file, .. }) => return Ok(Some((file, false))),
            None => return Ok(None),
        };
        if let Some(open) = &mut self.open {
            open.known.clone_from(&self.files);
            open.newest = here + 1 == seen.len();
        }
        let next = seen.iter().skip(here + 1).position(|file| file.first.is_some());
        Ok(next.map(|next| (here + 1 + next, here + 2 == seen.len())))
    }

    /// Reads a file from its beginning, unless the list turns out to be an old one: then it might not
    /// be the file that is meant, and those between would be left out.
    fn begin(&mut self, index: usize, lines: &mut Vec<Line>) -> io::Result<bool> {
        let Some(file) = self.files.get(index) else { return Ok(false) };
        let content = Content::open(&self.folder, file)?;
        let Some(first) = content.first(&self.folder, file)? else { return Ok(false) };
        if list(&self.folder)?.as_ref() != Some(&self.files) {
            return Ok(false);
        }
        lines.extend(self.cursor.begin(file.restarts, first));
        self.hold(content, index);
        Ok(true)
    }

    fn hold(&mut self, content: Content, index: usize) {
        let known = self.files.clone();
        let newest = index + 1 == known.len();
        self.open = Some(Open { content, rest: Vec::new(), known, newest });
        self.ended = None;
    }

    /// How each file begins.
    fn seen(&self) -> io::Result<Vec<Seen>> {
        let look = |file: &LogFile| {
            let content = Content::open(&self.folder, file)?;
            let first = content.first(&self.folder, file)?;
            Ok(Seen { restarts: file.restarts, first })
        };
        self.files.iter().map(look).collect()
    }
}

/// A file that was listed and is not there was renamed: the next list says how.
fn absent(read: io::Result<bool>) -> io::Result<bool> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        read => read,
    }
}

/// `None` where there is no such folder.
fn list(folder: &Path) -> io::Result<Option<Vec<LogFile>>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(Some(LogFile::all(names.iter().map(String::as_str))))
}

impl Content {
    fn open(folder: &Path, file: &LogFile) -> io::Result<Self> {
        let opened = File::open(folder.join(file.name()))?;
        Ok(match file.compressed {
            true => Self::Compressed(Box::new(MultiGzDecoder::new(opened))),
            false => Self::Plain(opened),
        })
    }

    /// How it begins; the place where it is read does not move.
    fn first(&self, folder: &Path, file: &LogFile) -> io::Result<Option<u64>> {
        let mut beginning = [0; BEGINNING];
        let mut length = 0;
        let mut again = match self {
            Self::Plain(_) => None,
            Self::Compressed(_) => Some(Self::open(folder, file)?),
        };
        while let Some(left) = beginning.get_mut(length..).filter(|left| !left.is_empty()) {
            let count = match (self, &mut again) {
                (Self::Plain(file), _) => file.read_at(left, length as u64)?,
                (Self::Compressed(_), again) => match again {
                    Some(content) => content.read(left)?,
                    None => 0,
                },
            };
            if count == 0 {
                break;
            }
            length += count;
        }
        Ok(first_line(beginning.get(..length).unwrap_or_default()))
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.seek(SeekFrom::Start(bytes)).map(drop),
            Self::Compressed(decoder) => {
                io::copy(&mut decoder.take(bytes), &mut io::sink()).map(drop)
            }
        }
    }

    /// Of one that may still grow.
    fn length(&self) -> io::Result<Option<u64>> {
        match self {
            Self::Plain(file) => Ok(Some(file.metadata()?.len())),
            Self::Compressed(_) => Ok(None),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(buffer),
            Self::Compressed(decoder) => decoder.read(buffer),
        }
    }
}
