//! The garbage list of a node.

use http::Method;
use kube::api::ListParams;
use serde::Deserialize;
use serde_json::{Value, json};
use wharf_core::volume::garbage::GarbageEntry;

use super::{GROUP, Written, record::put};
use crate::{
    cluster::{Cluster, JSON, MERGE},
    error::Result,
};

/// The garbage list of a node as it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Garbage {
    pub entries: Vec<GarbageEntry>,
    /// Empty for a list that is not there.
    version: String,
}

impl Cluster {
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn garbage(&self, node: &str) -> Result<Garbage> {
        let object = self.get::<Object>(&path(node)).await?;
        Ok(object.map(Garbage::from).unwrap_or_default())
    }

    /// The garbage lists of all nodes.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn garbage_lists(&self) -> Result<Vec<(String, Garbage)>> {
        let objects: Vec<Object> = self.list(&path(""), ListParams::default()).await?;
        Ok(objects.into_iter().map(|it| (it.metadata.name.clone(), it.into())).collect())
    }

    /// Writes a list that was seen anew. An empty one is deleted.
    ///
    /// # Errors
    /// The API server does not answer or refuses for another reason than that somebody was faster.
    pub async fn write_garbage(
        &self,
        node: &str,
        seen: &Garbage,
        entries: &[GarbageEntry],
    ) -> Result<Written<()>> {
        let what = format!("write the garbage list of node {node}");
        let mut metadata = json!({ "name": node });
        let (method, path, kind) = match (seen.version.is_empty(), entries.is_empty()) {
            (true, true) => return Ok(Written::Is(())),
            (true, false) => (Method::POST, path(""), JSON),
            (false, true) => {
                let options = json!({ "preconditions": { "resourceVersion": seen.version } });
                let (path, kind) = (path(node), JSON);
                let gone = self.send::<Value>(what, Method::DELETE, &path, kind, &options).await;
                return Written::of(gone.map(drop));
            }
            (false, false) => {
                put(&mut metadata, "resourceVersion", &seen.version);
                (Method::PATCH, path(node), MERGE)
            }
        };
        let object = json!({
            "apiVersion": "wharf.dev/v1", "kind": "NodeGarbage", "metadata": metadata,
            "entries": entries,
        });
        Written::of(self.send::<Value>(what, method, &path, kind, &object).await.map(drop))
    }
}

pub(super) fn path(node: &str) -> String {
    if node.is_empty() {
        format!("{GROUP}/nodegarbages")
    } else {
        format!("{GROUP}/nodegarbages/{node}")
    }
}

#[derive(Deserialize)]
pub(super) struct Object {
    metadata: Meta,
    #[serde(default)]
    entries: Vec<GarbageEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    resource_version: String,
}

impl Object {
    pub fn named(self) -> (String, Vec<GarbageEntry>) {
        (self.metadata.name, self.entries)
    }
}

impl From<Object> for Garbage {
    fn from(object: Object) -> Self {
        Self { entries: object.entries, version: object.metadata.resource_version }
    }
}
