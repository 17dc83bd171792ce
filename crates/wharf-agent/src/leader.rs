//! The election of the node that reports for the cluster.
//!
//! Who stands, takes, renews and gives back is decided in `wharf-core` (`node::leader`), by a clock that
//! nobody can set. This task looks at the Lease, carries the decision out and publishes what came of it.
//!
//! Guarantees: what is published says that this node leads only as long as nobody else may; the
//! statistics ([`crate::stats`]) are gone before the lease is given back. No call is waited for longer
//! than this node leads for sure.
//!
//! Assumptions: no two nodes have the same name. A machine that sleeps notices the lost time only when
//! it looks at the lease again.

use std::time::Duration;

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tracing::info;
use wharf_api::node_files::{GLOBAL, KubeClusterInfo, KubeLeaseInfo, ZedAgentStatus};
use wharf_core::{
    node::leader::{
        Action, ConfigGet, Election, Facts, LEASE, Lease, RELEASED, Report, decide_leader,
        note_written,
    },
    words::chain,
};
use wharf_kube::{Clock, Cluster, KubeError};

use crate::{
    aside::aside,
    device,
    files::{Files, Subscription},
    health::Reporter,
    kube::Kube,
    tasks::{Context, Ended, LAST_ACTS},
};

const AGENT: &str = "zedkube";
const CONTROLLER: &str = "zedagent";
/// For one question or one write. Whoever needs longer could not keep the lease either.
const CALL: Duration = Duration::from_secs(5);
const SUBJECT: &str = "the lease";
const NO_WAY: &str = "there is no way to the cluster yet";
const CONFLICT: u16 = 409;

/// Stands for election until the agent stops. `leads` is who may report.
pub async fn run(
    context: Context,
    reporter: Reporter,
    kube: Kube,
    leads: watch::Sender<bool>,
) -> Ended {
    // What an agent before this one published is not true any more.
    let podium = Podium::open(context.files.clone(), leads);
    let Some(node) = context.stop.run_until_cancelled(device::node_name(&context)).await else {
        return Ok(());
    };
    let mut candidate = Candidate {
        status: context.files.watch(CONTROLLER),
        namespace: context.config.app_namespace.clone(),
        name: context.config.lease_name.clone(),
        node,
        kube,
        reporter,
        podium,
        judged: ConfigGet::Unset,
        election: Election::default(),
        clock: Clock::start(),
    };
    loop {
        let step = async {
            let wake_at = candidate.look().await;
            candidate.wait(wake_at).await;
        };
        if context.stop.run_until_cancelled(step).await.is_none() {
            candidate.leave().await;
            return Ok(());
        }
    }
}

struct Candidate {
    kube: Kube,
    status: Subscription<ZedAgentStatus>,
    namespace: String,
    name: String,
    node: String,
    reporter: Reporter,
    podium: Podium,
    /// The word on the controller that was last decided on.
    judged: ConfigGet,
    election: Election,
    clock: Clock,
}

impl Candidate {
    /// Looks, decides and acts; says when to look again.
    async fn look(&mut self) -> Instant {
        // Always the newest way to the cluster: who replaced it had a reason.
        let cluster = self.kube.reader.borrow().clone();
        let seen = match &cluster {
            Some(cluster) => self.call(cluster.lease(&self.namespace, &self.name)).await,
            None => {
                self.reporter.fault(SUBJECT, NO_WAY);
                None
            }
        };
        let (action, wake_at) = self.decide(seen.clone());
        if let (Some(action), Some(cluster), Some(seen)) = (action, cluster, seen) {
            self.act(action, &cluster, &seen).await;
        }
        self.clock.moment(wake_at)
    }

    fn decide(&mut self, lease: Option<Lease>) -> (Option<Action>, Timestamp) {
        self.judged = self.config();
        let facts = Facts { node: self.node.clone(), config: self.judged, lease };
        let decision = decide_leader(&mut self.election, &facts, self.clock.now());
        self.podium.tell(&decision.report);
        (decision.action, decision.wake_at)
    }

    /// Returns when it is time to look, or when there is another word on the controller.
    async fn wait(&mut self, wake_at: Instant) {
        let judged = self.judged;
        let news = async {
            while self.config() == judged {
                self.status.changed().await;
            }
        };
        tokio::select! {
            () = news => {}
            () = sleep_until(wake_at) => {}
        }
    }

    /// A status that was never understood is no success.
    fn config(&self) -> ConfigGet {
        let status = self.status.get(CONTROLLER).flatten();
        status.map_or(ConfigGet::Unset, |status| ConfigGet::from_number(status.config_get_status))
    }

