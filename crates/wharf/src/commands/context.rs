//! `wharf context`

use anyhow::Result;
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    ask,
    cli::Local,
    context::{self, Context, Contexts},
    failure::{Exit, Told},
    output::{self, Format},
    target::{self, Wish},
};

/// Choose between the servers that you have logged in to
///
/// A context is a server with its authority and your token there, as `wharf login` makes it. The
/// contexts are in `~/.config/wharf/contexts.toml` (or the file that WHARF_CONTEXTS names).
#[derive(Debug, clap::Args)]
pub struct ContextArgs {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    _local: Local,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List the contexts
    List,
    /// Make a context the current one
    Use {
        /// The context's name
        name: String,
    },
    /// Show a context, the current one by default
    Show {
        /// The context's name
        name: Option<String>,
    },
    /// Forget a context; its token stays valid until it expires
    Delete {
        /// The context's name
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// A context as it may be shown: without its token.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    name: &'a str,
    current: bool,
    server: &'a str,
    user: &'a str,
    expires_at: Timestamp,
    pinned: bool,
}

pub fn run(args: &ContextArgs, wish: &Wish, format: Format) -> Result<()> {
    wish.refuse_remote("wharf context")?;
    let path = context::default_path(target::var);
    match &args.verb {
        Verb::List => list(&context::load(&path)?, format),
        Verb::Show { name } => show(&context::load(&path)?, name.as_deref(), format),
        Verb::Use { name } => context::update(&path, |contexts| {
            contexts.get(name)?;
            contexts.current = Some(name.clone());
            Ok(())
        }),
        Verb::Delete { name, yes } => {
            let server = context::load(&path)?.get(name)?.server.clone();
            ask::confirm(
                &format!("The login to {server} (context {name}) will be forgotten."),
                *yes,
            )?;
            context::update(&path, |contexts| {
                contexts.get(name)?;
                contexts.contexts.remove(name);
                contexts.current.take_if(|current| current == name);
                Ok(())
            })
        }
    }
}

fn list(contexts: &Contexts, format: Format) -> Result<()> {
    let shown: Vec<Shown> =
        contexts.contexts.iter().map(|(name, context)| shown(contexts, name, context)).collect();
    let columns = ["CURRENT", "NAME", "SERVER", "USER", "EXPIRES"];
    output::list(format, &shown, columns, |context| {
        [
            if context.current { "*" } else { "" }.to_owned(),
            context.name.to_owned(),
            context.server.to_owned(),
            context.user.to_owned(),
            output::time(context.expires_at),
        ]
    })
}

fn show(contexts: &Contexts, name: Option<&str>, format: Format) -> Result<()> {
    let (name, context) = match (name, contexts.current()) {
        (Some(name), _) => (name, contexts.get(name)?),
        (None, Some(current)) => current,
        (None, None) => {
            return Err(Told::new(Exit::NotFound, "there is no current context")
                .hint("choose one with `wharf context use NAME`, or make one with `wharf login`")
                .into());
        }
    };
    output::one(format, &shown(contexts, name, context), |context| {
        vec![
            ("Name", context.name.to_owned()),
            ("Current", if context.current { "yes" } else { "no" }.to_owned()),
            ("Server", context.server.to_owned()),
            ("User", context.user.to_owned()),
            ("Expires", output::time(context.expires_at)),
            (
                "Authority",
                if context.pinned { "pinned at login" } else { "the system's" }.to_owned(),
            ),
        ]
    })
}

fn shown<'a>(contexts: &Contexts, name: &'a str, context: &'a Context) -> Shown<'a> {
    Shown {
        name,
        current: contexts.current.as_deref() == Some(name),
        server: &context.server,
        user: &context.user,
        expires_at: context.expires_at,
        pinned: context.ca.is_some(),
    }
}
