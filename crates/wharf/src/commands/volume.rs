//! `wharf volume`

use wharf_api::{
    client::Client,
    resource::Collection,
    volume::{DetachRequest, Detached, Volume, VolumeHolder, VolumeWhy},
};

use super::segment;
use crate::{
    ask,
    failure::Told,
    output::{self, Format},
};

/// See who holds which volume of a cluster and why, and set one free
#[derive(Debug, clap::Args)]
pub struct VolumeArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List the volumes of a cluster, those first that are stuck
    List {
        /// The cluster's name
        cluster: String,
    },
    /// Show a volume with its holders and the pods that wait for it
    Show(Which),
    Why(WhyArgs),
    Detach(DetachArgs),
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The cluster's name
    cluster: String,
    /// The name of the PersistentVolume
    name: String,
}

/// Say why a volume is as it is, and what to do
///
/// Who holds it and by what right; where it cannot be taken over, which proof is missing and from
/// when on it would be there; what a pod waits for; and what is left on nodes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wharf volume why demo pvc-7d5f2a
  wharf volume why demo pvc-7d5f2a -o json")]
struct WhyArgs {
    #[command(flatten)]
    which: Which,
}

/// Say that a holder does not write any more, so that others may have the volume
///
/// Agents take a volume from a lost node by themselves when there is proof that it does not write any
/// more. Where there is none, as with a machine that was switched off by hand, a person may answer
/// for it. If the machine still writes, the data on the volume may be destroyed. Without --force
/// nothing is changed: what would be done and what may be lost is shown.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wharf volume detach demo pvc-7d5f2a
  wharf volume detach demo pvc-7d5f2a --node node2 --force --reason \"node2 is unplugged\"")]
struct DetachArgs {
    #[command(flatten)]
    which: Which,
    /// The node that holds it; may be left out where one does
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// One pod of the node, as NAME or NAMESPACE/NAME; all of them if left out
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
    /// Do it
    #[arg(long, requires = "reason")]
    force: bool,
    /// How it is known that the holder does not write any more; it is kept in the audit record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub async fn run(args: &VolumeArgs, client: &Client, format: Format) -> anyhow::Result<()> {
    match &args.verb {
        Verb::List { cluster } => list(client, cluster, format).await,
        Verb::Show(which) => show(client, which, format).await,
        Verb::Why(args) => why(client, &args.which, format).await,
        Verb::Detach(args) => detach(client, args, format).await,
    }
}

fn path(which: &Which) -> anyhow::Result<String> {
    Ok(format!("/clusters/{}/volumes/{}", segment(&which.cluster)?, segment(&which.name)?))
}

async fn list(client: &Client, cluster: &str, format: Format) -> anyhow::Result<()> {
    let path = format!("/clusters/{}/volumes", segment(cluster)?);
    let volumes: Collection<Volume> = client.get(&path).await?;
    let columns =
        ["NAME", "STATE", "CLAIM", "STORAGE", "BACKEND", "SIZE", "PHASE", "NODE", "POD", "LEASE"];
    output::list(format, &volumes.data, columns, |volume| {
        let of_holders = |part: fn(&VolumeHolder) -> String| {
            volume.holders.iter().map(part).collect::<Vec<_>>().join(",")
        };
        [
            volume.name.clone(),
            volume.state.clone(),
            volume.claim.clone().unwrap_or_default(),
            volume.storage_cluster.clone(),
            volume.backend.clone().unwrap_or_default(),
            volume.size.clone(),
            volume.phase.clone(),
            of_holders(|holder| holder.node.clone()),
            of_holders(|holder| format!("{}/{}", holder.namespace, holder.pod)),
            of_holders(|holder| holder.lease.clone()),
        ]
    })?;
    if format == Format::Table && volumes.data.iter().any(|volume| volume.state == "stuck") {
        output::note(&format!("next: wharf volume why {cluster} NAME"));
    }
    Ok(())
}

async fn show(client: &Client, which: &Which, format: Format) -> anyhow::Result<()> {
    let volume: Volume = client.get(&path(which)?).await?;
    output::one(format, &volume, fields)
}

