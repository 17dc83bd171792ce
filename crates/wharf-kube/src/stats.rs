//! The whole cluster, followed: what its elected reporter tells of it.
//!
//! Of every object only what is told is kept ([`objects`]). A kind that the cluster does not know is
//! asked for again now and then: KubeVirt and Longhorn may be installed later.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep_until};
use wharf_core::node::stats::{Facts, storage};

use crate::{
    cluster::Cluster,
    error::Result,
    watch::{Change, Follow, Followed},
};

mod objects;

use objects::{
    ClaimSeen, DaemonsSeen, DisksSeen, EngineSeen, MachineSeen, NodeSeen, PodSeen, ReplicaSeen,
    VolumeSeen,
};

/// A connection that died without a word is noticed after this.
const WATCH: Duration = Duration::from_secs(120);
/// How soon a kind that the cluster did not know is noticed.
const ASK_AGAIN: Duration = Duration::from_secs(20);
const LONGHORN: &str = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system";

/// An object of which something is kept.
trait Seen: Followed {
    type Kept: PartialEq;

    /// Its name, and what is kept. `apps` is the applications' namespace.
    fn reduce(self, apps: &str) -> (String, Self::Kept);
}

/// All that there is of one kind.
struct Kind<S: Seen> {
    path: String,
    apps: String,
    follow: Follow<S>,
    kept: BTreeMap<String, S::Kept>,
    state: State,
    not_before: Instant,
    cluster: Cluster,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It was not read yet.
    Unread,
    /// The cluster does not know such objects.
    Missing,
    Known,
}

impl<S: Seen> Kind<S> {
    fn new(cluster: &Cluster, path: String, apps: &str) -> Self {
        Self {
            follow: Follow::new(cluster.clone(), &path, None, WATCH),
            cluster: cluster.clone(),
            path,
            apps: apps.to_owned(),
            kept: BTreeMap::new(),
            state: State::Unread,
            not_before: Instant::now(),
        }
    }

    /// Waits for news, and says whether what is kept differs. May be dropped and called again.
    async fn next(&mut self) -> Result<bool> {
        sleep_until(self.not_before).await;
        let change = match self.follow.next().await {
            Err(error) if error.is_not_found() => {
                self.follow = Follow::new(self.cluster.clone(), &self.path, None, WATCH);
                self.not_before = Instant::now() + ASK_AGAIN;
                self.kept.clear();
                return Ok(self.turn(State::Missing));
            }
            change => change?,
        };
        let changed = match change {
            Change::All(all) => {
                let kept = all.into_iter().map(|seen| seen.reduce(&self.apps)).collect();
                let changed = self.kept != kept;
                self.kept = kept;
                changed
            }
            Change::Is(seen) => {
                let (name, kept) = seen.reduce(&self.apps);
                let changed = self.kept.get(&name) != Some(&kept);
                self.kept.insert(name, kept);
                changed
            }
            Change::Gone(seen) => self.kept.remove(&seen.reduce(&self.apps).0).is_some(),
            Change::Again => false,
        };
        Ok(self.turn(State::Known) || changed)
    }

    fn turn(&mut self, state: State) -> bool {
        std::mem::replace(&mut self.state, state) != state
    }
}

/// What became of one kind of objects.
#[derive(Debug)]
pub struct Told {
    /// Where they are asked for.
    pub kind: &'static str,
    /// Whether there is something new to tell. Who gets an error may go on: so does the watch.
    pub news: Result<bool>,
}

/// Everything that is told of a cluster. Dropping it ends the watches.
pub struct ClusterWatch {
    nodes: Kind<NodeSeen>,
    pods: Kind<PodSeen>,
    machines: Kind<MachineSeen>,
    claims: Kind<ClaimSeen>,
    daemons: Kind<DaemonsSeen>,
    volumes: Kind<VolumeSeen>,
    replicas: Kind<ReplicaSeen>,
    engines: Kind<EngineSeen>,
    disks: Kind<DisksSeen>,
}

impl Cluster {
    /// Follows the cluster; `apps` is the applications' namespace. Nothing is asked before the first
    /// [`ClusterWatch::next`].
    pub fn watch_cluster(&self, apps: &str) -> ClusterWatch {
        let kubevirt = format!("/apis/kubevirt.io/v1/namespaces/{apps}/virtualmachineinstances");
        let claims = format!("/api/v1/namespaces/{apps}/persistentvolumeclaims");
        let daemons = "/apis/apps/v1/namespaces/longhorn-system/daemonsets".to_owned();
        let longhorn = |kind: &str| format!("{LONGHORN}/{kind}");
        ClusterWatch {
            nodes: Kind::new(self, "/api/v1/nodes".to_owned(), apps),
            pods: Kind::new(self, "/api/v1/pods".to_owned(), apps),
            machines: Kind::new(self, kubevirt, apps),
            claims: Kind::new(self, claims, apps),
            daemons: Kind::new(self, daemons, apps),
            volumes: Kind::new(self, longhorn("volumes"), apps),
            replicas: Kind::new(self, longhorn("replicas"), apps),
            engines: Kind::new(self, longhorn("engines"), apps),
            disks: Kind::new(self, longhorn("nodes"), apps),
        }
    }
}

impl ClusterWatch {
    /// Waits for news of any kind. May be dropped and called again.
    pub async fn next(&mut self) -> Told {
        let (kind, news) = tokio::select! {
            news = self.nodes.next() => ("nodes", news),
            news = self.pods.next() => ("pods", news),
            news = self.machines.next() => ("virtual machines", news),
            news = self.claims.next() => ("claims", news),
            news = self.daemons.next() => ("daemons of the storage", news),
            news = self.volumes.next() => ("volumes", news),
            news = self.replicas.next() => ("replicas", news),
            news = self.engines.next() => ("engines", news),
            news = self.disks.next() => ("disks", news),
        };
        Told { kind, news }
    }

    /// What is known; `None` until every kind was read once, or is known to be none of this cluster's.
    pub fn facts(&self) -> Option<Facts<'_>> {
        let states = [
            self.nodes.state,
            self.pods.state,
            self.machines.state,
            self.claims.state,
            self.daemons.state,
            self.volumes.state,
            self.replicas.state,
            self.engines.state,
            self.disks.state,
        ];
        if states.contains(&State::Unread) {
            return None;
        }
        let storage = storage::Facts {
            claims: &self.claims.kept,
            volumes: &self.volumes.kept,
            replicas: &self.replicas.kept,
            engines: &self.engines.kept,
            daemons: &self.daemons.kept,
            full_disks: &self.disks.kept,
        };
        Some(Facts {
            nodes: &self.nodes.kept,
            pods: &self.pods.kept,
            machines: &self.machines.kept,
            storage: (self.volumes.state == State::Known).then_some(storage),
        })
    }
}
