//! The links that this server holds, and what all sessions of a cluster read together.
//!
//! One task follows the store for all of them: a thousand sessions cost four watches.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use wharf_api::trace::ClusterTrace;
use wharf_core::{agents::NodeOperation, app::AppRecord, cluster::ClusterRecord};
use wharf_pki::AgentAuthority;
use wharf_store::{Change, Store, StoreError, StoreResult, typed::key_of};

use crate::{app::App, engine::Member, error::chain};

/// How long to wait before trying again after the store failed.
const RETRY: Duration = Duration::from_secs(1);
/// An agent asks its peers for 5 s at most.
const TRACE: Duration = Duration::from_secs(10);
/// Questions that wait for one agent.
pub const QUESTIONS: usize = 8;

pub struct Board {
    pub authority: AgentAuthority,
    /// Where agents are heard; 0 when they are not.
    pub port: u16,
    clusters: Mutex<HashMap<String, Arc<Linked>>>,
    next: AtomicU64,
}

/// The links of one cluster.
struct Linked {
    facts: watch::Sender<Option<Arc<Facts>>>,
    links: Mutex<HashMap<String, Link>>,
}

/// One agent that is linked to this server.
struct Link {
    id: u64,
    questions: mpsc::Sender<Question>,
    end: CancellationToken,
}

/// What do the agents know of an application?
pub struct Question {
    pub app: String,
    pub answer: oneshot::Sender<Result<ClusterTrace, String>>,
}

/// What all sessions of a cluster need to know of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    pub record: ClusterRecord,
    pub apps: Vec<AppRecord>,
    pub operations: BTreeMap<String, NodeOperation>,
    /// Where servers hear agents.
    pub servers: Vec<String>,
}

/// What a session holds as long as it lives.
pub struct Held {
    pub id: u64,
    pub facts: watch::Receiver<Option<Arc<Facts>>>,
    pub questions: mpsc::Receiver<Question>,
    /// The agent has opened another link, or the cluster is gone.
    pub end: CancellationToken,
}

impl Board {
    pub fn new(authority: AgentAuthority, port: u16) -> Self {
        Self { authority, port, clusters: Mutex::default(), next: AtomicU64::new(1) }
    }

    /// Notes a link; an older one of the same agent ends.
    pub async fn link(&self, store: &Store, cluster: &str, node: &str) -> StoreResult<Held> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (questions, receiver) = mpsc::channel(QUESTIONS);
        let end = CancellationToken::new();
        let link = Link { id, questions, end: end.clone() };
        let linked = self.clusters().entry(cluster.to_owned()).or_default().clone();
        if let Some(older) = linked.links().insert(node.to_owned(), link) {
            older.end.cancel();
        }
        // Subscribed before it is read, so that no change is missed.
        let facts = linked.facts.subscribe();
        linked.refresh(store, cluster).await?;
        Ok(Held { id, facts, questions: receiver, end })
    }

    pub fn unlink(&self, cluster: &str, node: &str, id: u64) {
        let mut clusters = self.clusters();
        let Some(linked) = clusters.get(cluster) else { return };
        let mut links = linked.links();
        if links.get(node).is_some_and(|link| link.id == id) {
            links.remove(node);
        }
        let empty = links.is_empty();
        drop(links);
        if empty {
            clusters.remove(cluster);
        }
    }

    /// Asks an agent of the cluster what all of them know of an application.
    pub async fn trace(&self, cluster: &str, app: &str) -> Result<ClusterTrace, String> {
        let agents: Vec<mpsc::Sender<Question>> = match self.clusters().get(cluster) {
            Some(linked) => linked.links().values().map(|link| link.questions.clone()).collect(),
            None => Vec::new(),
        };
        let mut trouble = "no agent of the cluster is linked to this server".to_owned();
        for agent in agents {
            let (answer, answered) = oneshot::channel();
            if agent.try_send(Question { app: app.to_owned(), answer }).is_err() {
                continue;
            }
            match tokio::time::timeout(TRACE, answered).await {
                Ok(Ok(Ok(trace))) => return Ok(trace),
                Ok(Ok(Err(reason))) => trouble = reason,
                Ok(Err(_)) => "the link was lost".clone_into(&mut trouble),
                // Others would take as long.
                Err(_) => return Err(format!("no answer within {} s", TRACE.as_secs())),
            }
        }
        Err(trouble)
    }

    fn clusters(&self) -> MutexGuard<'_, HashMap<String, Arc<Linked>>> {
        // It is whole after every change.
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn refresh_all(&self, store: &Store) -> StoreResult<()> {
        let all: Vec<_> =
            self.clusters().iter().map(|(name, linked)| (name.clone(), linked.clone())).collect();
        for (name, linked) in all {
            linked.refresh(store, &name).await?;
        }
        Ok(())
    }

    async fn refresh(&self, store: &Store, cluster: &str) -> StoreResult<()> {
        let linked = self.clusters().get(cluster).cloned();
        match linked {
            Some(linked) => linked.refresh(store, cluster).await,
            None => Ok(()),
        }
    }
}

