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
use crate::{Output, SshError};

pub(crate) struct Job {
    pub(crate) line: String,
    /// Completes the sentence "the connection was lost while trying to …".
    pub(crate) doing: String,
    pub(crate) stdin: Stdin,
    pub(crate) deadline: Deadline,
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

/// How long an abandoned command may take to end before its channel is closed over its head.
const END_GRACE: Duration = Duration::from_secs(2);
/// How long an abandoned opening is waited for, so that the channel can be closed. A host that is
/// silent for so long is lost anyway.
const OPEN_GRACE: Duration = Duration::from_secs(30);

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
    let outcome = tokio::select! {
        outcome = converse(&link, &mut job, &mut read, &write, until) => Some(outcome),
        () = answer.closed() => None,
    };
    let ended = matches!(outcome, Some(Ok(_)));
    if let Some(outcome) = outcome {
        // An error means that the caller has gone in this moment.
        let _ = answer.send(outcome);
    }
    if !ended {
        abandon(&mut read, &write).await;
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
            if let Ok(Ok(channel)) = timeout(OPEN_GRACE, opening).await {
                let _ = timeout(END_GRACE, channel.close()).await;
            }
            drop(turn);
        });
        return given_up;
    }
}

async fn converse(
    link: &Link,
    job: &mut Job,
    read: &mut ChannelReadHalf,
    write: &ChannelWriteHalf<Msg>,
    until: Instant,
) -> Result<Output, SshError> {
    let stdin = std::mem::replace(&mut job.stdin, Stdin::Nothing);
    write.exec(true, job.line.as_str()).await.map_err(|_| link.lost(&job.doing))?;
    let mut feeding = pin!(feed(write, stdin));
    let mut fed = false;
    let mut deadline = pin!(tokio::time::sleep_until(until));
    let mut output = Output::default();
    let mut exit = None;
    loop {
        tokio::select! {
            message = read.wait() => match message {
                Some(ChannelMsg::Data { data }) => output.take_stdout(&data),
                Some(ChannelMsg::ExtendedData { data, .. }) => output.take_stderr(&data),
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    exit = Some(i32::try_from(exit_status).unwrap_or(i32::MAX));
                }
                Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                    exit = Some(128 + number(&signal_name));
                }
                Some(ChannelMsg::Failure) => return Err(SshError::Refused {
                    host: link.host.clone(),
                    doing: job.doing.clone(),
                    why: "it runs no commands for this user".to_owned(),
                }),
                Some(ChannelMsg::Close) | None => break,
                Some(_) => {}
            },
            () = &mut feeding, if !fed => fed = true,
            () = &mut deadline => return Err(timed_out(link, job)),
        }
        if let Deadline::Idle(span) = job.deadline {
            deadline.as_mut().reset(Instant::now() + span);
        }
    }
    match exit {
        Some(exit) => Ok(Output { exit, ..output.finish() }),
        None => Err(link.lost(&job.doing)),
    }
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

/// Ends a command that nobody waits for any more.
async fn abandon(read: &mut ChannelReadHalf, write: &ChannelWriteHalf<Msg>) {
    let end = async {
        let _ = write.signal(Sig::KILL).await;
        let _ = write.eof().await;
        while !matches!(read.wait().await, Some(ChannelMsg::Close) | None) {}
    };
    if timeout(END_GRACE, end).await.is_err() {
        let _ = timeout(END_GRACE, write.close()).await;
    }
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
