//! `wharf node`

mod operation;
mod progress;

use std::time::Duration;

use wharf_api::{
    client::Client,
    drain::{Drain, DrainPlan, DrainRequest, PlannedPod},
    node::Node,
    resource::Collection,
};

use super::{segment, token::parse_duration};
use crate::{
    failure::{Exit, Told},
    output::{self, Format},
};

/// Look at the nodes of a cluster, take pods off them, reboot and update them
#[derive(Debug, clap::Args)]
pub struct NodeArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List the nodes of a cluster
    List {
        /// The cluster's name
        cluster: String,
    },
    /// Let no new pods come to a node
    Cordon(Which),
    /// Let pods come to a node again; a drain that runs is canceled
    Uncordon(Which),
    Drain(DrainArgs),
    Reboot(operation::PowerArgs),
    /// Shut a node's machine down, after its drain; as `reboot` otherwise
    Shutdown(operation::PowerArgs),
    Update(operation::UpdateArgs),
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The cluster's name
    cluster: String,
    /// The node's name
    node: String,
}

/// Empty a node without breaking what runs on it
///
/// Every eviction that a budget may refuse is rehearsed first, so that a drain that cannot succeed
/// touches nothing. Then the node is cordoned, and its pods leave as their budgets allow. A node that
/// was drained stays cordoned; after a drain that failed or was canceled it is as before. The command
/// waits and shows which pods are left and why; the drain itself goes on without it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wharf node drain demo node2 --plan              what would become of each pod; touches nothing
  wharf node drain demo node2                     drain, and show what is waited for
  wharf node drain demo node2 --jobs wait --timeout 4h
  wharf node drain demo node2 --cancel            stop, and give the node back
  wharf node uncordon demo node2                  back into service

