//! One command on the wire, from its turn to its end.
//!
//! Flow: a task owns the channel from opening to closing, so that a caller who gives up at any
//! point leaves nothing half open; the caller holds only the receiver of the answer.
//!
//! Guarantees: the channel is read until its end, because the library stops all others while one
//! is full; the answer comes at the deadline at the latest; the turn is given back only when the
//! host has closed the channel, or had time to.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, timeout};

use crate::session::Link;
use crate::{Command, Output, SshError};

pub(crate) struct Job {
    pub(crate) line: String,
    /// Completes the sentence "the connection was lost while trying to …".
    pub(crate) doing: String,
    pub(crate) stdin: Stdin,
    pub(crate) deadline: Deadline,
    pub(crate) end: End,
}

/// How a command ends that nobody waits for any more.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// By itself, with its standard input.
    WithInput,
    /// It is a watched one, and its process is killed.
    ByKill { root: bool },
}

pub(crate) enum Stdin {
    Nothing,
    Whole(Bytes),
    /// Ends with its sender.
    Pieces(mpsc::Receiver<Bytes>),
}

#[derive(Clone, Copy)]
pub(crate) enum Deadline {
    Total(Duration),
    /// For transfers: counted anew whenever the host says anything, also that it has room again.
    Idle(Duration),
}

impl Deadline {
    fn span(self) -> Duration {
        match self {
            Self::Total(span) | Self::Idle(span) => span,
        }
    }
}

/// How long an abandoned command, or an opening, keeps its turn while its end is waited for. The
/// host counts it among the connection's sessions until then, also if we closed the channel. A host
/// that is silent for so long is lost anyway.
const GRACE: Duration = Duration::from_secs(30);
/// For the last word on a channel.
const CLOSE: Duration = Duration::from_secs(5);

type Answer = oneshot::Sender<Result<Output, SshError>>;

pub(crate) async fn run(link: &Arc<Link>, job: Job) -> Result<Output, SshError> {
    let (answer, result) = oneshot::channel();
    let doing = job.doing.clone();
    tokio::spawn(work(link.clone(), job, answer));
    result.await.unwrap_or_else(|_| Err(link.lost(&doing)))
}

async fn work(link: Arc<Link>, mut job: Job, mut answer: Answer) {
    let (channel, _turn, until) = match open(&link, &job, &mut answer).await {
        Ok(Some(opened)) => opened,
        Ok(None) => return,
        Err(error) => return drop(answer.send(Err(error))),
    };
    let (mut read, write) = channel.split();
    let mut heard = Heard::default();
    let outcome = tokio::select! {
        outcome = converse(&link, &mut job, &mut heard, &mut read, &write, until) => Some(outcome),
        () = answer.closed() => None,
    };
    let ended = matches!(outcome, Some(Ok(())));
    if let Some(outcome) = outcome {
        // An error means that the caller has gone in this moment.
        let _ = answer.send(outcome.map(|()| std::mem::take(&mut heard.output).finish()));
    }
    if !ended {
        abandon(&link, job.end, &mut heard, &mut read, &write).await;
    }
}

/// What a command has said so far.
#[derive(Default)]
struct Heard {
    output: Output,
    exit: Option<i32>,
    /// Of a watched command.
    process: Option<u32>,
}

impl Heard {
    fn stderr(&mut self, data: &[u8]) {
        self.output.take_stderr(data);
        if self.process.is_none() {
            self.process = self.output.take_process();
        }
    }
}

type Opened = (Channel<Msg>, OwnedSemaphorePermit, Instant);

/// Opens a channel; `None` if the caller gave up meanwhile.
async fn open(
    link: &Arc<Link>,
    job: &Job,
    answer: &mut Answer,
) -> Result<Option<Opened>, SshError> {
    loop {
        let turn = tokio::select! {
            turn = link.turn(&job.doing) => turn?,
            () = answer.closed() => return Ok(None),
        };
        let until = Instant::now() + job.deadline.span();
        let mut opening = Box::pin({
            let link = link.clone();
            async move { link.handle.channel_open_session().await }
        });
        let given_up = tokio::select! {
            opened = &mut opening => match opened {
                Ok(channel) => return Ok(Some((channel, turn, until))),
                Err(russh::Error::ChannelOpenFailure(why)) => {
                    if link.narrow(turn) {
                        continue;
                    }
                    return Err(SshError::Refused {
                        host: link.host.clone(),
                        doing: job.doing.clone(),
                        why: format!("it opens no channel ({why:?})"),
                    });
                }
                Err(_) => return Err(link.lost(&job.doing)),
            },
            () = tokio::time::sleep_until(until) => Err(timed_out(link, job)),
            () = answer.closed() => Ok(None),
        };
        tokio::spawn(async move {
            if let Ok(Ok(channel)) = timeout(GRACE, opening).await {
                let _ = timeout(CLOSE, channel.close()).await;
            }
            drop(turn);
        });
        return given_up;
    }
}

