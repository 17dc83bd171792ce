//! `cargo xtask hosts`: a test bed for a developer, kept until it is taken down.

use std::os::unix::process::CommandExt;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use wharf_testbed::{Condition, Options, Power, TestBed};

/// The one bed of a developer; tests have beds of their own beside it.
const BED: &str = "dev";

#[derive(Debug, Subcommand)]
pub enum Hosts {
    /// Start N hosts and wait until each answers over SSH
    Up {
        #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=50))]
        count: u16,
        /// With the bundle's files, so that clusters need no uploads
        #[arg(long)]
        bundle: bool,
    },
    /// Show all test beds of this machine and their hosts
    List,
    /// Open a shell on a host as root, or run a command there
    Ssh {
        name: String,
        /// Passed on as ssh does: the host's shell reads it
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Reboot a host in order, or start one that is off
    Reboot { name: String },
    /// Take a host's power away
    Kill { name: String },
    /// Remove the hosts, and whatever dead runs have left
    Down,
}

pub fn run(hosts: &Hosts) -> Result<()> {
    match hosts {
        Hosts::Up { count, bundle } => up(usize::from(*count), *bundle),
        Hosts::List => list(),
        Hosts::Ssh { name, command } => ssh(name, command),
        Hosts::Reboot { name } => reboot(name),
        Hosts::Kill { name } => bed()?.host(name)?.power_cut(),
        Hosts::Down => down(),
    }
}

fn up(count: usize, bundle: bool) -> Result<()> {
    // An interrupt turns into an error, and the error path removes what was made.
    wharf_testbed::interrupt_on_signals()?;
    if let Some(bed) = wharf_testbed::list()?.into_iter().find(|bed| bed.name == BED)
        && bed.condition == Condition::Kept
    {
        if bed.hosts.len() == count {
            eprintln!("The hosts are up already.");
            return list();
        }
        let there = bed.hosts.len();
        bail!("{there} hosts are up already; take them down first: cargo xtask hosts down");
    }
    let begin = Instant::now();
    let options = Options::hosts(count);
    let options = if bundle { options.with_bundle()? } else { options };
    let bed = TestBed::start_with(BED, &Options { keep: true, ..options })?;
    for host in bed.hosts() {
        println!("{}\t{}", host.name(), host.address());
    }
    eprintln!("{count} hosts are up after {:.1} s.", begin.elapsed().as_secs_f64());
    eprintln!("Next: cargo xtask hosts ssh node1, then cargo xtask hosts down.");
    eprintln!("From other programs: ssh -i {} root@ADDRESS", bed.ssh_key_path()?.display());
    Ok(())
}

fn list() -> Result<()> {
    let beds = wharf_testbed::list()?;
    if beds.is_empty() {
        eprintln!("There are no test beds. Next: cargo xtask hosts up 3");
    }
    for bed in beds {
        let condition = match bed.condition {
            Condition::Kept => "until down".to_owned(),
            Condition::Owned(pid) => format!("of process {pid}"),
            Condition::Abandoned => "abandoned".to_owned(),
        };
        if bed.hosts.is_empty() {
            println!("{}\t-\t-\t-\t{condition}", bed.name);
        }
        for (host, address, on) in bed.hosts {
            let power = if on { "on" } else { "off" };
            println!("{}\t{host}\t{address}\t{power}\t{condition}", bed.name);
        }
    }
    Ok(())
}

fn ssh(name: &str, command: &[String]) -> Result<()> {
    let bed = bed()?;
    // This process becomes ssh, so that the terminal and the exit code are its own.
    let failure = bed.host(name)?.ssh_command().args(command).exec();
    Err(failure).context("cannot start ssh")
}

fn reboot(name: &str) -> Result<()> {
    let bed = bed()?;
    let host = bed.host(name)?;
    match host.power()? {
        Power::On => host.reboot()?,
        Power::Off => host.start()?,
    }
    eprintln!("{name} is up, boot id {}", host.boot_id()?);
    Ok(())
}

fn down() -> Result<()> {
    wharf_testbed::reap_abandoned()?;
    let begin = Instant::now();
    wharf_testbed::remove(BED)?;
    eprintln!("The hosts are down after {:.1} s.", begin.elapsed().as_secs_f64());
    Ok(())
}

fn bed() -> Result<TestBed> {
    TestBed::open(BED).context("start hosts first: cargo xtask hosts up 3")
}
