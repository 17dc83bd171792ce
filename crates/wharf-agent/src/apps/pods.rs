//! The pods of applications, as the cluster tells of them: one watch for every task that needs them.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use wharf_core::words::chain;
use wharf_kube::AppPods;

use crate::{
    health::Reporter,
    kube::{self, Kube},
    tasks::{Context, Ended},
};

const SUBJECT: &str = "pods of applications";
/// Without a way to the cluster for so long it counts as silent.
const WAY: Duration = Duration::from_secs(10);

/// What is seen of the pods of `app_namespace`, on all nodes.
#[derive(Debug, Clone, Default)]
pub struct Sight {
    /// By name. `None` until the cluster has told of them once; after that what it said last.
    pub pods: Option<AppPods>,
    /// Since when it does not answer, by a clock that nobody can set; `None` while it does.
    pub silent_since: Option<Instant>,
}

/// Follows the pods and tells of them in `sight`. It lives as long as the agent: what is known is not
/// lost when the task is begun anew.
pub async fn run(
    context: Context,
    reporter: Reporter,
    mut kube: Kube,
    sight: watch::Sender<Sight>,
) -> Ended {
    loop {
        let followed = follow(&context.config.app_namespace, &reporter, &mut kube, &sight);
        if context.stop.run_until_cancelled(followed).await.is_none() {
            return Ok(());
        }
    }
}

/// Returns when the way to the cluster was replaced, or is not there yet.
async fn follow(
    namespace: &str,
    reporter: &Reporter,
    kube: &mut Kube,
    sight: &watch::Sender<Sight>,
) {
    let Ok(cluster) = timeout(WAY, kube::cluster(&mut kube.reader)).await else {
        reporter.fault(SUBJECT, "there is no way to the cluster yet");
        return silent(sight);
    };
    let mut pods = cluster.watch_app_pods(namespace);
    loop {
        let seen = tokio::select! {
            seen = pods.next() => seen,
            Ok(()) = kube.reader.changed() => return,
        };
        match seen {
            Ok(pods) => {
                reporter.clear(SUBJECT);
                reporter.ok();
                tell(sight, pods);
            }
            Err(error) => {
                reporter.fault(SUBJECT, &chain(&error));
                silent(sight);
            }
        }
    }
}

fn tell(sight: &watch::Sender<Sight>, pods: AppPods) {
    sight.send_if_modified(|known| {
        let same = known.pods.as_ref().is_some_and(|before| Arc::ptr_eq(before, &pods));
        let spoke = known.silent_since.take().is_some();
        known.pods = Some(pods);
        spoke || !same
    });
}

fn silent(sight: &watch::Sender<Sight>) {
    sight.send_if_modified(|known| {
        let news = known.silent_since.is_none();
        known.silent_since.get_or_insert_with(Instant::now);
        news
    });
}
