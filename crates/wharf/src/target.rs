//! Which server a command speaks to: options beat the environment, the environment beats the
//! context file, and without any of them the local server comes first.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use reqwest::Url;
use wharf_api::client::{Client, Target};

use crate::{
    context::{self, Contexts},
    failure::{Exit, Told},
};

/// The server's socket in its data directory.
const SOCKET: &str = "wharf.sock";

/// What the options or the environment say about the server.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Which server")]
pub struct Wish {
    /// Data directory of the server on this machine; commands use the socket in it
    /// [env: WHARF_DATA_DIR]
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Address of the server, as https://host:8443 [env: WHARF_SERVER]
    #[arg(long, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// Token for --server; the environment keeps it out of the list of processes
    /// [env: WHARF_TOKEN]
    #[arg(long, global = true, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Certificate (PEM) of the only authority to trust for --server [env: WHARF_CA]
    #[arg(long, global = true, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Context to use, as made by `wharf login` [env: WHARF_CONTEXT]
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
}

impl Wish {
    pub fn from_env(var: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| var(name).filter(|value| !value.is_empty());
        Self {
            data_dir: set("WHARF_DATA_DIR").map(PathBuf::from),
            server: set("WHARF_SERVER"),
            token: set("WHARF_TOKEN"),
            ca: set("WHARF_CA").map(PathBuf::from),
            context: set("WHARF_CONTEXT"),
        }
    }

    /// For commands that work on this machine: naming another server there is a mistake.
    pub fn refuse_remote(&self, command: &str) -> anyhow::Result<()> {
        let given = [
            ("--server", self.server.is_some()),
            ("--token", self.token.is_some()),
            ("--ca", self.ca.is_some()),
            ("--context", self.context.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(Told::usage(format!("`{command}` takes no {option}")).into()),
            None => Ok(()),
        }
    }

    /// Two places in one layer: whichever were taken, it would surprise somebody.
    fn check(&self, names: &Names) -> anyhow::Result<()> {
        let clash = |a: &str, b: &str| {
            Err(Told::usage(format!("{a} and {b} cannot be used together")).into())
        };
        if self.data_dir.is_some() {
            for (given, name) in [
                (self.server.is_some(), names.server),
                (self.token.is_some(), names.token),
                (self.ca.is_some(), names.ca),
                (self.context.is_some(), names.context),
            ] {
                if given {
                    return clash(names.data_dir, name);
                }
            }
        }
        if self.server.is_some() && self.context.is_some() {
            return clash(names.server, names.context);
        }
        Ok(())
    }

    fn has_credentials(&self) -> bool {
        self.token.is_some() || self.ca.is_some()
    }
}

/// How a layer calls its settings.
struct Names {
    data_dir: &'static str,
    server: &'static str,
    token: &'static str,
    ca: &'static str,
    context: &'static str,
}

const OPTIONS: Names = Names {
    data_dir: "--data-dir",
    server: "--server",
    token: "--token",
    ca: "--ca",
    context: "--context",
};
const VARIABLES: Names = Names {
    data_dir: "WHARF_DATA_DIR",
    server: "WHARF_SERVER",
    token: "WHARF_TOKEN",
    ca: "WHARF_CA",
    context: "WHARF_CONTEXT",
};

/// What there is on this machine, looked at only when it is needed.
pub trait Surroundings {
    /// The socket in the default data directory, if it is there.
    fn default_socket(&self) -> Option<PathBuf>;
    fn contexts(&self) -> anyhow::Result<Contexts>;
}

/// Where a command goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whereto {
    Socket(PathBuf),
    Url {
        server: String,
        token: Option<String>,
        ca: Option<Ca>,
        /// The context that the token is from, if it is from one.
        context: Option<String>,
    },
}

