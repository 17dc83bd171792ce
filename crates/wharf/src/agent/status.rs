//! `wharf agent status`

use std::{path::PathBuf, process::ExitCode};

use wharf_agent::health::{self, AskError};
use wharf_api::node_files::{AgentHealth, TaskHealth};

use crate::{
    block_on,
    failure::{Exit, Told},
    output::{self, Format},
};

/// Show how the agent on this machine is, and what keeps each part of it from its work
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  0  nothing is wrong    1  there are faults    2  no agent runs here

Examples:
  wharf agent status
  wharf agent status -o json | jq '.Tasks[] | select(.Faults)'")]
pub struct StatusArgs {
    /// The agent's `run_dir`
    #[arg(long, value_name = "DIR", default_value = "/run")]
    run_dir: PathBuf,
}

pub fn run(args: &StatusArgs, format: Format) -> anyhow::Result<ExitCode> {
    let health = match block_on(async { Ok(health::ask(&args.run_dir).await) })? {
        Ok(health) => health,
        // A code of its own, so that a script need not read the text.
        Err(error @ AskError::NoAgent { .. }) => {
            let hint = "see `systemctl status wharf-agent`, or name its run_dir with --run-dir";
            return Err(Told::new(Exit::Usage, error.to_string()).hint(hint).into());
        }
        Err(error) => return Err(error.into()),
    };
    match format {
        Format::Table => show(&health)?,
        Format::Json | Format::Yaml => output::data(format, &health)?,
    }
    Ok(if health.is_healthy() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(health: &AgentHealth) -> anyhow::Result<()> {
    let started = health.started.0.map(output::time).unwrap_or_default();
    let node = if health.node_name.is_empty() { "no node name" } else { &health.node_name };
    output::line(&format!("wharf {} for {node}, since {started}", health.version))?;
    output::table(
        ["TASK", "STATE", "SINCE", "SUBJECT", "REASON"],
        health.tasks.iter().flat_map(rows),
    )
}

fn rows(task: &TaskHealth) -> Vec<[String; 5]> {
    let row = |state: &str, since: String, subject: &str, reason: &str| {
        [task.name.clone(), state.to_owned(), since, subject.to_owned(), reason.to_owned()]
    };
    let since = |time: Option<_>| time.map(output::time).unwrap_or_default();
    let faults = task.faults.iter();
    let mut rows: Vec<_> = faults
        .map(|fault| row("fault", since(fault.since.0), &fault.subject, &fault.reason))
        .collect();
    if task.more {
        rows.push(row("fault", String::new(), "", "there are more"));
    }
    if rows.is_empty() {
        let state = if task.working { "ok" } else { "waiting" };
        rows.push(row(state, String::new(), "", ""));
    }
    let conditions = task.conditions.iter();
    rows.extend(conditions.map(|it| row("note", since(it.since.0), &it.name, &it.text)));
    rows
}
