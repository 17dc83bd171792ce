//! `wharf version`

use std::time::Duration;

use serde::Serialize;
use wharf_api::{client::ClientError, server::Version};

use crate::{
    failure,
    output::{self, Format},
    target::{self, Wish},
};

/// A version is asked for in passing; nobody wants to wait long for half of the answer.
const SERVER_TIMEOUT: Duration = Duration::from_secs(3);

/// Print the version of the command line, and of the server if it can be reached
#[derive(Debug, clap::Args)]
pub struct VersionArgs {
    /// Do not ask the server
    #[arg(long)]
    client: bool,
}

#[derive(Debug, Serialize)]
struct Versions {
    client: Version,
    server: Option<Version>,
}

pub async fn run(args: &VersionArgs, wish: &Wish, format: Format) -> anyhow::Result<()> {
    let client = Version { version: env!("CARGO_PKG_VERSION").to_owned() };
    let (server, trouble) = match ask_server(args, wish).await {
        Ok(server) => (server, None),
        Err(error) => (None, Some(failure::render_causes(&error))),
    };
    output::one(format, &Versions { client, server }, |versions| {
        let mut fields = vec![("Client", versions.client.version.clone())];
        match (&versions.server, trouble) {
            (Some(server), _) => fields.push(("Server", server.version.clone())),
            (None, Some(trouble)) => fields.push(("Server", format!("unknown ({trouble})"))),
            (None, None) => {}
        }
        fields
    })
}

async fn ask_server(args: &VersionArgs, wish: &Wish) -> anyhow::Result<Option<Version>> {
    if args.client {
        return Ok(None);
    }
    let client = target::connect(wish)?;
    let answer: Result<Version, ClientError> =
        tokio::time::timeout(SERVER_TIMEOUT, client.get("/version"))
            .await
            .map_err(|_| anyhow::anyhow!("{} did not answer in time", client.at()))?;
    Ok(Some(answer?))
}
