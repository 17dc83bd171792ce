//! Makes a host hold what a document says, and takes all of it away again.

use std::process::ExitCode;

use wharf_core::install::host::{HostDocument, HostReport, RemovalReport};

/// Where the host's `/` is. Tests give a directory of their own.
#[derive(Debug, Clone)]
pub struct Root(std::path::PathBuf);

impl Root {
    pub fn new(path: impl Into<std::path::PathBuf>) -> Self {
        Self(path.into())
    }
}

/// Makes the host hold what the document says; a second call changes nothing.
pub fn apply(_root: &Root, _document: &HostDocument, _dry_run: bool) -> HostReport {
    HostReport::default()
}

/// Takes away everything that was recorded, as far as it can, and says what is left.
pub fn remove(_root: &Root, _dry_run: bool) -> RemovalReport {
    RemovalReport::default()
}

/// `wharf agent host apply`: a document on standard input, its report as one line on standard
/// output. Fails when the report has a failure.
pub fn run_apply(_dry_run: bool) -> ExitCode {
    ExitCode::SUCCESS
}

/// `wharf agent host remove`: prints a [`RemovalReport`] as one line. Fails when something is left.
pub fn run_remove(_dry_run: bool) -> ExitCode {
    ExitCode::SUCCESS
}
