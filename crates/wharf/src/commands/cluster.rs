//! `wharf cluster`

mod agent;
mod kubeconfig;
mod progress;

use std::path::{Path, PathBuf};

use anyhow::Context;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use wharf_api::{
    client::Client,
    cluster::{Cluster, ClusterNode, Plan, Preflight},
    kubeconfig::Kubeconfig,
    operation::Operation,
    resource::Collection,
};

use super::segment;
use crate::{
    ask,
    failure::{Exit, Told},
    output::{self, Format},
};

/// Create, change, watch and delete clusters
#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Create(CreateArgs),
    Update(UpdateArgs),
    /// List the clusters that you may see
    List {
        /// Only those that are Running or Unreachable
        #[arg(long)]
        only_ready: bool,
    },
    /// Show one cluster with its nodes
    Show {
        /// The cluster's name
        name: String,
    },
    Delete(DeleteArgs),
    /// Stop the create or update that is under way
    Cancel {
        /// The cluster's name
        name: String,
    },
    Import(ImportArgs),
    Agent(agent::AgentArgs),
    Kubeconfig(KubeconfigArgs),
    /// Show what a create or update would do on each host; nothing is touched
    Plan(FileArgs),
    /// Look at the hosts of a cluster and say all that is not good about them; nothing is touched
    Preflight(FileArgs),
    /// Join the operation that is under way and show its progress
    Watch {
        /// The cluster's name
        name: String,
    },
    /// List the operations of a cluster, or of all; they are kept after the cluster is gone
    Operations {
        /// The cluster's name
        name: Option<String>,
    },
}

/// Turn machines into a cluster
///
/// The file is YAML or JSON with the fields of the API: at least name, nodes (name, address, roles),
/// singleCloudAddress and sshUser. The SSH key comes from --ssh-key, or from sshKey in the file.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  cat > demo.yaml <<EOF
  name: demo
  singleCloudAddress: 10.0.0.1:8443
  sshUser: root
  nodes:
  - {name: node1, address: 10.0.0.11, roles: [controlplane, etcd]}
  - {name: node2, address: 10.0.0.12, roles: [worker]}
  EOF
  wharf cluster create -f demo.yaml --ssh-key ~/.ssh/id_ed25519")]
struct CreateArgs {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Change a cluster: add and remove nodes, or its SSH settings
///
/// Also goes on with a create that failed or was canceled.
#[derive(Debug, clap::Args)]
struct UpdateArgs {
    /// The cluster's name
    name: String,
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, clap::Args)]
struct FileArgs {
    /// The cluster as YAML or JSON (`-` reads stdin)
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: PathBuf,
    /// A file with the private SSH key, in place of sshKey
    #[arg(long, value_name = "FILE")]
    ssh_key: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct WaitArgs {
    /// Return at once instead of showing the progress
    #[arg(long)]
    no_wait: bool,
}

/// Delete a cluster and clean its machines
#[derive(Debug, clap::Args)]
struct DeleteArgs {
    /// The cluster's name
    name: String,
    /// clean: clean every host, waiting a while for those that do not answer; force: only those
    /// that answer at once; forget: touch no host
    #[arg(long, value_enum, default_value = "clean")]
    mode: Mode,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    Clean,
    Force,
    Forget,
}

/// Take over a cluster that is there already
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true))]
struct ImportArgs {
    /// The name that it shall have
    name: String,
    /// Its administrator's kubeconfig
    #[arg(long, value_name = "FILE", group = "source")]
    kubeconfig: Option<PathBuf>,
    /// The state document of the program that made it
    #[arg(long, value_name = "FILE", group = "source")]
    state: Option<PathBuf>,
}

/// Get a cluster's kubeconfig
#[derive(Debug, clap::Args)]
struct KubeconfigArgs {
    /// The cluster's name
    name: String,
    /// Whose kubeconfig
    #[arg(long, default_value = "kube-admin")]
    user: String,
    /// Merge it into your own ($KUBECONFIG, else ~/.kube/config) instead of printing it
    #[arg(long)]
    merge: bool,
}

