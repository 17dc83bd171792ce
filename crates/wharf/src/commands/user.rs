//! `wharf user`

use std::path::PathBuf;

use anyhow::Context as _;
use wharf_api::{
    client::{At, Client},
    resource::Collection,
    user::{ChangePassword, CreateUser, RoleName, User},
};

use super::{own_name, segment};
use crate::{
    ask, context,
    failure::Told,
    output::{self, Format},
    target::{self, Whereto},
};

/// Manage the users of the server
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wharf user add alice --role admin
  wharf user add bob --role viewer --cluster prod --cluster test
  wharf user passwd alice --password-file ./secret
  wharf user delete bob --yes")]
pub struct UserArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Add a user; without --password-file the server chooses the password, and it is printed once
    Add {
        /// The new user's name: lower-case letters, digits and '-'
        name: String,
        /// What the user may do: everything, or only look
        #[arg(long, value_enum)]
        role: Role,
        /// Let a viewer see this cluster only; may be given several times
        #[arg(long = "cluster", value_name = "CLUSTER")]
        clusters: Vec<String>,
        /// File with the password, at least 12 characters; `-` reads stdin
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// List the users
    List,
    /// Change a password, your own by default
    Passwd {
        /// Whose password
        name: Option<String>,
        /// File with the new password; `-` reads stdin
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
        /// File with the present password, which is needed to change one's own
        #[arg(long, value_name = "FILE")]
        old_password_file: Option<PathBuf>,
    },
    /// Delete a user and all of the user's tokens
    Delete {
        /// The user's name
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    Admin,
    Viewer,
}

pub async fn run(args: UserArgs, whereto: &Whereto, format: Format) -> anyhow::Result<()> {
    let client = &whereto.connect()?;
    match args.verb {
        Verb::Add { name, role, clusters, password_file } => {
            let password = match &password_file {
                Some(file) => Some(ask::new_password(&name, Some(file))?),
                None => None,
            };
            add(client, &creation(name, role, clusters, password)?, format).await
        }
        Verb::List => list(client, format).await,
        Verb::Passwd { name, password_file, old_password_file } => {
            passwd(whereto, client, name, password_file, old_password_file).await
        }
        Verb::Delete { name, yes } => {
            let path = format!("/users/{}", segment(&name)?);
            // Asking about a user that does not exist would be a waste of a careful answer.
            let user: User = client.get(&path).await?;
            let role = role_text(&user);
            ask::confirm(
                &format!("User {name} ({role}) and all tokens of {name} will be deleted."),
                yes,
            )?;
            client.delete(&path).await?;
            output::note(&format!("user {name} was deleted"));
            Ok(())
        }
    }
}

fn creation(
    name: String,
    role: Role,
    clusters: Vec<String>,
    password: Option<String>,
) -> anyhow::Result<CreateUser> {
    let (role, clusters) = match (role, clusters.is_empty()) {
        (Role::Admin, true) => (RoleName::Admin, None),
        (Role::Admin, false) => {
            return Err(Told::usage("an admin sees all clusters; --cluster is for viewers").into());
        }
        (Role::Viewer, true) => (RoleName::Viewer, None),
        (Role::Viewer, false) => (RoleName::Viewer, Some(clusters)),
    };
    Ok(CreateUser { name, role, clusters, password })
}

async fn add(client: &Client, user: &CreateUser, format: Format) -> anyhow::Result<()> {
    let added: User = client.post("/users", user).await?;
    match format {
        Format::Table => {
            output::note(&format!("user {} was added", added.name));
            if let Some(password) = &added.password {
                output::note("the password is shown only this once:");
                output::line(password)?;
            }
            Ok(())
        }
        Format::Json | Format::Yaml => output::data(format, &added),
    }
}

async fn list(client: &Client, format: Format) -> anyhow::Result<()> {
    let users: Collection<User> = client.get("/users").await?;
    output::list(format, &users.data, ["NAME", "ROLE", "CLUSTERS", "CREATED"], |user| {
        [
            user.name.clone(),
            role_text(user).to_owned(),
            user.clusters.as_ref().map_or_else(|| "all".to_owned(), |names| names.join(", ")),
            output::time(user.head.creation_timestamp),
        ]
    })
}

async fn passwd(
    whereto: &Whereto,
    client: &Client,
    name: Option<String>,
    file: Option<PathBuf>,
    old_file: Option<PathBuf>,
) -> anyhow::Result<()> {
    let (name, own) = match (name, client.at()) {
        (Some(name), At::Socket(_)) => (name, false),
        (name, _) => {
            let me = own_name(client, "`wharf user passwd NAME`").await?;
            let own = name.as_ref().is_none_or(|name| *name == me);
            (name.unwrap_or(me), own)
        }
    };
    let old_password = if own || old_file.is_some() {
        let prompt = format!("Present password of {name}: ");
        Some(ask::password(&prompt, old_file.as_deref(), "--old-password-file")?)
    } else {
        None
    };
    let password = ask::new_password(&name, file.as_deref())?;
    let path = format!("/users/{}/password", segment(&name)?);
    client.put_empty(&path, &ChangePassword { password: password.clone(), old_password }).await?;
    output::note(&format!("the password of {name} was changed"));
    if own { keep_access(whereto, &name, &password).await } else { Ok(()) }
}

/// A new password ends all tokens that were made under the old one, that of the caller included.
async fn keep_access(whereto: &Whereto, user: &str, password: &str) -> anyhow::Result<()> {
    let Whereto::Url { server, ca, context, .. } = whereto else { return Ok(()) };
    let Some(name) = context else {
        output::note(&format!(
            "the token that was given no longer holds, nor does any other of {user}"
        ));
        return Ok(());
    };
    let (server, ca) = (server.clone(), ca.clone());
    // A token that does not hold is refused even where none is needed.
    let nobody = Whereto::Url { server, ca, token: None, context: None }.connect()?;
    let login = nobody.login(&segment(user)?, password).await.with_context(|| {
        format!("the new password holds, but `wharf login --context {name}` is still to be done")
    })?;
    context::update(&context::default_path(target::var), |contexts| {
        if let Some(context) = contexts.contexts.get_mut(name) {
            context.token = login.token;
            context.expires_at = login.expires_at;
        }
        Ok(())
    })?;
    output::note(&format!("all tokens of {user} have ended; the context {name} has a new one"));
    Ok(())
}

fn role_text(user: &User) -> &'static str {
    match user.role {
        RoleName::Admin => "admin",
        RoleName::Viewer => "viewer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_limit_viewers_only() {
        let make = |role, clusters: &[&str]| {
            let clusters = clusters.iter().map(|c| (*c).to_owned()).collect();
            creation("alice".to_owned(), role, clusters, None).map(|user| user.clusters)
        };
        assert_eq!(make(Role::Viewer, &[]).unwrap(), None);
        assert_eq!(make(Role::Viewer, &["a", "b"]).unwrap().unwrap(), ["a", "b"]);
        assert_eq!(make(Role::Admin, &[]).unwrap(), None);
        let error = make(Role::Admin, &["a"]).unwrap_err();
        assert_eq!(crate::failure::explain(&error).exit, crate::failure::Exit::Usage);
    }
}
