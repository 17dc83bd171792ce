//! Clusters: the record, its state, and which server owns it.

pub mod health;
pub mod life;
pub mod ownership;
pub mod spec;
pub mod validate;

use std::collections::BTreeMap;

use ipnet::Ipv4Net;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::record::Kind;

pub use spec::{
    ClusterSecrets, ClusterSpec, JumpSpec, NetworkPlugin, NetworkSpec, NodeRole, NodeSpec,
    RegistrySpec, SshSpec,
};

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
    /// Why the state is what it is, where that needs saying, and since when.
    pub reason: Option<Reason>,
    /// What is under way; there is something in Creating, Updating and Deleting only.
    pub work: Option<Work>,
    /// Whether it was ever Running: decides between going on with a create and an update.
    pub created: bool,
    pub origin: Origin,
    pub created_at: Timestamp,
    pub deleted_at: Option<Timestamp>,
    /// What the server found and chose for each node, by its name. A node stays here until it is
    /// removed from the cluster, also when the wish no longer names it.
    pub nodes: BTreeMap<String, NodeRecord>,
    pub ownership: Ownership,
    /// When the first of its certificates ends; unknown before it has any, and of others' clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates_expire_at: Option<Timestamp>,
}

impl Kind for ClusterRecord {
    const KIND: &'static str = "cluster";
}

impl ClusterRecord {
    /// A cluster of which nothing is known but the wish.
    pub fn new(spec: ClusterSpec, state: ClusterState, origin: Origin, now: Timestamp) -> Self {
        Self {
            spec,
            state,
            reason: None,
            work: None,
            created: state == ClusterState::Running,
            origin,
            created_at: now,
            deleted_at: None,
            nodes: BTreeMap::new(),
            ownership: Ownership::default(),
            certificates_expire_at: None,
        }
    }

    /// The wish with the controlplane nodes that serve: none that was asked for and never came. In a
    /// cluster that is being made, all that it shall have.
    pub fn serving_spec(&self) -> ClusterSpec {
        let installed = |name: &str| self.nodes.get(name).is_some_and(|record| record.installed);
        let mut spec = self.spec.clone();
        if spec.nodes_with(NodeRole::Controlplane).any(|node| installed(&node.name)) {
            spec.nodes.retain(|node| !node.is(NodeRole::Controlplane) || installed(&node.name));
        }
        spec
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub text: String,
    pub since: Timestamp,
}

/// The operation that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// The id of its record.
    pub operation: String,
    /// A user wants it to stop. Belongs to this operation alone, so it can never hit another.
    pub canceled: bool,
    /// How to delete; only there in Deleting.
    pub delete: Option<DeleteMode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeleteMode {
    /// Clean every host; those that cannot be reached are tried for a bounded time.
    #[default]
    Clean,
    /// Clean the hosts that answer at once and list the others.
    Force,
    /// Touch no host.
    Forget,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    Installed,
    Imported,
}

/// What is known of a node besides the wish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub spec: NodeSpec,
    /// The pods' addresses on this node.
    pub pod_cidr: Ipv4Net,
    /// The host key that was pinned, as an OpenSSH public key.
    pub host_key: Option<String>,
    /// With which members the node's etcd was started first; once the node is installed it keeps
    /// them for good, although others come later, so that its unit never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdStart>,
    /// Whether the node has been installed completely.
    pub installed: bool,
}

/// How a member of etcd is started for the first time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdStart {
    /// All members of that moment, itself among them, by name.
    pub members: BTreeMap<String, std::net::Ipv4Addr>,
    /// It joins members that run already.
    pub joins: bool,
}

/// Who works on the cluster. Every take-over raises the epoch, and what an owner writes is
/// conditional on it, so that a former owner that does not know yet can do no harm.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ownership {
    pub owner: Option<ServerId>,
    pub epoch: u64,
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

    /// Whether `?onlyready=true` lists it.
    pub fn is_ready(self) -> bool {
        match self {
            ClusterState::Running | ClusterState::Unreachable => true,
            ClusterState::Creating
            | ClusterState::CreateFailed
            | ClusterState::Updating
            | ClusterState::Deleting => false,
        }
    }

    /// Whether the cluster serves its nodes and kubeconfigs.
    pub fn is_served(self) -> bool {
        self.is_ready() || self == ClusterState::Updating
    }
}