pub async fn run(args: &ClusterArgs, client: &Client, format: Format) -> anyhow::Result<()> {
    match &args.verb {
        Verb::Create(args) => create(client, args, format).await,
        Verb::Update(args) => update(client, args, format).await,
        Verb::List { only_ready } => list(client, *only_ready, format).await,
        Verb::Show { name } => show(client, name, format).await,
        Verb::Delete(args) => delete(client, args, format).await,
        Verb::Cancel { name } => {
            client.post_empty(&format!("/clusters/{}?action=cancel", segment(name)?)).await?;
            output::note(&format!("the operation on {name} is being canceled"));
            Ok(())
        }
        Verb::Agent(args) => agent::run(args, client, format).await,
        Verb::Import(args) => import(client, args, format).await,
        Verb::Kubeconfig(args) => kubeconfig(client, args, format).await,
        Verb::Plan(args) => plan(client, args, format).await,
        Verb::Preflight(args) => preflight(client, args, format).await,
        Verb::Watch { name } => watch(client, name, format).await,
        Verb::Operations { name } => operations(client, name.as_deref(), format).await,
    }
}

async fn create(client: &Client, args: &CreateArgs, format: Format) -> anyhow::Result<()> {
    let body = args.file.read()?;
    let cluster: Cluster = client.post("/clusters", &body).await?;
    settle(client, cluster, &args.wait, format).await
}

async fn update(client: &Client, args: &UpdateArgs, format: Format) -> anyhow::Result<()> {
    let body = args.file.read()?;
    let path = format!("/clusters/{}", segment(&args.name)?);
    let cluster: Cluster = client.put(&path, &body).await?;
    settle(client, cluster, &args.wait, format).await
}

/// Waits for the operation that was begun, unless that is not wanted, and shows the cluster.
async fn settle(
    client: &Client,
    cluster: Cluster,
    wait: &WaitArgs,
    format: Format,
) -> anyhow::Result<()> {
    for warning in &cluster.warnings {
        output::note(&format!("warning: {warning}"));
    }
    let name = cluster.name.clone();
    match &cluster.operation {
        Some(operation) if !wait.no_wait => {
            progress::follow(client, operation).await?;
            show(client, &name, format).await?;
            output::note(&format!("next: wharf cluster kubeconfig {name} --merge"));
            Ok(())
        }
        _ => {
            output::note(&format!("next: wharf cluster watch {name}"));
            show(client, &name, format).await
        }
    }
}

/// What the table shows of a cluster. A thousand clusters are megabytes, and reading all of them
/// would take most of the command's time.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    name: String,
    status: String,
    reason: Option<String>,
    node_count: usize,
    ready_node_count: usize,
    version: String,
    creation_timestamp: Timestamp,
}

async fn list(client: &Client, only_ready: bool, format: Format) -> anyhow::Result<()> {
    let path = if only_ready { "/clusters?onlyready=true" } else { "/clusters" };
    if format != Format::Table {
        let clusters: Collection<Cluster> = client.get(path).await?;
        return output::data(format, &clusters.data);
    }
    let clusters: Collection<Line> = client.get(path).await?;
    let columns = ["NAME", "STATUS", "NODES", "READY", "VERSION", "CREATED", "REASON"];
    let row = |line: Line| {
        let reason = line.reason.as_deref().and_then(|text| text.lines().next());
        [
            line.name,
            line.status,
            line.node_count.to_string(),
            line.ready_node_count.to_string(),
            line.version,
            output::time(line.creation_timestamp),
            reason.unwrap_or_default().to_owned(),
        ]
    };
    output::table(columns, clusters.data.into_iter().map(row))
}

async fn show(client: &Client, name: &str, format: Format) -> anyhow::Result<()> {
    let cluster: Cluster = client.get(&format!("/clusters/{}", segment(name)?)).await?;
    output::one(format, &cluster, |cluster| {
        let mut fields = vec![
            ("Name", cluster.name.clone()),
            ("Status", cluster.status.clone()),
            ("Version", cluster.version.clone()),
            ("Created", output::time(cluster.head.creation_timestamp)),
            ("Owner", cluster.owner.clone().unwrap_or_else(|| "none".to_owned())),
        ];
        fields.extend(cluster.reason.iter().map(|reason| ("Reason", reason.clone())));
        fields.extend(cluster.operation.iter().map(|id| ("Operation", id.clone())));
        fields.extend(cluster.warnings.iter().map(|warning| ("Warning", warning.clone())));
        fields.extend(cluster.nodes.iter().map(|node| ("Node", describe(node))));
        let pending = cluster.pending.iter();
        fields.extend(pending.map(|node| ("Pending", format!("{} {}", node.change, node.name))));
        fields
    })
}

