//! The `wharf` binary: the management server, the node agent and every client command.
//!
//! **Invariant:** client commands know the API only through `wharf_api`; they never open the store
//! of a running server. Data goes to stdout, everything else to stderr.
//!
//! Start reading at [`cli`] (what can be said), then [`commands`] (what is done about it),
//! [`target`] (to which server) and [`failure`] (what a failure looks like).

use std::process::ExitCode;

use clap::Parser;

mod ask;
mod cli;
mod commands;
mod context;
mod failure;
mod logging;
mod output;
mod target;
mod trust;

fn main() -> ExitCode {
    match commands::run(cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}
