//! `wharf agent reboot`, `shutdown` and `update`

use std::path::{Path, PathBuf};

use wharf_agent::{
    config::Config,
    drain::wishes,
    health::{self, AGENT, AskError},
};
use wharf_api::node_files::{
    self, AgentHealth, GLOBAL, NodeDrainStatus, NodeFile, NodeJob, NodeJobs, NodeWish,
};

use crate::{
    block_on,
    failure::{Exit, Told},
    output::{self, Format},
};

/// What the agent calls the task that carries wishes out.
const TASK: &str = "operations";
/// The published number of a node of which nobody says anything.
const UNKNOWN: u8 = 0;
/// That of a node that is drained nowhere.
const NOT_SUPPORTED: u8 = 1;

// Which agent is meant, and whether something is taken back. (Not a doc comment: it would take the
// place of the help of each command.)
#[derive(Debug, clap::Args)]
pub struct OperationArgs {
    /// The agent's configuration file (TOML)
    #[arg(long, value_name = "FILE", default_value = "/etc/wharf/agent/agent.toml")]
    config: PathBuf,
    /// Take back what was asked for and has not begun
    #[arg(long)]
    cancel: bool,
}

/// Put a new base system in place and reboot into it, once the node is drained
///
/// The image is fetched and checked first; if it is bad, nothing else is done. Then the agent's
/// `update_command` is run with the path of the image as its last argument.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wharf agent update --image /root/base.img --sha256 $(sha256sum </root/base.img | cut -c1-64)
  wharf agent update --cancel")]
pub struct UpdateArgs {
    /// A file of this machine, or an address that begins with http:// or https://
    #[arg(long, value_name = "FILE|URL", required_unless_present = "cancel")]
    image: Option<String>,
    /// The checksum of the image, in hexadecimal digits
    #[arg(long, value_name = "DIGITS", required_unless_present = "cancel")]
    sha256: Option<String>,
    #[command(flatten)]
    operation: OperationArgs,
}

/// Hands a reboot or a shutdown to the agent.
pub fn run(args: &OperationArgs, kind: &str, format: Format) -> anyhow::Result<()> {
    let wish = NodeWish { kind: kind.to_owned(), canceled: args.cancel, ..NodeWish::default() };
    hand_over(&args.config, wish, format)
}

pub fn run_update(args: &UpdateArgs, format: Format) -> anyhow::Result<()> {
    let image = args.image.as_deref().map(place).transpose()?;
    let wish = NodeWish {
        kind: wishes::UPDATE_KIND.to_owned(),
        canceled: args.operation.cancel,
        image: image.unwrap_or_default(),
        sha256: args.sha256.clone().unwrap_or_default(),
        ..NodeWish::default()
    };
    hand_over(&args.operation.config, wish, format)
}

/// The agent does not know in which folder the command was given.
fn place(image: &str) -> anyhow::Result<String> {
    if image.starts_with("http://") || image.starts_with("https://") {
        return Ok(image.to_owned());
    }
    match std::fs::canonicalize(image) {
        Ok(path) => Ok(path.display().to_string()),
        Err(error) => {
            Err(Told::new(Exit::NotFound, format!("cannot read the image {image}: {error}")).into())
        }
    }
}

fn hand_over(config: &Path, wish: NodeWish, format: Format) -> anyhow::Result<()> {
    let config = Config::load(config)?;
    check(&ask(&config)?)?;
    let found = find(&wish.kind, &jobs(&config), &wishes::handed_over(&config.persist_dir));
    let wish = wishes::hand_over(&config.persist_dir, wish)?;
    if format != Format::Table {
        return output::data(format, &wish);
    }
    let kind = &wish.kind;
    output::note(&match (wish.canceled, found) {
        (true, Found::Nothing) => format!("no {kind} waits: there is nothing to take back"),
        (true, Found::Waiting) => format!("the agent takes back the {kind} that waits"),
        (true, Found::Begun) => format!("the {kind} has begun and is not taken back"),
        (false, _) => begins(kind, drain_status(&config)),
    });
    output::note("`wharf agent status` shows what it waits for");
    output::line(&wish.id)
}

/// What there is of one kind when it is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Waiting,
    Begun,
}