impl Whereto {
    pub fn connect(&self) -> anyhow::Result<Client> {
        let target = match self {
            Whereto::Socket(path) => Target::Socket(path.clone()),
            Whereto::Url { server, token, ca, .. } => {
                let ca_pem = match ca {
                    None => None,
                    Some(Ca::Pem(pem)) => Some(pem.clone()),
                    Some(Ca::File(file)) => Some(read_ca(file)?),
                };
                Target::Url { url: server.clone(), token: token.clone(), ca_pem }
            }
        };
        Ok(Client::new(target)?)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ca {
    File(PathBuf),
    Pem(String),
}

pub fn decide(flags: &Wish, env: &Wish, here: &impl Surroundings) -> anyhow::Result<Whereto> {
    flags.check(&OPTIONS)?;
    if let Some(dir) = &flags.data_dir {
        return Ok(Whereto::Socket(dir.join(SOCKET)));
    }
    let either = || Wish {
        token: flags.token.clone().or_else(|| env.token.clone()),
        ca: flags.ca.clone().or_else(|| env.ca.clone()),
        ..Wish::default()
    };
    if let Some(server) = &flags.server {
        return url(server, either());
    }
    if let Some(name) = &flags.context {
        // A token in the environment is for another server than the one that is named here.
        return in_context(&here.contexts()?, Some(name), flags);
    }
    env.check(&VARIABLES)?;
    if let Some(dir) = &env.data_dir {
        if flags.has_credentials() {
            return Err(Told::usage("--token and --ca need --server or --context")
                .hint("WHARF_DATA_DIR names the server on this machine, which needs neither")
                .into());
        }
        return Ok(Whereto::Socket(dir.join(SOCKET)));
    }
    if let Some(server) = &env.server {
        return url(server, either());
    }
    if env.context.is_some() || either().has_credentials() {
        return in_context(&here.contexts()?, env.context.as_deref(), &either());
    }
    if let Some(socket) = here.default_socket() {
        return Ok(Whereto::Socket(socket));
    }
    in_context(&here.contexts()?, None, &Wish::default())
}

fn url(server: &str, credentials: Wish) -> anyhow::Result<Whereto> {
    let server = check_url(server)?;
    let ca = credentials.ca.map(Ca::File);
    Ok(Whereto::Url { server, token: credentials.token, ca, context: None })
}

fn in_context(
    contexts: &Contexts,
    name: Option<&str>,
    credentials: &Wish,
) -> anyhow::Result<Whereto> {
    let (name, context) = match (name, contexts.current()) {
        (Some(name), _) => (name, contexts.get(name)?),
        (None, Some(current)) => current,
        (None, None) => {
            return Err(Told::new(Exit::Unreachable, "there is no server to speak to")
                .hint("start one here with `wharf server`, or log in to one with `wharf login --server URL`; --data-dir names a server on this machine that has its data elsewhere")
                .into());
        }
    };
    let (token, from) = match &credentials.token {
        Some(token) => (token, None),
        None => (&context.token, Some(name.to_owned())),
    };
    Ok(Whereto::Url {
        server: check_url(&context.server)?,
        token: Some(token.clone()),
        context: from,
        ca: credentials.ca.clone().map(Ca::File).or_else(|| context.ca.clone().map(Ca::Pem)),
    })
}

/// An HTTPS address, or plain HTTP that stays on this machine: a token must not travel in the clear.
pub fn check_url(text: &str) -> anyhow::Result<String> {
    let bad = |why: &str| Told::usage(format!("{text} is not a server's address: {why}"));
    let url = Url::parse(text).map_err(|e| {
        bad(&e.to_string()).hint("an address looks like https://wharf.example.org:8443")
    })?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("it must not hold a user name or password")
            .hint("use `wharf login --user NAME`")
            .into());
    }
    if url.query().is_some() || url.fragment().is_some() || url.cannot_be_a_base() {
        return Err(bad("it must have the form https://host:port").into());
    }
    match url.scheme() {
        "https" => {}
        "http" if is_loopback(&url) => {}
        "http" => {
            return Err(bad("plain HTTP is only for addresses of this machine")
                .hint("use https://")
                .into());
        }
        other => return Err(bad(&format!("{other}: is not https:")).into()),
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// This machine as it is.
pub struct Machine;

impl Surroundings for Machine {
    fn default_socket(&self) -> Option<PathBuf> {
        let socket = wharf_server::config::default_data_dir().join(SOCKET);
        socket.exists().then_some(socket)
    }

    fn contexts(&self) -> anyhow::Result<Contexts> {
        context::load(&context::default_path(var))
    }
}

/// A variable of the environment that is text.
pub fn var(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The server that the options, the environment and the context file name.
pub fn find(flags: &Wish) -> anyhow::Result<Whereto> {
    decide(flags, &Wish::from_env(var), &Machine)
}

/// The client for that server.
pub fn connect(flags: &Wish) -> anyhow::Result<Client> {
    find(flags)?.connect()
}

pub fn read_ca(file: &Path) -> anyhow::Result<String> {
    let pem = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the authority's certificate {}", file.display()))?;
    if pem.contains("-----BEGIN CERTIFICATE-----") {
        Ok(pem)
    } else {
        // An empty list of authorities would be a confusing way to trust nobody.
        Err(Told::usage(format!("{} holds no certificate in PEM", file.display())).into())
    }
}

#[cfg(test)]
mod tests;
