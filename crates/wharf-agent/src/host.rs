//! Makes a host hold what a document says, and takes all of it away again.
//!
//! [`apply`] carries out a [`HostDocument`]; [`remove`] removes what documents have made, and what
//! the components have made by themselves. Both are called on the host, as root, by the server
//! through SSH: [`run_apply`] and [`run_remove`] are the commands.
//!
//! Decisions are in [`decide`], which never looks at the machine; everything else looks or acts.
//! What was made is recorded, before it is made, in [`made`].
//!
//! **Invariant:** what is not in the record is not ours: it is neither overwritten nor removed.

use std::io::{self, Read, Write};
use std::process::ExitCode;

use serde::Serialize;
use wharf_core::install::host::{HostDocument, HostReport};

mod apply;
mod bundled;
pub mod decide;
pub(crate) mod failure;
pub mod files;
mod images;
mod kernel;
pub mod made;
pub(crate) mod mounts;
mod paths;
mod remove;
pub(crate) mod root;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod units;

pub use apply::{apply, import};
pub use remove::remove;
pub(crate) use remove::{end_guards, remove_tree};
pub use root::{Commands, Ran, Root};

use failure::failure;

/// A document holds certificates and texts of a few kilobytes each; far more than this is an error.
const DOCUMENT_LIMIT: u64 = 64 * 1024 * 1024;

/// `wharf agent host apply`: a document on standard input, its report as one line on standard
/// output. Fails when the report has a failure.
pub fn run_apply(dry_run: bool) -> ExitCode {
    run(|document| apply(&Root::machine(), document, dry_run))
}

fn run(carry_out: impl Fn(&HostDocument) -> HostReport) -> ExitCode {
    let report = match read_document(io::stdin().lock()) {
        Ok(document) => carry_out(&document),
        Err(error) => {
            let failure = Some(failure("read the document", error.to_string()));
            HostReport { failure, ..HostReport::default() }
        }
    };
    print(&report, report.failure.is_none())
}

/// `wharf agent host import`: the same for the images of a document alone.
pub fn run_import() -> ExitCode {
    run(|document| import(&Root::machine(), document))
}

/// `wharf agent host remove`: prints a [`RemovalReport`](wharf_core::install::host::RemovalReport)
/// as one line. Fails when something is left.
pub fn run_remove(dry_run: bool) -> ExitCode {
    let report = remove(&Root::machine(), dry_run);
    print(&report, report.leftovers.is_empty())
}

fn read_document(input: impl Read) -> io::Result<HostDocument> {
    let mut text = Vec::new();
    input.take(DOCUMENT_LIMIT).read_to_end(&mut text)?;
    // The error names line and column, and nothing of the content, which may be secret.
    serde_json::from_slice(&text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        io::Error::other(format!("the document cannot be read (line {line}, column {column})"))
    })
}

fn print(report: &impl Serialize, good: bool) -> ExitCode {
    let printed = serde_json::to_string(report)
        .map_err(io::Error::from)
        .and_then(|line| writeln!(io::stdout().lock(), "{line}"));
    if good && printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
