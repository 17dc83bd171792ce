//! Thirty preparation steps on many machines, against the same steps by ansible-core.
//!
//! Ours is what the installer does: a connection to each machine, and one document that the agent's
//! program on it carries out. The program is there already, as Python is for Ansible; both have the
//! machines' keys, and neither gathers facts. Everything is taken away after each round.

mod ansible;
mod list;

use std::{path::Path, sync::Arc, time::Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use wharf_core::install::host::{HostDocument, HostReport};
use wharf_ssh::{Command, HostKey, Key, Limits, Session, Target};
use wharf_testbed::{Bind, Host, TestBed};

use super::{
    InstallArgs,
    machines::{self, run_script},
    median,
};
use crate::report::{Report, Row};
use ansible::Ansible;

const GOAL: f64 = 1.0 / 40.0;

pub fn run(args: &InstallArgs, report: &mut Report) -> Result<()> {
    let ansible = Ansible::ensure()?;
    let binds: Vec<Bind> = ansible::python_binds()?;
    let bed = machines::start("steps", usize::from(args.hosts), &binds)?;
    let program = machines::preload(&args.output.wharf, bed.hosts())?;
    let (mut ours, mut theirs, mut loads) = (vec![], vec![], vec![]);
    for round in 1..=args.rounds {
        eprintln!("steps: round {round} of {}", args.rounds);
        loads.push(machines::load());
        ours.push(tell("ours", apply(&bed, &program)?));
        let made = look(&bed)?;
        remove(&bed, &program)?;
        theirs.push(tell("Ansible", ansible.play(&bed)?));
        ensure!(look(&bed)? == made, "Ansible made something else than we did");
        machines::on_all(bed.hosts(), |_, host| run_script(host, "sh", list::CLEAR, &[]))?;
    }
    loads.push(machines::load());
    bed.down()?;
    let detail = format!(
        "medians of {} rounds; {} build; Ansible with pipelining, its faster way; load {}",
        args.rounds,
        args.build(),
        loads.join(" ")
    );
    let name = format!("{} steps on {} machines", list::COUNT, args.hosts);
    let row = Row::cost(&name, median(ours), "ansible-core", median(theirs), "s");
    report.add(row.goal(GOAL).detail(detail));
    Ok(())
}

/// A figure as soon as it is there: the whole takes minutes.
fn tell(what: &str, seconds: f64) -> f64 {
    eprintln!("steps: {what}: {seconds:.1} s");
    seconds
}

/// Connects to all machines and makes each hold what the document says; seconds.
fn apply(bed: &TestBed, program: &str) -> Result<f64> {
    let document = list::document();
    let begin = Instant::now();
    let reports = on_machines(bed, program, "apply", &document)?;
    let seconds = begin.elapsed().as_secs_f64();
    for text in reports {
        let report: HostReport = serde_json::from_slice(&text)?;
        ensure!(report.failure.is_none(), "a machine failed: {:?}", report.failure);
        ensure!(report.changes.len() == list::COUNT, "not all steps were taken: {report:?}");
    }
    Ok(seconds)
}

fn remove(bed: &TestBed, program: &str) -> Result<()> {
    on_machines(bed, program, "remove", &HostDocument::default())?;
    let left = look_at_all(bed)?;
    ensure!(left.iter().all(|left| left.lines().count() < list::COUNT), "a machine kept its steps");
    Ok(())
}

/// Runs our program on all machines at once, over connections of its own.
fn on_machines(
    bed: &TestBed,
    program: &str,
    verb: &str,
    document: &HostDocument,
) -> Result<Vec<Vec<u8>>> {
    let key = Arc::new(Key::parse(&std::fs::read_to_string(bed.ssh_key_path()?)?, "")?);
    let json = serde_json::to_vec(document)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let targets: Result<Vec<Target>> = bed.hosts().iter().map(|host| target(host, &key)).collect();
    let targets = targets?;
    runtime.block_on(async {
        let mut running = JoinSet::new();
        for target in targets {
            let command = Command::new([program, "agent", "host", verb]).stdin(json.clone());
            running.spawn(async move {
                let session = Session::connect(&target, &Limits::default()).await?;
                let output = session.run(&command.timeout(machines::DEADLINE)).await?;
                session.close().await;
                anyhow::Ok(output.stdout)
            });
        }
        running.join_all().await.into_iter().collect()
    })
}

fn target(host: &Host, key: &Arc<Key>) -> Result<Target> {
    Ok(Target {
        host: host.name().to_owned(),
        address: host.address().to_string(),
        port: 22,
        user: "root".to_owned(),
        key: key.clone(),
        pinned: Some(HostKey::parse(&host.host_key()?)?),
    })
}

/// What the steps made, which must be the same on all machines and all that was asked for.
fn look(bed: &TestBed) -> Result<String> {
    let mut all = look_at_all(bed)?;
    let one = all.pop().context("there are no machines")?;
    ensure!(all.iter().all(|other| *other == one), "the machines are not alike");
    ensure!(one.lines().count() == list::COUNT, "not all steps were taken:\n{one}");
    Ok(one)
}

fn look_at_all(bed: &TestBed) -> Result<Vec<String>> {
    machines::on_all(bed.hosts(), |_, host| run_script(host, "sh", list::LOOK, &[]))
}

/// A path that a host sees at the same place.
fn bind(path: &Path) -> Bind {
    Bind { source: path.to_owned(), target: path.to_owned(), read_only: true }
}