impl Default for Linked {
    fn default() -> Self {
        Self { facts: watch::channel(None).0, links: Mutex::default() }
    }
}

impl Linked {
    fn links(&self) -> MutexGuard<'_, HashMap<String, Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn refresh(&self, store: &Store, cluster: &str) -> StoreResult<()> {
        let Some(facts) = read_facts(store, cluster).await? else {
            self.links().values().for_each(|link| link.end.cancel());
            return Ok(());
        };
        self.facts.send_if_modified(|known| {
            let is_new = known.as_deref() != Some(&facts);
            if is_new {
                *known = Some(Arc::new(facts));
            }
            is_new
        });
        Ok(())
    }
}

/// `None` when the cluster is gone.
async fn read_facts(store: &Store, cluster: &str) -> StoreResult<Option<Facts>> {
    let Some(record) = store.read::<ClusterRecord>(cluster).await? else { return Ok(None) };
    let (apps, _) = store.read_all::<AppRecord>(&AppRecord::key(cluster, "")).await?;
    let key = NodeOperation::key(cluster, "");
    let (operations, _) = store.read_all::<NodeOperation>(&key).await?;
    let (members, _) = store.read_all::<Member>("").await?;
    // How an operation goes on is no news to the nodes; why it is not let in is.
    let needed = |operation: NodeOperation| match operation.is_running() && !operation.admitted {
        true => operation,
        false => NodeOperation { reason: None, ended_at: None, ..operation },
    };
    let operations = operations.into_iter().flatten().map(|stored| needed(stored.value));
    let mut servers: Vec<String> =
        members.into_iter().flatten().flat_map(|member| member.value.agents).collect();
    servers.sort();
    servers.dedup();
    Ok(Some(Facts {
        record: record.value,
        apps: apps.into_iter().flatten().map(|stored| stored.value).collect(),
        operations: operations.map(|operation| (operation.node.clone(), operation)).collect(),
        servers,
    }))
}

/// Tells sessions of what changes in the store, until told to stop.
pub async fn follow(app: App, stop: CancellationToken) {
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            Err(error) = follow_once(&app) => error,
        };
        // That the past is gone is no trouble: everything is read again.
        if !matches!(ended, StoreError::Compacted { .. }) {
            tracing::warn!(error = chain(&ended), "will look again for what agents need to know");
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn follow_once(app: &App) -> Result<std::convert::Infallible, StoreError> {
    let now = app.store.revision().await?;
    let mut clusters = app.store.watch(&key_of::<ClusterRecord>(""), now).await?;
    let mut apps = app.store.watch(&key_of::<AppRecord>(""), now).await?;
    let mut operations = app.store.watch(&key_of::<NodeOperation>(""), now).await?;
    let mut members = app.store.watch(&key_of::<Member>(""), now).await?;
    app.agents.refresh_all(&app.store).await?;
    loop {
        let changes = tokio::select! {
            changes = clusters.next() => changes?,
            changes = apps.next() => changes?,
            changes = operations.next() => changes?,
            changes = members.next() => {
                changes?;
                app.agents.refresh_all(&app.store).await?;
                continue;
            }
        };
        let mut names: Vec<&str> = changes.iter().filter_map(cluster_of).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            app.agents.refresh(&app.store, name).await?;
        }
    }
}

/// `app/demo/0b1a…` and `cluster/demo` are of the cluster `demo`.
fn cluster_of(change: &Change) -> Option<&str> {
    change.key().split('/').nth(1)
}
