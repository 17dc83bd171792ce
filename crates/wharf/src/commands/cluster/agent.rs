//! `wharf cluster agent`

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use wharf_api::{
    agent::{AgentInstallation, AgentRemoval, AgentToleration, InstallAgent},
    client::Client,
};

use crate::{
    ask,
    commands::segment,
    failure::{Exit, Told},
    output::{self, Format},
};

/// Put the agent on the nodes of an imported cluster, or take it away
#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Install(InstallArgs),
    /// Show how far the agents of an imported cluster are
    Show {
        /// The cluster's name
        name: String,
    },
    Remove(RemoveArgs),
}

/// Put the agent on the nodes of a cluster that was imported
///
/// A DaemonSet is applied whose pods put the agent on their hosts and start it there as a service of
/// systemd. Doing it again with another image or other nodes changes it. Clusters that Wharf installed
/// have their agents already.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The image:
  `cargo xtask image` makes it as one file, wharf-agent.tar, without Docker, and prints its name. Where
  no registry has it, copy the file to every node and run there
    ctr -n k8s.io images import wharf-agent.tar

Examples:
  wharf cluster agent install theirs --image wharf.dev/agent:0.1.0
  wharf cluster agent install theirs --image wharf.dev/agent:0.1.0 --node-selector disk=fast \\
    --toleration node-role.kubernetes.io/control-plane:NoSchedule
  wharf cluster agent install theirs --image wharf.dev/agent:0.1.0 --print | kubectl diff -f -")]
struct InstallArgs {
    /// The cluster's name
    name: String,
    /// The agent's image, as the nodes know it
    #[arg(long, value_name = "REF")]
    image: String,
    /// Only nodes with this label, as KEY=VALUE; may be given several times
    #[arg(long = "node-selector", value_name = "LABEL", value_parser = parse_label)]
    node_selector: Vec<(String, String)>,
    /// A taint that does not keep the agent away, as KEY[=VALUE][:EFFECT], or `*` for all of them; may
    /// be given several times
    #[arg(long = "toleration", value_name = "TAINT", value_parser = parse_toleration)]
    tolerations: Vec<AgentToleration>,
    /// Where kubelets look for volume drivers, if their processes do not say so
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<String>,
    /// Print the manifests and change nothing
    #[arg(long)]
    print: bool,
    /// Return at once instead of waiting until all pods are ready
    #[arg(long)]
    no_wait: bool,
}

/// Take the agents of an imported cluster away
///
/// Their pods take them from their hosts. Refused while volumes are in use. Storage clusters, volumes
/// and their records stay in the cluster.
#[derive(Debug, clap::Args)]
struct RemoveArgs {
    /// The cluster's name
    name: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Return at once; the same command again completes it
    #[arg(long)]
    no_wait: bool,
}

/// An image may have to be fetched, and a rolling update goes over all nodes.
const INSTALL: Duration = Duration::from_secs(600);
const REMOVE: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub async fn run(args: &AgentArgs, client: &Client, format: Format) -> anyhow::Result<()> {
    match &args.verb {
        Verb::Install(args) => install(client, args, format).await,
        Verb::Show { name } => show(&client.get(&path(name)?).await?, format),
        Verb::Remove(args) => remove(client, args, format).await,
    }
}

fn path(name: &str) -> anyhow::Result<String> {
    Ok(format!("/clusters/{}/agent", segment(name)?))
}

async fn install(client: &Client, args: &InstallArgs, format: Format) -> anyhow::Result<()> {
    let path = path(&args.name)?;
    let request = InstallAgent {
        image: args.image.clone(),
        node_selector: args.node_selector.iter().cloned().collect::<BTreeMap<_, _>>(),
        tolerations: args.tolerations.clone(),
        plugin_dir: args.plugin_dir.clone(),
        dry_run: args.print,
    };
    let mut seen: AgentInstallation = client.post(&path, &request).await?;
    if args.print {
        return output::text(&seen.manifests.unwrap_or_default());
    }
    for changed in &seen.changed {
        output::note(&format!("applied {changed}"));
    }
    output::note(&format!(
        "where no registry has {}: copy wharf-agent.tar to every node and run there \
         `ctr -n k8s.io images import wharf-agent.tar`",
        args.image
    ));
    if !args.no_wait {
        seen = wait(client, &path, seen).await?;
    }
    show(&seen, format)
}

