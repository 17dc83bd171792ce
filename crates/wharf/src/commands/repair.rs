//! `wharf repair-queue`

use std::{path::PathBuf, time::Duration};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::Instant;
use wharf_api::{
    client::Client,
    repair::{RepairChanges, RepairConfig, RepairEntry, RepairQueue, RepairRequest},
    resource::Collection,
};

use super::{
    cluster::{parse, read_text},
    segment,
};
use crate::{
    failure::{Exit, Told},
    output::{self, Format},
};

/// Have machines repaired: the queue of a cluster and how it is worked on
#[derive(Debug, clap::Args)]
#[command(visible_alias = "repair")]
pub struct RepairArgs {
    /// Whose queue; may be left out when there is one cluster
    #[arg(long, value_name = "CLUSTER", global = true)]
    cluster: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Append a machine to the queue
    Add {
        /// The name of the operation, from the configuration
        operation: String,
        /// The type of the machine, from the configuration
        machine_type: String,
        /// The machine's IP address
        address: String,
        /// Its serial number, for the commands
        serial: Option<String>,
    },
    /// List the entries in the order of their index
    List,
    /// Take an entry out of the queue, finished or not
    Delete {
        /// The entry's index
        index: String,
    },
    /// Go on with the queue
    Enable,
    /// Begin no drain and no command any more
    Disable,
    /// Print whether the queue is worked on: true or false
    IsEnabled,
    /// Take out all finished entries and print their indexes
    DeleteFinished,
    /// Take out all unfinished entries and print their indexes
    DeleteUnfinished,
    /// Let all entries that wait after a refused drain be tried again now
    ResetBackoff,
    Wait(WaitArgs),
    /// Show or set how machines are repaired
    Config {
        #[command(subcommand)]
        verb: ConfigVerb,
    },
}

