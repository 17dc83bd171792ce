//! Development commands: `cargo xtask …`. `cargo xtask --help` lists them.

mod assets;
mod bench;
mod demo;
mod hosts;
mod image;
mod needs;
mod release;
mod sim;
mod tidy;
mod verify;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::OnceLock,
};

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
    Sim(sim::SimArgs),
    Release(release::ReleaseArgs),
    Image(image::ImageArgs),
    /// Look for what a reviewer would say again and again
    Tidy,
    /// Rewrite the files in docs/ that are made from the code
    Update,
}

/// The root of the tree: of the one that cargo runs us from, should it have been moved or copied
/// since we were built.
fn workspace() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let own = std::env::var_os("CARGO_MANIFEST_DIR");
        let own = own.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        own.parent().map_or_else(|| own.clone(), Path::to_path_buf)
    })
}

/// Where cargo puts what it builds.
fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Demo(args) => demo::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Assets(args) => assets::run(&args),
        Command::Hosts(hosts) => hosts::run(&hosts),
        Command::Bench(args) => bench::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Release(args) => release::run(&args),
        Command::Image(args) => image::run(&args),
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
