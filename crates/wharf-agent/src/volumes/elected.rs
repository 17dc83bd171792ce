//! What one agent does for the whole cluster: volumes for claims ([`provision`]), entries of nodes that
//! were lost ([`stale`]) and what else is kept of them ([`forgotten`]), and the end of storage clusters
//! ([`cluster`]), in [`rounds`].
//!
//! Who does it is elected by a Lease, for which the API server is enough. Every step may be done twice, and
//! by two at once: names are fixed, and writes hold only for what was seen. So the election only
//! saves work, and work that is cut off in the middle does no harm.

mod cluster;
mod forgotten;
mod provision;
mod rounds;
mod stale;
mod waiting;

use std::time::Duration;

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tracing::info;
use wharf_core::{
    node::leader::{
        Action, ConfigGet, Election, Facts, LEASE, RELEASED, decide_leader, note_written,
    },
    words::chain,
};
use wharf_kube::{Clock, Cluster, KubeError, volumes::NAMESPACE};

use self::rounds::Rounds;
use super::Shared;
use crate::{
    device,
    health::Reporter,
    kube,
    tasks::{Context, Ended},
};

const NAME: &str = "wharf-volumes";
const CALL: Duration = Duration::from_secs(5);
const SUBJECT: &str = "the election for volumes";

pub async fn run(context: Context, reporter: Reporter, shared: Shared) -> Ended {
    let Some(node) = context.stop.run_until_cancelled(device::node_name(&context)).await else {
        return Ok(());
    };
    let mut rounds = Rounds::new(shared.volumes(&node)?, shared.scan_every, reporter.clone());
    let mut candidate =
        Candidate { node, reporter, election: Election::default(), clock: Clock::start() };
    let mut reader = shared.reader.clone();
    loop {
        let Some(api) = context.stop.run_until_cancelled(kube::cluster(&mut reader)).await else {
            return Ok(());
        };
        let turns = candidate.turns(&api, &mut reader, &mut rounds);
        if context.stop.run_until_cancelled(turns).await.is_none() {
            rounds.stop().await;
            candidate.leave(&api).await;
            return Ok(());
        }
    }
}

struct Candidate {
    node: String,
    reporter: Reporter,
    election: Election,
    clock: Clock,
}

impl Candidate {
    /// Stands for election, and has the work done while it is won, until there is another way to the
    /// cluster. The lease is kept whatever the work waits for.
    async fn turns(
        &mut self,
        api: &Cluster,
        reader: &mut watch::Receiver<Option<Cluster>>,
        rounds: &mut Rounds,
    ) {
        loop {
            tokio::select! {
                () = self.until(api, true) => {}
                _ = reader.changed() => return,
            }
            tokio::select! {
                () = self.until(api, false) => {}
                () = rounds.run(api) => {}
                _ = reader.changed() => {
                    rounds.stop().await;
                    return;
                }
            }
            rounds.stop().await;
        }
    }

    /// Stands for election until this node is elected, or is not any more.
    async fn until(&mut self, api: &Cluster, elected: bool) {
        loop {
            let (leads, wake_at) = self.stand(api).await;
            if leads == elected {
                return;
            }
            sleep_until(wake_at).await;
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
        let node = self.node.clone();
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

    /// The agent stops: the next one need not wait.
    async fn leave(&self, api: &Cluster) {
        let released = async {
            let seen = api.lease(NAMESPACE, NAME).await?;
            if seen.holder == self.node {
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
