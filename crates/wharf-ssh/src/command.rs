//! A command for a host, and what came of it.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

/// Long enough for anything that is not a transfer or an installation step of its own.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Enough of a command to recognise it in an error.
const SHOWN_CHARS: usize = 120;

/// Runs the words after `$0`, which is the host's own deadline in seconds: it ends commands whose
/// connection broke. The process leads a group of its own, and says first who it is, so that it can
/// be ended with all its children; sshd passes on signals for some users only.
const WATCHED: &str = concat!(
    r#"echo "wharf-process $$" >&2; "#,
    r#"command -v timeout >/dev/null 2>&1 && exec timeout -s KILL "$0" "$@"; exec "$@""#,
);
/// How [`WATCHED`] says who it is.
const MARK: &[u8] = b"wharf-process ";
/// Ends the group of the process `$0`, at last by force.
const END: &str = concat!(
    r#"kill -TERM "-$0"; "#,
    r#"for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 "-$0" || exit 0; sleep 0.1; done; "#,
    r#"kill -KILL "-$0""#,
);
/// The host's deadline comes after ours, so that it is us who tell of it.
const HOST_SLACK: Duration = Duration::from_secs(10);

/// What to run: a program and its words, never a line for a shell. They are quoted here, so
/// that no value can become code. The host's login shell must be one of the Bourne family.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    pub argv: Vec<String>,
    pub stdin: Option<Bytes>,
    /// Counts from the moment it gets its turn on the connection.
    pub timeout: Duration,
    /// Run through `sudo -n`, unless the user is root anyway.
    pub root: bool,
}

impl Command {
    pub fn new<W: Into<String>>(argv: impl IntoIterator<Item = W>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            stdin: None,
            timeout: DEFAULT_TIMEOUT,
            root: false,
        }
    }

    #[must_use]
    pub fn stdin(mut self, stdin: impl Into<Bytes>) -> Self {
        self.stdin = Some(stdin.into());
        self
    }

    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    #[must_use]
    pub fn as_root(mut self) -> Self {
        self.root = true;
        self
    }

    /// The words, shortened, for people. Standard input is never part of it.
    pub fn shown(&self) -> String {
        let line = self.argv.join(" ").replace(char::is_control, " ");
        match line.char_indices().nth(SHOWN_CHARS) {
            Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
            None => line,
        }
    }

    /// The line that the host's login shell takes apart again into exactly our words.
    pub(crate) fn line(&self, sudo: bool) -> Result<String, &'static str> {
        if self.argv.is_empty() {
            return Err("it is empty");
        }
        if self.argv.iter().any(|word| word.contains('\0')) {
            return Err("a word holds a NUL byte, at which the host would cut it off");
        }
        let sudo: &[&str] = if sudo && self.root { &["sudo", "-n", "--"] } else { &[] };
        let words = sudo.iter().copied().chain(self.argv.iter().map(String::as_str));
        Ok(words.map(quote).collect::<Vec<_>>().join(" "))
    }

    /// The same command, with a deadline on the host, and under a name by which [`Self::end`]
    /// finds it.
    pub(crate) fn watched(&self) -> Self {
        let limit = (self.timeout + HOST_SLACK).as_secs().saturating_add(1).to_string();
        let words = ["sh", "-c", WATCHED, &limit].map(str::to_owned);
        // An empty command stays one, so that it is refused.
        let words = words.into_iter().filter(|_| !self.argv.is_empty());
        Self { argv: words.chain(self.argv.iter().cloned()).collect(), ..self.clone() }
    }

    /// Ends a watched command.
    pub(crate) fn end(process: u32, root: bool) -> Self {
        Self { root, ..Self::new(["sh", "-c", END, &process.to_string()]) }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("argv", &self.shown())
            .field("stdin_bytes", &self.stdin.as_ref().map(Bytes::len))
            .field("timeout", &self.timeout)
            .field("root", &self.root)
            .finish()
    }
}

fn quote(word: &str) -> String {
    // No `=`: in front of a command it would be an assignment. No `~`, `*`, `?`, `[`, `!`, `{`.
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// What a command printed, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    /// As a shell counts: 128 and the signal's number if a signal ended it.
    pub exit: i32,
    /// The first 16 MiB.
    pub stdout: Vec<u8>,
    /// The last 16 KiB.
    pub stderr: Vec<u8>,
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
}

impl Output {
    /// More than any answer that we ask for; a host that prints without end must not fill memory.
    pub(crate) const STDOUT_MAX: usize = 16 * 1024 * 1024;
    /// The end says what went wrong.
    const STDERR_MAX: usize = 16 * 1024;

    pub fn success(&self) -> bool {
        self.exit == 0
    }

    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The end of standard error, without space around it.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).trim().to_owned()
    }

    pub(crate) fn take_stdout(&mut self, data: &[u8]) {
        let room = Self::STDOUT_MAX.saturating_sub(self.stdout.len());
        self.stdout_truncated |= data.len() > room;
        self.stdout.extend(data.iter().take(room));
    }

    pub(crate) fn take_stderr(&mut self, data: &[u8]) {
        self.stderr.extend(data);
        // Cut only when it has doubled, so that many small pieces do not each move all of it.
        if self.stderr.len() > 2 * Self::STDERR_MAX {
            self.cut_stderr();
        }
    }

    /// Takes the line of a watched command about itself out of standard error, and gives the
    /// number of its process.
    pub(crate) fn take_process(&mut self) -> Option<u32> {
        let lines = self.stderr.split_inclusive(|byte| *byte == b'\n');
        let mut start = 0;
        for line in lines {
            let number = line.strip_prefix(MARK).and_then(|rest| rest.strip_suffix(b"\n"));
            if let Some(number) = number {
                let number = std::str::from_utf8(number).ok()?.parse().ok()?;
                let end = start + line.len();
                self.stderr.drain(start..end);
                return Some(number);
            }
            start += line.len();
        }
        None
    }

    pub(crate) fn finish(mut self) -> Self {
        self.cut_stderr();
        self
    }

    fn cut_stderr(&mut self) {
        let extra = self.stderr.len().saturating_sub(Self::STDERR_MAX);
        self.stderr_truncated |= extra > 0;
        self.stderr.drain(..extra);
    }
}
