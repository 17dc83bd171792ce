//! Lines to a file, which somebody may move away or cut off at any time.
//!
//! The cursors are stored after the lines are on the disk. Who was killed in between finds lines at
//! the end of the file that it is about to write again; every line is one of a kind by its pod,
//! container and number, so that it is known when it is there. The same holds after any error:
//! whatever was written counts, and what was cut in the middle of a line is taken away.

use std::{
    collections::HashSet,
    fs::{File, OpenOptions},
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, BufRead, BufReader, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    reader::Entry,
    sink::{SinkError, render},
};

/// What applications say is not for everybody.
const MODE: u32 = 0o640;
/// More than is handed on at once, however it is written.
const LOOKED_AT: u64 = 2 << 20;
/// One is enough, unless it is rotated several times while the agent is away.
const MOST_MOVED: usize = 3;
/// How every line of ours begins.
const OURS: &[u8] = b"{\"appuuid\":";

pub struct FileSink {
    path: PathBuf,
    /// `None` before the first line and after an error: then what is there is looked at.
    appender: Option<Appender>,
}

impl FileSink {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), appender: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub async fn deliver(&mut self, entries: Arc<Vec<Entry>>) -> Result<(), SinkError> {
        let (path, appender) = (self.path.clone(), self.appender.take());
        let append = move || {
            let mut appender = match appender {
                Some(appender) if appender.is_in_place(&path)? => appender,
                Some(_) | None => Appender::open(&path)?,
            };
            appender.append(&entries)?;
            Ok(appender)
        };
        let appended = tokio::task::spawn_blocking(append).await;
        let appended = appended.unwrap_or_else(|error| Err(error.into()));
        self.appender = Some(appended.map_err(SinkError::File)?);
        Ok(())
    }
}

struct Appender {
    file: File,
    /// The lines at the end of what was there when it was opened.
    there: HashSet<u64>,
}

impl Appender {
    fn open(path: &Path) -> io::Result<Self> {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(MODE).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut there = HashSet::new();
        for before in moved_away(path)? {
            look_at_end(&mut File::open(before)?, &mut there)?;
        }
        if let Some(end) = look_at_end(&mut file, &mut there)? {
            mend(&mut file, &end)?;
        }
        Ok(Self { file, there })
    }

    fn is_in_place(&self, path: &Path) -> io::Result<bool> {
        let own = self.file.metadata()?;
        match std::fs::metadata(path) {
            Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        let mut text = Vec::new();
        for entry in entries {
            let begin = text.len();
            render(entry, &mut text);
            let line = text.get(begin..).unwrap_or_default();
            if self.there.contains(&hash(line)) {
                text.truncate(begin);
            }
        }
        self.file.write_all(&text)?;
        self.file.sync_data()
    }
}

fn hash(line: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}

/// What was last moved away by who rotates the file: the newest whose names go on after ours.
fn moved_away(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Vec::new());
    };
    let name = name.to_string_lossy();
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let other = entry.file_name().to_string_lossy().into_owned();
        // It may be removed this very moment.
        let Ok(metadata) = entry.metadata() else { continue };
        if other != name && other.starts_with(&*name) && metadata.is_file() {
            found.push(((metadata.mtime(), metadata.mtime_nsec()), entry.path()));
        }
    }
    found.sort();
    Ok(found.into_iter().rev().take(MOST_MOVED).map(|(_, path)| path).collect())
}

/// Notes the last lines of a file. Gives what follows the last whole one, if anything does.
fn look_at_end(file: &mut File, there: &mut HashSet<u64>) -> io::Result<Option<Torn>> {
    let length = file.metadata()?.len();
    let mut at = length.saturating_sub(LOOKED_AT);
    let mut reader = BufReader::new(file);
    reader.seek(SeekFrom::Start(at))?;
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = reader.read_until(b'\n', &mut line)?;
        if count == 0 {
            return Ok(None);
        }
        if !line.ends_with(b"\n") {
            let ours = line.starts_with(OURS) || OURS.starts_with(&line);
            return Ok(Some(Torn { at, ours }));
        }
        there.insert(hash(&line));
        at += count as u64;
    }
}

/// A line without an end.
struct Torn {
    at: u64,
    ours: bool,
}

/// Our own half line is taken away: it comes again. What somebody else wrote gets an end.
fn mend(file: &mut File, torn: &Torn) -> io::Result<()> {
    if torn.ours { file.set_len(torn.at) } else { file.write_all(b"\n") }
}

#[cfg(test)]
mod tests;
