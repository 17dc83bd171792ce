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
    let (mut ready, mut running, mut peer) = (Vec::new(), Vec::new(), Vec::new());
    let (mut loads, mut phases) = (Vec::new(), String::new());
    for round in 1..=args.rounds {
        loads.push(machines::load());
        eprintln!("install: ours, round {round} of {}", args.rounds);
        let ours = wharf::install(program, shape)?;
        ready.push(ours.ready);
        running.push(ours.running);
        phases = ours.phases;
        eprintln!("install: kubeadm, round {round} of {}", args.rounds);
        peer.push(kubeadm::install(shape)?);
        eprintln!(
            "install: {:.1} s, {:.1} s with all proved, against {:.1} s",
            last(&ready),
            last(&running),
            last(&peer)
        );
    }
    loads.push(machines::load());
    let detail = format!(
        "medians of {} rounds; {} build; our phases: {phases}; load {}",
        args.rounds,
        args.build(),
        loads.join(" ")
    );
    let name = format!("install, {}+{} machines", shape.controlplanes, shape.workers);
    let peer = median(peer);
    let to_ready = format!("{name} to Ready with DNS");
    let row = Row::cost(&to_ready, median(ready), "kubeadm", peer, "s");
    report.add(row.goal(GOAL).detail(detail));
    // kubeadm proves nothing of this, so there is no goal; it is what a user waits for.
    let to_running = format!("{name} to Running, the pod network proved on every node");
    report.add(Row::cost(&to_running, median(running), "kubeadm to Ready with DNS", peer, "s"));
    Ok(())
}

fn last(values: &[f64]) -> f64 {
    values.last().copied().unwrap_or(f64::NAN)
}
