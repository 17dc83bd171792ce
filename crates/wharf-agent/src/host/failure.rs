//! How this program says what went wrong.

use std::io;

use wharf_core::install::host::HostFailure;

use super::root::Ran;

/// Of a program's errors, the last lines say why it failed.
const TAIL_LINES: usize = 20;

pub(crate) fn failure(step: impl Into<String>, message: impl Into<String>) -> HostFailure {
    let (step, message) = (step.into(), message.into());
    HostFailure { step, message, detail: String::new(), hint: None }
}

/// Adds to a failure what is known beyond its sentence.
pub(crate) trait Telling {
    fn detail(self, detail: impl Into<String>) -> Self;
    fn hint(self, hint: impl Into<String>) -> Self;
}

impl Telling for HostFailure {
    fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// All of a failure as one text.
pub(crate) fn told(failure: &HostFailure) -> String {
    let HostFailure { step, message, detail, hint } = failure;
    let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{step}: {message}{hint}\n{detail}").trim_end().to_owned()
}

/// A program's output if it succeeded, and a failure that shows its last lines if not.
pub(crate) fn succeeded(step: &str, ran: io::Result<Ran>) -> Result<String, HostFailure> {
    match ran {
        Ok(ran) if ran.success => Ok(ran.stdout),
        Ok(ran) => Err(failure(step, first_line(&ran.stderr)).detail(tail(&ran.stderr))),
        Err(error) => Err(failure(step, error.to_string())),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed without a word").trim()
}

pub(crate) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default().join("\n")
}
