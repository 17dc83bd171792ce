//! What can go wrong with a host, in words that name it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Every variant names the host it is about, and [`SshError::hint`] says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum SshError {
    #[error("{host} cannot be reached")]
    Unreachable { host: String, source: io::Error },

    #[error("{host} did not manage to {doing} within {after:?}")]
    TimedOut { host: String, doing: String, after: Duration },

    #[error("{host} shows another host key than before: expected {expected}, found {found}")]
    HostKeyChanged { host: String, expected: String, found: String },

    #[error("{host} refuses the SSH key for user {user}")]
    AuthRefused { host: String, user: String },

    #[error("{host} does not let user {user} become root by sudo: {stderr}")]
    SudoRefused { host: String, user: String, stderr: String },

    /// The connection ended in the middle of something, which may or may not have been done.
    #[error("the connection to {host} was lost ({why}) while trying to {doing}")]
    Lost { host: String, doing: String, why: String },

    /// The connection stands; what ran on it is over, and may or may not have been done.
    #[error("{host} ended without a word on how it went when it was to {doing}")]
    Unanswered { host: String, doing: String },

    /// A command that prints without end; the rest of its answer is lost.
    #[error("{host}: `{command}` printed more than {limit} bytes")]
    TooMuch { host: String, command: String, limit: usize },

    /// The command ran and failed. `command` is shortened and never holds its standard input.
    #[error("{host}: `{command}` ended with code {exit}: {stderr_tail}")]
    Remote { host: String, command: String, exit: i32, stderr_tail: String },

    /// What answers speaks no SSH that we speak.
    #[error("{host} does not speak SSH as we do: {why}")]
    Protocol { host: String, why: String },

    /// The server is there, and will not do this for us.
    #[error("{host} refuses to {doing}: {why}")]
    Refused { host: String, doing: String, why: String },

    /// The command cannot be sent to any host.
    #[error("{host}: `{command}` cannot be sent: {why}")]
    BadCommand { host: String, command: String, why: &'static str },

    /// A helper command ran well and printed something else than it should.
    #[error("{host} gave an answer that makes no sense when asked to {doing}: {answer:?}")]
    Nonsense { host: String, doing: String, answer: String },

    #[error("{host}: {path} has the wrong checksum, also after a second upload")]
    Corrupted { host: String, path: String },

    #[error("{}, to be uploaded to {host}, cannot be read", path.display())]
    Source { host: String, path: PathBuf, source: io::Error },
}

impl SshError {
    pub fn host(&self) -> &str {
        match self {
            Self::Unreachable { host, .. }
            | Self::TimedOut { host, .. }
            | Self::HostKeyChanged { host, .. }
            | Self::AuthRefused { host, .. }
            | Self::SudoRefused { host, .. }
            | Self::Lost { host, .. }
            | Self::Unanswered { host, .. }
            | Self::TooMuch { host, .. }
            | Self::Remote { host, .. }
            | Self::Protocol { host, .. }
            | Self::Refused { host, .. }
            | Self::BadCommand { host, .. }
            | Self::Nonsense { host, .. }
            | Self::Corrupted { host, .. }
            | Self::Source { host, .. } => host,
        }
    }

    /// What a person can do about it; `None` where the sentence itself says it all.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unreachable { .. } => Some(
                "check the address and the SSH port, that the machine runs, and that no firewall \
                 is between"
                    .to_owned(),
            ),
            Self::TimedOut { .. } => {
                Some("the machine may be overloaded or hang; look at it, then try again".to_owned())
            }
            Self::HostKeyChanged { .. } => Some(
                "if the machine was installed anew, give its new host key; otherwise somebody may \
                 be answering in its place"
                    .to_owned(),
            ),
            Self::AuthRefused { user, .. } => Some(format!(
                "put the public half of the key into ~{user}/.ssh/authorized_keys on the machine, \
                 or name another user or key"
            )),
            Self::SudoRefused { user, .. } => Some(format!(
                "allow it with a line `{user} ALL=(ALL) NOPASSWD: ALL` in /etc/sudoers.d, or \
                 connect as root"
            )),
            Self::Lost { .. } => Some(
                "the machine may have rebooted or lost its network; once it is back, try again"
                    .to_owned(),
            ),
            Self::Unanswered { .. } => Some(
                "sshd or the command was ended from outside; look at the machine's log for a want \
                 of memory, then try again"
                    .to_owned(),
            ),
            Self::Protocol { .. } => {
                Some("check that the port is that of an SSH server of this decade".to_owned())
            }
            Self::Refused { .. } => Some(
                "look at the restrictions in the machine's sshd_config and authorized_keys"
                    .to_owned(),
            ),
            Self::Nonsense { .. } => Some(
                "check what the user's shell prints at its start (.bashrc, .profile)".to_owned(),
            ),
            Self::Corrupted { .. } => Some(
                "either the file at hand is not what its checksum says, or the machine's disk or \
                 memory is broken"
                    .to_owned(),
            ),
            Self::Remote { .. }
            | Self::TooMuch { .. }
            | Self::BadCommand { .. }
            | Self::Source { .. } => None,
        }
    }
}