/// A wish that the agent has not looked at yet waits too.
fn find(kind: &str, jobs: &[NodeJob], handed_over: &[NodeWish]) -> Found {
    let mine = || jobs.iter().filter(|job| job.kind == kind).map(|job| job.phase.as_str());
    let is_new = |wish: &NodeWish| jobs.iter().all(|job| job.id != wish.id);
    let mut wishes = handed_over.iter().filter(|wish| wish.kind == kind && !wish.canceled);
    if mine().any(|phase| matches!(phase, "commanding" | "leaving")) {
        Found::Begun
    } else if mine().any(|phase| matches!(phase, "preparing" | "deferred")) || wishes.any(is_new) {
        Found::Waiting
    } else {
        Found::Nothing
    }
}

fn jobs(config: &Config) -> Vec<NodeJob> {
    let file = format!("{AGENT}/{}/{GLOBAL}.json", NodeJobs::TYPE);
    let text = std::fs::read(config.run_dir.join(file)).unwrap_or_default();
    node_files::read::<NodeJobs>(&text).map(|jobs| jobs.jobs.0).unwrap_or_default()
}

fn ask(config: &Config) -> anyhow::Result<AgentHealth> {
    match block_on(async { Ok(health::ask(&config.run_dir).await) })? {
        Ok(health) => Ok(health),
        // It would be done whenever somebody starts it, to everybody's surprise.
        Err(error @ AskError::NoAgent { .. }) => {
            let hint = "start it with `systemctl start wharf-agent`; nothing was handed over";
            Err(Told::new(Exit::Unreachable, error.to_string()).hint(hint).into())
        }
        Err(error) => Err(error.into()),
    }
}

fn check(health: &AgentHealth) -> Result<(), Told> {
    if health.tasks.iter().any(|task| task.name == TASK) {
        return Ok(());
    }
    let message = "the agent of this machine takes no node out of service";
    let hint = "its configuration needs `kubeconfig`, and `publish_as` with zedagent for reboots and \
                shutdowns, baseosmgr for updates";
    Err(Told::new(Exit::Refused, message).hint(hint))
}

/// When it begins, as far as the gate has said. An agent that was started a moment ago has not.
fn begins(kind: &str, status: Option<u8>) -> String {
    match status {
        Some(NOT_SUPPORTED) => {
            format!("the node is in no cluster of several: the {kind} does not wait for a drain")
        }
        Some(UNKNOWN) | None => {
            format!(
                "nothing is known of drains yet: the {kind} waits for one if there is to be one"
            )
        }
        Some(_) => format!("the agent begins the {kind} once the node is drained"),
    }
}

/// The number that is published; `None` where there is none that can be read.
fn drain_status(config: &Config) -> Option<u8> {
    let file = format!("zedkube/{}/{GLOBAL}.json", NodeDrainStatus::TYPE);
    let text = std::fs::read(config.run_dir.join(file)).ok()?;
    node_files::read::<NodeDrainStatus>(&text).ok().map(|status| status.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_a_node_is_not_drained_is_said_only_where_its_gate_says_so() {
        let rows = [
            (Some(1), "in no cluster of several"),
            (Some(2), "once the node is drained"),
            (Some(5), "once the node is drained"),
            (Some(0), "nothing is known of drains yet"),
            (None, "nothing is known of drains yet"),
        ];
        for (status, expected) in rows {
            let text = begins("reboot", status);
            assert!(text.contains(expected), "{status:?}: {text}");
        }
    }

    #[test]
    fn what_is_taken_back_is_what_waits_of_the_same_kind() {
        let job = |kind: &str, phase: &str| NodeJob {
            id: format!("{kind}-1"),
            kind: kind.to_owned(),
            phase: phase.to_owned(),
            ..NodeJob::default()
        };
        let wish = |id: &str, canceled| NodeWish {
            id: id.to_owned(),
            kind: "reboot".to_owned(),
            canceled,
            ..NodeWish::default()
        };
        let rows = [
            (vec![], vec![], Found::Nothing),
            (vec![job("reboot", "deferred")], vec![], Found::Waiting),
            (vec![job("update", "preparing")], vec![], Found::Nothing),
            (vec![job("shutdown", "deferred")], vec![], Found::Nothing),
            (vec![job("reboot", "leaving")], vec![], Found::Begun),
            (vec![job("reboot", "done")], vec![], Found::Nothing),
            (vec![job("reboot", "canceled")], vec![wish("reboot-1", false)], Found::Nothing),
            (vec![job("reboot", "done")], vec![wish("reboot-2", false)], Found::Waiting),
            (vec![], vec![wish("reboot-2", true)], Found::Nothing),
        ];
        for (jobs, wishes, expected) in rows {
            assert_eq!(find("reboot", &jobs, &wishes), expected, "{jobs:?} {wishes:?}");
        }
        assert_eq!(find("update", &[job("update", "commanding")], &[]), Found::Begun);
    }
}