/// Waits until every node that is meant has its agent; tells of each change.
async fn wait(
    client: &Client,
    path: &str,
    mut seen: AgentInstallation,
) -> anyhow::Result<AgentInstallation> {
    let end = Instant::now() + INSTALL;
    let mut told = String::new();
    loop {
        let now = progress(&seen);
        if now != told {
            output::note(&now);
            told = now;
        }
        if seen.done && seen.desired == 0 {
            let message = format!("no node of {} is meant", seen.cluster);
            let hint = "look at --node-selector and --toleration, and at `kubectl get nodes \
                        --show-labels`";
            return Err(Told::new(Exit::Failed, message).hint(hint).into());
        }
        if seen.done {
            return Ok(seen);
        }
        if Instant::now() >= end {
            let message = format!("not all agents of {} are ready", seen.cluster);
            let hint = "the pods' logs say more: `kubectl -n wharf-system logs -l app=wharf-agent`";
            return Err(Told::new(Exit::TimedOut, message).hint(hint).into());
        }
        sleep(LOOK_EVERY).await;
        seen = client.get(path).await?;
    }
}

/// How far it is, and what the pods wait for that are not ready.
fn progress(seen: &AgentInstallation) -> String {
    if !seen.settled {
        return "the DaemonSet is applied".to_owned();
    }
    let mut text = format!("{} of {} agents are ready", seen.ready, seen.desired);
    for pod in seen.pods.iter().filter(|pod| !pod.ready && !pod.reason.is_empty()) {
        text.push_str(&format!("\n  {}: {}", pod.node, pod.reason));
    }
    text
}

fn show(seen: &AgentInstallation, format: Format) -> anyhow::Result<()> {
    if format != Format::Table {
        return output::data(format, seen);
    }
    let rows = seen.pods.iter().map(|pod| {
        let ready = if pod.ready { "yes" } else { "no" };
        [pod.node.clone(), pod.name.clone(), ready.to_owned(), pod.reason.clone()]
    });
    output::table(["NODE", "POD", "READY", "REASON"], rows)
}

async fn remove(client: &Client, args: &RemoveArgs, format: Format) -> anyhow::Result<()> {
    let path = path(&args.name)?;
    let plan = format!("Removing the agents of {} ends volumes for its pods.", args.name);
    ask::confirm(&plan, args.yes)?;
    let end = Instant::now() + REMOVE;
    let mut told = BTreeSet::new();
    loop {
        let step: AgentRemoval = client.delete_step(&path).await?;
        let waiting: BTreeSet<String> = step.waiting.iter().cloned().collect();
        if waiting != told && !waiting.is_empty() {
            let nodes = step.waiting.join(", ");
            output::note(&format!("waiting for the agents to leave {nodes}"));
        }
        told = waiting;
        if step.done || args.no_wait {
            return removed(&step, format);
        }
        if Instant::now() >= end {
            let message = format!("the agents of {} are not gone yet", args.name);
            let hint = "a node that is away keeps its pod; the same command goes on";
            return Err(Told::new(Exit::TimedOut, message).hint(hint).into());
        }
        sleep(LOOK_EVERY).await;
    }
}

fn removed(step: &AgentRemoval, format: Format) -> anyhow::Result<()> {
    if format != Format::Table {
        return output::data(format, step);
    }
    if !step.kept.is_empty() {
        let kept = step.kept.join(", ");
        output::note(&format!("the kinds of volumes stay in the cluster, since there are: {kept}"));
    }
    Ok(())
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn parse_toleration(text: &str) -> Result<AgentToleration, String> {
    let (taint, effect) = match text.split_once(':') {
        Some((taint, effect)) => (taint, Some(effect.to_owned())),
        None => (text, None),
    };
    if taint == "*" {
        return Ok(AgentToleration { key: None, value: None, effect });
    }
    let (key, value) = match taint.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (taint, None),
    };
    match key.is_empty() {
        true => Err("a toleration is KEY[=VALUE][:EFFECT], or *".to_owned()),
        false => Ok(AgentToleration { key: Some(key.to_owned()), value, effect }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_written_as_kubectl_writes_them() {
        let of = |key: Option<&str>, value: Option<&str>, effect: Option<&str>| AgentToleration {
            key: key.map(str::to_owned),
            value: value.map(str::to_owned),
            effect: effect.map(str::to_owned),
        };
        let rows = [
            ("*", of(None, None, None)),
            ("*:NoExecute", of(None, None, Some("NoExecute"))),
            ("a/b", of(Some("a/b"), None, None)),
            ("a/b:NoSchedule", of(Some("a/b"), None, Some("NoSchedule"))),
            ("a=b:NoSchedule", of(Some("a"), Some("b"), Some("NoSchedule"))),
            ("a=", of(Some("a"), Some(""), None)),
        ];
        for (text, expected) in rows {
            assert_eq!(parse_toleration(text), Ok(expected), "{text}");
        }
        assert!(parse_toleration("=x").is_err() && parse_toleration("").is_err());
        assert_eq!(parse_label("a/b=c=d"), Ok(("a/b".to_owned(), "c=d".to_owned())));
        assert!(parse_label("a").is_err());
    }
}