async fn converse(
    link: &Link,
    job: &mut Job,
    heard: &mut Heard,
    read: &mut ChannelReadHalf,
    write: &ChannelWriteHalf<Msg>,
    until: Instant,
) -> Result<(), SshError> {
    let stdin = std::mem::replace(&mut job.stdin, Stdin::Nothing);
    write.exec(true, job.line.as_str()).await.map_err(|_| link.lost(&job.doing))?;
    let mut feeding = pin!(feed(write, stdin));
    let mut fed = false;
    // By the host, in good order; the end of the connection closes nothing.
    let mut closed = false;
    let mut deadline = pin!(tokio::time::sleep_until(until));
    loop {
        tokio::select! {
            message = read.wait() => match message {
                Some(ChannelMsg::Data { data }) => heard.output.take_stdout(&data),
                Some(ChannelMsg::ExtendedData { data, .. }) => heard.stderr(&data),
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    heard.exit = Some(i32::try_from(exit_status).unwrap_or(i32::MAX));
                }
                Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                    heard.exit = Some(128 + number(&signal_name));
                }
                Some(ChannelMsg::Failure) => return Err(SshError::Refused {
                    host: link.host.clone(),
                    doing: job.doing.clone(),
                    why: "it runs no commands for this user".to_owned(),
                }),
                Some(ChannelMsg::Close) => {
                    closed = true;
                    break;
                }
                None => break,
                Some(_) => {}
            },
            () = &mut feeding, if !fed => fed = true,
            () = &mut deadline => return Err(timed_out(link, job)),
        }
        if let Deadline::Idle(span) = job.deadline {
            deadline.as_mut().reset(Instant::now() + span);
        }
    }
    heard.output.exit = match heard.exit {
        Some(exit) => exit,
        None if closed => {
            let (host, doing) = (link.host.clone(), job.doing.clone());
            return Err(SshError::Unanswered { host, doing });
        }
        None => return Err(link.lost(&job.doing)),
    };
    Ok(())
}

/// Sends standard input and its end. It just stops if the connection is gone, because the reading
/// side says so, too.
async fn feed(write: &ChannelWriteHalf<Msg>, stdin: Stdin) {
    let sent = match stdin {
        Stdin::Nothing => Ok(()),
        Stdin::Whole(bytes) => write.data_bytes(bytes).await,
        Stdin::Pieces(mut pieces) => loop {
            let Some(piece) = pieces.recv().await else { break Ok(()) };
            if let Err(error) = write.data_bytes(piece).await {
                break Err(error);
            }
        },
    };
    if sent.is_ok() {
        let _ = write.eof().await;
    }
}

/// Ends a command that nobody waits for any more, and sees to it that its channel is closed.
async fn abandon(
    link: &Link,
    end: End,
    heard: &mut Heard,
    read: &mut ChannelReadHalf,
    write: &ChannelWriteHalf<Msg>,
) {
    let closing = async {
        let _ = write.eof().await;
        if let End::ByKill { root } = end
            && let Some(process) = identify(heard, read).await
        {
            // It must be read on meanwhile, or nothing else moves on this connection.
            tokio::join!(kill(link, process, root), read_to_end(read));
        } else {
            read_to_end(read).await;
        }
    };
    if timeout(GRACE, closing).await.is_err() {
        let _ = timeout(CLOSE, write.close()).await;
    }
}

/// Waits until a watched command has said who it is; `None` if it ended instead.
async fn identify(heard: &mut Heard, read: &mut ChannelReadHalf) -> Option<u32> {
    while heard.process.is_none() {
        match read.wait().await? {
            ChannelMsg::ExtendedData { data, .. } => heard.stderr(&data),
            ChannelMsg::Close => return None,
            _ => {}
        }
    }
    heard.process
}

async fn read_to_end(read: &mut ChannelReadHalf) {
    while !matches!(read.wait().await, Some(ChannelMsg::Close) | None) {}
}

/// Best effort: where it fails, the host's own deadline ends the command.
async fn kill(link: &Link, process: u32, root: bool) {
    // One after the other: what is abandoned has a turn already, and this is one channel more.
    let Ok(_turn) = link.kills.acquire().await else { return };
    let Ok(line) = Command::end(process, root).line(link.needs_sudo()) else { return };
    let Ok(channel) = link.handle.channel_open_session().await else { return };
    let (mut read, write) = channel.split();
    let _ = write.exec(true, line).await;
    read_to_end(&mut read).await;
}

fn timed_out(link: &Link, job: &Job) -> SshError {
    SshError::TimedOut {
        host: link.host.clone(),
        doing: job.doing.clone(),
        after: job.deadline.span(),
    }
}

fn number(signal: &Sig) -> i32 {
    match signal {
        Sig::HUP => 1,
        Sig::INT => 2,
        Sig::QUIT => 3,
        Sig::ILL => 4,
        Sig::ABRT => 6,
        Sig::FPE => 8,
        Sig::KILL => 9,
        Sig::USR1 => 10,
        Sig::SEGV => 11,
        Sig::PIPE => 13,
        Sig::ALRM => 14,
        Sig::TERM => 15,
        Sig::Custom(_) => 0,
    }
}