    async fn act(&mut self, action: Action, cluster: &Cluster, seen: &Lease) {
        let sent = self.clock.now();
        let (holder, duration) = match action {
            Action::Take | Action::Renew => (self.node.clone(), LEASE),
            Action::Release => (String::new(), RELEASED),
        };
        let (namespace, name, now) = (&self.namespace, &self.name, Timestamp::now());
        let write = cluster.write_lease(namespace, name, seen, &holder, duration, now);
        let Some(written) = self.call(write).await else { return };
        note_written(&mut self.election, action, written.clone(), sent);
        // What came of it is told at once. Nothing else is due so soon.
        self.decide(Some(written));
    }

    /// One call, given up when this node might not lead any more, or when it takes too long.
    async fn call(&self, call: impl Future<Output = Result<Lease, KubeError>>) -> Option<Lease> {
        let now = Instant::now();
        let until = self.election.leads_until().map(|until| self.clock.moment(until));
        let end = until.filter(|until| *until > now).unwrap_or(now + CALL).min(now + CALL);
        let reason = match timeout_at(end, call).await {
            Ok(Ok(lease)) => {
                self.reporter.clear(SUBJECT);
                self.reporter.ok();
                return Some(lease);
            }
            // Another one was faster, which is no fault: it is looked at again.
            Ok(Err(error)) if error.code() == Some(CONFLICT) => return None,
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("no answer within {} s", (end - now).as_secs_f32()),
        };
        self.reporter.fault(SUBJECT, &reason);
        None
    }

    /// The agent stops: the next one need not wait for the lease to end. Both calls together have the
    /// time that a task has for its end.
    async fn leave(mut self) {
        self.podium.step_down();
        let Some(cluster) = self.kube.reader.borrow().clone() else { return };
        let released = give_back(&cluster, &self.namespace, &self.name, &self.node);
        let reason = match timeout(LAST_ACTS, released).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("no answer within {} s", LAST_ACTS.as_secs()),
        };
        info!(reason, "the lease was not given back and will run out");
    }
}

/// A write may have been under way when the agent was stopped: the lease is asked for anew.
async fn give_back(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    node: &str,
) -> Result<(), KubeError> {
    let seen = cluster.lease(namespace, name).await?;
    if seen.holder == node {
        let now = Timestamp::now();
        cluster.write_lease(namespace, name, &seen, "", RELEASED, now).await?;
    }
    Ok(())
}

/// What others see of the election. Going away is stepping down.
struct Podium {
    files: Files,
    leads: watch::Sender<bool>,
    said: KubeLeaseInfo,
}

impl Podium {
    /// Nobody leads here. Who led before, and since when, may still be true.
    fn open(files: Files, leads: watch::Sender<bool>) -> Self {
        let said = files.read(AGENT, GLOBAL).ok().flatten().unwrap_or_default();
        let mut podium = Self { files, leads, said };
        podium.step_down();
        podium
    }

    fn tell(&mut self, report: &Report) {
        if report.leader != self.said.leader_identity {
            info!(leader = report.leader, "the reporter of the cluster changed");
            self.said.latest_change = Timestamp::now().into();
        }
        if report.is_leader != self.said.is_stats_leader {
            info!(leads = report.is_leader, "this node reports for the cluster, or does not");
        }
        self.said = KubeLeaseInfo {
            in_lease_election: report.in_election,
            is_stats_leader: report.is_leader,
            election_running: report.running,
            leader_identity: report.leader.clone(),
            latest_change: self.said.latest_change,
        };
        self.publish();
    }

    fn step_down(&mut self) {
        self.said.in_lease_election = false;
        self.said.is_stats_leader = false;
        self.said.election_running = false;
        self.publish();
    }

    /// The statistics go before it is said that this node does not lead, and come after it is said
    /// that it does.
    fn publish(&self) {
        let leads = self.said.is_stats_leader;
        if !leads {
            // Whoever publishes statistics at this moment has ended when this returns.
            aside(|| self.leads.send_if_modified(|known| std::mem::replace(known, false)));
            // Told in the agent's health if it fails, and done again with the next look.
            let _ = self.files.unpublish::<KubeClusterInfo>(AGENT, GLOBAL);
        }
        let published = self.files.publish(AGENT, GLOBAL, &self.said);
        if published.is_err() && !leads {
            // Better nothing than what is not true any more.
            let _ = self.files.unpublish::<KubeLeaseInfo>(AGENT, GLOBAL);
        }
        if leads {
            aside(|| self.leads.send_if_modified(|known| !std::mem::replace(known, true)));
        }
    }
}

impl Drop for Podium {
    fn drop(&mut self) {
        self.step_down();
    }
}