fn describe(node: &ClusterNode) -> String {
    format!("{} {} ({})", node.name, node.address, node.roles.join(", "))
}

async fn delete(client: &Client, args: &DeleteArgs, format: Format) -> anyhow::Result<()> {
    let path = format!("/clusters/{}", segment(&args.name)?);
    let cluster: Cluster = client.get(&path).await?;
    let what = match args.mode {
        Mode::Clean | Mode::Force => "removes Kubernetes with all its data from",
        Mode::Forget => "forgets the cluster and leaves alone",
    };
    let nodes: Vec<String> = cluster.nodes.iter().map(|node| node.name.clone()).collect();
    let plan = format!("Deleting {} {what} {}.", args.name, nodes.join(", "));
    ask::confirm(&plan, args.yes)?;
    let mode = match args.mode {
        Mode::Clean => "clean",
        Mode::Force => "force",
        Mode::Forget => "forget",
    };
    client.delete(&format!("{path}?mode={mode}")).await?;
    if args.wait.no_wait {
        return Ok(());
    }
    let Some(operation) = latest(client, &args.name).await? else { return Ok(()) };
    let ended = progress::follow(client, &operation).await?;
    for left in &ended.leftovers {
        output::note(&format!(
            "left on {}: {} ({})",
            left.host,
            left.items.join(", "),
            left.reason
        ));
    }
    match format {
        Format::Table => Ok(()),
        Format::Json | Format::Yaml => output::data(format, &ended),
    }
}

async fn import(client: &Client, args: &ImportArgs, format: Format) -> anyhow::Result<()> {
    let body = match (&args.kubeconfig, &args.state) {
        (Some(file), _) => json!({ "kubeConfig": read_text(file)? }),
        (None, Some(file)) => parse(&read_text(file)?, file)?,
        (None, None) => return Err(Told::usage("give --kubeconfig or --state").into()),
    };
    let cluster: Cluster = act(client, &args.name, "import", &body).await?;
    show(client, &cluster.name, format).await
}

async fn kubeconfig(client: &Client, args: &KubeconfigArgs, format: Format) -> anyhow::Result<()> {
    let (name, user) = (segment(&args.name)?, segment(&args.user)?);
    let found: Kubeconfig = client.get(&format!("/clusters/{name}/kubeconfigs/{user}")).await?;
    if args.merge {
        let file = kubeconfig::own_file()?;
        kubeconfig::merge_into(&file, &args.name, &found.kube_config.0)?;
        output::note(&format!("merged into {}; next: kubectl get nodes", file.display()));
        return Ok(());
    }
    match format {
        Format::Table => output::text(&found.kube_config.0),
        Format::Json | Format::Yaml => output::data(format, &found),
    }
}

async fn plan(client: &Client, args: &FileArgs, format: Format) -> anyhow::Result<()> {
    let body = args.read()?;
    let plan: Plan = act(client, &name_in(&body)?, "plan", &body).await?;
    if format != Format::Table {
        return output::data(format, &plan);
    }
    for host in &plan.hosts {
        output::line(&format!("{}: {} changes", host.host, host.changes.len()))?;
        if let Some(note) = &host.note {
            output::line(&format!("  {note}"))?;
        }
        for change in &host.changes {
            output::line(&format!("  {} {}", change.action, change.subject))?;
        }
    }
    Ok(())
}

