//! What each command does. A file for each; here is only the choice between them.

use std::process::ExitCode;

use clap::Parser;
use wharf_api::client::{At, Client};

use crate::{
    agent, block_on,
    cli::{Cli, Command},
    failure::Told,
    target,
};

pub mod app;
pub mod audit;
pub mod bundle;
pub mod cluster;
pub mod completion;
pub mod context;
pub mod events;
mod follow;
pub mod login;
pub mod members;
pub mod node;
pub mod repair;
pub mod server;
pub mod store;
pub mod token;
pub mod user;
pub mod version;
pub mod volume;

pub fn run() -> anyhow::Result<ExitCode> {
    let Cli { wish, output, command } = Cli::parse();
    let format = output.format;
    let client = || target::connect(&wish);
    match command {
        // On a host a failure is part of the report, and only the code says that there is one.
        Command::Agent(args) => {
            wish.refuse_remote("wharf agent")?;
            return agent::run(args, format);
        }
        Command::Server(args) => server::run(args, &wish),
        Command::Bundle { args, .. } => {
            wish.refuse_remote("wharf bundle")?;
            bundle::run(args, format)
        }
        Command::Store(args) => store::run(args, &wish, format),
        Command::Completion(args) => completion::run(&args, &wish),
        Command::Login(args) => block_on(login::run(&args, &wish)),
        Command::Context(args) => context::run(&args, &wish, format),
        Command::User(args) => block_on(user::run(args, &target::find(&wish)?, format)),
        Command::Token(args) => block_on(token::run(args, &client()?, format)),
        Command::Audit(args) => block_on(audit::run(&args, &client()?, format)),
        Command::Events(args) => block_on(events::run(&args, &client()?, format)),
        Command::Cluster(args) => block_on(cluster::run(&args, &client()?, format)),
        Command::Node(args) => block_on(node::run(&args, &client()?, format)),
        Command::App(args) => block_on(app::run(&args, &client()?, format)),
        Command::Volume(args) => block_on(volume::run(&args, &client()?, format)),
        Command::RepairQueue(args) => block_on(repair::run(&args, &client()?, format)),
        Command::Members(_) => block_on(members::run(&client()?, format)),
        Command::Version(args) => block_on(version::run(&args, &wish, format)),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// A name that a person gave, as a part of a path.
fn segment(name: &str) -> anyhow::Result<String> {
    // These would name another resource than the one that was meant, even when encoded.
    if matches!(name, "" | "." | "..") {
        return Err(Told::usage(format!("{name:?} is not a name")).into());
    }
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    Ok(encoded)
}

/// The user that the caller is. Over the local socket that is nobody in particular.
async fn own_name(client: &Client, option: &str) -> anyhow::Result<String> {
    if let At::Socket(_) = client.at() {
        return Err(Told::usage("over the local socket there is no user of one's own")
            .hint(format!("say whose with {option}"))
            .into());
    }
    let me: wharf_api::user::WhoAmI = client.get("/whoami").await?;
    Ok(me.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_place_in_the_path() {
        for (name, part) in [
            ("alice-2", "alice-2"),
            ("a/../b", "a%2F..%2Fb"),
            ("a?b#c", "a%3Fb%23c"),
            ("ü", "%C3%BC"),
        ] {
            assert_eq!(segment(name).unwrap(), part);
        }
        for name in ["", ".", ".."] {
            assert!(segment(name).is_err(), "{name}");
        }
    }
}
