//! The commands of a repair, ready to be run.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    config::{Operation, Step},
    entry::Entry,
};

/// A command with the address as its last argument. It runs without a shell, with no input, in a
/// process group of its own that is ended whole at the time-out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub kind: CommandKind,
    pub argv: Vec<String>,
    /// In addition to that of the server.
    pub env: Vec<(&'static str, String)>,
    /// `None`: no limit.
    pub timeout: Option<Duration>,
    /// From the stored intent; an end is noted under the same.
    pub begun: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandKind {
    Repair { attempt: u32 },
    HealthCheck,
    Success,
    Failure,
}

impl CommandKind {
    pub fn name(self) -> &'static str {
        match self {
            CommandKind::Repair { .. } => "repair",
            CommandKind::HealthCheck => "health_check",
            CommandKind::Success => "success",
            CommandKind::Failure => "failure",
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    TimedOut,
    /// It could not be begun, for this reason.
    NotStarted(String),
}

impl Exit {
    pub fn is_success(&self) -> bool {
        *self == Exit::Code(0)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exited with {code}"),
            Exit::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Exit::TimedOut => f.write_str("did not end in time"),
            Exit::NotStarted(why) => write!(f, "could not be started: {why}"),
        }
    }
}

impl Command {
    pub(super) fn health_check(entry: &Entry, operation: &Operation, now: Timestamp) -> Self {
        let timeout = operation.command_timeout_seconds;
        Self::new(CommandKind::HealthCheck, &operation.health_check_command, timeout, entry, now)
    }

    pub(super) fn repair(entry: &Entry, step: &Step, attempt: u32, now: Timestamp) -> Self {
        let kind = CommandKind::Repair { attempt };
        Self::new(kind, &step.repair_command, step.command_timeout_seconds, entry, now)
    }

    pub(super) fn success(entry: &Entry, operation: &Operation, now: Timestamp) -> Self {
        let timeout = operation.success_command_timeout;
        Self::new(CommandKind::Success, &operation.success_command, timeout, entry, now)
    }

    pub(super) fn failure(entry: &Entry, operation: &Operation, now: Timestamp) -> Self {
        let timeout = operation.failure_command_timeout;
        Self::new(CommandKind::Failure, &operation.failure_command, timeout, entry, now)
    }

    fn new(
        kind: CommandKind,
        words: &[String],
        timeout_seconds: u64,
        entry: &Entry,
        begun: Timestamp,
    ) -> Self {
        let attempt = match kind {
            CommandKind::Repair { attempt } => attempt,
            CommandKind::HealthCheck | CommandKind::Success | CommandKind::Failure => 1,
        };
        let env = vec![
            ("WHARF_REPAIR_INDEX", entry.index.to_string()),
            ("WHARF_REPAIR_ADDRESS", entry.address.clone()),
            ("WHARF_REPAIR_SERIAL", entry.serial.clone()),
            ("WHARF_REPAIR_NODENAME", entry.nodename.clone()),
            ("WHARF_REPAIR_MACHINE_TYPE", entry.machine_type.clone()),
            ("WHARF_REPAIR_OPERATION", entry.operation.clone()),
            ("WHARF_REPAIR_STEP", entry.step.to_string()),
            ("WHARF_REPAIR_ATTEMPT", attempt.to_string()),
            ("WHARF_REPAIR_COMMAND", kind.name().to_owned()),
        ];
        let mut argv = words.to_vec();
        argv.push(entry.address.clone());
        let timeout = (timeout_seconds > 0).then(|| Duration::from_secs(timeout_seconds));
        Self { kind, argv, env, timeout, begun }
    }
}
