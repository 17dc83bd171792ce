//! What the cluster shows of applications: their pods, their virtual machines and their claims, each
//! by one watch for every task that needs them.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use wharf_core::{
    node::{app_reports::Claim, apps::Machine},
    words::chain,
};
use wharf_kube::{AppPods, Cluster, Kept, KubeError, NamespaceWatch};

use crate::{
    config::Role,
    health::Reporter,
    kube::{self, Kube},
    tasks::{Context, Ended},
};

const PODS: &str = "pods of applications";
const MACHINES: &str = "virtual machines of applications";
const CLAIMS: &str = "claims of applications";
/// Without a way to the cluster for so long it counts as silent.
const WAY: Duration = Duration::from_secs(10);
/// A cluster that does not know virtual machines, or does not show them, is asked again after this
/// time.
const UNKNOWN_KIND: Duration = Duration::from_secs(60);

/// What is seen in `app_namespace`, on all nodes. Each is by name, and `None` until the cluster has
/// told of it once; after that it is what it said last.
#[derive(Debug, Clone, Default)]
pub struct Sight {
    pub pods: Option<AppPods>,
    /// Empty where there are none, and where nobody may see them.
    pub machines: Option<Kept<Machine>>,
    /// Only where this agent tells of volumes.
    pub claims: Option<Kept<Claim>>,
    /// Since when the cluster does not answer, by a clock that nobody can set; `None` while it does.
    pub silent_since: Option<Instant>,
}

/// Follows all of them and tells in `sight`, which lives as long as the agent: what is known is not
/// lost when the task is begun anew.
pub async fn run(
    context: Context,
    reporter: Reporter,
    mut kube: Kube,
    sight: watch::Sender<Sight>,
) -> Ended {
    loop {
        let followed = follow(&context, &reporter, &mut kube, &sight);
        if context.stop.run_until_cancelled(followed).await.is_none() {
            return Ok(());
        }
    }
}

/// Returns when the way to the cluster was replaced, or is not there yet.
async fn follow(
    context: &Context,
    reporter: &Reporter,
    kube: &mut Kube,
    sight: &watch::Sender<Sight>,
) {
    let Ok(cluster) = timeout(WAY, kube::cluster(&mut kube.reader)).await else {
        reporter.fault(PODS, "there is no way to the cluster yet");
        return silent(sight);
    };
    let namespace = &context.config.app_namespace;
    let mut pods = cluster.watch_app_pods(namespace);
    let mut machines = Machines::new(&cluster, namespace);
    let plays = context.config.plays(Role::Volumemgr);
    let mut claims = plays.then(|| cluster.watch_claims(namespace));
    loop {
        tokio::select! {
            seen = pods.next() => tell_pods(seen, reporter, sight),
            seen = machines.next() => tell_machines(seen, reporter, sight),
            seen = next(claims.as_mut()) => match seen {
                Ok(claims) => {
                    reporter.clear(CLAIMS);
                    tell(sight, claims, |sight| &mut sight.claims);
                }
                Err(error) => reporter.fault(CLAIMS, &chain(&error)),
            },
            Ok(()) = kube.reader.changed() => return,
        }
    }
}

async fn next(claims: Option<&mut NamespaceWatch<Claim>>) -> Result<Kept<Claim>, KubeError> {
    match claims {
        Some(claims) => claims.next().await,
        None => std::future::pending().await,
    }
}

/// Whether the cluster answers at all is told by its answers about pods.
fn tell_pods(seen: Result<AppPods, KubeError>, reporter: &Reporter, sight: &watch::Sender<Sight>) {
    match seen {
        Ok(pods) => {
            reporter.clear(PODS);
            reporter.ok();
            sight.send_if_modified(|known| known.silent_since.take().is_some());
            tell(sight, pods, |sight| &mut sight.pods);
        }
        Err(error) => {
            reporter.fault(PODS, &chain(&error));
            silent(sight);
        }
    }
}

fn tell_machines(
    seen: Result<Kept<Machine>, KubeError>,
    reporter: &Reporter,
    sight: &watch::Sender<Sight>,
) {
    match seen {
        Ok(machines) => {
            reporter.clear(MACHINES);
            tell(sight, machines, |sight| &mut sight.machines);
        }
        Err(error) => {
            reporter.fault(MACHINES, &chain(&error));
            // Who may not see them goes on without; who does not answer may do so again. Nobody waits
            // for the first word: pods are there without machines too.
            if !error.is_transient() || sight.borrow().machines.is_none() {
                tell(sight, Kept::default(), |sight| &mut sight.machines);
            }
        }
    }
}

/// Virtual machines, in a cluster that may not know what that is.
struct Machines {
    watch: NamespaceWatch<Machine>,
    not_before: Instant,
}

impl Machines {
    fn new(cluster: &Cluster, namespace: &str) -> Self {
        Self { watch: cluster.watch_machines(namespace), not_before: Instant::now() }
    }

    /// May be dropped and called again.
    async fn next(&mut self) -> Result<Kept<Machine>, KubeError> {
        sleep_until(self.not_before).await;
        let seen = self.watch.next().await;
        if seen.as_ref().is_err_and(|error| !error.is_transient()) {
            self.not_before = Instant::now() + UNKNOWN_KIND;
        }
        match seen {
            Err(error) if error.is_not_found() => Ok(Kept::default()),
            seen => seen,
        }
    }
}

fn tell<K>(
    sight: &watch::Sender<Sight>,
    seen: Kept<K>,
    part: impl FnOnce(&mut Sight) -> &mut Option<Kept<K>>,
) {
    sight.send_if_modified(|known| {
        let part = part(known);
        let same =
            |before: &Kept<K>| Arc::ptr_eq(before, &seen) || before.is_empty() && seen.is_empty();
        let news = !part.as_ref().is_some_and(same);
        *part = Some(seen);
        news
    });
}

fn silent(sight: &watch::Sender<Sight>) {
    sight.send_if_modified(|known| {
        let news = known.silent_since.is_none();
        known.silent_since.get_or_insert_with(Instant::now);
        news
    });
}
