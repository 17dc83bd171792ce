//! Development commands: `cargo xtask …`. `cargo xtask --help` lists them.

mod assets;
mod bench;
mod demo;
mod hosts;
mod needs;
mod tidy;
mod verify;

use std::{path::Path, process::ExitCode};

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    Demo(demo::DemoArgs),
    Verify(verify::VerifyArgs),
    Assets(assets::AssetsArgs),
    /// Real machines on this one, for tests and for trying things
    #[command(subcommand)]
    Hosts(hosts::Hosts),
    Bench(bench::BenchArgs),
    /// Look for what a reviewer would say again and again
    Tidy,
    /// Rewrite the files in docs/ that are made from the code
    Update,
}

/// The root of the tree.
fn workspace() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Demo(args) => demo::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Assets(args) => assets::run(&args),
        Command::Hosts(hosts) => hosts::run(&hosts),
        Command::Bench(args) => bench::run(&args),
        Command::Tidy => tidy::run(),
        Command::Update => verify::update(),
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
