//! `wharf members`

use wharf_api::{client::Client, resource::Collection, server::Member};

use crate::output::{self, Format};

/// List the servers that share the work
#[derive(Debug, clap::Args)]
pub struct MembersArgs {}

pub async fn run(client: &Client, format: Format) -> anyhow::Result<()> {
    let members: Collection<Member> = client.get("/members").await?;
    let columns = ["ID", "ADDRESS", "VERSION", "STARTED", "ANSWERS"];
    output::list(format, &members.data, columns, |member| {
        [
            member.head.id.clone(),
            member.address.clone(),
            member.version.clone(),
            output::time(member.started_at),
            if member.this { "yes" } else { "" }.to_owned(),
        ]
    })
}
