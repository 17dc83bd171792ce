//! Files, brought to a host by their checksum.
//!
//! Flow: look at what is there (a finished file, or the beginning of one from an interrupted try),
//! stream the rest into `cat`, compare the checksum on the host, then put the file into place.
//!
//! Guarantees: under its final name a file is whole, right, with its mode, and on the disk; an
//! interrupted upload is continued; the file is never in our memory as a whole.
//!
//! SFTP was rejected: it is several times slower, and needs a subsystem that hosts may not have.

use std::io::{self, SeekFrom};
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;

use crate::channel::{self, Deadline, End, Job, Stdin};
use crate::{Command, Output, Session, SshError};

/// A file as it shall be on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadSpec {
    /// An absolute path. While the file is under way, `<remote>.part` lies beside it.
    pub remote: String,
    /// In hexadecimal.
    pub sha256: String,
    pub size: u64,
    pub mode: u32,
}

/// What an upload did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uploaded {
    /// It was there already.
    pub skipped: bool,
    /// Where the last try began: more than 0 if an earlier upload was continued.
    pub resumed_from: u64,
    /// Bytes that went over the wire, with those of a try that failed.
    pub sent: u64,
}

/// Big enough that the work for each is small beside copying it.
const PIECE: usize = 256 * 1024;
/// Pieces between the disk and the wire.
const PIECES_AHEAD: usize = 4;
/// A second try is for a rest of an old file; a third would meet the same fault again.
const TRIES: usize = 2;
/// Looking at files takes this long, and as long as reading them from a slow disk.
const LOOK: Duration = Duration::from_secs(60);
const SLOW_DISK_BYTES_PER_SECOND: u64 = 10_000_000;

/// Prints `present`, or the size of what is there of the file. Arguments: path, parent, sha256,
/// size, mode.
const PREPARE: &str = r#"
set -e
umask 022
mkdir -p -- "$2"
if [ -f "$1" ] && [ "$(wc -c <"$1")" -eq "$4" ] && [ "$(sha256sum <"$1" | cut -c1-64)" = "$3" ]; then
  chmod -- "$5" "$1"
  echo present
elif [ -f "$1.part" ]; then
  wc -c <"$1.part"
else
  echo 0
fi
"#;

/// Takes the file, or the rest of it, from standard input. Arguments: path, where to begin. The
/// beginning may have become longer since we looked, by the last bytes of an upload that was given
/// up: then the code is [`MOVED`]. A new file is out of reach of such a straggler.
const RECEIVE: &str = r#"
set -e
umask 077
if [ "$2" -eq 0 ]; then
  rm -rf -- "$1.part"
  exec cat >"$1.part"
fi
[ "$(wc -c <"$1.part")" -eq "$2" ] || exit 75
exec cat >>"$1.part"
"#;
const MOVED: i32 = 75;

/// Puts the file into place and prints `done`, or removes it and prints `wrong`. Arguments: path,
/// parent, sha256, mode.
const FINISH: &str = r#"
set -e
if [ "$(sha256sum <"$1.part" | cut -c1-64)" != "$3" ]; then
  rm -f -- "$1.part"
  echo wrong
  exit 0
fi
chmod -- "$4" "$1.part"
sync -- "$1.part"
mv -fT -- "$1.part" "$1"
sync -- "$2"
echo done
"#;

/// Reads two lines a file (size, path) and prints `1` or `0` for each.
const PRESENT: &str = r#"
while IFS= read -r size && IFS= read -r path; do
  if [ -f "$path" ] && [ "$(wc -c <"$path")" -eq "$size" ]; then
    echo 1
  else
    echo 0
  fi
done
"#;

