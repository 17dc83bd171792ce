//! What is under way for a queue: health checks, commands, drains, and changes of Nodes. All of it
//! is off the loop that decides, so that nothing waits for anything else.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use jiff::Timestamp;
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
};
use wharf_core::{
    drain::{self, Report},
    repair::{
        Command, CommandKind, End, Exit, Fencing, NodeAction, Outcome, Probed, decide_fencing,
        is_healthy,
    },
};
use wharf_kube::{
    Cluster, KubeError,
    drain::{DrainError, run},
};

use super::{board::Said, command};
use crate::{app::App, error::chain, metrics::RepairLabels};

/// An event that a drain is blocked is not told again before this, unless by another pod.
const BLOCKED_EVERY: Duration = Duration::from_secs(60);
/// Between two looks at the volumes of a node that is being fenced.
const FENCE_LOOK: Duration = Duration::from_secs(1);
const NOT_CONNECTED: &str = "the cluster's API cannot be reached";

/// What something is begun for.
#[derive(Clone)]
pub(super) struct Begun {
    pub index: u64,
    /// Empty when the machine is no node.
    pub node: String,
    pub address: String,
}

/// What has ended.
pub(super) enum Ended {
    Probe { index: u64, probed: Probed },
    Command { index: u64, outcome: Outcome },
    Drain { index: u64, id: u64, outcome: Outcome },
    Node { node: String, done: bool },
}

pub(super) struct Effects {
    app: App,
    said: Arc<Said>,
    /// The way to the cluster's API, if there is one.
    pub cluster: Option<Cluster>,
    ends: mpsc::UnboundedSender<Ended>,
    tasks: JoinSet<()>,
    /// By the entry's index, with a number that tells a drain from the one before it.
    drains: HashMap<u64, (u64, AbortHandle)>,
    next_id: u64,
}

impl Effects {
    pub fn new(app: App, said: Arc<Said>) -> (Self, mpsc::UnboundedReceiver<Ended>) {
        let (ends, receiver) = mpsc::unbounded_channel();
        let tasks = JoinSet::new();
        let drains = HashMap::new();
        (Self { app, said, cluster: None, ends, tasks, drains, next_id: 0 }, receiver)
    }

    /// Whether nothing is under way.
    pub fn is_empty(&mut self) -> bool {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.is_empty()
    }

    /// Ends all that is under way, and returns when it is over.
    pub async fn end(&mut self) {
        self.tasks.shutdown().await;
    }

    pub fn probe(&mut self, index: u64, command: Command) {
        let (ends, app) = (self.ends.clone(), self.app.clone());
        self.spawn(async move {
            let end = observed(&app, &command).await;
            let code = match end.exit {
                Exit::Code(code) => Some(code),
                Exit::Signal(_) | Exit::TimedOut | Exit::NotStarted(_) => None,
            };
            let healthy = is_healthy(code, &end.stdout);
            let probed = Probed { begun: command.begun, healthy };
            tell(&ends, Ended::Probe { index, probed });
        });
    }

    pub fn run(&mut self, about: &Begun, command: Command) {
        let (ends, app, index) = (self.ends.clone(), self.app.clone(), about.index);
        let bulletin = self.bulletin(about);
        let what =
            format!("the {} command of the repair of {}", command.kind.name(), about.address);
        self.spawn({
            let (bulletin, text) = (bulletin.clone(), format!("{what} runs"));
            async move { bulletin.post(false, "RepairCommandStarted", &text).await }
        });
        self.spawn(async move {
            let end = observed(&app, &command).await;
            let (well, text) = (end.exit.is_success(), format!("{what} {}", end.exit));
            let outcome = Outcome::CommandEnded { begun: command.begun, end };
            tell(&ends, Ended::Command { index, outcome });
            let reason = if well { "RepairCommandSucceeded" } else { "RepairCommandFailed" };
            bulletin.post(!well, reason, &text).await;
        });
    }

