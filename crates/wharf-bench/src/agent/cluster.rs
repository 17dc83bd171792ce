//! A cluster of three machines, so that agents do all that they do, and looks at one of its nodes.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use wharf_testbed::{Host, TestBed, wait_for};

use crate::{
    install::{
        cluster::Shape,
        machines::{self, Kubectl, run_script},
        wharf::Server,
    },
    usage::cpu_ticks,
};

/// One node fewer, and there would be nothing to drain for: agents of such a cluster do less.
const SHAPE: Shape = Shape { controlplanes: 1, workers: 2 };
/// After an install, and after everything else that is done to it here.
const WELL: Duration = Duration::from_secs(120);
const AGENT: &str = "wharf-agent";
/// What one agent of a cluster does for all: the statistics, and the care for volumes.
const ELECTIONS: [(&str, &str); 2] =
    [("eve-kube-app", "eve-kube-stats-leader"), ("wharf-system", "wharf-volumes")];

pub struct World {
    bed: TestBed,
    _server: Server,
    pub kubectl: Kubectl,
}

impl World {
    pub fn start(wharf: &Path, agent: &Path) -> Result<World> {
        let bed = machines::start("agent", SHAPE.machines(), &[])?;
        machines::preload(agent, bed.hosts())?;
        let server = Server::start(wharf, agent, &bed)?;
        eprintln!("agent: installing {} machines", SHAPE.machines());
        server.create(&bed, SHAPE)?;
        let kubectl = Kubectl::new(server.kubeconfig()?)?;
        let world = World { bed, _server: server, kubectl };
        world.wait_until_well()?;
        Ok(world)
    }

    /// The one whose agent is looked at: a worker.
    pub fn node(&self) -> Result<&Host> {
        self.bed.hosts().last().context("there are no machines")
    }

    pub fn controlplane(&self) -> Result<&Host> {
        self.bed.hosts().first().context("there are no machines")
    }

    /// Every task of the agent works, and it speaks with the server.
    pub fn wait_until_well(&self) -> Result<()> {
        let node = self.node()?;
        let mut told = String::new();
        let well = wait_for("the agent to be well", WELL, || {
            let status = node.ssh(&["/opt/wharf/bin/wharf", "agent", "status"])?;
            told = String::from_utf8_lossy(&status.stdout).into_owned();
            let linked = told.lines().any(|line| line.starts_with("link ") && line.contains(" ok"));
            Ok((status.status.success() && linked).then_some(()))
        });
        well.with_context(|| format!("it says:\n{told}"))
    }

    /// Makes the agent that is looked at the one that is elected: the others rest until it is.
    pub fn elect(&self) -> Result<()> {
        let node = self.node()?;
        self.others(node, "stop")?;
        let mut holders = Vec::new();
        let elected = wait_for("the agent to be elected", WELL, || {
            holders = self.holders()?;
            Ok(holders.iter().all(|holder| holder == node.name()).then_some(()))
        });
        self.others(node, "start")?;
        elected.with_context(|| format!("these are: {holders:?}"))?;
        self.wait_until_well()
    }

    /// Makes it one that is not elected for anything.
    pub fn unseat(&self) -> Result<()> {
        let node = self.node()?;
        node.run(&["systemctl", "stop", AGENT])?;
        let mut holders = Vec::new();
        let unseated = wait_for("another agent to be elected", WELL, || {
            holders = self.holders()?;
            let others = |holder: &String| !holder.is_empty() && holder != node.name();
            Ok(holders.iter().all(others).then_some(()))
        });
        node.run(&["systemctl", "start", AGENT])?;
        unseated.with_context(|| format!("these are: {holders:?}"))?;
        self.wait_until_well()
    }

    fn others(&self, node: &Host, order: &str) -> Result<()> {
        let mut others = self.bed.hosts().iter().filter(|host| host.name() != node.name());
        others.try_for_each(|host| host.run(&["systemctl", order, AGENT]).map(drop))
    }

    /// Who is elected for what; empty is nobody.
    pub fn holders(&self) -> Result<Vec<String>> {
        let holder = |(namespace, lease): &(&str, &str)| {
            let path = "jsonpath={.spec.holderIdentity}";
            let words = ["get", "lease", lease, "-n", namespace, "--ignore-not-found", "-o", path];
            self.kubectl.ask(&words)
        };
        ELECTIONS.iter().map(holder).collect()
    }

    pub fn agent(&self) -> Result<u32> {
        main_process(self.node()?, AGENT)
    }

    pub fn end(self) -> Result<()> {
        drop(self._server);
        self.bed.down()
    }
}

/// The process of a unit, by its number on its machine.
pub fn main_process(host: &Host, unit: &str) -> Result<u32> {
    let text = host.run(&["systemctl", "show", "--property=MainPID", "--value", unit])?;
    let number = text.trim().parse().with_context(|| format!("{unit}: {text:?}"))?;
    ensure!(number != 0, "{unit} does not run");
    Ok(number)
}

/// What a process on a machine holds and has used.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub resident: f64,
    /// Of these, what only it has: the rest are pages of its program, which the kernel may drop.
    pub anonymous: f64,
    pub ticks: u64,
}

/// One look at several processes at about the same time.
pub fn look(host: &Host, processes: &[u32]) -> Result<Vec<Sample>> {
    const LOOK: &str = "for p; do cat /proc/$p/stat; \
                        sed -n 's/^VmRSS://p;s/^RssAnon://p' /proc/$p/status; done";
    let words: Vec<String> = processes.iter().map(ToString::to_string).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = run_script(host, "sh", LOOK, &words)?;
    let lines: Vec<&str> = text.lines().collect();
    let samples: Option<Vec<Sample>> = lines.chunks(3).map(sample).collect();
    let samples = samples.with_context(|| format!("not what /proc shows: {text}"))?;
    ensure!(samples.len() == processes.len(), "a process has ended");
    Ok(samples)
}

fn sample(lines: &[&str]) -> Option<Sample> {
    let [stat, resident, anonymous] = lines else { return None };
    let mebibytes = |text: &str| {
        let kibibytes: f64 = text.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        Some(kibibytes / 1024.0)
    };
    Some(Sample {
        resident: mebibytes(resident)?,
        anonymous: mebibytes(anonymous)?,
        ticks: cpu_ticks(stat)?,
    })
}

#[cfg(test)]
mod tests {
    use super::sample;

    #[test]
    fn memory_and_time_of_a_process_are_read() {
        let stat = "7 (wharf) S 3 7 7 0 -1 0 1 2 3 4 120 45 0 0 20 0 1 0 99 0";
        let seen = sample(&[stat, "\t   11264 kB", "\t    1024 kB"]).unwrap();
        assert!((seen.resident - 11.0).abs() < 1e-9 && (seen.anonymous - 1.0).abs() < 1e-9);
        assert_eq!(seen.ticks, 165);
        assert!(sample(&[stat, "\t   11264 kB"]).is_none());
    }
}
