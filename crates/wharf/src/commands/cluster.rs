//! `wharf cluster`

use wharf_api::{
    client::Client,
    cluster::{Cluster, ClusterNode},
    resource::Collection,
};

use super::segment;
use crate::output::{self, Format};

/// Look at clusters
#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List the clusters that you may see
    List {
        /// Only those that are Running
        #[arg(long)]
        only_ready: bool,
    },
    /// Show one cluster with its nodes
    Show {
        /// The cluster's name
        name: String,
    },
}

pub async fn run(args: &ClusterArgs, client: &Client, format: Format) -> anyhow::Result<()> {
    match &args.verb {
        Verb::List { only_ready } => list(client, *only_ready, format).await,
        Verb::Show { name } => show(client, name, format).await,
    }
}

async fn list(client: &Client, only_ready: bool, format: Format) -> anyhow::Result<()> {
    let path = if only_ready { "/clusters?onlyready=true" } else { "/clusters" };
    let clusters: Collection<Cluster> = client.get(path).await?;
    let columns = ["NAME", "STATUS", "NODES", "CREATED", "REASON"];
    output::list(format, &clusters.data, columns, |cluster| {
        [
            cluster.name.clone(),
            cluster.status.clone(),
            cluster.node_count.to_string(),
            output::time(cluster.head.creation_timestamp),
            cluster.reason.clone().unwrap_or_default(),
        ]
    })
}

async fn show(client: &Client, name: &str, format: Format) -> anyhow::Result<()> {
    let cluster: Cluster = client.get(&format!("/clusters/{}", segment(name)?)).await?;
    output::one(format, &cluster, |cluster| {
        let mut fields = vec![
            ("Name", cluster.name.clone()),
            ("Status", cluster.status.clone()),
            ("Created", output::time(cluster.head.creation_timestamp)),
            ("Owner", cluster.owner.clone().unwrap_or_else(|| "none".to_owned())),
        ];
        if let Some(reason) = &cluster.reason {
            fields.push(("Reason", reason.clone()));
        }
        fields.extend(cluster.nodes.iter().map(|node| ("Node", describe(node))));
        fields
    })
}

fn describe(node: &ClusterNode) -> String {
    format!("{} {} ({})", node.name, node.address, node.roles.join(", "))
}
