//! What the agent that works for all volumes has to know of at once.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use wharf_core::volume::fence::NodeObject;

use super::{
    GROUP,
    claims::{CLAIMS, VOLUMES},
    objects::NodeSeen,
};
use crate::{
    cluster::Cluster,
    error::Result,
    watch::{Change, Follow, Followed},
};

const WATCH: Duration = Duration::from_secs(300);

impl Cluster {
    /// Tells when claims, volumes, storage clusters or what volumes are judged by of nodes change,
    /// without saying what.
    pub fn watch_storage(&self) -> StorageWatch {
        StorageWatch {
            claims: Changes::new(self, CLAIMS),
            volumes: Changes::new(self, VOLUMES),
            clusters: self.watch_storage_clusters(),
            nodes: Nodes::new(self),
        }
    }

    /// Tells when storage clusters change, without saying what.
    pub fn watch_storage_clusters(&self) -> Changes {
        Changes::new(self, &format!("{GROUP}/storageclusters"))
    }
}

/// Four watches as one.
pub struct StorageWatch {
    claims: Changes,
    volumes: Changes,
    clusters: Changes,
    nodes: Nodes,
}

impl StorageWatch {
    /// Returns when something has changed, or may have.
    ///
    /// # Errors
    /// The API server does not answer or refuses; it can be called again.
    pub async fn next(&mut self) -> Result<()> {
        tokio::select! {
            change = self.claims.next() => change,
            change = self.volumes.next() => change,
            change = self.clusters.next() => change,
            change = self.nodes.next() => change,
        }
    }
}

/// The changes of one kind.
pub struct Changes(Follow<Marked>);

impl Changes {
    fn new(cluster: &Cluster, path: &str) -> Self {
        Self(Follow::new(cluster.clone(), path, None, WATCH))
    }

    /// Returns when something has changed, or may have.
    ///
    /// # Errors
    /// The API server does not answer or refuses; it can be called again.
    pub async fn next(&mut self) -> Result<()> {
        let change: Change<Marked> = self.0.next().await?;
        drop(change);
        Ok(())
    }
}

/// Nodes say all the time that they are well. That is no change.
struct Nodes {
    follow: Follow<NodeSeen>,
    known: BTreeMap<String, NodeObject>,
}

impl Nodes {
    fn new(cluster: &Cluster) -> Self {
        let follow = Follow::new(cluster.clone(), "/api/v1/nodes", None, WATCH);
        Self { follow, known: BTreeMap::new() }
    }

    async fn next(&mut self) -> Result<()> {
        loop {
            let change = self.follow.next().await?;
            if note(&mut self.known, change) {
                return Ok(());
            }
        }
    }
}

/// Whether it is another picture of the nodes than before.
fn note(known: &mut BTreeMap<String, NodeObject>, change: Change<NodeSeen>) -> bool {
    match change {
        Change::All(nodes) => {
            let all = nodes.into_iter().map(NodeSeen::named).collect();
            let differs = *known != all;
            *known = all;
            differs
        }
        Change::Is(node) => {
            let (name, node) = node.named();
            known.insert(name, node.clone()).is_none_or(|before| before != node)
        }
        Change::Gone(node) => known.remove(&node.named().0).is_some(),
        Change::Again => false,
    }
}

/// Nothing of it is kept but its place.
#[derive(Clone, Deserialize)]
struct Marked {
    metadata: Version,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    resource_version: String,
}

impl Followed for Marked {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, version: u64, boot: &str, taints: &[&str]) -> NodeSeen {
        let taints: Vec<_> =
            taints.iter().map(|key| json!({ "key": key, "effect": "NoExecute" })).collect();
        let meta = json!({ "name": name, "uid": "u-1", "resourceVersion": version.to_string() });
        let status = json!({ "nodeInfo": { "bootID": boot } });
        let node = json!({ "metadata": meta, "spec": { "taints": taints }, "status": status });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn a_node_that_only_says_it_is_well_is_no_news() {
        let mut known = BTreeMap::new();
        let mut note = |change| note(&mut known, change);
        assert!(note(Change::All(vec![node("n1", 1, "b-1", &[])])));
        assert!(!note(Change::Is(node("n1", 2, "b-1", &["node.kubernetes.io/unreachable"]))));
        assert!(!note(Change::All(vec![node("n1", 3, "b-1", &[])])));
        assert!(!note(Change::Again));
        let out = ["node.kubernetes.io/out-of-service"];
        assert!(note(Change::Is(node("n1", 4, "b-1", &out))), "it was given up");
        assert!(note(Change::Is(node("n1", 5, "b-2", &out))), "it was booted");
        assert!(note(Change::Is(node("n2", 6, "b-3", &[]))), "a new one");
        assert!(note(Change::Gone(node("n1", 7, "b-2", &out))));
        assert!(note(Change::All(Vec::new())), "the other went while nobody looked");
    }
}
