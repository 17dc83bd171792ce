//! `wharf audit`

use wharf_api::{
    client::Client,
    resource::Collection,
    user::{Audit, Outcome},
};

use super::segment;
use crate::output::{self, Format};

/// What one request asks for; more is read in several.
const PAGE: usize = 500;

/// Show who did what, newest first
#[derive(Debug, clap::Args)]
pub struct AuditArgs {
    /// How many records to show
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

pub async fn run(args: &AuditArgs, client: &Client, format: Format) -> anyhow::Result<()> {
    let records = read(client, args.limit).await?;
    let columns = ["TIME", "USER", "FROM", "ACTION", "RESOURCE", "OUTCOME", "REASON"];
    output::list(format, &records, columns, |record| {
        [
            output::time(record.time),
            record.user.clone(),
            record.origin.clone(),
            record.action.clone(),
            record.resource.clone(),
            match record.outcome {
                Outcome::Done => "done",
                Outcome::Refused => "refused",
            }
            .to_owned(),
            record.reason.clone().unwrap_or_default(),
        ]
    })
}

async fn read(client: &Client, limit: usize) -> anyhow::Result<Vec<Audit>> {
    let mut records: Vec<Audit> = Vec::new();
    while records.len() < limit {
        let wanted = (limit - records.len()).min(PAGE);
        let mut path = format!("/audit?limit={wanted}");
        if let Some(last) = records.last() {
            path = format!("{path}&before={}", segment(&last.head.id)?);
        }
        let page: Collection<Audit> = client.get(&path).await?;
        let end = page.data.is_empty();
        records.extend(page.data);
        if end {
            break;
        }
    }
    records.truncate(limit);
    Ok(records)
}