/// Wait until no entry is unfinished
#[derive(Debug, clap::Args)]
struct WaitArgs {
    /// Give up after so long; 0 looks once
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout_seconds: u64,
    /// How often to look
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    interval_seconds: u64,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigVerb {
    /// Show the configuration, with the defaults of what nobody has set
    Show,
    /// Replace the configuration
    Set {
        /// The configuration as YAML or JSON (`-` reads stdin)
        #[arg(short = 'f', long = "file", value_name = "FILE")]
        file: PathBuf,
    },
}

pub async fn run(args: &RepairArgs, client: &Client, format: Format) -> anyhow::Result<()> {
    let cluster = match &args.cluster {
        Some(name) => name.clone(),
        None => only_cluster(client).await?,
    };
    let cluster = format!("/clusters/{}", segment(&cluster)?);
    let queue = format!("{cluster}/repairs");
    match &args.verb {
        Verb::Add { operation, machine_type, address, serial } => {
            let body = RepairRequest {
                operation: operation.clone(),
                machine_type: machine_type.clone(),
                address: address.clone(),
                serial: serial.clone(),
            };
            let _: RepairEntry = client.post(&queue, &body).await?;
            Ok(())
        }
        Verb::List => list(client, &queue, format).await,
        Verb::Delete { index } => {
            Ok(client.delete(&format!("{queue}/{}", segment(index)?)).await?)
        }
        Verb::Enable => act(client, &queue, "enable").await.map(drop),
        Verb::Disable => act(client, &queue, "disable").await.map(drop),
        Verb::IsEnabled => {
            let queue: Glance = client.get(&queue).await?;
            output::line(&queue.enabled.to_string())
        }
        Verb::DeleteFinished => print(&act(client, &queue, "deleteFinished").await?),
        Verb::DeleteUnfinished => print(&act(client, &queue, "deleteUnfinished").await?),
        Verb::ResetBackoff => act(client, &queue, "resetBackoff").await.map(drop),
        Verb::Wait(args) => wait(client, &queue, args).await,
        Verb::Config { verb } => {
            config(client, &format!("{cluster}/repairconfig"), verb, format).await
        }
    }
}

/// What is asked of a queue again and again.
#[derive(Deserialize)]
struct Glance {
    enabled: bool,
    data: Vec<Status>,
}

#[derive(Deserialize)]
struct Status {
    status: String,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

async fn only_cluster(client: &Client) -> anyhow::Result<String> {
    let clusters: Collection<Named> = client.get("/clusters").await?;
    let mut names: Vec<String> = clusters.data.into_iter().map(|one| one.name).collect();
    match (names.len(), names.pop()) {
        (1, Some(name)) => Ok(name),
        (_, None) => Err(Told::new(Exit::NotFound, "there is no cluster").into()),
        (_, Some(last)) => {
            names.push(last);
            Err(Told::usage("there are several clusters")
                .hint(format!("say which with --cluster: {}", names.join(", ")))
                .into())
        }
    }
}

async fn act(client: &Client, queue: &str, action: &str) -> anyhow::Result<RepairChanges> {
    let nothing = serde_json::Map::new();
    Ok(client.post(&format!("{queue}?action={action}"), &nothing).await?)
}

fn print(changes: &RepairChanges) -> anyhow::Result<()> {
    let lines: Vec<String> = changes.indexes.iter().map(|index| format!("{index}\n")).collect();
    output::text(&lines.concat())
}

async fn list(client: &Client, queue: &str, format: Format) -> anyhow::Result<()> {
    let found: RepairQueue = client.get(queue).await?;
    let entries = found.collection.data;
    if format == Format::Table && !found.enabled {
        output::note("the repair queue is disabled");
    }
    let columns =
        ["INDEX", "ADDRESS", "NODE", "TYPE", "OPERATION", "STATUS", "STEP", "SINCE", "WHY"];
    output::list(format, &entries, columns, |entry| {
        let since: Option<Timestamp> = entry.last_transition_time.parse().ok();
        [
            entry.index.clone(),
            entry.address.clone(),
            entry.nodename.clone(),
            entry.machine_type.clone(),
            entry.operation.clone(),
            if entry.deleted { "deleted".to_owned() } else { entry.status.clone() },
            format!("{} {}", entry.step, entry.step_status),
            since.map(output::time).unwrap_or_default(),
            why(entry),
        ]
    })
}

/// What a finished entry ended with; what another one waits for, if that is known.
fn why(entry: &RepairEntry) -> String {
    let text = if entry.wait.is_empty() { &entry.reason } else { &entry.wait };
    text.lines().next().unwrap_or_default().to_owned()
}

async fn wait(client: &Client, queue: &str, args: &WaitArgs) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(args.timeout_seconds);
    loop {
        let found: Glance = client.get(queue).await?;
        let is_unfinished = |one: &&Status| matches!(one.status.as_str(), "queued" | "processing");
        let left = found.data.iter().filter(is_unfinished).count();
        if left == 0 {
            return Ok(());
        }
        let next = Instant::now() + Duration::from_secs(args.interval_seconds);
        if Instant::now() >= deadline {
            let seconds = args.timeout_seconds;
            let message = format!("{left} entries are not finished after {seconds} s");
            return Err(Told::new(Exit::TimedOut, message)
                .hint("`wharf repair-queue list` says what they wait for")
                .into());
        }
        tokio::time::sleep_until(next.min(deadline)).await;
    }
}

async fn config(
    client: &Client,
    path: &str,
    verb: &ConfigVerb,
    format: Format,
) -> anyhow::Result<()> {
    match verb {
        ConfigVerb::Show => {
            let config: RepairConfig = client.get(path).await?;
            // There is no table of it; what people write is YAML.
            let format = if format == Format::Table { Format::Yaml } else { format };
            output::data(format, &config)
        }
        ConfigVerb::Set { file } => {
            let body = parse(&read_text(file)?, file)?;
            let _: RepairConfig = client.put(path, &body).await?;
            Ok(())
        }
    }
}
