//! The whole of what a node's host shall hold, made of what the components say.
//!
//! The server sends the same document several times, each [`Stage`] with more units started. All
//! stages hold the same files, so only the first one writes.

use std::collections::BTreeMap;

use crate::cluster::{ClusterSecrets, ClusterSpec, NodeRecord, NodeRole, NodeSpec};

use super::{
    credentials::HostCredentials,
    facts::HostFacts,
    host::{Bundled, HostDocument, Image},
};

/// Programs and plugins of the bundle by their name: `kubelet`, `bridge`, and `wharf` itself.
pub type BundleIndex = BTreeMap<String, Bundled>;

/// How far an installation has come. Each stage starts more units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Kernel, files, containerd, images, the agent.
    Prepare,
    Etcd,
    Apiserver,
    /// Controller-manager and scheduler, which end while the API is away.
    Controllers,
    /// Kubelet and kube-proxy: the host becomes a node.
    Node,
}

impl Stage {
    pub const ALL: [Stage; 5] =
        [Stage::Prepare, Stage::Etcd, Stage::Apiserver, Stage::Controllers, Stage::Node];
}

/// Everything that decides on the document of one host.
#[derive(Debug, Clone, Copy)]
pub struct DocumentInput<'a> {
    pub spec: &'a ClusterSpec,
    pub node: &'a NodeSpec,
    /// What the server chose for each node, this one and all that it shall reach.
    pub nodes: &'a BTreeMap<String, NodeRecord>,
    pub facts: &'a HostFacts,
    pub credentials: &'a HostCredentials,
    pub bundle: &'a BundleIndex,
    /// What containerd shall have; the sandbox image (`wharf.dev/pause:…`) is always among them.
    pub images: &'a [Image],
    pub stage: Stage,
    /// Keeps members of different etcd clusters apart that meet by mistake.
    pub etcd_token: &'a str,
    pub secrets: &'a ClusterSecrets,
}

/// Why there is no document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    #[error("the bundle holds no {0}")]
    MissingProgram(String),
    #[error("the bundle holds no image {0}")]
    MissingImage(String),
    #[error("node {0} has no addresses for its pods yet")]
    NoPodCidr(String),
    #[error("{0:?} is not a version of Kubernetes that can be installed; there are 1.34 to 1.36")]
    Version(String),
    #[error("the keys and certificates of node {node} lack {path}")]
    MissingCredential { node: String, path: String },
}

/// What the node's host shall hold, with the units of its stage started.
pub fn host_document(input: &DocumentInput<'_>) -> Result<HostDocument, DocumentError> {
    let _ = (NodeRole::ALL, input);
    Err(DocumentError::NoPodCidr(input.node.name.clone()))
}
