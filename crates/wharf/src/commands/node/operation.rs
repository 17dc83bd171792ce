//! `wharf node reboot|shutdown|update`

use wharf_api::{
    client::Client,
    node::{NodeOperation, UpdateRequest},
    operation::Operation,
};

use super::{Which, told};
use crate::{
    commands::{follow, segment},
    failure::{Exit, Told},
    output::{self, Format},
};

/// Reboot a node after its drain
///
/// The server lets it in beside what else is out of service in the cluster, and hands it to the
/// node's agent, which drains the node and then reboots it, once, also when the agent is restarted in
/// between. In a cluster with fewer nodes than `min_cluster_nodes` (3) of the agent's configuration
/// nothing is drained, and the command says so.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wharf node reboot demo node2 --wait       reboot, and show what is waited for
  wharf node reboot demo node2 --cancel     stop it, or let go of a machine that does not come back

Exit codes: 1 when it failed or was canceled, 4 when there is no link to the node's agent.")]
pub struct PowerArgs {
    #[command(flatten)]
    which: Which,
    /// Stop the operation that is under way, as long as the node has not begun to go down; a machine
    /// that does not come back is not waited for any more
    #[arg(long, conflicts_with = "wait")]
    cancel: bool,
    /// Show the progress until it is over
    #[arg(long)]
    wait: bool,
}

/// Put a new system on a node after its drain
///
/// The node fetches the image and checks it first; a fault there drains nothing. Then the node is
/// drained, the agent's `update_command` is run once with the image, and the node reboots.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wharf node update demo node2 --image https://example.org/os.img --sha256 9f86…0a08 --wait
  wharf node update demo node2 --image /srv/os.img --sha256 9f86…0a08
  wharf node update demo node2 --cancel

Exit codes: 1 when it failed or was canceled, 4 when there is no link to the node's agent.")]
pub struct UpdateArgs {
    #[command(flatten)]
    which: Which,
    /// Where the node finds the image: an http(s) address, or a path on the node itself
    #[arg(long, value_name = "FILE|URL", required_unless_present = "cancel")]
    image: Option<String>,
    /// The image's SHA-256
    #[arg(long, value_name = "DIGITS", required_unless_present = "cancel")]
    sha256: Option<String>,
    /// Stop the operation that is under way, as long as the image is not being put in place; a machine
    /// that does not come back is not waited for any more
    #[arg(long, conflicts_with_all = ["wait", "image", "sha256"])]
    cancel: bool,
    /// Show the progress until it is over
    #[arg(long)]
    wait: bool,
}

pub async fn power(
    client: &Client,
    args: &PowerArgs,
    action: &str,
    format: Format,
) -> anyhow::Result<()> {
    if args.cancel {
        return cancel(client, &args.which, format).await;
    }
    let body = serde_json::json!({});
    operate(client, &args.which, action, &body, args.wait, format).await
}

pub async fn update(client: &Client, args: &UpdateArgs, format: Format) -> anyhow::Result<()> {
    if args.cancel {
        return cancel(client, &args.which, format).await;
    }
    let body = UpdateRequest {
        image: args.image.clone().unwrap_or_default(),
        sha256: args.sha256.clone().unwrap_or_default(),
    };
    operate(client, &args.which, "update", &body, args.wait, format).await
}

fn path(which: &Which) -> anyhow::Result<String> {
    Ok(format!("/clusters/{}/nodes/{}", segment(&which.cluster)?, segment(&which.node)?))
}

async fn cancel(client: &Client, which: &Which, format: Format) -> anyhow::Result<()> {
    let url = format!("{}?action=cancelOperation", path(which)?);
    let operation: NodeOperation = client.post(&url, &serde_json::json!({})).await?;
    let text = match operation.ended_at {
        None => format!("the {} of node {} is being canceled", operation.kind, which.node),
        Some(_) => format!("node {} is not waited for any more", which.node),
    };
    told(&operation, format, &text)
}

async fn operate(
    client: &Client,
    which: &Which,
    action: &str,
    body: &impl serde::Serialize,
    wait: bool,
    format: Format,
) -> anyhow::Result<()> {
    let url = format!("{}?action={action}", path(which)?);
    let begun: NodeOperation = client.post(&url, body).await?;
    let (kind, node) = (&begun.kind, &begun.node);
    if let Some(note) = undrained(&begun) {
        output::note(&note);
    }
    if !wait {
        return told(&begun, format, &format!("the {kind} of node {node} is under way"));
    }
    let mut last = String::new();
    let resource = format!("nodeoperation/{}/{}", begun.cluster, begun.node);
    let url = format!("{}/operation", path(which)?);
    let ended = follow::until(client, &url, &resource, |operation: &NodeOperation| {
        if operation.head.id != begun.head.id {
            return true;
        }
        let line = progress(operation);
        if line != last {
            output::note(&line);
            last = line;
        }
        operation.ended_at.is_some()
    });
    let mut ended = ended.await?;
    if ended.head.id != begun.head.id {
        // A node has one operation; what became of one that lost its place is in its journal.
        let id = segment(&begun.head.id)?;
        ended = replaced(&begun, client.get(&format!("/operations/{id}")).await?);
    }
    if format != Format::Table {
        output::data(format, &ended)?;
    }
    outcome(&ended)
}

