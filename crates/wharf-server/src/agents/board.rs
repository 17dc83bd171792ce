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

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use wharf_api::{link::TRACE_WITHIN, trace::ClusterTrace};
use wharf_core::{agents::NodeOperation, app::AppRecord, cluster::ClusterRecord};
use wharf_pki::AgentAuthority;
use wharf_store::{Change, Store, StoreError, StoreResult, typed::key_of};

use crate::{app::App, engine::Member, error::chain};

/// How long to wait before trying again after the store failed.
const RETRY: Duration = Duration::from_secs(1);
/// An agent that is asked when the time of the first is over has all of its own yet.
pub const TRACE: Duration = Duration::from_secs(2 * TRACE_WITHIN.as_secs());
/// One that is well answers sooner, unless its peers hang: then it is waited for, beside the next.
const NEXT_AFTER: Duration = Duration::from_secs(3);
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

/// Why nobody said what agents know of an application.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    #[error("none is linked to this server")]
    NotLinked,
    #[error("no answer of {nodes} within {} s", within.as_secs())]
    Silent { nodes: String, within: Duration },
    #[error("{node}: {reason}")]
    Failed { node: String, reason: String },
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

    /// Asks agents of the cluster what all of them know of an application, one after the other, until
    /// one answers or the time is over. One that hangs is no reason to leave the others out.
    pub async fn trace(
        &self,
        cluster: &str,
        app: &str,
        within: Duration,
    ) -> Result<ClusterTrace, TraceError> {
        let end = Instant::now() + within;
        let mut agents = self.desks(cluster).into_iter();
        let mut asked = FuturesUnordered::new();
        let mut silent = Vec::new();
        let mut last = TraceError::NotLinked;
        loop {
            if let Some((node, agent)) = agents.next() {
                silent.push(node.clone());
                asked.push(ask(node, agent, app));
            }
            tokio::select! {
                answer = asked.next() => match answer {
                    Some((_, Ok(trace))) => return Ok(trace),
                    Some((node, Err(reason))) => {
                        silent.retain(|other| *other != node);
                        last = TraceError::Failed { node, reason };
                    }
                    None => return Err(last),
                },
                () = sleep(NEXT_AFTER), if agents.len() > 0 => {}
                () = sleep_until(end) => {
                    return Err(TraceError::Silent { nodes: silent.join(", "), within });
                }
            }
        }
    }

    /// Where the agents of a cluster take questions, in no order: none of them gets all.
    fn desks(&self, cluster: &str) -> Vec<(String, mpsc::Sender<Question>)> {
        let Some(linked) = self.clusters().get(cluster).cloned() else { return Vec::new() };
        let links = linked.links();
        links.iter().map(|(node, link)| (node.clone(), link.questions.clone())).collect()
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

/// The answer of one agent, however long it takes.
async fn ask(
    node: String,
    agent: mpsc::Sender<Question>,
    app: &str,
) -> (String, Result<ClusterTrace, String>) {
    let (answer, answered) = oneshot::channel();
    if agent.try_send(Question { app: app.to_owned(), answer }).is_err() {
        return (node, Err("it has more questions than it answers".to_owned()));
    }
    let answered = answered.await.unwrap_or_else(|_| Err("the link was lost".to_owned()));
    (node, answered)
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

#[cfg(test)]
mod tests {
    use wharf_store::{StoreLocation, StoreOptions};

    use super::*;

    struct Scene {
        _dir: tempfile::TempDir,
        store: Store,
        board: Board,
    }

    async fn scene() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let location = StoreLocation::Embedded { data_dir: dir.path().to_owned() };
        let store = Store::open(&StoreOptions { location }).await.unwrap();
        let authority = AgentAuthority::new(jiff::Timestamp::now()).unwrap();
        Scene { _dir: dir, store, board: Board::new(authority, 0) }
    }

    impl Scene {
        async fn link(&self, node: &str) -> Held {
            self.board.link(&self.store, "demo", node).await.unwrap()
        }

        async fn trace(&self, within: Duration) -> Result<ClusterTrace, TraceError> {
            self.board.trace("demo", "web", within).await
        }
    }

    fn trace() -> ClusterTrace {
        ClusterTrace { key: "cluster-app".to_owned(), value: Vec::new() }
    }

    /// An agent that says the same to everybody.
    fn answers(mut held: Held, answer: Result<ClusterTrace, String>) {
        tokio::spawn(async move {
            while let Some(question) = held.questions.recv().await {
                let _ = question.answer.send(answer.clone());
            }
        });
    }

    #[tokio::test]
    async fn an_agent_that_hangs_leaves_the_question_to_the_next_one() {
        let scene = scene().await;
        let _hang = [scene.link("n1").await, scene.link("n2").await];
        answers(scene.link("n3").await, Err("its disk is gone".to_owned()));
        answers(scene.link("n4").await, Ok(trace()));
        // Whoever is asked first: links have no order.
        assert_eq!(scene.trace(TRACE).await, Ok(trace()));
    }

    #[tokio::test]
    async fn who_gives_no_answer_is_named() {
        let scene = scene().await;
        assert_eq!(scene.trace(TRACE).await, Err(TraceError::NotLinked));
        answers(scene.link("n2").await, Err("its disk is gone".to_owned()));
        let failed = scene.trace(TRACE).await.unwrap_err();
        assert_eq!(failed.to_string(), "n2: its disk is gone");
        let hangs = scene.link("n1").await;
        let within = NEXT_AFTER + Duration::from_secs(1);
        let silent = scene.trace(within).await.unwrap_err();
        assert_eq!(silent.to_string(), "no answer of n1 within 4 s");
        drop(hangs);
        let lost = scene.trace(TRACE).await.unwrap_err();
        assert!(matches!(lost, TraceError::Failed { .. }), "{lost}");
    }
}
