//! The command line of the program that hosts get: the agent, and nothing of the server or its clients.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{agent, output::Output};

/// The agent of Wharf on this machine
#[derive(Debug, Parser)]
#[command(
    name = "wharf",
    version,
    about,
    disable_help_subcommand = true,
    arg_required_else_help = true,
    after_help = "\
This is the program that Wharf puts on hosts. The server, and the commands for it, are in the `wharf`
that administrators have.

Examples:
  wharf agent status
  wharf agent reboot"
)]
struct Cli {
    #[command(flatten)]
    output: Output,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Agent(agent::AgentArgs),
}

pub fn run() -> anyhow::Result<ExitCode> {
    let Cli { output, command: Command::Agent(args) } = Cli::parse();
    agent::run(args, output.format)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_tree_is_sound() {
        Cli::command().debug_assert();
    }
}
