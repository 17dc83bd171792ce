//! The benchmark of installing clusters.

mod certificates;
pub mod cluster;
mod growth;
mod kubeadm;
pub mod machines;
mod steps;
pub mod wharf;

use anyhow::Result;
use clap::ValueEnum;

use crate::{Output, report::Report};

#[derive(Debug, clap::Args)]
pub struct InstallArgs {
    /// Only this part; repeat it for several
    #[arg(long, value_name = "NAME")]
    only: Vec<Part>,
    /// How often clusters are made and steps taken; the median counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=20))]
    rounds: u8,
    /// On how many machines steps are taken
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..=50))]
    hosts: u8,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// All certificates and kubeconfigs of a cluster against kubeadm
    Certificates,
    /// 3+2 machines from bare to Ready with DNS against kubeadm
    Cluster,
    /// One more worker at 50 nodes against at 5
    Growth,
    /// 30 preparation steps on many machines against ansible-core
    Steps,
}

impl InstallArgs {
    /// How the program that is measured was built, as far as its place says.
    fn build(&self) -> &'static str {
        let release = |part: std::path::Component<'_>| part.as_os_str() == "release";
        if self.output.wharf.components().any(release) { "release" } else { "debug" }
    }
}

/// Measures one part and adds its rows.
type Measure = fn(&InstallArgs, &mut Report) -> Result<()>;

pub fn run(args: &InstallArgs) -> Result<()> {
    wharf_testbed::interrupt_on_signals()?;
    let parts: [(Part, Measure); 4] = [
        (Part::Certificates, certificates::run),
        (Part::Cluster, cluster::run),
        (Part::Growth, growth::run),
        (Part::Steps, steps::run),
    ];
    let mut report = Report::new("install");
    for (part, measure) in parts {
        if args.only.is_empty() || args.only.contains(&part) {
            measure(args, &mut report)?;
        }
    }
    report.finish(&args.output)
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
