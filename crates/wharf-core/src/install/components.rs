//! The components that run on a host, one file each: flags, configuration, unit.
//!
//! Each is a pure function of the same [`DocumentInput`]. What differs between hosts comes from
//! their facts, what differs between versions of Kubernetes from [`version`].

pub mod agent;
pub mod containerd;
pub mod controller_manager;
pub mod etcd;
pub mod kube_apiserver;
pub mod kube_proxy;
pub mod kubelet;
pub mod scheduler;
mod service;
pub mod version;

use crate::cluster::NodeRole;

pub use service::{Kind, Service};

use super::{
    document::{DocumentError, DocumentInput, Stage},
    host::{Content, Directory, File},
};

/// Where links to the programs in use lie, and those to the CNI plugins.
pub const BIN: &str = "/opt/wharf/bin";
pub const CNI_PLUGINS: &str = "/opt/wharf/cni";
/// The volume driver's place, told to kubelet and to the controller-manager. Below kubelet's own
/// directory, so that it goes with it.
pub const VOLUME_PLUGINS: &str = "/var/lib/kubelet/volume-plugins";
/// Where each API server listens on its node.
pub const API_PORT: u16 = 6443;

/// Every component by its name; its unit is `wharf-<name>.service`.
pub const NAMES: [&str; 8] = [
    "containerd",
    "agent",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
];

/// A program that runs as a unit, with what it needs on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// When it is started.
    pub stage: Stage,
    pub service: Service,
    pub directories: Vec<Directory>,
    pub files: Vec<File>,
    /// Files that the program reads again by itself when they change.
    pub reloaded_files: Vec<File>,
    /// Keys and kubeconfigs that must be on the host and that the program reads only at its start.
    pub credentials: Vec<&'static str>,
    /// The same, read again by the program itself when they change.
    pub reloaded_credentials: Vec<&'static str>,
}

/// What runs on the input's node, in the order of its start.
pub fn components(input: &DocumentInput<'_>) -> Result<Vec<Component>, DocumentError> {
    let mut all = vec![containerd::component(input)?, agent::component(input)?];
    if input.node.is(NodeRole::Etcd) {
        all.push(etcd::component(input)?);
    }
    if input.node.is(NodeRole::Controlplane) {
        all.push(kube_apiserver::component(input)?);
        all.push(controller_manager::component(input));
        all.push(scheduler::component(input));
    }
    all.push(kubelet::component(input)?);
    all.push(kube_proxy::component(input));
    Ok(all)
}

/// A text in double quotes, as YAML, TOML and JSON all read it.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub(crate) fn text_file(path: &str, mode: u32, text: impl Into<String>) -> File {
    File { path: path.to_owned(), mode, content: Content::Text(text.into()) }
}

pub(crate) fn directory(path: &str, mode: u32) -> Directory {
    Directory { path: path.to_owned(), mode }
}

#[cfg(test)]
pub(crate) mod tests;
