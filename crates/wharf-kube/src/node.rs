//! Changing Nodes: labels, taints, the pod network, and removal.

use std::{collections::BTreeMap, time::Duration};

use http::Method;
use k8s_openapi::{api::core::v1::NodeSpec, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value, json};

use crate::{
    cluster::{Cluster, JSON, MERGE, get},
    error::{KubeError, Result},
    observe::{SeenNode, readiness},
};

/// A concurrent change of the same Node (kubelet writes often) is met by trying again.
const PERSIST: Duration = Duration::from_secs(30);

/// How a Node shall be marked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeMeta {
    pub labels: BTreeMap<String, String>,
    pub remove_labels: Vec<String>,
    pub taints: Vec<Taint>,
    /// Keys of taints that shall not be there.
    pub remove_taints: Vec<String>,
    /// Can be set once in a Node's life.
    pub pod_cidr: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

impl Cluster {
    /// Makes a Node carry these marks; what it carries besides stays. Says whether that changed
    /// anything: a second call writes nothing.
    ///
    /// # Errors
    /// There is no such Node, or it has another pod network, or the API server refuses.
    pub async fn ensure_node_meta(&self, name: &str, wanted: &NodeMeta) -> Result<bool> {
        self.persist(PERSIST, || async {
            let node = self.node(name).await?;
            let Some(patch) = patch_for(&node, wanted)? else { return Ok(false) };
            self.patch_node(name, &node, patch).await?;
            Ok(true)
        })
        .await
    }

    /// Waits until these nodes are Ready.
    ///
    /// # Errors
    /// [`KubeError::NotReached`] names those that are not, each with its reason.
    pub async fn wait_nodes_ready(&self, names: &[String], within: Duration) -> Result<()> {
        let what = "all nodes being Ready";
        self.wait_until(what, within, || async {
            let nodes = self.nodes().await?;
            let missing: Vec<String> =
                names.iter().filter_map(|name| why_not_ready(&nodes, name)).collect();
            Ok(if missing.is_empty() { Ok(()) } else { Err(missing) })
        })
        .await
    }

    /// Deletes a Node; it is no fault when it is gone already. Says whether it was there.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn delete_node(&self, name: &str) -> Result<bool> {
        let (what, path) = (format!("delete node {name}"), path_of(name));
        match self.send::<IgnoredAny>(what, Method::DELETE, &path, JSON, &json!({})).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn node(&self, name: &str) -> Result<Node> {
        self.call(format!("read node {name}"), self.client.request(get(&path_of(name)))).await
    }

    /// Applies a merge patch on just this state of the Node: a change in between is a conflict.
    pub(crate) async fn patch_node(&self, name: &str, seen: &Node, mut patch: Value) -> Result<()> {
        if let Some(metadata) = patch.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), json!(seen.metadata.resource_version));
        }
        let path = format!("{}?fieldManager=wharf", path_of(name));
        let what = format!("change node {name}");
        self.send::<IgnoredAny>(what, Method::PATCH, &path, MERGE, &patch).await.map(drop)
    }
}

fn path_of(node: &str) -> String {
    format!("/api/v1/nodes/{node}")
}

/// A Node without what its kubelet says of it, which is most of it.
#[derive(Deserialize)]
pub(crate) struct Node {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: NodeSpec,
}

fn why_not_ready(nodes: &[SeenNode], name: &str) -> Option<String> {
    let node = nodes.iter().find(|node| node.metadata.name == name);
    let Some(node) = node else { return Some(format!("node {name} has not joined")) };
    let (ready, reason) = readiness(&node.status);
    (!ready).then(|| format!("node {name}: {reason}"))
}

/// The merge patch that makes the node what is wanted; `None` when it is so already.
fn patch_for(node: &Node, wanted: &NodeMeta) -> Result<Option<Value>> {
    let labels = label_changes(node, wanted);
    let mut spec = Map::new();
    if let Some(taints) = taint_changes(node, wanted) {
        spec.insert("taints".to_owned(), taints);
    }
    if let Some(cidr) = pod_cidr_change(node, wanted)? {
        spec.insert("podCIDR".to_owned(), json!(cidr));
        spec.insert("podCIDRs".to_owned(), json!([cidr]));
    }
    if labels.is_empty() && spec.is_empty() {
        return Ok(None);
    }
    let mut patch = json!({ "metadata": {}, "spec": spec });
    if let Some(metadata) = patch.get_mut("metadata").and_then(Value::as_object_mut)
        && !labels.is_empty()
    {
        metadata.insert("labels".to_owned(), Value::Object(labels));
    }
    Ok(Some(patch))
}

fn label_changes(node: &Node, wanted: &NodeMeta) -> Map<String, Value> {
    let found = node.metadata.labels.clone().unwrap_or_default();
    let set = wanted.labels.iter().filter(|(key, value)| found.get(*key) != Some(value));
    let set = set.map(|(key, value)| (key.clone(), json!(value)));
    let unwanted = wanted.remove_labels.iter().filter(|key| found.contains_key(*key));
    set.chain(unwanted.map(|key| (key.clone(), Value::Null))).collect()
}

/// The whole new list: a merge patch knows no parts of a list.
fn taint_changes(node: &Node, wanted: &NodeMeta) -> Option<Value> {
    let found = node.spec.taints.clone().unwrap_or_default();
    let is_same = |taint: &k8s_openapi::api::core::v1::Taint, other: &Taint| {
        taint.key == other.key && taint.effect == other.effect
    };
    let mut taints = found.clone();
    taints.retain(|taint| !wanted.remove_taints.contains(&taint.key));
    for taint in &wanted.taints {
        let value = Some(taint.value.clone()).filter(|value| !value.is_empty());
        match taints.iter_mut().find(|found| is_same(found, taint)) {
            Some(found) => found.value = value,
            None => taints.push(k8s_openapi::api::core::v1::Taint {
                key: taint.key.clone(),
                value,
                effect: taint.effect.clone(),
                time_added: None,
            }),
        }
    }
    (taints != found).then(|| json!(taints))
}

fn pod_cidr_change<'a>(node: &Node, wanted: &'a NodeMeta) -> Result<Option<&'a str>> {
    let found = node.spec.pod_cidr.as_deref().unwrap_or_default();
    match wanted.pod_cidr.as_deref() {
        None => Ok(None),
        Some(wanted) if wanted == found => Ok(None),
        Some(wanted) if found.is_empty() => Ok(Some(wanted)),
        Some(wanted) => Err(KubeError::PodCidr {
            node: node.metadata.name.clone().unwrap_or_default(),
            found: found.to_owned(),
            wanted: wanted.to_owned(),
        }),
    }
}
