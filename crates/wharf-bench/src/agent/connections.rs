//! As many connections as the balancer shall hold, on a machine that allows as many open files as the
//! agent's unit asks for: the one that measures may not.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use wharf_testbed::{
    balancer::{self, Held},
    guest::Guest,
};

use crate::report::{Report, Row};

/// The guest's processor is emulated: some milliseconds for each connection.
const DEADLINE: Duration = Duration::from_secs(600);
/// Longer than anything that the balancer may take for a sign that a peer is gone.
const SILENCE: Duration = Duration::from_secs(45);

pub fn run(agent: &Path, wanted: u16, report: &mut Report) -> Result<()> {
    eprintln!("agent: {wanted} connections through the balancer, in a guest");
    let agent = std::path::absolute(agent)?;
    let client = std::env::current_exe()?;
    let guest = Guest::new()?.program(&agent)?.program(&client)?;
    let command = format!(
        "exec {client:?} worker agent-connections --agent {agent:?} --connections {wanted}"
    );
    let ended = guest.run(&command, DEADLINE)?;
    ensure!(ended.code == 0, "the client failed ({}):\n{}", ended.code, ended.output);
    let last = ended.output.lines().last().unwrap_or_default();
    let held: Held = serde_json::from_str(last)
        .with_context(|| format!("the client printed {:?}", ended.output))?;
    let (count, wanted) = (held.connections as f64, f64::from(wanted));
    let row = Row::rate("connections held, in a guest", count, "wanted", wanted, "");
    let fault = held.fault.map(|fault| format!("; {fault}")).unwrap_or_default();
    report.add(row.goal(1.0).detail(format!(
        "all open at once, and each passed bytes on both ways after {} s of silence; opened in {:.0} s on an emulated processor{fault}",
        SILENCE.as_secs(),
        held.opened_in.as_secs_f64(),
    )));
    let mebibytes = |kibibytes: u64| kibibytes as f64 / 1024.0;
    let each = held.kibibytes.saturating_sub(held.first_kibibytes) as f64 / count;
    let with_them = mebibytes(held.kibibytes);
    let row =
        Row::alone("memory of the agent with these connections, in a guest", with_them, "MiB");
    let first = mebibytes(held.first_kibibytes);
    report.add(row.detail(format!("{first:.1} MiB after the first; {each:.1} KiB for each")));
    Ok(())
}

#[derive(Debug, clap::Args)]
pub struct Connections {
    /// The program that hosts get
    #[arg(long)]
    agent: PathBuf,
    #[arg(long)]
    connections: usize,
}

/// In the guest.
pub fn work(args: &Connections) -> Result<()> {
    let mut agent = Command::new(&args.agent);
    agent.args(["agent", "--config"]);
    println!("{}", serde_json::to_string(&balancer::hold(agent, args.connections, SILENCE)?)?);
    Ok(())
}
