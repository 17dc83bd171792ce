//! `wharf login`

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
};

use anyhow::Context as _;
use reqwest::Url;
use wharf_api::{
    client::{Client, ClientError, Target},
    error::ErrorCode,
    server::Version,
};

use super::segment;
use crate::{
    ask,
    context::{self, Context},
    failure::{Exit, Told},
    output,
    target::{self, Machine, Surroundings, Wish},
    trust::{self, Authority, Fingerprint},
};

/// Log in to a server and remember it as a context
///
/// If this machine does not trust the server's certificate, the authority that the server shows is
/// pinned in the context after you have compared its fingerprint: from then on commands trust that
/// authority and no other. If it has changed at a later login, you are asked again, or give the new
/// one's --fingerprint. Without --server it logs in to the current context's server again.
///
/// The true fingerprint is that of the file tls/ca.pem in the server's data directory:
/// `openssl x509 -noout -fingerprint -sha256 -in tls/ca.pem`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wharf login --server https://wharf.example.org:8443
  wharf login --server https://10.0.0.1:8443 --user alice --context prod
  wharf login --server https://10.0.0.1:8443 --fingerprint AB:CD:… --password-file ./secret")]
pub struct LoginArgs {
    /// The user's name
    #[arg(long, value_name = "NAME", default_value = "admin")]
    user: String,
    /// File with the password; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Trust the server's authority if it has this SHA-256 fingerprint, and refuse any other
    #[arg(long, value_name = "SHA256", value_parser = parse_fingerprint)]
    fingerprint: Option<Fingerprint>,
    /// At the first login, trust the authority that the server shows without asking
    #[arg(long)]
    yes: bool,
}

fn parse_fingerprint(text: &str) -> Result<Fingerprint, String> {
    Fingerprint::parse(text).ok_or_else(|| "a SHA-256 has 64 hexadecimal digits".to_owned())
}

/// The server to log in to, and what is known of it.
struct Place {
    name: String,
    url: String,
    /// The authority that an earlier login pinned.
    pinned: Option<String>,
}

pub async fn run(args: &LoginArgs, wish: &Wish) -> anyhow::Result<()> {
    let file = context::default_path(target::var);
    let place = find_place(wish, &Wish::from_env(target::var), &context::load(&file)?)?;
    let ca = choose_authority(args, wish, &place).await?;
    let client = connect(&place.url, ca.clone())?;
    let prompt = format!("Password of {} at {}: ", args.user, place.url);
    let password = ask::password(&prompt, args.password_file.as_deref(), "--password-file")?;
    let login = client.login(&segment(&args.user)?, &password).await.map_err(wrong_password)?;

    let until = output::time(login.expires_at);
    let context = Context {
        server: place.url.clone(),
        user: args.user.clone(),
        token: login.token,
        expires_at: login.expires_at,
        ca,
    };
    context::update(&file, |contexts| {
        contexts.contexts.insert(place.name.clone(), context);
        contexts.current = Some(place.name.clone());
        Ok(())
    })?;
    let Place { name, url, .. } = &place;
    output::note(&format!("logged in to {url} as {} until {until}; context {name}", args.user));
    if Machine.default_socket().is_some() {
        output::note(&format!(
            "a server runs on this machine, and commands go there first; use --context {name} for this one"
        ));
    }
    Ok(())
}

fn find_place(flags: &Wish, env: &Wish, contexts: &context::Contexts) -> anyhow::Result<Place> {
    if flags.data_dir.is_some() || flags.token.is_some() {
        return Err(Told::usage("`wharf login` takes no --data-dir and no --token").into());
    }
    let name = flags.context.as_ref().or(env.context.as_ref());
    let known = match name {
        Some(name) => contexts.contexts.get(name).map(|context| (name.as_str(), context)),
        None => contexts.current(),
    };
    let given = flags.server.as_ref().or(env.server.as_ref());
    let url = match (given, known) {
        (Some(url), _) => target::check_url(url)?,
        (None, Some((_, context))) => target::check_url(&context.server)?,
        (None, None) => {
            return Err(Told::usage("which server?")
                .hint("name it: `wharf login --server https://HOST:8443`")
                .into());
        }
    };
    let name = match (name, given, known) {
        (Some(name), _, _) => name.clone(),
        (None, None, Some((name, _))) => name.to_owned(),
        (None, _, _) => name_of(&url)?,
    };
    let same = |context: &&Context| context.server == url;
    // What another context has pinned for the server counts for a new one too.
    let pinned = match contexts.contexts.get(&name).filter(same) {
        Some(own) => own.ca.clone(),
        None => contexts.contexts.values().filter(same).find_map(|context| context.ca.clone()),
    };
    Ok(Place { name, url, pinned })
}

