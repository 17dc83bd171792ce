//! What a failure looks like: `error:` with its causes, `hint:` with what to do next, and the exit
//! code. The kinds are told apart by type, never by text.

use std::{error::Error as StdError, fmt::Write as _, io, process::ExitCode};

use wharf_agent::config::ConfigError as AgentConfigError;

use crate::output;

#[cfg(feature = "full")]
mod client;
#[cfg(feature = "full")]
mod server;

/// The exit codes that scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    /// The caller's rights or the state of the thing do not allow it.
    Refused = 4,
    Unreachable = 5,
    TimedOut = 6,
}

/// A failure that arises in the command line itself.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Told {
    pub exit: Exit,
    pub message: String,
    pub hint: Option<String>,
}

impl Told {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// What a person is told.
#[derive(Debug, PartialEq, Eq)]
pub struct Explained {
    pub exit: Exit,
    pub hint: Option<String>,
    /// Faults of single fields, one a line.
    pub details: Vec<String>,
}

/// Writes the failure to stderr and says with which code to end.
pub fn report(error: &anyhow::Error) -> ExitCode {
    let explained = explain(error);
    if explained.exit != Exit::Done {
        output::note(render(error, &explained).trim_end());
    }
    ExitCode::from(explained.exit as u8)
}

fn render(error: &anyhow::Error, explained: &Explained) -> String {
    let mut text = format!("error: {}", render_causes(error));
    for detail in &explained.details {
        let _ = write!(text, "\n  {detail}");
    }
    if let Some(hint) = &explained.hint {
        let _ = write!(text, "\nhint: {hint}");
    }
    text
}

/// The error and its causes in one line.
pub fn render_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    let causes: Vec<&(dyn StdError + 'static)> = error.chain().skip(1).collect();
    #[cfg(feature = "full")]
    let causes = client::shorten(causes);
    for cause in causes.iter().map(ToString::to_string) {
        // Others repeat the cause in their own text; once is enough.
        if !text.ends_with(&cause) {
            let _ = write!(text, ": {cause}");
        }
    }
    text
}

/// The outermost cause of a known type decides.
pub fn explain(error: &anyhow::Error) -> Explained {
    let plain = |exit, hint| Explained { exit, hint, details: Vec::new() };
    for cause in error.chain() {
        if let Some(told) = cause.downcast_ref::<Told>() {
            return plain(told.exit, told.hint.clone());
        }
        if let Some(closed) = cause.downcast_ref::<output::WriteError>() {
            // `wharf user list | head -1`: the reader has what it wanted.
            let done = closed.0.kind() == io::ErrorKind::BrokenPipe;
            return plain(if done { Exit::Done } else { Exit::Failed }, None);
        }
        if let Some(error) = cause.downcast_ref::<AgentConfigError>() {
            return plain(Exit::Usage, error.hint());
        }
        #[cfg(feature = "full")]
        if let Some(explained) = client::explain(cause).or_else(|| server::explain(cause)) {
            return explained;
        }
    }
    plain(Exit::Failed, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_the_command_line_carry_their_own_code() {
        let error = anyhow::Error::new(Told::usage("no such thing").hint("try another"));
        let explained = explain(&error);
        assert_eq!((explained.exit as u8, explained.hint.as_deref()), (2, Some("try another")));
        assert_eq!(render(&error, &explained), "error: no such thing\nhint: try another");
        assert_eq!(explain(&anyhow::anyhow!("whatever")).exit as u8, 1);
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let closed = output::WriteError(io::ErrorKind::BrokenPipe.into());
        assert_eq!(explain(&closed.into()).exit as u8, 0);
        let full = output::WriteError(io::ErrorKind::StorageFull.into());
        assert_eq!(explain(&full.into()).exit as u8, 1);
    }
}
