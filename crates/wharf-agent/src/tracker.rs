//! The application tracker: what this node knows of an application, and what its peers do.
//!
//! The items and their words are made in `wharf-core` (`node::tracker`); here the files are read
//! ([`facts`]) and the peers asked ([`peers`]).

use std::{net::IpAddr, sync::Arc};

use jiff::{Timestamp, Unit};
use tokio::sync::{Semaphore, watch};
use wharf_api::trace::{AppTrace, ClusterTrace, TraceItem, TraceValue};
use wharf_core::node::tracker::{Asked, Facts, Item, Missing, Said, find_stuck, trace, tri_state};
use wharf_kube::Cluster;

use crate::{config::Config, files::Files, health::Reporter};

mod facts;
mod peers;

use facts::Reader;

/// Each reads some dozen small files. One that a disk keeps from its end keeps its place, so that they
/// do not use up the threads of others.
const MOST_READERS: usize = 8;

/// All clones are the same.
#[derive(Clone)]
pub struct Tracker {
    config: Arc<Config>,
    reader: Reader,
    /// Who may read at a time.
    reading: Arc<Semaphore>,
    cluster: Option<watch::Receiver<Option<Cluster>>>,
}

impl Tracker {
    /// `cluster` knows the peers; it is absent where the agent has no cluster.
    pub fn new(
        config: Arc<Config>,
        files: Files,
        cluster: Option<watch::Receiver<Option<Cluster>>>,
    ) -> Self {
        let reader = Reader::new(files, &config.persist_dir);
        let reading = Arc::new(Semaphore::new(MOST_READERS));
        Self { config, reader, reading, cluster }
    }

    /// An application on this node, by its name or id; the cluster alone where that is empty. Who does
    /// not want to wait for a disk that hangs gives it up.
    pub async fn app(&self, asked: &str) -> AppTrace {
        let (reader, name) = (self.reader.clone(), asked.to_owned());
        let place = self.reading.clone().acquire_owned().await;
        let read = tokio::task::spawn_blocking(move || {
            let facts = reader.read(&name);
            drop(place);
            facts
        });
        // It broke by a defect, or the agent stops.
        let facts = read.await.unwrap_or_else(|error| nothing(&error.to_string()));
        let hostname = self.hostname(&facts.node);
        let stuck = find_stuck(&facts).map(|stuck| format!("{}: {}", stuck.key, stuck.reason));
        AppTrace {
            hostname,
            collect_time: Timestamp::now().round(Unit::Second).ok(),
            app_info: trace(&facts).into_iter().map(item).collect(),
            stuck,
            errors: None,
        }
    }

    /// This node first, then every other one, whether it answers or not. Peers are asked from this
    /// address; without one from whichever leads to them. Answers that are none are counted by the
    /// task that asks.
    pub async fn cluster_app(
        &self,
        asked: &str,
        from: Option<IpAddr>,
        reporter: &Reporter,
    ) -> ClusterTrace {
        let mut value = vec![self.app(asked).await];
        if let Some(cluster) = &self.cluster {
            let cluster = cluster.borrow().clone();
            value.extend(peers::ask_all(&self.config, asked, from, cluster, reporter).await);
        }
        ClusterTrace { key: "cluster-app".to_owned(), value }
    }

    fn hostname(&self, node: &Said<wharf_core::node::tracker::Node>) -> String {
        let device = node.as_ref().ok().map(|node| node.name.clone());
        let name = device.filter(|name| !name.is_empty());
        let name = name.or_else(|| Some(self.config.node_name.clone()));
        name.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".to_owned())
    }
}

/// What is known where nothing could be read.
fn nothing(reason: &str) -> Facts {
    let missing = || Missing::Unreadable(reason.to_owned());
    Facts {
        node: Err(missing()),
        cluster: Err(missing()),
        lease: Err(missing()),
        install_log: Err(missing()),
        app: Asked::Nobody,
    }
}

fn item(item: Item) -> TraceItem {
    TraceItem {
        key: item.key,
        value: TraceValue {
            uuid: item.uuid,
            name: item.name,
            exist: item.exists,
            activated: tri_state(item.activated).to_owned(),
            state: item.state,
            content: item.content,
            dnid_node: tri_state(item.designated).to_owned(),
            errors: item.errors,
        },
    }
}