/// Host and port: two servers on one machine are two contexts.
fn name_of(url: &str) -> anyhow::Result<String> {
    let url = Url::parse(url)?;
    let host = url.host_str().context("the address has no host")?;
    Ok(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
}

/// The authority to trust, in PEM; none for the system's own and for plain HTTP.
async fn choose_authority(
    args: &LoginArgs,
    wish: &Wish,
    place: &Place,
) -> anyhow::Result<Option<String>> {
    let url = Url::parse(&place.url)?;
    if url.scheme() == "http" {
        return Ok(None);
    }
    if let Some(wanted) = args.fingerprint {
        if wish.ca.is_some() {
            return Err(Told::usage("--ca and --fingerprint cannot be used together").into());
        }
        let shown = trust::fetch_authority(&url).await?;
        return if shown.fingerprint == wanted {
            Ok(Some(shown.pem))
        } else {
            Err(mismatch(&shown, wanted).into())
        };
    }
    if let Some(file) = wish.ca.clone().or_else(|| Wish::from_env(target::var).ca) {
        return target::read_ca(&file).map(Some);
    }
    // With a pin the system's authorities count for nothing: one of them may have been talked into
    // signing for somebody in between.
    match connect(&place.url, place.pinned.clone())?.get::<Version>("/version").await {
        Err(error) if trust::is_untrusted(&error) => {}
        Err(error @ (ClientError::Unreachable { .. } | ClientError::TimedOut { .. })) => {
            return Err(error.into());
        }
        // Any answer will do: it came from somebody who is trusted.
        _ => return Ok(place.pinned.clone()),
    }
    let shown = trust::fetch_authority(&url).await.map_err(|error| match &place.pinned {
        Some(_) => error.context("the authority that was pinned did not sign the certificate"),
        None => error,
    })?;
    accept(&shown, place, args.yes)?;
    Ok(Some(shown.pem))
}

fn mismatch(shown: &Authority, wanted: Fingerprint) -> Told {
    Told::new(
        Exit::Refused,
        format!("the server's authority has the fingerprint {}, not {wanted}", shown.fingerprint),
    )
    .hint("somebody may be in between; compare with tls/ca.pem in the server's data directory before you go on")
}

/// Lets the person decide whether this is the right server. A yes that was given beforehand is
/// meant for a first contact: that the authority has changed is not known then.
fn accept(shown: &Authority, place: &Place, yes: bool) -> anyhow::Result<()> {
    let Place { url, pinned, .. } = place;
    let changed = pinned.is_some();
    if changed {
        output::note(&format!(
            "WARNING: the authority of {url} is not the one that was pinned at the last login."
        ));
    }
    output::note(&format!(
        "The certificate of {url} was signed by an authority that {}:\n  \
         {}\n  SHA-256 {}\n\
         Compare it with that of tls/ca.pem in the server's data directory.",
        if changed { "is not the pinned one" } else { "this machine does not know" },
        shown.subject,
        shown.fingerprint
    ));
    if yes && !changed {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        let more = if changed { "or --ca FILE" } else { "or --yes, or --ca FILE" };
        return Err(Told::usage(
            "whether to trust it must be said, and there is no terminal to ask on",
        )
        .hint(format!(
            "compare the fingerprint with the server's, then add --fingerprint SHA256 ({more})"
        ))
        .into());
    }
    if ask::ask_yes("Are they the same, and is the server to be trusted? [y/N] ")? {
        Ok(())
    } else {
        Err(Told::new(Exit::Refused, "the server's authority was not trusted").into())
    }
}

fn connect(url: &str, ca_pem: Option<String>) -> Result<Client, ClientError> {
    Client::new(Target::Url { url: url.to_owned(), token: None, ca_pem })
}

/// The usual hint for missing rights is to log in; here that would lead in a circle.
fn wrong_password(error: ClientError) -> anyhow::Error {
    match error {
        ClientError::Api(mut body) if body.code == ErrorCode::Unauthorized => {
            body.hint.get_or_insert_with(|| "check the user's name and the password".to_owned());
            ClientError::Api(body).into()
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{context::Contexts, failure::explain};

    fn contexts() -> Contexts {
        let context = Context {
            server: "https://prod:8443".to_owned(),
            user: "admin".to_owned(),
            token: "t".to_owned(),
            expires_at: jiff::Timestamp::UNIX_EPOCH,
            ca: Some("pem".to_owned()),
        };
        Contexts {
            current: Some("prod".to_owned()),
            contexts: [("prod".to_owned(), context)].into(),
        }
    }

    fn wish(server: Option<&str>, context: Option<&str>) -> Wish {
        Wish {
            server: server.map(str::to_owned),
            context: context.map(str::to_owned),
            ..Wish::default()
        }
    }

    #[test]
    fn the_place_comes_from_options_environment_or_the_current_context() {
        let none = wish(None, None);
        let other = wish(Some("https://other:9000/"), None);
        let prod = wish(Some("https://prod:8443"), Some("prod"));
        let moved = wish(Some("https://moved"), Some("prod"));
        let second = wish(Some("https://prod:8443"), Some("second"));
        for (flags, env, name, url, pinned) in [
            (&none, &none, "prod", "https://prod:8443", true),
            (&none, &other, "other:9000", "https://other:9000", false),
            (&other, &none, "other:9000", "https://other:9000", false),
            (&prod, &other, "prod", "https://prod:8443", true),
            (&moved, &none, "prod", "https://moved", false),
            (&second, &none, "second", "https://prod:8443", true),
        ] {
            let place = find_place(flags, env, &contexts()).unwrap();
            assert_eq!((place.name.as_str(), place.url.as_str()), (name, url));
            assert_eq!(place.pinned.is_some(), pinned, "{name} {url}");
        }
    }

    #[test]
    fn without_any_server_the_usage_error_says_how_to_name_one() {
        for flags in [wish(None, None), wish(None, Some("new"))] {
            let empty = Contexts::default();
            let error = find_place(&flags, &wish(None, None), &empty).err().unwrap();
            let explained = explain(&error);
            assert_eq!(explained.exit, Exit::Usage);
            assert!(explained.hint.unwrap().contains("--server"));
        }
    }
}
