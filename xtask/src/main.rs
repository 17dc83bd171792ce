//! Development commands: `cargo xtask …`. `cargo xtask --help` lists them.

mod assets;
mod hosts;

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    Assets(assets::AssetsArgs),
    /// Real machines on this one, for tests and for trying things
    #[command(subcommand)]
    Hosts(hosts::Hosts),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Assets(args) => assets::run(&args),
        Command::Hosts(hosts) => hosts::run(&hosts),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if let Some(cause) = error.chain().find_map(|c| c.downcast_ref::<wharf_bundle::Error>())
            {
                eprintln!("hint: {}", cause.hint());
            }
            ExitCode::FAILURE
        }
    }
}
