//! NetworkAttachmentDefinitions: how a container is given a port of its node.

use std::collections::BTreeSet;

use http::Method;
use kube::api::ListParams;
use serde::Deserialize;
use serde_json::{Value, json};
use wharf_core::node::passthrough::Definition;

use crate::{
    cluster::{Cluster, JSON, MERGE},
    error::Result,
};

/// The list of a definition's users, with commas between them.
const USERS: &str = "wharf.dev/used-by";
const KIND: &str = "NetworkAttachmentDefinition";
const VERSION: &str = "k8s.cni.cncf.io/v1";

/// A definition, and what has to be the same still when it is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionSeen {
    pub definition: Definition,
    version: String,
}

impl Cluster {
    /// All definitions of a namespace. A cluster that does not know the kind has none.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn definitions(&self, namespace: &str) -> Result<Vec<DefinitionSeen>> {
        match self.list::<Object>(&path(namespace, ""), ListParams::default()).await {
            Ok(objects) => Ok(objects.into_iter().map(DefinitionSeen::from).collect()),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Makes a definition, or changes the one that was seen and no other.
    ///
    /// # Errors
    /// Somebody was faster (409), or the API server does not answer or refuses.
    pub async fn put_definition(
        &self,
        namespace: &str,
        wanted: &Definition,
        seen: Option<&DefinitionSeen>,
    ) -> Result<()> {
        let users = wanted.users.iter().flatten().cloned().collect::<Vec<_>>().join(",");
        let mut object = json!({
            "apiVersion": VERSION, "kind": KIND,
            "metadata": { "name": wanted.name, "annotations": { USERS: users } },
            "spec": { "config": wanted.config },
        });
        let (method, name, kind) = match seen {
            None => (Method::POST, "", JSON),
            Some(seen) => {
                if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.insert("resourceVersion".to_owned(), json!(seen.version));
                }
                (Method::PATCH, wanted.name.as_str(), MERGE)
            }
        };
        let what = format!("write {KIND} {}", wanted.name);
        self.send::<Value>(what, method, &path(namespace, name), kind, &object).await.map(drop)
    }

    /// Deletes a definition if it is still as it was seen.
    ///
    /// # Errors
    /// Somebody was faster (409), or the API server does not answer or refuses. One that is gone is no
    /// error.
    pub async fn delete_definition(&self, namespace: &str, seen: &DefinitionSeen) -> Result<()> {
        let name = &seen.definition.name;
        let options = json!({ "preconditions": { "resourceVersion": seen.version } });
        let what = format!("delete {KIND} {name}");
        let path = path(namespace, name);
        match self.send::<Value>(what, Method::DELETE, &path, JSON, &options).await {
            Err(error) if !error.is_not_found() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

fn path(namespace: &str, name: &str) -> String {
    let all = format!("/apis/{VERSION}/namespaces/{namespace}/network-attachment-definitions");
    if name.is_empty() { all } else { format!("{all}/{name}") }
}

#[derive(Deserialize)]
struct Object {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    config: String,
}

impl From<Object> for DefinitionSeen {
    fn from(object: Object) -> Self {
        let split = |users: &String| -> BTreeSet<String> {
            users.split(',').filter(|user| !user.is_empty()).map(str::to_owned).collect()
        };
        let definition = Definition {
            users: object.metadata.annotations.get(USERS).map(split),
            name: object.metadata.name,
            config: object.spec.config,
        };
        Self { definition, version: object.metadata.resource_version }
    }
}