impl Session {
    /// Brings `source` to the host as root, unless it is there. `progress` hears how many bytes of
    /// the file the host has or is being sent. Cancelling it leaves a beginning that the next call
    /// continues.
    pub async fn upload(
        &self,
        source: &Path,
        file: &UploadSpec,
        progress: impl Fn(u64) + Send + Sync,
    ) -> Result<Uploaded, SshError> {
        let parent = self.check(file)?;
        self.check_source(source, file).await?;
        let mut done = Uploaded { skipped: false, resumed_from: 0, sent: 0 };
        let Some(there) = self.prepare(file, parent).await? else {
            progress(file.size);
            return Ok(Uploaded { skipped: true, ..done });
        };
        let mut from = if there > file.size { 0 } else { there };
        let mut wrong = 0;
        while wrong < TRIES {
            done.resumed_from = from;
            if from < file.size || file.size == 0 {
                if !self.send(source, file, from, &progress).await? {
                    from = 0;
                    continue;
                }
                done.sent += file.size - from;
            }
            if self.finish(file, parent).await? {
                progress(file.size);
                return Ok(done);
            }
            wrong += 1;
            from = 0;
        }
        Err(SshError::Corrupted { host: self.host().to_owned(), path: file.remote.clone() })
    }

    /// Which of the files are on the host with their size. One command for all of them.
    ///
    /// What they hold is not read: what we put under a final name was checked before.
    pub async fn present(&self, files: &[UploadSpec]) -> Result<Vec<bool>, SshError> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let mut list = String::new();
        for file in files {
            self.check(file)?;
            list.push_str(&format!("{}\n{}\n", file.size, file.remote));
        }
        let command = script(PRESENT, &[]).stdin(list).timeout(LOOK);
        let output = self.run_as(&command, &format!("look for {} files", files.len())).await?;
        let text = output.stdout_text();
        // Only the end is ours: some shells print something of their own at the start.
        let lines: Vec<&str> = text.lines().collect();
        let ours = lines.len().checked_sub(files.len()).and_then(|start| lines.get(start..));
        let answers = ours.unwrap_or_default().iter().map(|line| match *line {
            "1" => Some(true),
            "0" => Some(false),
            _ => None,
        });
        match answers.collect::<Option<Vec<bool>>>() {
            Some(present) if present.len() == files.len() => Ok(present),
            _ => Err(self.nonsense("look for files", &output)),
        }
    }

    /// Refuses what the scripts could not tell apart; gives the path of the parent.
    fn check<'a>(&self, file: &'a UploadSpec) -> Result<&'a str, SshError> {
        let why = match file.remote.rsplit_once('/') {
            _ if file.remote.contains(['\n', '\0']) => "the path holds a line end or a NUL byte",
            _ if file.sha256.len() != 64 || !file.sha256.bytes().all(is_lower_hex) => {
                "the checksum is not 64 small hexadecimal digits"
            }
            Some((parent, name)) if parent.starts_with('/') && !name.is_empty() => {
                return Ok(parent);
            }
            Some(("", name)) if !name.is_empty() => return Ok("/"),
            _ => "the path is not that of a file from the root",
        };
        Err(SshError::BadCommand {
            host: self.host().to_owned(),
            command: format!("upload {}", file.remote.escape_debug()),
            why,
        })
    }

    async fn check_source(&self, source: &Path, file: &UploadSpec) -> Result<(), SshError> {
        let size = tokio::fs::metadata(source).await.map_err(|e| self.unreadable(source, e))?.len();
        if size == file.size {
            return Ok(());
        }
        let error = io::Error::other(format!("it has {size} bytes instead of {}", file.size));
        Err(self.unreadable(source, error))
    }

    /// Where to begin, or `None` if the file is there.
    async fn prepare(&self, file: &UploadSpec, parent: &str) -> Result<Option<u64>, SshError> {
        let size = file.size.to_string();
        let mode = octal(file.mode);
        let arguments = [&file.remote, parent, &file.sha256, &size, &mode];
        let command = script(PREPARE, &arguments).timeout(time_to_read(file.size));
        let output = self.run_as(&command, &format!("prepare {}", file.remote)).await?;
        match last_line(&output).as_str() {
            "present" => Ok(None),
            size => match size.parse() {
                Ok(size) => Ok(Some(size)),
                Err(_) => Err(self.nonsense("look for a file", &output)),
            },
        }
    }

    /// `false` if the host has meanwhile more than we thought, and took nothing.
    async fn send(
        &self,
        source: &Path,
        file: &UploadSpec,
        from: u64,
        progress: &(impl Fn(u64) + Send + Sync),
    ) -> Result<bool, SshError> {
        let command = script(RECEIVE, &[&file.remote, &from.to_string()]);
        let (pieces, stdin) = mpsc::channel(PIECES_AHEAD);
        let job = Job {
            line: self.link.line(&command, "receive a file")?,
            doing: format!("receive {}", file.remote),
            stdin: Stdin::Pieces(stdin),
            deadline: Deadline::Idle(self.link.limits.stall),
            end: End::WithInput,
        };
        let reading = read_pieces(source, from, file.size, pieces, progress);
        let receiving = channel::run(&self.link, job);
        let (read, received) = tokio::join!(reading, receiving);
        // A host that stopped receiving is the cause of a reader that could not go on.
        let output = received?;
        if output.exit == MOVED && from > 0 {
            return Ok(false);
        }
        self.link.expect_success(&format!("receive {}", file.remote), output)?;
        read.map_err(|error| self.unreadable(source, error))?;
        Ok(true)
    }

    /// Whether the checksum was right, and the file is in its place.
    async fn finish(&self, file: &UploadSpec, parent: &str) -> Result<bool, SshError> {
        let mode = octal(file.mode);
        let arguments = [&file.remote, parent, &file.sha256, &mode];
        let command = script(FINISH, &arguments).timeout(time_to_read(file.size));
        let output = self.run_as(&command, &format!("finish {}", file.remote)).await?;
        match last_line(&output).as_str() {
            "done" => Ok(true),
            "wrong" => Ok(false),
            _ => Err(self.nonsense("finish a file", &output)),
        }
    }

    fn unreadable(&self, path: &Path, source: io::Error) -> SshError {
        SshError::Source { host: self.host().to_owned(), path: path.to_owned(), source }
    }

    fn nonsense(&self, doing: &str, output: &Output) -> SshError {
        SshError::Nonsense {
            host: self.host().to_owned(),
            doing: doing.to_owned(),
            answer: output.stdout_text().chars().take(200).collect(),
        }
    }
}

