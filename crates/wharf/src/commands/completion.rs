//! `wharf completion`

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{
    cli::{Cli, Local},
    output,
    target::Wish,
};

/// Print the completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wharf completion bash > /etc/bash_completion.d/wharf
  wharf completion zsh > \"${fpath[1]}/_wharf\"
  wharf completion fish > ~/.config/fish/completions/wharf.fish")]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
    #[command(flatten)]
    _local: Local,
}

pub fn run(args: &CompletionArgs, wish: &Wish) -> anyhow::Result<()> {
    wish.refuse_remote("wharf completion")?;
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "wharf", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}
