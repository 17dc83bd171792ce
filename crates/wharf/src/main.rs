//! The `wharf` binary: the management server, the node agent and every client command. Without the
//! feature `full` it is what hosts get: the agent alone.
//!
//! **Invariant:** client commands know the API only through `wharf_api`; they never open the store
//! of a running server. Data goes to stdout, everything else to stderr.
//!
//! Start reading at [`cli`] (what can be said), then [`commands`] and [`agent`] (what is done about
//! it), [`target`] (to which server) and [`failure`] (what a failure looks like).

use std::{future::Future, process::ExitCode};

use anyhow::Context as _;

#[cfg(feature = "full")]
use commands::run;
#[cfg(not(feature = "full"))]
use host::run;

mod agent;
#[cfg(feature = "full")]
mod ask;
#[cfg(feature = "full")]
mod cli;
#[cfg(feature = "full")]
mod commands;
#[cfg(feature = "full")]
mod context;
mod failure;
#[cfg(not(feature = "full"))]
mod host;
mod logging;
mod output;
#[cfg(feature = "full")]
mod target;
#[cfg(feature = "full")]
mod trust;

fn main() -> ExitCode {
    run().unwrap_or_else(|error| failure::report(&error))
}

/// Commands do one thing at a time: one thread starts in no time and is enough.
fn block_on<T>(task: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let result = runtime.block_on(task);
    // A name look-up that hangs must not keep a finished command from ending.
    runtime.shutdown_background();
    result
}
