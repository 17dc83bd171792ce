//! `wharf app`

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;
use wharf_api::{
    app::App,
    client::Client,
    resource::Collection,
    trace::{AppTrace, ClusterTrace},
};

use super::segment;
use crate::output::{self, Format};

/// Put applications on a cluster, and see where they are stuck
#[derive(Debug, clap::Args)]
pub struct AppArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List the applications of a cluster
    List {
        /// The cluster's name
        cluster: String,
    },
    Create(CreateArgs),
    Update(UpdateArgs),
    /// Take an application away, with its objects in the cluster
    Delete(Which),
    /// Show what every node knows of an application, and where it is stuck
    Trace(Which),
}

/// Create an application
///
/// Its objects are applied to the namespace `eve-kube-app`; `{{name}}` in them stands for the
/// application's name in the cluster, which its pods must bear, and bear as label `app`. Every node
/// is told of the application.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example of a file:
  name: web
  designatedNode: node2
  config:
    Activate: true
    FixedResources: {VirtualizationMode: 4}
  manifest: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: \"{{name}}\"}
    spec:
      selector: {matchLabels: {app: \"{{name}}\"}}
      template:
        metadata: {labels: {app: \"{{name}}\"}}
        spec: {containers: [{name: main, image: example.org/web:1}]}

Examples:
  wharf app create demo -f web.yaml
  wharf app trace demo web")]
struct CreateArgs {
    /// The cluster's name
    cluster: String,
    #[command(flatten)]
    file: FileArgs,
}

/// Change an application
///
/// The file says all of it, as at its creation: objects that it leaves out are deleted. The name and
/// the UUID stay.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wharf app update demo web -f web.yaml
  wharf app list demo -o json | jq '.[0]' > web.json    # what is there is a file, too")]
struct UpdateArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    file: FileArgs,
}

#[derive(Debug, clap::Args)]
struct FileArgs {
    /// The application as YAML or JSON (`-` reads stdin)
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The cluster's name
    cluster: String,
    /// The application's name or UUID
    app: String,
}

pub async fn run(args: &AppArgs, client: &Client, format: Format) -> anyhow::Result<()> {
    match &args.verb {
        Verb::List { cluster } => list(client, cluster, format).await,
        Verb::Create(args) => {
            let path = format!("/clusters/{}/apps", segment(&args.cluster)?);
            show(format, &client.post(&path, &args.file.read()?).await?)
        }
        Verb::Update(args) => {
            show(format, &client.put(&path(&args.which)?, &args.file.read()?).await?)
        }
        Verb::Delete(which) => {
            client.delete(&path(which)?).await?;
            output::note(&format!("application {} goes with its objects", which.app));
            Ok(())
        }
        Verb::Trace(which) => trace(client, which, format).await,
    }
}

fn path(which: &Which) -> anyhow::Result<String> {
    Ok(format!("/clusters/{}/apps/{}", segment(&which.cluster)?, segment(&which.app)?))
}

fn show(format: Format, app: &App) -> anyhow::Result<()> {
    match format {
        Format::Table => output::line(&format!("{} ({})", app.kube_name, app.uuid)),
        Format::Json | Format::Yaml => output::data(format, app),
    }
}

impl FileArgs {
    /// The server says what is wrong with it; here it only has to be a document.
    fn read(&self) -> anyhow::Result<Value> {
        let file = &self.file;
        let text = match file == Path::new("-") {
            true => std::io::read_to_string(std::io::stdin()),
            false => std::fs::read_to_string(file),
        };
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        serde_saphyr::from_str(&text).with_context(|| format!("{} is not YAML", file.display()))
    }
}

async fn list(client: &Client, cluster: &str, format: Format) -> anyhow::Result<()> {
    let path = format!("/clusters/{}/apps", segment(cluster)?);
    let apps: Collection<App> = client.get(&path).await?;
    let columns = ["NAME", "UUID", "IN THE CLUSTER", "NODE", "ACTIVATE", "STATUS", "REASON"];
    output::list(format, &apps.data, columns, |app| {
        let reason = app.reason.as_deref().unwrap_or_default();
        [
            app.spec.name.clone(),
            app.uuid.clone(),
            app.kube_name.clone(),
            app.spec.designated_node.clone().unwrap_or_default(),
            app.spec.config.activate.to_string(),
            app.status.clone(),
            reason.lines().next().unwrap_or_default().to_owned(),
        ]
    })
}

async fn trace(client: &Client, which: &Which, format: Format) -> anyhow::Result<()> {
    let trace: ClusterTrace = client.get(&format!("{}/trace", path(which)?)).await?;
    if format != Format::Table {
        return output::data(format, &trace);
    }
    let columns = ["NODE", "ITEM", "NAME", "THERE", "ACTIVE", "STATE", "CONTENT", "ERRORS"];
    output::table(columns, trace.value.iter().flat_map(rows))?;
    for node in &trace.value {
        output::line(&format!("\n{}: {}", node.hostname, verdict(node)))?;
    }
    Ok(())
}

fn rows(node: &AppTrace) -> Vec<[String; 8]> {
    let row = |item: &wharf_api::trace::TraceItem| {
        let value = &item.value;
        [
            node.hostname.clone(),
            item.key.clone(),
            value.name.clone(),
            if value.exist { "yes" } else { "no" }.to_owned(),
            value.activated.clone(),
            value.state.clone(),
            value.content.lines().next().unwrap_or_default().to_owned(),
            value.errors.clone(),
        ]
    };
    node.app_info.iter().map(row).collect()
}

/// Where the application is stuck on a node.
fn verdict(node: &AppTrace) -> String {
    match (&node.errors, &node.stuck) {
        (Some(errors), _) => format!("did not answer: {errors}"),
        (None, Some(stuck)) => format!("stuck at {stuck}"),
        (None, None) => "nothing keeps it from running".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_gets_its_verdict() {
        let node = |errors: Option<&str>, stuck: Option<&str>| AppTrace {
            hostname: "n1".to_owned(),
            collect_time: None,
            app_info: Vec::new(),
            stuck: stuck.map(str::to_owned),
            errors: errors.map(str::to_owned),
        };
        assert_eq!(verdict(&node(None, None)), "nothing keeps it from running");
        assert_eq!(verdict(&node(None, Some("a: b"))), "stuck at a: b");
        assert_eq!(verdict(&node(Some("refused"), None)), "did not answer: refused");
    }
}