/// What is to be known of an operation that waits for no drain, or may not.
fn undrained(begun: &NodeOperation) -> Option<String> {
    match &begun.not_deferred {
        _ if begun.deferred => None,
        Some(why) => Some(format!("{why}: nothing is deferred")),
        None => Some("the node has not said yet whether it will be drained first".to_owned()),
    }
}

/// How an operation ended after which another one was asked for.
fn replaced(begun: &NodeOperation, journal: Operation) -> NodeOperation {
    let lines = journal.log.unwrap_or_default();
    let last = lines.last().map(|line| line.text.clone());
    let Operation { state, ended_at, error, .. } = journal;
    let reason = error.or_else(|| last.filter(|_| state == "canceled"));
    NodeOperation { state, ended_at, reason, ..begun.clone() }
}

fn progress(operation: &NodeOperation) -> String {
    let reason = operation.reason.as_deref().unwrap_or("is handed to the node");
    format!("{} of {}: {reason}", operation.kind, operation.node)
}

fn outcome(ended: &NodeOperation) -> anyhow::Result<()> {
    let NodeOperation { kind, node, .. } = ended;
    let reason = ended.reason.as_deref().unwrap_or_default();
    match ended.state.as_str() {
        "succeeded" => {
            output::note(&format!("the {kind} of node {node} is done"));
            if !reason.is_empty() {
                output::note(reason);
            }
            Ok(())
        }
        "canceled" => {
            let colon = if reason.is_empty() { "" } else { ": " };
            let text = format!("the {kind} of node {node} was canceled{colon}{reason}");
            Err(Told::new(Exit::Failed, text).into())
        }
        _ => Err(Told::new(Exit::Failed, format!("the {kind} of node {node} failed: {reason}"))
            .hint(format!("`wharf node list {}` shows the node's agent", ended.cluster))
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(deferred: bool, not_deferred: Option<&str>) -> NodeOperation {
        serde_json::from_value(serde_json::json!({
            "id": "1", "type": "nodeOperation", "links": {},
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": null,
            "cluster": "demo", "node": "n1", "kind": "reboot", "state": "running",
            "deferred": deferred, "notDeferred": not_deferred, "requestedBy": "admin",
            "startedAt": "2026-01-01T00:00:00Z", "canceled": false,
        }))
        .unwrap()
    }

    #[test]
    fn an_operation_that_lost_its_place_ends_as_its_journal_says() {
        let begun = operation(true, None);
        let journal = |state: &str, error: Option<&str>| -> Operation {
            serde_json::from_value(serde_json::json!({
                "id": "1", "type": "operation", "links": {},
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": null,
                "cluster": "demo", "kind": "nodeUpdate", "state": state, "percent": 0,
                "startedAt": "2026-01-01T00:00:00Z", "endedAt": "2026-01-01T00:01:00Z",
                "error": error, "hint": null, "phases": [], "steps": [], "leftovers": [],
                "log": [{ "at": "2026-01-01T00:01:00Z", "text": "a newer image takes its place" }],
            }))
            .unwrap()
        };
        let ended = replaced(&begun, journal("canceled", None));
        assert_eq!((&ended.head.id, ended.ended_at.is_some()), (&begun.head.id, true));
        let text = outcome(&ended).unwrap_err().to_string();
        assert!(text.ends_with("was canceled: a newer image takes its place"), "{text}");
        let text = outcome(&replaced(&begun, journal("failed", Some("exit 1")))).unwrap_err();
        assert!(text.to_string().ends_with("failed: exit 1"), "{text}");
        assert!(outcome(&replaced(&begun, journal("succeeded", None))).is_ok());
    }

    #[test]
    fn that_nothing_is_deferred_is_said_only_where_the_node_says_so() {
        assert_eq!(undrained(&operation(true, None)), None);
        let small = undrained(&operation(false, Some("the cluster is too small to drain to")));
        let text = "the cluster is too small to drain to: nothing is deferred";
        assert_eq!(small.as_deref(), Some(text));
        let silent = undrained(&operation(false, None)).unwrap();
        assert!(silent.contains("has not said yet"), "{silent}");
    }
}
