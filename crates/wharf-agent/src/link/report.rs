//! How the node is, gathered from its files and from the agent's health.

use tokio::sync::watch;
use wharf_api::{
    link::Report,
    node_files::{BaseOsStatus, GLOBAL, NodeAgentStatus, NodeDrainStatus, NodeJob, NodeJobs},
};

use crate::{
    files::{Files, Subscription},
    health::{AGENT, Health},
    tasks::Context,
};

/// As many sentences as the server keeps.
const MOST_FAULTS: usize = 32;

pub struct Reports {
    health: Health,
    health_changes: watch::Receiver<()>,
    drain: Subscription<NodeDrainStatus>,
    node_agent: Subscription<NodeAgentStatus>,
    base_os: Subscription<BaseOsStatus>,
    jobs: Subscription<NodeJobs>,
}

impl Reports {
    pub fn new(context: &Context) -> Self {
        let files = &context.files;
        Self {
            health: context.health.clone(),
            health_changes: context.health.changes(),
            drain: files.watch("zedkube"),
            node_agent: files.watch("nodeagent"),
            base_os: files.watch("baseosmgr"),
            jobs: files.watch(AGENT),
        }
    }

    /// Waits until all was read once: what is not known yet must not look as if it were not there.
    pub async fn complete(&mut self) {
        self.drain.complete().await;
        self.node_agent.complete().await;
        self.base_os.complete().await;
        self.jobs.complete().await;
    }

    /// Returns at each change.
    pub async fn changed(&mut self) {
        tokio::select! {
            _ = self.health_changes.changed() => {}
            () = self.drain.changed() => {}
            () = self.node_agent.changed() => {}
            () = self.base_os.changed() => {}
            () = self.jobs.changed() => {}
        }
    }

    pub fn now(&self) -> Report {
        let jobs = self.jobs.get(GLOBAL).flatten();
        self.with(jobs.map(|jobs| jobs.jobs.0.clone()).unwrap_or_default())
    }

    /// The same when the agent stops: nobody follows files any more, and the last change of the jobs,
    /// that the node goes down, may be younger than that.
    pub fn last(&self, files: &Files) -> Report {
        match files.read::<NodeJobs>(AGENT, GLOBAL) {
            Ok(jobs) => self.with(jobs.map(|jobs| jobs.jobs.0).unwrap_or_default()),
            Err(_) => self.now(),
        }
    }

    fn with(&self, jobs: Vec<NodeJob>) -> Report {
        // Those that are past their preparations want the node for themselves.
        let busy = |phase: &str| matches!(phase, "deferred" | "commanding" | "leaving");
        let wants = jobs.iter().find(|job| busy(&job.phase)).map(|job| job.kind.clone());
        let waits = self.node_agent.get("nodeagent").flatten();
        let base_os = self.base_os.current().unwrap_or_default();
        Report {
            faults: self.faults(),
            drain: self.drain.get(GLOBAL).flatten().map(|drain| (*drain).clone()),
            waits_for_drain: waits.is_some_and(|status| status.wait_drain_in_progress),
            wants,
            jobs,
            base_os: base_os.values().map(|status| (**status).clone()).collect(),
        }
    }

    fn faults(&self) -> Vec<String> {
        let tasks = self.health.snapshot().tasks;
        let faults = tasks.iter().flat_map(|task| {
            task.faults.iter().map(|fault| match fault.subject.as_str() {
                "" => format!("{}: {}", task.name, fault.reason),
                subject => format!("{}: {subject}: {}", task.name, fault.reason),
            })
        });
        faults.take(MOST_FAULTS).collect()
    }
}