    pub fn fence_volumes(&mut self, about: Begun, since: Timestamp, until: Timestamp) {
        let (ends, index) = (self.ends.clone(), about.index);
        let (cluster, bulletin) = (self.cluster.clone(), self.bulletin(&about));
        let text = format!("its volumes are taken from it for the repair of {}", about.address);
        self.spawn({
            let bulletin = bulletin.clone();
            async move { bulletin.post(false, "RepairFencesVolumes", &text).await }
        });
        self.spawn(async move {
            let left = match &cluster {
                Some(cluster) => fenced(cluster, &about.node, until).await,
                None => vec![NOT_CONNECTED.to_owned()],
            };
            let text = left.join("; ");
            tell(&ends, Ended::Command { index, outcome: Outcome::VolumesFenced { since, left } });
            if !text.is_empty() {
                bulletin.post(true, "RepairVolumesHeld", &text).await;
            }
        });
    }

    pub fn drain(&mut self, about: Begun, policy: drain::Policy) {
        self.stop_drain(about.index);
        let id = self.next_id;
        self.next_id += 1;
        let (ends, app, said) = (self.ends.clone(), self.app.clone(), self.said.clone());
        let (cluster, bulletin) = (self.cluster.clone(), self.bulletin(&about));
        let index = about.index;
        let text = format!("the node is drained for the repair of {}", about.address);
        self.spawn({
            let bulletin = bulletin.clone();
            async move { bulletin.post(false, "RepairDrainStarted", &text).await }
        });
        let task = self.spawn(async move {
            let begun = Instant::now();
            let draining = AssertUnwindSafe(drained(cluster, &about, &policy, &said, bulletin));
            let outcome = draining.catch_unwind().await.unwrap_or_else(|_| {
                Outcome::DrainBroken("the server made a mistake in the drain".to_owned())
            });
            said.drain(index, None);
            let word = if outcome == Outcome::Drained { "drained" } else { "given_up" };
            app.metrics
                .note_repair(&RepairLabels { what: "drain", outcome: word }, begun.elapsed());
            tell(&ends, Ended::Drain { index, id, outcome });
        });
        self.drains.insert(index, (id, task));
    }

    /// Whether this drain is the one of its entry; it is over now.
    pub fn end_drain(&mut self, index: u64, id: u64) -> bool {
        let ours = self.drains.get(&index).is_some_and(|(known, _)| *known == id);
        if ours {
            self.drains.remove(&index);
        }
        ours
    }

    pub fn stop_drain(&mut self, index: u64) {
        if let Some((_, task)) = self.drains.remove(&index) {
            task.abort();
            self.said.drain(index, None);
        }
    }

    pub fn act_on_node(&mut self, action: NodeAction) {
        let (ends, cluster) = (self.ends.clone(), self.cluster.clone());
        self.spawn(async move {
            let done = match &cluster {
                Some(cluster) => act_on_node(cluster, &action).await,
                None => Err(NOT_CONNECTED.to_owned()),
            };
            let node = action.node().to_owned();
            if let Err(reason) = &done {
                tracing::warn!(node, reason, ?action, "will be tried again");
            }
            tell(&ends, Ended::Node { node, done: done.is_ok() });
        });
    }

    fn bulletin(&self, about: &Begun) -> Bulletin {
        let cluster = self.cluster.clone().filter(|_| !about.node.is_empty());
        Bulletin { cluster, node: about.node.clone() }
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        // Those that are over are let go of, so that the set does not grow.
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task)
    }
}

fn tell(ends: &mpsc::UnboundedSender<Ended>, ended: Ended) {
    // An error means that the session is over.
    let _ = ends.send(ended);
}

