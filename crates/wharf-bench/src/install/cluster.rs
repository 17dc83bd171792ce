//! Machines made a cluster, against kubeadm on machines of the same kind.

use anyhow::Result;

use super::{InstallArgs, kubeadm, machines, median, wharf};
use crate::report::{Report, Row};

const GOAL: f64 = 1.0 / 3.0;

/// How many machines of which kind.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// With etcd.
    pub controlplanes: usize,
    pub workers: usize,
}

impl Shape {
    pub fn machines(self) -> usize {
        self.controlplanes + self.workers
    }
}

pub fn run(args: &InstallArgs, report: &mut Report) -> Result<()> {
    let shape = Shape { controlplanes: 3, workers: 2 };
    let program = &args.output.wharf;
    let (mut ours, mut peer, mut loads) = (Vec::new(), Vec::new(), Vec::new());
    let mut phases = String::new();
    for round in 1..=args.rounds {
        loads.push(machines::load());
        eprintln!("install: ours, round {round} of {}", args.rounds);
        let (seconds, round_phases) = wharf::install(program, shape)?;
        ours.push(seconds);
        phases = round_phases;
        eprintln!("install: kubeadm, round {round} of {}", args.rounds);
        peer.push(kubeadm::install(shape)?);
        eprintln!("install: {:.1} s against {:.1} s", last(&ours), last(&peer));
    }
    loads.push(machines::load());
    let detail = format!(
        "medians of {} rounds; {} build; our phases: {phases}; load {}",
        args.rounds,
        args.build(),
        loads.join(" ")
    );
    let name =
        format!("install, {}+{} machines to Ready with DNS", shape.controlplanes, shape.workers);
    let row = Row::cost(&name, median(ours), "kubeadm", median(peer), "s");
    report.add(row.goal(GOAL).detail(detail));
    Ok(())
}

fn last(values: &[f64]) -> f64 {
    values.last().copied().unwrap_or(f64::NAN)
}