fn fields(volume: &Volume) -> Vec<(&'static str, String)> {
    let mut fields = vec![
        ("Name", volume.name.clone()),
        ("State", volume.state.clone()),
        ("Claim", volume.claim.clone().unwrap_or_default()),
        ("Storage cluster", volume.storage_cluster.clone()),
        ("Backend", volume.backend.clone().unwrap_or_default()),
        ("Image", volume.image.clone()),
        ("Front end", volume.front_end.clone()),
        ("Size", volume.size.clone()),
        ("Access modes", volume.access_modes.join(", ")),
        ("Phase", volume.phase.clone()),
        ("Generation", volume.generation.to_string()),
    ];
    fields.extend(volume.holders.iter().map(|holder| ("Holder", about(holder))));
    fields.extend(volume.waiting.iter().map(|pod| ("Waiting", pod.why.clone())));
    fields
}

/// A holder in two lines: what it has, and by what right.
fn about(holder: &VolumeHolder) -> String {
    let device = holder.device.as_deref().unwrap_or("no device yet");
    let since = holder.since.map(|since| format!(", since {}", output::time(since)));
    format!(
        "node {} ({}, lease {}), {device}{}\n{}",
        holder.node,
        holder.node_status,
        holder.lease,
        since.unwrap_or_default(),
        holder.why
    )
}

async fn why(client: &Client, which: &Which, format: Format) -> anyhow::Result<()> {
    let why: VolumeWhy = client.get(&format!("{}/why", path(which)?)).await?;
    if format != Format::Table {
        return output::data(format, &why);
    }
    output::line(&format!("volume {} is {}", why.volume, why.state))?;
    for sentence in &why.sentences {
        output::line(&format!("- {sentence}"))?;
    }
    for next in &why.next {
        output::note(&format!("next: {next}"));
    }
    Ok(())
}

async fn detach(client: &Client, args: &DetachArgs, format: Format) -> anyhow::Result<()> {
    let path = format!("{}/detach", path(&args.which)?);
    let request = DetachRequest {
        node: args.node.clone(),
        pod: args.pod.clone(),
        force: false,
        reason: args.reason.clone(),
    };
    let plan: Detached = client.post(&path, &request).await?;
    if !args.force {
        return told(&plan, format, "nothing was changed; --force with --reason does it");
    }
    ask::confirm(&render(&plan), args.yes)?;
    // What was shown is what is done: the node is named even where it was not.
    let node = plan.holders.first().map(|holder| holder.node.clone());
    let forced = DetachRequest { node, force: true, ..request };
    let done: Detached = client.post(&path, &forced).await?;
    if !done.done {
        return Err(Told::new(crate::failure::Exit::Failed, done.message).into());
    }
    match format {
        Format::Table => {
            output::note(&done.message);
            output::note(&format!("next: wharf volume why {} {}", args.which.cluster, done.volume));
            Ok(())
        }
        Format::Json | Format::Yaml => output::data(format, &done),
    }
}

fn told(plan: &Detached, format: Format, hint: &str) -> anyhow::Result<()> {
    if format != Format::Table {
        return output::data(format, plan);
    }
    output::line(&render(plan))?;
    output::note(hint);
    Ok(())
}

/// The plan as people read it.
fn render(plan: &Detached) -> String {
    let holders = plan.holders.iter().map(|holder| format!("  {}", holder.why));
    let lost = plan.may_be_lost.iter().map(|lost| format!("  {lost}"));
    let head = format!("volume {} is released from:", plan.volume);
    let lines = std::iter::once(head).chain(holders);
    lines.chain(["what may be lost:".to_owned()]).chain(lost).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_names_the_holders_and_what_may_be_lost() {
        let holder = VolumeHolder {
            node: "a".to_owned(),
            namespace: "shop".to_owned(),
            pod: "db-0".to_owned(),
            pod_uid: "u".to_owned(),
            read_only: false,
            device: None,
            generation: 3,
            phase: "Attached".to_owned(),
            since: None,
            node_status: "Gone".to_owned(),
            lease: "ended".to_owned(),
            lease_until: None,
            why: "pod shop/db-0 on node a holds the volume: by nothing".to_owned(),
        };
        assert_eq!(
            about(&holder),
            "node a (Gone, lease ended), no device yet\n\
             pod shop/db-0 on node a holds the volume: by nothing"
        );
        let plan = Detached {
            volume: "pv".to_owned(),
            done: false,
            holders: vec![holder],
            may_be_lost: vec!["all of it".to_owned()],
            message: String::new(),
        };
        assert_eq!(
            render(&plan),
            "volume pv is released from:\n  pod shop/db-0 on node a holds the volume: by nothing\n\
             what may be lost:\n  all of it"
        );
    }
}
