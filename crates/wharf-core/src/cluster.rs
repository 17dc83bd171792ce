//! Clusters: the record, its state, and which server owns it.

pub mod life;
pub mod ownership;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::record::Kind;

/// A server that takes part in the work; made anew at each start, so that a restarted server is
/// another one than before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ServerId(pub String);

impl std::fmt::Display for ServerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What is stored of a cluster. The id is the name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    pub spec: ClusterSpec,
    pub state: ClusterState,
    pub created_at: Timestamp,
    pub ownership: Ownership,
}

impl Kind for ClusterRecord {
    const KIND: &'static str = "cluster";
}

/// Who works on the cluster. Every take-over raises the epoch, and what an owner writes is
/// conditional on it, so that a former owner that does not know yet can do no harm.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ownership {
    pub owner: Option<ServerId>,
    pub epoch: u64,
}

/// What the user asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSpec {
    pub name: String,
    pub nodes: Vec<NodeSpec>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    pub name: String,
    pub address: String,
    pub roles: Vec<NodeRole>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeRole {
    Controlplane,
    Etcd,
    Worker,
    Edge,
}

/// Where a cluster is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ClusterState {
    Creating,
    CreateFailed,
    Running,
    Unreachable,
    Updating,
    Deleting,
}

impl ClusterState {
    /// The name by which users and programs know it.
    pub fn name(self) -> &'static str {
        match self {
            ClusterState::Creating => "Creating",
            ClusterState::CreateFailed => "CreateFailed",
            ClusterState::Running => "Running",
            ClusterState::Unreachable => "Unreachable",
            ClusterState::Updating => "Updating",
            ClusterState::Deleting => "Deleting",
        }
    }

    /// Whether the cluster serves its own resources (nodes, kubeconfigs).
    pub fn is_ready(self) -> bool {
        match self {
            ClusterState::Running | ClusterState::Unreachable => true,
            ClusterState::Creating
            | ClusterState::CreateFailed
            | ClusterState::Updating
            | ClusterState::Deleting => false,
        }
    }
}
