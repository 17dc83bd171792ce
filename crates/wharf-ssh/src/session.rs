//! A connection to a host that carries many commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use russh::client::{Handle, Msg};
use russh::{Channel, Disconnect};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::channel::{self, Deadline, End, Job, Stdin};
use crate::connect::{Client, Seen, Wire};
use crate::{Command, HostKey, Limits, Output, SshError, Target};

/// One connection to one host. Clones share it; it is closed when the last one is dropped, or by
/// [`Session::close`].
#[derive(Clone)]
pub struct Session {
    pub(crate) link: Arc<Link>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({}@{})", self.link.user, self.link.host)
    }
}

/// A polite end may take this long before the line is cut.
const GOOD_BYE: Duration = Duration::from_secs(1);
/// How much of a failed command's standard error goes into the error.
const STDERR_TAIL: usize = 2048;

impl Session {
    pub(crate) fn new(link: Link) -> Self {
        Self { link: Arc::new(link) }
    }

    pub fn host(&self) -> &str {
        &self.link.host
    }

    pub fn user(&self) -> &str {
        &self.link.user
    }

    /// What the host showed: the full key, also where only a fingerprint was pinned.
    pub fn host_key(&self) -> &HostKey {
        &self.link.host_key
    }

    /// Runs a command. Any exit code is a result, not an error; see [`Session::run`].
    ///
    /// When the future is dropped, and at the timeout, the command and its children are ended, a
    /// moment later and as well as the host allows. When the connection breaks, the command goes on
    /// until it ends or, some seconds after its timeout, is ended by the host.
    pub async fn exec(&self, command: &Command) -> Result<Output, SshError> {
        self.exec_as(command, &command.shown()).await
    }

    /// Like [`Session::exec`], but an exit code other than 0 is [`SshError::Remote`], and an answer
    /// that was cut off [`SshError::TooMuch`].
    pub async fn run(&self, command: &Command) -> Result<Output, SshError> {
        self.run_as(command, &command.shown()).await
    }

    /// `shown` names the command in errors: for scripts of ours, whose text says nothing to others.
    pub(crate) async fn run_as(&self, command: &Command, shown: &str) -> Result<Output, SshError> {
        let output = self.exec_as(command, shown).await?;
        self.link.expect_success(shown, output)
    }

    async fn exec_as(&self, command: &Command, shown: &str) -> Result<Output, SshError> {
        let job = Job {
            line: self.link.line(&command.watched(), shown)?,
            doing: format!("run `{shown}`"),
            stdin: command.stdin.clone().map_or(Stdin::Nothing, Stdin::Whole),
            deadline: Deadline::Total(command.timeout),
            end: End::ByKill { root: command.root },
        };
        channel::run(&self.link, job).await
    }

    /// Makes sure that commands with `root` will work. Run it once after connecting, so that a
    /// refusal is told from the failure of a command by where it happens, not by its words.
    pub async fn ensure_root(&self) -> Result<(), SshError> {
        if !self.link.needs_sudo() {
            return Ok(());
        }
        let output = self.exec(&Command::new(["true"]).as_root()).await?;
        match output.success() {
            true => Ok(()),
            false => Err(SshError::SudoRefused {
                host: self.link.host.clone(),
                user: self.link.user.clone(),
                stderr: tail(&output),
            }),
        }
    }

    /// Whether the connection still stands, as far as is known: a host that died a moment ago is
    /// noticed by its silence only.
    pub fn is_alive(&self) -> bool {
        !self.link.ended.is_cancelled() && !self.link.handle.is_closed()
    }

    /// Waits until the connection has ended, for whatever reason.
    pub async fn ended(&self) {
        self.link.ended.cancelled().await;
    }

    /// Ends the connection for all clones. What is waited for on it ends with [`SshError::Lost`].
    pub async fn close(&self) {
        let link = &self.link;
        let _ = timeout(GOOD_BYE, async {
            let _ = link.handle.disconnect(Disconnect::ByApplication, "", "").await;
            link.ended.cancelled().await;
        })
        .await;
        link.wire.cut();
    }

    pub(crate) async fn open_tunnel(
        &self,
        address: &str,
        port: u16,
    ) -> Result<Channel<Msg>, russh::Error> {
        let handle = &self.link.handle;
        handle.channel_open_direct_tcpip(address, u32::from(port), "127.0.0.1", 0).await
    }
}

/// What a session's clones and its running commands share.
pub(crate) struct Link {
    pub(crate) host: String,
    pub(crate) limits: Limits,
    pub(crate) handle: Handle<Client>,
    user: String,
    host_key: HostKey,
    seen: Arc<Seen>,
    ended: CancellationToken,
    wire: Wire,
    turns: Arc<Semaphore>,
    pub(crate) kills: Semaphore,
    /// How many turns there are; fewer than at the start if the host allows fewer.
    width: AtomicUsize,
}

impl Link {
    pub(crate) fn new(
        target: &Target,
        limits: &Limits,
        host_key: HostKey,
        handle: Handle<Client>,
        seen: Arc<Seen>,
        ended: CancellationToken,
        wire: Wire,
    ) -> Self {
        let width = limits.channels.max(1);
        Self {
            host: target.host.clone(),
            limits: limits.clone(),
            handle,
            user: target.user.clone(),
            host_key,
            seen,
            ended,
            wire,
            turns: Arc::new(Semaphore::new(width)),
            kills: Semaphore::new(1),
            width: AtomicUsize::new(width),
        }
    }

    pub(crate) fn needs_sudo(&self) -> bool {
        self.user != "root"
    }

    /// What to send for a command; `shown` names it in the error.
    pub(crate) fn line(&self, command: &Command, shown: &str) -> Result<String, SshError> {
        command.line(self.needs_sudo()).map_err(|why| SshError::BadCommand {
            host: self.host.clone(),
            command: shown.to_owned(),
            why,
        })
    }

    pub(crate) fn lost(&self, doing: &str) -> SshError {
        SshError::Lost { host: self.host.clone(), doing: doing.to_owned(), why: self.seen.why() }
    }

    /// Waits for a free place on the connection.
    pub(crate) async fn turn(&self, doing: &str) -> Result<OwnedSemaphorePermit, SshError> {
        tokio::select! {
            turn = self.turns.clone().acquire_owned() => turn.map_err(|_| self.lost(doing)),
            () = self.ended.cancelled() => Err(self.lost(doing)),
        }
    }

    /// The host refused one more channel (`MaxSessions`): from now on one fewer is used. `false`
    /// if there was only one.
    pub(crate) fn narrow(&self, turn: OwnedSemaphorePermit) -> bool {
        let fewer = |width: usize| (width > 1).then(|| width - 1);
        let narrowed = self.width.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok();
        if narrowed {
            turn.forget();
        }
        narrowed
    }

    pub(crate) fn expect_success(&self, shown: &str, output: Output) -> Result<Output, SshError> {
        if output.success() && output.stdout_truncated {
            return Err(SshError::TooMuch {
                host: self.host.clone(),
                command: shown.to_owned(),
                limit: Output::STDOUT_MAX,
            });
        }
        if output.success() {
            return Ok(output);
        }
        Err(SshError::Remote {
            host: self.host.clone(),
            command: shown.to_owned(),
            exit: output.exit,
            stderr_tail: tail(&output),
        })
    }
}

fn tail(output: &Output) -> String {
    let text = output.stderr_text();
    let from = text.len().saturating_sub(STDERR_TAIL);
    let start = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    text.get(start..).unwrap_or_default().to_owned()
}