/// Runs a command; whatever happens in it, it has an end.
async fn observed(app: &App, command: &Command) -> End {
    let begun = Instant::now();
    let end = AssertUnwindSafe(command::run(command)).catch_unwind().await;
    let end = end.unwrap_or_else(|_| {
        let exit = Exit::NotStarted("the server made a mistake".to_owned());
        End { exit, stdout: String::new(), stderr: String::new() }
    });
    let outcome = match end.exit {
        Exit::Code(0) => "succeeded",
        Exit::Code(_) | Exit::Signal(_) => "failed",
        Exit::TimedOut => "timed_out",
        Exit::NotStarted(_) => "not_started",
    };
    let what = match command.kind {
        CommandKind::Repair { .. } => "command",
        CommandKind::HealthCheck => "health_check",
        CommandKind::Success => "success_command",
        CommandKind::Failure => "failure_command",
    };
    app.metrics.note_repair(&RepairLabels { what, outcome }, begun.elapsed());
    end
}

async fn drained(
    cluster: Option<Cluster>,
    about: &Begun,
    policy: &drain::Policy,
    said: &Said,
    bulletin: Bulletin,
) -> Outcome {
    let Some(cluster) = cluster else {
        return Outcome::DrainBroken(NOT_CONNECTED.to_owned());
    };
    let (mut last, mut told) = (String::new(), None::<Instant>);
    let report = |report: &Report| {
        said.drain(about.index, Some(report.clone()));
        let Some(blocked) = report.waiting.iter().find(|one| one.blocks()) else { return };
        let pod = blocked.pod.as_ref().map(ToString::to_string).unwrap_or_default();
        if pod != last || told.is_none_or(|told| told.elapsed() >= BLOCKED_EVERY) {
            (last, told) = (pod, Some(Instant::now()));
            let (bulletin, text) = (bulletin.clone(), blocked.to_string());
            // Ends by its own deadline; nothing depends on it.
            tokio::spawn(async move { bulletin.post(true, "RepairDrainBlocked", &text).await });
        }
    };
    match run(&cluster, &about.node, policy, report).await {
        Ok(_) => Outcome::Drained,
        Err(DrainError::Failed { failure, .. }) => Outcome::DrainFailed(failure),
        Err(error @ DrainError::Kube { .. }) => Outcome::DrainBroken(chain(&error)),
    }
}

/// Takes the volumes of a node from it; what it holds yet, or why that is not known. A repair goes on
/// all the same: to leave a broken machine running frees nothing.
async fn fenced(cluster: &Cluster, node: &str, until: Timestamp) -> Vec<String> {
    loop {
        let looked = async {
            match cluster.fence_volumes(node).await {
                // Agents judge by what they find: nobody is there any more.
                Err(error) if error.is_not_found() => {}
                marked => marked?,
            }
            Ok::<_, KubeError>(cluster.look_at_volumes().await?.held_on(node))
        };
        let now = Timestamp::now();
        match looked.await {
            Ok(held) => match decide_fencing(&held, now, until) {
                Fencing::Done(left) => return left,
                Fencing::Wait(_) => {}
            },
            Err(error) if now >= until => return vec![chain(&error)],
            Err(error) => tracing::debug!(?error, node, "its volumes will be looked at again"),
        }
        tokio::time::sleep(FENCE_LOOK).await;
    }
}

async fn act_on_node(cluster: &Cluster, action: &NodeAction) -> Result<(), String> {
    let done = match action {
        NodeAction::Uncordon { node, owner } => cluster.uncordon(node, owner).await.map(drop),
        NodeAction::Fence { node } => cluster.fence(node).await,
        NodeAction::Unfence { node } => cluster.unfence(node).await,
        NodeAction::UnfenceVolumes { node } => cluster.unfence_volumes(node).await,
    };
    match done {
        // Nothing is left on a Node that is gone.
        Err(error) if error.is_not_found() => Ok(()),
        done => done.map_err(|error: KubeError| chain(&error)),
    }
}

/// Where events about a machine's Node go, if it is one.
#[derive(Clone)]
struct Bulletin {
    cluster: Option<Cluster>,
    node: String,
}

impl Bulletin {
    async fn post(&self, warning: bool, reason: &str, text: &str) {
        let Some(cluster) = &self.cluster else { return };
        if let Err(error) = cluster.emit(&self.node, warning, reason, text).await {
            tracing::debug!(?error, node = self.node, reason, "an event was not taken");
        }
    }
}
