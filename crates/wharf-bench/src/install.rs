//! The benchmark of installing clusters.

mod certificates;

use anyhow::Result;
use clap::ValueEnum;

use crate::{Output, report::Report};

#[derive(Debug, clap::Args)]
pub struct InstallArgs {
    /// Only this part; repeat it for several
    #[arg(long, value_name = "NAME")]
    only: Vec<Part>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// All certificates and kubeconfigs of a cluster against kubeadm
    Certificates,
}

/// Measures one part and adds its rows.
type Measure = fn(&InstallArgs, &mut Report) -> Result<()>;

pub fn run(args: &InstallArgs) -> Result<()> {
    wharf_testbed::interrupt_on_signals()?;
    let parts: [(Part, Measure); 1] = [(Part::Certificates, certificates::run)];
    let mut report = Report::new("install");
    for (part, measure) in parts {
        if args.only.is_empty() || args.only.contains(&part) {
            measure(args, &mut report)?;
        }
    }
    report.finish(&args.output)
}
