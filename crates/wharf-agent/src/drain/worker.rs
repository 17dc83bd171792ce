//! What the gate has under way: the cordon, the drain, or the end of the cordon. One at a time.

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};
use wharf_core::{
    drain::{Policy, Report},
    node::gate::{self, CORDON_OWNER, Outcome, name_blockers},
    words::chain,
};
use wharf_kube::{
    Clock, Cordoned,
    drain::{DrainError, run_as},
};

use super::{NO_WAY, sight::Eye};
use crate::kube::Kube;

/// How far the drain is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// So many pods have to leave yet.
    pub left: usize,
    /// What blocks, a sentence each.
    pub blocking: Vec<String>,
}

pub struct Worker {
    kube: Kube,
    node: String,
    under_way: Option<(gate::Worker, AbortOnDropHandle<Option<Outcome>>)>,
    progress: watch::Sender<Progress>,
}

impl Worker {
    pub fn new(kube: Kube, node: String) -> Self {
        let progress = watch::Sender::new(Progress::default());
        Self { kube, node, under_way: None, progress }
    }

    pub fn what(&self) -> gate::Worker {
        self.under_way.as_ref().map_or(gate::Worker::Idle, |(what, _)| *what)
    }

    pub fn follow_progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Waits for the end of what is under way; of nothing there is no end. May be dropped and called
    /// again.
    pub async fn ended(&mut self) -> Option<Outcome> {
        let Some((what, task)) = &mut self.under_way else { return std::future::pending().await };
        let outcome = match task.await {
            Ok(outcome) => outcome,
            Err(error) => match what {
                gate::Worker::Draining => {
                    Some(Outcome::DrainBroken(format!("the drain was lost: {error}")))
                }
                gate::Worker::Cordoning => {
                    Some(Outcome::CordonFailed(format!("the try was lost: {error}")))
                }
                // The cordon is still seen, and is taken back again.
                gate::Worker::Uncordoning | gate::Worker::Idle => None,
            },
        };
        self.stop();
        outcome
    }

    pub fn stop(&mut self) {
        self.under_way = None;
        self.progress.send_if_modified(|known| std::mem::take(known) != Progress::default());
    }

    pub fn cordon(&mut self, eye: Eye) {
        let task = tokio::spawn(cordon(self.kube.clone(), self.node.clone(), eye));
        self.begin(gate::Worker::Cordoning, task);
    }

    /// `deadline` is a time of the clock.
    pub fn drain(&mut self, deadline: Timestamp, clock: Clock) {
        let (kube, node, progress) = (self.kube.clone(), self.node.clone(), self.progress.clone());
        let task = tokio::spawn(drain(kube, node, (deadline, clock), progress));
        self.begin(gate::Worker::Draining, task);
    }

    /// Is not cut short by what comes next: a request that is on its way cannot be called back.
    pub fn uncordon(&mut self, eye: Eye) {
        let task = tokio::spawn(uncordon(self.kube.clone(), self.node.clone(), eye));
        self.begin(gate::Worker::Uncordoning, task);
    }

    fn begin(&mut self, what: gate::Worker, task: tokio::task::JoinHandle<Option<Outcome>>) {
        self.under_way = Some((what, AbortOnDropHandle::new(task)));
    }
}

async fn cordon(kube: Kube, node: String, mut eye: Eye) -> Option<Outcome> {
    info!(node, "nodedrain-step: cordonNode begins");
    let Some(cluster) = kube.node.borrow().clone() else {
        return Some(Outcome::CordonFailed(NO_WAY.to_owned()));
    };
    match cluster.cordon(&node, CORDON_OWNER).await {
        Ok(Cordoned::Ours) => info!(node, "nodedrain-step: cordonNode is done"),
        Ok(Cordoned::OwnedBy(owner)) => {
            warn!(node, owner, "nodedrain-step: cordonNode waits for another owner's cordon");
        }
        Err(error) => {
            let reason = chain(&error);
            warn!(node, reason, "nodedrain-step: cordonNode failed");
            return Some(Outcome::CordonFailed(reason));
        }
    }
    eye.look().await;
    None
}

async fn drain(
    kube: Kube,
    node: String,
    (deadline, clock): (Timestamp, Clock),
    progress: watch::Sender<Progress>,
) -> Option<Outcome> {
    info!(node, %deadline, "nodedrain-step: cordonAndDrainNode drains");
    let clusters = (kube.reader.borrow().clone(), kube.node.borrow().clone());
    let (Some(eyes), Some(hand)) = clusters else {
        return Some(Outcome::DrainBroken(NO_WAY.to_owned()));
    };
    let policy = Policy::gate(CORDON_OWNER, deadline);
    let report = |report: &Report| {
        let now = Progress { left: report.left, blocking: name_blockers(report) };
        progress.send_if_modified(|known| {
            let news = *known != now;
            *known = now;
            news
        });
    };
    Some(match run_as(&eyes, &hand, &node, &policy, clock, report).await {
        Ok(drained) => {
            info!(node, evicted = drained.evicted, "nodedrain-step: cordonAndDrainNode is done");
            Outcome::Drained
        }
        Err(DrainError::Failed { failure, .. }) => {
            warn!(node, %failure, "nodedrain-step: cordonAndDrainNode failed");
            Outcome::from(&failure)
        }
        Err(error @ DrainError::Kube { .. }) => {
            let reason = chain(&error);
            warn!(node, reason, "nodedrain-step: cordonAndDrainNode broke off");
            Outcome::DrainBroken(reason)
        }
    })
}

async fn uncordon(kube: Kube, node: String, mut eye: Eye) -> Option<Outcome> {
    let cluster = kube.node.borrow().clone()?;
    match cluster.uncordon(&node, CORDON_OWNER).await {
        Ok(after) => info!(node, ?after, "nodedrain-step: uncordonNode took our cordon back"),
        Err(error) => {
            warn!(
                node,
                reason = chain(&error),
                "nodedrain-step: uncordonNode failed; trying again"
            );
        }
    }
    eye.look().await;
    None
}