Exit codes: 6 when its time was over, 1 when it failed otherwise or was canceled.")]
struct DrainArgs {
    #[command(flatten)]
    which: Which,
    /// Only show what would become of each pod; nothing is touched
    #[arg(long)]
    plan: bool,
    /// Stop the drain that is under way and give the node back
    #[arg(long, conflicts_with_all = ["plan", "no_wait", "timeout", "jobs", "grace_period", "delete_unready_after", "delete_after", "wait_volumes", "order_by_priority", "cordon_first"])]
    cancel: bool,
    /// Return at once instead of showing the progress
    #[arg(long)]
    no_wait: bool,
    /// Give up after this time, as 10m or 4h [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// What becomes of pods of Jobs that have not finished [default: block]
    #[arg(long, value_enum, value_name = "WHAT")]
    jobs: Option<Jobs>,
    /// In place of the pods' own grace periods
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    grace_period: Option<Duration>,
    /// Delete pods that are not ready past their budgets after this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    delete_unready_after: Option<Duration>,
    /// Delete all pods that are left past their budgets after this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    delete_after: Option<Duration>,
    /// Wait so long for the volumes of pods that left; by default for those of Wharf until the end
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    wait_volumes: Option<Duration>,
    /// Pods of lower priority leave before those of higher
    #[arg(long)]
    order_by_priority: bool,
    /// Cordon before the evictions are rehearsed
    #[arg(long)]
    cordon_first: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Jobs {
    /// Fail at once, touching nothing
    Block,
    /// Wait until they have finished
    Wait,
    /// Delete them
    Delete,
    /// Evict them like others
    Evict,
}

pub async fn run(args: &NodeArgs, client: &Client, format: Format) -> anyhow::Result<()> {
    match &args.verb {
        Verb::List { cluster } => list(client, cluster, format).await,
        Verb::Cordon(which) => {
            let node = act::<Node>(client, which, "cordon", None).await?;
            told(&node, format, &format!("node {} is cordoned", which.node))
        }
        Verb::Uncordon(which) => {
            let node = act::<Node>(client, which, "uncordon", None).await?;
            told(&node, format, &format!("node {} takes pods again", which.node))
        }
        Verb::Drain(args) if args.plan => plan(client, args, format).await,
        Verb::Drain(args) if args.cancel => {
            let drain = act::<Drain>(client, &args.which, "cancelDrain", None).await?;
            let text = format!("the drain of node {} is being canceled", args.which.node);
            told(&drain, format, &text)
        }
        Verb::Drain(args) => drain(client, args, format).await,
        Verb::Reboot(args) => operation::power(client, args, "reboot", format).await,
        Verb::Shutdown(args) => operation::power(client, args, "shutdown", format).await,
        Verb::Update(args) => operation::update(client, args, format).await,
    }
}

/// For people a sentence, for programs the resource.
fn told<T: serde::Serialize>(resource: &T, format: Format, text: &str) -> anyhow::Result<()> {
    match format {
        Format::Table => {
            output::note(text);
            Ok(())
        }
        Format::Json | Format::Yaml => output::data(format, resource),
    }
}

async fn list(client: &Client, cluster: &str, format: Format) -> anyhow::Result<()> {
    let path = format!("/clusters/{}/nodes", segment(cluster)?);
    let nodes: Collection<Node> = client.get(&path).await?;
    let columns =
        ["NAME", "STATUS", "ROLES", "ADDRESS", "VERSION", "PODS", "AGENT", "DRAIN", "REASON"];
    output::list(format, &nodes.data, columns, |node| {
        let drain = node.drain.as_ref().map(|drain| format!("{} pods left", drain.left));
        let reason = node.drain.as_ref().and_then(|drain| drain.reason.clone());
        let operation = node.operation.as_ref();
        let under_way = operation.map(|operation| {
            let why = operation.reason.as_deref().unwrap_or_default();
            format!("{}: {why}", operation.kind)
        });
        let reason = reason.or(under_way).or_else(|| node.reason.clone());
        let reason = reason.or_else(|| first_fault(node)).unwrap_or_default();
        let cordoned = node.cordoned && node.status == "NotReady";
        [
            node.name.clone(),
            if cordoned { "NotReady,Cordoned".to_owned() } else { node.status.clone() },
            node.roles.join(","),
            node.address.clone(),
            node.kubelet_version.clone(),
            format!("{}/{}", node.usage.pod_used, node.usage.pod),
            agent(node),
            drain.unwrap_or_default(),
            reason.lines().next().unwrap_or_default().to_owned(),
        ]
    })
}

/// The agent's version, with what is to be known of it.
fn agent(node: &Node) -> String {
    match &node.agent {
        None => String::new(),
        Some(agent) if agent.link != "linked" => agent.link.clone(),
        Some(agent) if agent.health == "ok" => agent.version.clone(),
        Some(agent) => format!("{} ({})", agent.version, agent.health),
    }
}

fn first_fault(node: &Node) -> Option<String> {
    let agent = node.agent.as_ref().filter(|agent| agent.link == "linked")?;
    agent.faults.first().cloned()
}

async fn plan(client: &Client, args: &DrainArgs, format: Format) -> anyhow::Result<()> {
    let plan: DrainPlan = act(client, &args.which, "planDrain", Some(&args.request())).await?;
    if format != Format::Table {
        return output::data(format, &plan);
    }
    let columns = ["POD", "CLASS", "ACTION", "BUDGET", "WHY", "HINT"];
    output::table(columns, plan.pods.iter().map(row))?;
    output::line(&format!("\n{}: {}", plan.verdict, plan.message))
}

fn row(pod: &PlannedPod) -> [String; 6] {
    let name = format!("{}/{}", pod.namespace, pod.name);
    let budgets = pod.budgets.iter().map(|budget| {
        let outlook = if budget.outlook == "now" { "" } else { &budget.outlook };
        format!("{} ({} allowed) {outlook}", budget.name, budget.allowed).trim_end().to_owned()
    });
    let why = pod.why.strip_prefix(&format!("pod {name} ")).unwrap_or(&pod.why).to_owned();
    [
        name,
        pod.class.clone(),
        pod.action.clone(),
        budgets.collect::<Vec<_>>().join(", "),
        why,
        pod.hint.clone().unwrap_or_default(),
    ]
}

async fn drain(client: &Client, args: &DrainArgs, format: Format) -> anyhow::Result<()> {
    let which = &args.which;
    let begun: Drain = act(client, which, "drain", Some(&args.request())).await?;
    let cancel = format!("wharf node drain {} {} --cancel", which.cluster, which.node);
    if args.no_wait {
        output::note(&format!("the drain is under way; `{cancel}` stops it"));
        return told(&begun, format, &format!("next: wharf node list {}", which.cluster));
    }
    let ended = tokio::select! {
        ended = progress::follow(client, &which.cluster, &which.node) => ended?,
        _ = tokio::signal::ctrl_c() => {
            let message = format!("nobody waits any more; the drain of {} goes on", which.node);
            let hint = format!("`{cancel}` stops it, the same command without it waits again");
            return Err(Told::new(Exit::Failed, message).hint(hint).into());
        }
    };
    if format != Format::Table {
        output::data(format, &ended)?;
    }
    outcome(&ended, begun.head.id == ended.head.id)
}

/// `same`: nobody has begun another one meanwhile.
fn outcome(ended: &Drain, same: bool) -> anyhow::Result<()> {
    let node = &ended.node;
    let reason = ended.reason.as_deref().unwrap_or_default();
    match (ended.state.as_str(), ended.timed_out) {
        ("succeeded", _) => {
            output::note(&format!("node {node} is drained and stays cordoned"));
            if !reason.is_empty() {
                output::note(reason);
            }
            Ok(())
        }
        ("canceled", _) => {
            let who = if same { "it was canceled" } else { "a later drain of it was canceled" };
            Err(Told::new(Exit::Failed, format!("node {node} was not drained: {who}")).into())
        }
        (_, timed_out) => {
            let exit = if timed_out { Exit::TimedOut } else { Exit::Failed };
            let hint = format!(
                "`wharf node drain {} {node} --plan` says what stands in the way",
                ended.cluster
            );
            let message = format!("node {node} was not drained: {reason}");
            Err(Told::new(exit, message).hint(hint).into())
        }
    }
}

async fn act<T: serde::de::DeserializeOwned>(
    client: &Client,
    which: &Which,
    action: &str,
    body: Option<&DrainRequest>,
) -> anyhow::Result<T> {
    let (cluster, node) = (segment(&which.cluster)?, segment(&which.node)?);
    let path = format!("/clusters/{cluster}/nodes/{node}?action={action}");
    Ok(client.post(&path, &body.cloned().unwrap_or_default()).await?)
}

impl DrainArgs {
    fn request(&self) -> DrainRequest {
        let seconds = |time: Option<Duration>| {
            time.map(|time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
        };
        let jobs = self.jobs.map(|jobs| match jobs {
            Jobs::Block => "block",
            Jobs::Wait => "wait",
            Jobs::Delete => "delete",
            Jobs::Evict => "evict",
        });
        DrainRequest {
            timeout_seconds: seconds(self.timeout),
            jobs: jobs.map(str::to_owned),
            grace_period_seconds: seconds(self.grace_period),
            delete_unready_after_seconds: seconds(self.delete_unready_after),
            delete_after_seconds: seconds(self.delete_after),
            wait_volumes_seconds: seconds(self.wait_volumes),
            order_by_priority: self.order_by_priority.then_some(true),
            cordon_first: self.cordon_first.then_some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use wharf_api::drain::PlannedBudget;

    use super::*;

    #[test]
    fn a_row_of_the_plan_names_the_pod_once_and_its_budget_with_its_outlook() {
        let budget = |name: &str, outlook: &str| PlannedBudget {
            name: name.to_owned(),
            allowed: 0,
            outlook: outlook.to_owned(),
        };
        let pod = PlannedPod {
            namespace: "default".to_owned(),
            name: "db-0".to_owned(),
            uid: "u".to_owned(),
            class: "pod".to_owned(),
            action: "evict".to_owned(),
            budgets: vec![budget("db", "never"), budget("all", "now")],
            why: "pod default/db-0 is evicted; budget db allows 0, never".to_owned(),
            hint: None,
        };
        let [name, class, action, budgets, why, hint] = row(&pod);
        assert_eq!([name, class, action], ["default/db-0", "pod", "evict"]);
        assert_eq!(budgets, "db (0 allowed) never, all (0 allowed)");
        assert_eq!((why.as_str(), hint.as_str()), ("is evicted; budget db allows 0, never", ""));
    }
}
