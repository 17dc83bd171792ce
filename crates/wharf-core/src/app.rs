//! Applications that are wanted on a cluster: what every node is told of them, and the objects in
//! the cluster that make them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{node::names::app_name, record::Kind};

/// The id is `<cluster>/<uuid>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AppRecord {
    pub cluster: String,
    pub uuid: String,
    pub name: String,
    /// The node that it is meant for.
    pub designated_node: Option<String>,
    /// What the nodes are told, in their own words.
    pub config: Value,
    pub volumes: Vec<Value>,
    /// The objects that make it, as YAML; `{{name}}` stands for its name in the cluster.
    pub manifest: String,
    pub created_at: Timestamp,
    /// Raised by every change, so that nodes can tell.
    pub version: u64,
    /// Somebody wants it gone; its objects are deleted first.
    pub deleted_at: Option<Timestamp>,
    /// What was last applied to the cluster.
    pub applied: Option<String>,
    /// Why the cluster does not hold what is wanted.
    pub reason: Option<String>,
}

impl Kind for AppRecord {
    const KIND: &'static str = "app";
}

impl AppRecord {
    pub fn key(cluster: &str, uuid: &str) -> String {
        format!("{cluster}/{uuid}")
    }

    /// Its name in the cluster.
    pub fn kube_name(&self) -> String {
        app_name(&self.name, &self.uuid)
    }

    /// The objects, with its name in them.
    pub fn objects(&self) -> String {
        self.manifest.replace("{{name}}", &self.kube_name())
    }

    pub fn is_settled(&self) -> bool {
        self.deleted_at.is_none() && self.applied.as_deref() == Some(self.objects().as_str())
    }
}
