//! The Flexvolume driver, and the wire between it and the agent.
//!
//! kubelet executes the driver for every call and reads one JSON object from it. The driver knows
//! nothing: it hands the call to the agent over the Unix socket beside it and prints the answer.
//! The agent uses [`frame`] for its side of the wire.
//!
//! **Invariant:** no async runtime, no helper programs, no output on stderr (kubelet reads it
//! together with stdout, and one line of it turns a success into a failure), and an end for every
//! call whatever the agent does.
//!
//! Start reading at [`answer`].

pub mod frame;

use std::{
    collections::BTreeMap,
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use serde::Serialize;

use frame::{FrameError, MAX_BODY, Reply, Request, Status};

/// The agent's socket, beside the driver. kubelet passes over names that begin with a dot; any other
/// new file there would make it probe the driver again.
pub const SOCKET: &str = ".wharf.sock";

/// How long each call may take. kubelet sets no limit of its own, and it asks again after a failure,
/// so that a limit only has to be longer than any mount that goes well.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// The answer does not depend on the agent, which is only told.
    pub init: Duration,
    pub mount: Duration,
    pub unmount: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            init: Duration::from_millis(500),
            mount: Duration::from_secs(120),
            unmount: Duration::from_secs(120),
        }
    }
}

/// What kubelet reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Output {
    pub status: Status,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
}

/// What kubelet may expect of the driver. What is not said here is as kubelet assumes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// Attaching is part of mounting: no control plane takes part.
    pub attach: bool,
    pub supports_metrics: bool,
}

/// Answers one call. `socket` is where the agent listens.
pub fn answer(arguments: &[String], socket: &Path, deadlines: &Deadlines) -> Output {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["init"] => init(socket, deadlines.init),
        ["mount", dir, options] => match parse_options(options) {
            Ok(options) => {
                let request = Request::Mount { dir: (*dir).to_owned(), options };
                ask(request, socket, deadlines.mount)
            }
            Err(message) => failure(message),
        },
        ["unmount", dir] => {
            let request = Request::Unmount { dir: (*dir).to_owned() };
            ask(request, socket, deadlines.unmount)
        }
        ["init" | "mount" | "unmount", ..] => failure(format!(
            "`{}` was called with {} arguments",
            arguments.first().unwrap_or(&""),
            arguments.len().saturating_sub(1)
        )),
        [] => failure("there is no call; kubelet runs `init`, `mount` and `unmount`".to_owned()),
        [..] => Output { status: Status::NotSupported, message: String::new(), capabilities: None },
    }
}

/// Says what the driver can. The agent is told that kubelet has found the driver, if it listens.
fn init(socket: &Path, deadline: Duration) -> Output {
    let request = Request::Init { version: env!("CARGO_PKG_VERSION").to_owned() };
    // kubelet must be able to find the driver before the agent runs, and while it is upgraded.
    let _told = exchange(request, socket, deadline);
    let capabilities = Capabilities { attach: false, supports_metrics: true };
    Output { status: Status::Success, message: String::new(), capabilities: Some(capabilities) }
}

fn parse_options(text: &str) -> Result<BTreeMap<String, String>, String> {
    if text.len() > MAX_BODY {
        return Err(format!("the options are longer than {MAX_BODY} bytes"));
    }
    // The text is not repeated: it may hold secrets.
    serde_json::from_str(text).map_err(|_| "the options are not a flat JSON object".to_owned())
}

fn ask(request: Request, socket: &Path, deadline: Duration) -> Output {
    match exchange(request, socket, deadline) {
        Ok(Reply { status, message }) => Output { status, message, capabilities: None },
        Err(error) => failure(error.to_string()),
    }
}

fn failure(message: String) -> Output {
    Output { status: Status::Failure, message, capabilities: None }
}

/// Why the agent gave no answer.
#[derive(Debug)]
pub enum ExchangeError {
    /// Nobody listens.
    Down(io::Error),
    Frame(FrameError),
    Late(Duration),
}

impl std::fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ExchangeError::Down(error) => {
                write!(f, "the agent on this node cannot be reached ({error}); is it running?")
            }
            ExchangeError::Frame(error) => write!(f, "the agent's answer cannot be used: {error}"),
            ExchangeError::Late(deadline) => {
                write!(f, "the agent has not answered within {} s", deadline.as_secs_f32())
            }
        }
    }
}

/// Asks the agent and waits for its answer, until the deadline at the latest.
///
/// A thread does the talking, because connecting has no deadline of its own and a reply that comes
/// byte by byte outlives one that is set for each read. It is left behind: the process ends.
pub fn exchange(
    request: Request,
    socket: &Path,
    deadline: Duration,
) -> Result<Reply, ExchangeError> {
    let (sender, receiver) = mpsc::channel();
    let socket: PathBuf = socket.to_owned();
    thread::spawn(move || {
        // Nobody listens after the deadline.
        let _late = sender.send(talk(&request, &socket));
    });
    match receiver.recv_timeout(deadline) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(ExchangeError::Late(deadline)),
        Err(RecvTimeoutError::Disconnected) => {
            Err(ExchangeError::Down(io::Error::other("the call was cut off")))
        }
    }
}

fn talk(request: &Request, socket: &Path) -> Result<Reply, ExchangeError> {
    let mut stream = UnixStream::connect(socket).map_err(ExchangeError::Down)?;
    frame::write(&mut stream, request).map_err(ExchangeError::Frame)?;
    frame::read(&mut stream).map_err(ExchangeError::Frame)
}
