//! What one agent does for the whole cluster: volumes for claims ([`provision`]), entries of nodes that
//! were lost ([`stale`]), and the end of storage clusters ([`cluster`]).
//!
//! Who does it is elected by a Lease, for which the API server is enough. Every step may be done twice, and
//! by two at once: names are fixed, and writes hold only for what was seen. So the election only
//! saves work.

mod cluster;
mod provision;
mod stale;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::info;
use wharf_core::{
    node::leader::{
        Action, ConfigGet, Election, Facts, LEASE, RELEASED, decide_leader, note_written,
    },
    words::chain,
};
use wharf_kube::{
    Clock, Cluster, KubeError,
    volumes::{NAMESPACE, StorageWatch},
};

use super::{Shared, Volumes};
use crate::{
    device,
    health::Reporter,
    kube,
    tasks::{Context, Ended},
};

const NAME: &str = "wharf-volumes";
const CALL: Duration = Duration::from_secs(5);
/// What the watch does not tell: leases of agents, and what a watch that failed has missed.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// Changes come in groups.
const SETTLE: Duration = Duration::from_millis(200);
const SUBJECT: &str = "the election for volumes";

pub async fn run(context: Context, reporter: Reporter, shared: Shared) -> Ended {
    let Some(node) = context.stop.run_until_cancelled(device::node_name(&context)).await else {
        return Ok(());
    };
    let volumes = shared.volumes(&node)?;
    let mut candidate = Candidate {
        volumes,
        reporter,
        election: Election::default(),
        clock: Clock::start(),
        sweeps: stale::Sweeps::default(),
        told: provision::Told::default(),
    };
    let mut reader = shared.reader.clone();
    loop {
        let Some(api) = context.stop.run_until_cancelled(kube::cluster(&mut reader)).await else {
            return Ok(());
        };
        let mut watch = api.watch_storage();
        let mut look_at = Instant::now();
        while !reader.has_changed().unwrap_or(true) {
            let turn = candidate.turn(&api, &mut watch, &mut look_at);
            if context.stop.run_until_cancelled(turn).await.is_none() {
                candidate.leave(&api).await;
                return Ok(());
            }
        }
    }
}

struct Candidate {
    volumes: Arc<Volumes>,
    reporter: Reporter,
    election: Election,
    clock: Clock,
    sweeps: stale::Sweeps,
    told: provision::Told,
}

impl Candidate {
    /// Stands for election, and works if it is won; returns when it is time to do so again.
    async fn turn(&mut self, api: &Cluster, watch: &mut StorageWatch, look_at: &mut Instant) {
        let (leads, wake_at) = self.stand(api).await;
        if !leads {
            sleep_until(wake_at).await;
            return;
        }
        if Instant::now() >= *look_at {
            self.work(api).await;
            *look_at = Instant::now() + LOOK_EVERY;
        }
        let until = wake_at.min(*look_at);
        tokio::select! {
            () = sleep_until(until) => {}
            change = watch.next() => {
                if change.is_ok() {
                    sleep(SETTLE).await;
                    *look_at = Instant::now();
                }
            }
        }
    }

    /// Whether this node is elected, and when to ask again.
    async fn stand(&mut self, api: &Cluster) -> (bool, Instant) {
        let seen = match timeout(CALL, api.lease(NAMESPACE, NAME)).await {
            Ok(Ok(lease)) => {
                self.reporter.clear(SUBJECT);
                self.reporter.ok();
                Some(lease)
            }
            Ok(Err(error)) => {
                self.reporter.fault(SUBJECT, &chain(&error));
                None
            }
            Err(_) => {
                self.reporter.fault(SUBJECT, "the API server does not answer");
                None
            }
        };
        let node = self.volumes.node.clone();
        let facts = |lease| Facts { node: node.clone(), config: ConfigGet::Success, lease };
        let decision = decide_leader(&mut self.election, &facts(seen.clone()), self.clock.now());
        let mut leads = decision.report.is_leader;
        if let (Some(action), Some(seen)) = (decision.action, seen) {
            let sent = self.clock.now();
            let (holder, duration) = match action {
                Action::Take | Action::Renew => (node.as_str(), LEASE),
                Action::Release => ("", RELEASED),
            };
            let now = Timestamp::now();
            let write = api.write_lease(NAMESPACE, NAME, &seen, holder, duration, now);
            if let Ok(Ok(written)) = timeout(CALL, write).await {
                note_written(&mut self.election, action, written.clone(), sent);
                let again = facts(Some(written));
                leads =
                    decide_leader(&mut self.election, &again, self.clock.now()).report.is_leader;
            }
        }
        (leads, self.clock.moment(decision.wake_at))
    }

    async fn work(&mut self, api: &Cluster) {
        let provided = provision::provide(&self.volumes, api, &mut self.told).await;
        self.tell("claims", provided.map_err(|error| chain(&error)));
        let swept = stale::sweep(&self.volumes, api, &mut self.sweeps).await;
        self.tell("records of lost nodes", swept.map_err(|error| chain(&error)));
        let ended = cluster::end(api).await;
        self.tell("storage clusters", ended.map_err(|error| chain(&error)));
    }

    fn tell(&self, subject: &str, done: Result<(), String>) {
        match done {
            Ok(()) => self.reporter.clear(subject),
            Err(reason) => self.reporter.fault(subject, &reason),
        }
    }

    /// The agent stops: the next one need not wait.
    async fn leave(&self, api: &Cluster) {
        let released = async {
            let seen = api.lease(NAMESPACE, NAME).await?;
            if seen.holder == self.volumes.node {
                let now = Timestamp::now();
                api.write_lease(NAMESPACE, NAME, &seen, "", RELEASED, now).await?;
            }
            Ok::<_, KubeError>(())
        };
        if !matches!(timeout(CALL, released).await, Ok(Ok(()))) {
            info!("the lease of the elected agent was not given back and will run out");
        }
    }
}
