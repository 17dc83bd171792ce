//! The benchmark of durable writes.
//!
//! Three comparisons: the embedded store with the bare disk, the REST API with an etcd put, and
//! the REST API with kube-apiserver's create of a custom resource. What is compared takes turns
//! within one run on one disk.

mod apiserver;
mod embedded;
mod etcd;
mod rest;
mod server;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{Output, report::Report, temp_dir};

/// Each measurement takes this long; all of them stay below three minutes.
const DEFAULT_SECONDS: f64 = 5.0;

#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    /// How long each measurement takes
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SECONDS, value_parser = seconds)]
    seconds: f64,
    /// Only this part; repeat it for several
    #[arg(long, value_name = "NAME")]
    only: Vec<Part>,
    #[command(flatten)]
    output: Output,
    /// Leave out Wharf's syncs of the disk: such a run must fail
    #[arg(long, hide = true)]
    fsync_off: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The embedded store against the bare disk
    Embedded,
    /// Reads of single keys
    Reads,
    /// Changes to a thousand watchers
    Watch,
    /// The REST API against etcd and kube-apiserver
    Rest,
}

/// Measures one part and adds its rows.
type Measure = fn(&StoreArgs, &mut Report) -> Result<()>;

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=300.0).contains(&seconds) => Ok(seconds),
        _ => Err("from 0.1 to 300".to_owned()),
    }
}

pub fn run(args: &StoreArgs) -> Result<()> {
    wharf_testbed::interrupt_on_signals()?;
    refuse_memory_disk()?;
    let parts: [(Part, Measure); 4] = [
        (Part::Embedded, embedded::writes),
        (Part::Reads, embedded::reads),
        (Part::Watch, embedded::watch),
        (Part::Rest, rest::run),
    ];
    let mut report = Report::new("store");
    for (part, measure) in parts {
        if args.only.is_empty() || args.only.contains(&part) {
            measure(args, &mut report)?;
        }
    }
    report.finish(&args.output)
}

/// A disk in memory syncs in no time: nothing measured on it means anything.
fn refuse_memory_disk() -> Result<()> {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    let dir = std::env::temp_dir();
    let disk =
        rustix::fs::statfs(&dir).with_context(|| format!("cannot look at {}", dir.display()))?;
    #[allow(clippy::unnecessary_cast, reason = "the field's type differs between machines")]
    if [TMPFS, RAMFS].contains(&(disk.f_type as i64)) {
        bail!("{} lies in memory; set TMPDIR to a directory on a disk", dir.display());
    }
    Ok(())
}
