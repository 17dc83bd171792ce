//! One Node, followed: what an agent has to know of its own.

use std::time::Duration;

use wharf_core::{drain::NodeFacts, selector::Labels};

use crate::{
    cluster::Cluster,
    drain::NodeSeen,
    error::Result,
    watch::{Change, Follow},
};

/// Nothing hangs on it while nothing is done to the node; who needs to know at once asks with
/// [`Cluster::look_at_node`].
const WATCH: Duration = Duration::from_secs(300);
const NODES: &str = "/api/v1/nodes";

/// A Node as its agent sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnNode {
    pub facts: NodeFacts,
    /// The boot of which its kubelet last told; empty where none has.
    pub boot_id: String,
    pub labels: Labels,
}

impl From<NodeSeen> for OwnNode {
    fn from(node: NodeSeen) -> Self {
        Self {
            facts: node.facts(),
            boot_id: node.boot_id().to_owned(),
            labels: node.labels().clone(),
        }
    }
}

impl Cluster {
    /// Asks for a Node now; `None` when there is none.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn look_at_node(&self, name: &str) -> Result<Option<OwnNode>> {
        let node = self.get::<NodeSeen>(&format!("{NODES}/{name}")).await?;
        Ok(node.map(OwnNode::from))
    }

    /// Follows a Node. Nothing is asked before the first [`NodeWatch::next`].
    pub fn watch_node(&self, name: &str) -> NodeWatch {
        let this = Some(format!("metadata.name={name}"));
        NodeWatch { follow: Follow::new(self.clone(), NODES, this, WATCH), last: None }
    }
}

pub struct NodeWatch {
    follow: Follow<NodeSeen>,
    last: Option<OwnNode>,
}

impl NodeWatch {
    /// Waits for news; `None` is a Node that is not there. May be dropped and called again.
    ///
    /// # Errors
    /// The API server does not answer or refuses; the watch goes on with the next call.
    pub async fn next(&mut self) -> Result<Option<OwnNode>> {
        match self.follow.next().await? {
            Change::All(nodes) => self.last = nodes.into_iter().next().map(OwnNode::from),
            Change::Is(node) => self.last = Some(node.into()),
            Change::Gone(_) => self.last = None,
            Change::Again => {}
        }
        Ok(self.last.clone())
    }
}
