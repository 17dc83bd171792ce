//! `wharf token`

use std::time::Duration;

use wharf_api::{
    client::Client,
    resource::Collection,
    user::{CreateToken, Token},
};

use super::{own_name, segment};
use crate::{
    ask,
    output::{self, Format},
};

/// Manage tokens: what programs use instead of a password
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wharf token create --user ci --description \"nightly build\" --expires-in 90d
  wharf token list --user ci
  wharf token delete 4f2a --user ci --yes")]
pub struct TokenArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make a token; it is printed once and stored only as a hash
    Create {
        #[command(flatten)]
        whose: Whose,
        /// What it is for
        #[arg(long, value_name = "TEXT", default_value = "")]
        description: String,
        /// How long it holds, as 12h or 90d [default: 30d]
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        expires_in: Option<Duration>,
    },
    /// List a user's tokens, without their secrets
    List {
        #[command(flatten)]
        whose: Whose,
    },
    /// Delete a token; it stops working at once
    Delete {
        /// The token's id, as `wharf token list` shows it
        id: String,
        #[command(flatten)]
        whose: Whose,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Whose {
    /// Whose token; your own by default
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

impl Whose {
    async fn name(self, client: &Client) -> anyhow::Result<String> {
        match self.user {
            Some(name) => Ok(name),
            None => own_name(client, "--user NAME").await,
        }
    }
}

pub async fn run(args: TokenArgs, client: &Client, format: Format) -> anyhow::Result<()> {
    match args.verb {
        Verb::Create { whose, description, expires_in } => {
            let wish = CreateToken {
                description,
                expires_in_seconds: expires_in.map(|time| time.as_secs()),
            };
            create(client, &whose.name(client).await?, &wish, format).await
        }
        Verb::List { whose } => list(client, &whose.name(client).await?, format).await,
        Verb::Delete { id, whose, yes } => {
            let user = whose.name(client).await?;
            let plan = format!("Token {id} of {user} will stop working.");
            ask::confirm(&plan, yes)?;
            let path = format!("/users/{}/tokens/{}", segment(&user)?, segment(&id)?);
            client.delete(&path).await?;
            output::note(&format!("token {id} was deleted"));
            Ok(())
        }
    }
}

async fn create(
    client: &Client,
    user: &str,
    wish: &CreateToken,
    format: Format,
) -> anyhow::Result<()> {
    let token: Token = client.post(&format!("/users/{}/tokens", segment(user)?), wish).await?;
    match (format, &token.token) {
        (Format::Table, Some(secret)) => {
            let until = output::time(token.expires_at);
            output::note(&format!(
                "token {} of {user} holds until {until}; it is shown only this once:",
                token.head.id
            ));
            output::line(secret)
        }
        _ => output::data(format, &token),
    }
}

async fn list(client: &Client, user: &str, format: Format) -> anyhow::Result<()> {
    let path = format!("/users/{}/tokens", segment(user)?);
    let tokens: Collection<Token> = client.get(&path).await?;
    output::list(format, &tokens.data, ["ID", "CREATED", "EXPIRES", "DESCRIPTION"], |token| {
        [
            token.head.id.clone(),
            output::time(token.head.creation_timestamp),
            output::time(token.expires_at),
            token.description.clone(),
        ]
    })
}

/// A whole number with its unit: `90s`, `15m`, `12h`, `30d`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time; write a number with s, m, h or d, as 12h");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text.trim_end_matches(unit).parse().map_err(|_| wrong())?;
    number.checked_mul(factor).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_a_unit() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000)] {
            assert_eq!(parse_duration(text).unwrap().as_secs(), seconds);
        }
        for bad in ["", "d", "12", "-1d", "1.5h", "12 h", "1w", "99999999999999999999d", "12ß"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