/// Reads the file from there to its known end. Ends early, without error, if nobody takes the
/// pieces any more.
async fn read_pieces(
    source: &Path,
    from: u64,
    size: u64,
    pieces: mpsc::Sender<Bytes>,
    progress: &(impl Fn(u64) + Send + Sync),
) -> io::Result<()> {
    let mut file = File::open(source).await?;
    file.seek(SeekFrom::Start(from)).await?;
    file.set_max_buf_size(PIECE);
    // A file that grows meanwhile is not followed.
    let mut file = file.take(size - from);
    let mut at = from;
    progress(at);
    while at < size {
        let mut piece = BytesMut::with_capacity(PIECE);
        if file.read_buf(&mut piece).await? == 0 {
            return Err(io::Error::other("it became shorter while it was read"));
        }
        at += piece.len() as u64;
        if pieces.send(piece.freeze()).await.is_err() {
            return Ok(());
        }
        progress(at);
    }
    Ok(())
}

/// One of the scripts above as root. Its text is constant and never put together; what varies
/// comes as arguments.
fn script(text: &str, arguments: &[&str]) -> Command {
    Command::new(["sh", "-c", text, "wharf"].iter().chain(arguments).copied()).as_root()
}

fn time_to_read(bytes: u64) -> Duration {
    LOOK + Duration::from_secs(bytes / SLOW_DISK_BYTES_PER_SECOND)
}

fn octal(mode: u32) -> String {
    format!("{:04o}", mode & 0o7777)
}

fn last_line(output: &Output) -> String {
    output.stdout_text().lines().last().unwrap_or_default().trim().to_owned()
}

fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}