async fn preflight(client: &Client, args: &FileArgs, format: Format) -> anyhow::Result<()> {
    let body = args.read()?;
    let found: Preflight = act(client, &name_in(&body)?, "preflight", &body).await?;
    let columns = ["HOST", "CHECK", "SEVERITY", "MESSAGE", "HINT"];
    match format {
        Format::Table => output::list(format, &found.findings, columns, |finding| {
            [
                finding.host.clone(),
                finding.check.clone(),
                finding.severity.clone(),
                finding.message.clone(),
                finding.hint.clone(),
            ]
        })?,
        Format::Json | Format::Yaml => output::data(format, &found)?,
    }
    if found.ok {
        output::note("the hosts are fit");
        return Ok(());
    }
    Err(Told::new(Exit::Failed, "the hosts are not fit for the cluster").into())
}

async fn watch(client: &Client, name: &str, format: Format) -> anyhow::Result<()> {
    let operation = latest(client, name).await?;
    let operation = operation
        .ok_or_else(|| Told::new(Exit::NotFound, format!("{name} has had no operation")))?;
    let ended = progress::follow(client, &operation).await?;
    match format {
        Format::Table => Ok(()),
        Format::Json | Format::Yaml => output::data(format, &ended),
    }
}

async fn operations(client: &Client, name: Option<&str>, format: Format) -> anyhow::Result<()> {
    let path = match name {
        Some(name) => format!("/operations?cluster={}", segment(name)?),
        None => "/operations".to_owned(),
    };
    let found: Collection<Operation> = client.get(&path).await?;
    let columns = ["ID", "CLUSTER", "KIND", "STATE", "PERCENT", "STARTED", "ENDED", "ERROR"];
    output::list(format, &found.data, columns, |operation| {
        let error = operation.error.as_deref().and_then(|text| text.lines().next());
        [
            operation.head.id.clone(),
            operation.cluster.clone(),
            operation.kind.clone(),
            operation.state.clone(),
            operation.percent.to_string(),
            output::time(operation.started_at),
            operation.ended_at.map(output::time).unwrap_or_default(),
            error.unwrap_or_default().to_owned(),
        ]
    })
}

/// The id of the last operation on a cluster.
async fn latest(client: &Client, cluster: &str) -> anyhow::Result<Option<String>> {
    let path = format!("/operations?cluster={}", segment(cluster)?);
    let found: Collection<Operation> = client.get(&path).await?;
    let last = found.data.into_iter().max_by(|a, b| a.started_at.cmp(&b.started_at));
    Ok(last.map(|operation| operation.head.id))
}

async fn act<T: serde::de::DeserializeOwned>(
    client: &Client,
    name: &str,
    action: &str,
    body: &Value,
) -> anyhow::Result<T> {
    let path = format!("/clusters/{}?action={action}", segment(name)?);
    Ok(client.post(&path, body).await?)
}

impl FileArgs {
    /// The request's body; the key goes into it if it is given apart.
    fn read(&self) -> anyhow::Result<Value> {
        let mut body = parse(&read_text(&self.file)?, &self.file)?;
        if let Some(file) = &self.ssh_key {
            let key = read_text(file)?;
            if let Some(fields) = body.as_object_mut() {
                fields.insert("sshKey".to_owned(), Value::String(key));
            }
        }
        Ok(body)
    }
}

fn name_in(body: &Value) -> anyhow::Result<String> {
    let name = body.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| Told::usage("the file does not say the cluster's name"))?;
    Ok(name.to_owned())
}

pub(super) fn read_text(file: &Path) -> anyhow::Result<String> {
    let text = match file == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(file),
    };
    text.with_context(|| format!("cannot read {}", file.display()))
}

/// YAML holds JSON too.
pub(super) fn parse(text: &str, file: &Path) -> anyhow::Result<Value> {
    let value = parse_yaml(text).with_context(|| format!("cannot use {}", file.display()))?;
    match value.is_object() {
        true => Ok(value),
        false => Err(Told::usage(format!("{} holds no fields", file.display())).into()),
    }
}

/// The place of a fault alone: the text around it may be a key.
fn parse_yaml(text: &str) -> anyhow::Result<Value> {
    serde_saphyr::from_str(text).map_err(|error| {
        let place = error.location();
        let place = place.map(|at| format!(" (line {}, column {})", at.line(), at.column()));
        Told::usage(format!("it is neither YAML nor JSON{}", place.unwrap_or_default())).into()
    })
}
