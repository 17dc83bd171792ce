//! The socket that tells the agent's health to whoever connects, and the file that says the same.

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use wharf_api::node_files::{self, AgentHealth, GLOBAL, MAX_BYTES};
use wharf_core::{
    node::clock::{Reading, decide_jump},
    words::chain,
};

use super::{AGENT, Health, Reporter};
use crate::files::Files;

const SOCKET: &str = "agent.sock";
/// An agent that is well answers at once.
const ANSWER: Duration = Duration::from_secs(5);
/// Before it is looked again whether a killed agent is gone.
const GOES: Duration = Duration::from_millis(50);
/// Before what could not be written or accepted is tried again.
const PAUSE: Duration = Duration::from_secs(2);
/// How soon a clock that was set, and what is only counted, is in the file.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The task that all of this is.
const TASK: &str = "health";
const SOCKET_SUBJECT: &str = "socket";

#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    #[error("another agent runs with {}", .0.display())]
    Taken(PathBuf),
    #[error("cannot listen at {}", path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no agent listens at {}", path.display())]
    NoAgent {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the agent at {} does not answer", .0.display())]
    Silent(PathBuf),
    #[error("the answer of the agent at {} is not understood", path.display())]
    Answer {
        path: PathBuf,
        #[source]
        source: node_files::Junk,
    },
}

/// Opens the socket, then answers and publishes until `stop`. An agent that cannot open it, as where
/// the disk has no room for a name, goes on without: a node needs its network more than its status.
///
/// # Errors
/// Another agent works with the same folder: two would publish over each other.
pub async fn serve(
    health: Health,
    files: Files,
    run_dir: &Path,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + use<>, HealthError> {
    let path = socket(run_dir);
    let reporter = health.task(TASK);
    let mut listener = open(&path, &reporter).await?;
    Ok(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = answer(&mut listener, &path, &reporter, &health) => {}
            () = publish(&health, &reporter, &files) => {}
        }
        if listener.is_some() {
            let _ = std::fs::remove_file(&path);
        }
    })
}

/// Asks the agent that works with this folder.
///
/// # Errors
/// There is none, or it does not answer.
pub async fn ask(run_dir: &Path) -> Result<AgentHealth, AskError> {
    let path = socket(run_dir);
    let talk = async {
        let mut stream = UnixStream::connect(&path)
            .await
            .map_err(|source| AskError::NoAgent { path: path.clone(), source })?;
        let mut answer = Vec::new();
        let mut bounded = (&mut stream).take(MAX_BYTES as u64 + 1);
        bounded.read_to_end(&mut answer).await.map_err(|_| AskError::Silent(path.clone()))?;
        node_files::read(&answer).map_err(|source| AskError::Answer { path: path.clone(), source })
    };
    timeout(ANSWER, talk).await.unwrap_or(Err(AskError::Silent(path.clone())))
}

fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join(AGENT).join(SOCKET)
}

async fn listen(path: &Path) -> Result<UnixListener, HealthError> {
    let fault = |source| HealthError::Listen { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(fault)?;
    }
    if is_taken(path).await {
        return Err(HealthError::Taken(path.to_owned()));
    }
    // One that nobody listens at is left from an agent that was killed.
    crate::host::files::remove_file(path).map_err(fault)?;
    let listener = UnixListener::bind(path).map_err(fault)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(fault)?;
    Ok(listener)
}

/// Whether an agent is there: it answers, or has the socket and keeps it. One that was killed may have it
/// a moment longer, or a program that it was just about to start.
async fn is_taken(path: &Path) -> bool {
    let look = async {
        while let Ok(mut stream) = UnixStream::connect(path).await {
            if stream.read_u8().await.is_ok() {
                return true;
            }
            sleep(GOES).await;
        }
        false
    };
    timeout(ANSWER, look).await.unwrap_or(true)
}

/// `None` while it cannot be opened, which is a fault.
async fn open(path: &Path, reporter: &Reporter) -> Result<Option<UnixListener>, HealthError> {
    match listen(path).await {
        Ok(listener) => {
            reporter.clear(SOCKET_SUBJECT);
            Ok(Some(listener))
        }
        Err(error @ HealthError::Listen { .. }) => {
            reporter.fault(SOCKET_SUBJECT, &chain(&error));
            Ok(None)
        }
        Err(taken @ HealthError::Taken(_)) => Err(taken),
    }
}

async fn answer(
    listener: &mut Option<UnixListener>,
    path: &Path,
    reporter: &Reporter,
    health: &Health,
) {
    loop {
        let Some(socket) = listener else {
            sleep(PAUSE).await;
            match open(path, reporter).await {
                Ok(opened) => *listener = opened,
                // Another one was quicker when there was room again.
                Err(taken) => reporter.fault(SOCKET_SUBJECT, &chain(&taken)),
            }
            continue;
        };
        match socket.accept().await {
            // One after another: the kernel holds the usual answer for its reader, and who does
            // not read a longer one keeps others waiting for a bounded time.
            Ok((stream, _)) => drop(timeout(ANSWER, tell(stream, health)).await),
            Err(error) => {
                warn!(%error, "nobody can be told of the agent's health");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn tell(mut stream: UnixStream, health: &Health) -> io::Result<()> {
    let text = node_files::write(&health.snapshot()).map_err(io::Error::other)?;
    stream.write_all(&text).await?;
    stream.shutdown().await
}

/// Keeps the file as the health is. What cannot be written is tried again. Looks at the clock besides.
async fn publish(health: &Health, reporter: &Reporter, files: &Files) {
    let mut changes = health.changes();
    let mut before = read_clocks();
    loop {
        let now = read_clocks();
        if let Some(jump) = decide_jump(before, now) {
            reporter.tally("clock", &jump.to_string());
        }
        before = now;
        changes.mark_unchanged();
        let written = files.write(AGENT, GLOBAL, &health.snapshot());
        match &written {
            Ok(_) => {
                reporter.clear("file");
                reporter.ok();
            }
            Err(error) => reporter.fault("file", &chain(error)),
        }
        // A task that changes its mind all the time does not keep the disk busy.
        sleep(PAUSE / 10).await;
        if written.is_err() {
            let _ = timeout(PAUSE, changes.changed()).await;
        } else if let Ok(Err(_)) = timeout(LOOK_EVERY, changes.changed()).await {
            return;
        }
    }
}

fn read_clocks() -> Reading {
    let since_boot = clock_gettime(ClockId::Boottime);
    let steady = Duration::try_from(since_boot).unwrap_or_default();
    Reading { wall: Timestamp::now(), steady }
}
