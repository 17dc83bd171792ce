//! What can be said on the command line.

use clap::{Args, Parser, Subcommand};

use crate::{agent, commands, output::Output, target::Wish};

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

/// Builds Kubernetes clusters on machines you own and watches over them.
#[derive(Debug, Parser)]
#[command(
    name = "wharf",
    version,
    about,
    propagate_version = false,
    disable_help_subcommand = true,
    arg_required_else_help = true,
    after_help = "\
Commands speak to the server named by --data-dir or --server, else by the environment, else to the
server on this machine if it runs, else to the current context (see `wharf login`).

Exit codes:
  0  done          1  failed       2  wrong usage    3  not found
  4  refused (rights or state)     5  unreachable    6  timed out

Examples:
  wharf server --data-dir /var/lib/wharf      run the server
  wharf login --server https://wharf.example.org:8443
  wharf cluster list -o json"
)]
pub struct Cli {
    #[command(flatten)]
    pub wish: Wish,
    #[command(flatten)]
    pub output: Output,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Server(commands::server::ServerArgs),
    Agent(agent::AgentArgs),
    Login(commands::login::LoginArgs),
    Context(commands::context::ContextArgs),
    User(commands::user::UserArgs),
    Token(commands::token::TokenArgs),
    Audit(commands::audit::AuditArgs),
    Events(commands::events::EventsArgs),
    Cluster(commands::cluster::ClusterArgs),
    Node(commands::node::NodeArgs),
    App(commands::app::AppArgs),
    Volume(commands::volume::VolumeArgs),
    RepairQueue(commands::repair::RepairArgs),
    Members(commands::members::MembersArgs),
    /// Make and check bundles: the files that an install puts on hosts
    Bundle {
        #[command(flatten)]
        args: commands::bundle::BundleArgs,
        #[command(flatten)]
        local: Local,
    },
    Store(commands::store::StoreArgs),
    Version(commands::version::VersionArgs),
    Completion(commands::completion::CompletionArgs),
}

/// Takes the place of the global options of the same name in commands that work on this machine,
/// so that their help does not offer them. [`Wish::refuse_remote`] refuses them there.
#[derive(Debug, Clone, Args)]
pub struct Local {
    #[arg(long, hide = true)]
    server: Option<String>,
    #[arg(long, hide = true)]
    token: Option<String>,
    #[arg(long, hide = true)]
    ca: Option<std::path::PathBuf>,
    #[arg(long, hide = true)]
    context: Option<String>,
}
