//! What a mount has to know beside the volume: its storage cluster, its pod, and nodes.

use std::collections::BTreeMap;

use http::Method;
use kube::api::ListParams;
use serde::Deserialize;
use serde_json::{Value, json};
use wharf_core::volume::{attach::PodFacts, backend::Backend, fence::NodeObject};

use super::{GROUP, Written};
use crate::{
    cluster::{Cluster, MERGE},
    error::Result,
    fence::frees_volumes,
    watch::Followed,
};

/// Storage that volumes come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageCluster {
    pub name: String,
    pub backend: Backend,
    pub parameters: BTreeMap<String, String>,
    pub deleting: bool,
    finalizers: Vec<String>,
    version: String,
}

/// So agents hold a storage cluster.
const FINALIZER: &str = "wharf.dev/volumes";

impl StorageCluster {
    /// Whether its deletion waits for its volumes.
    pub fn is_held(&self) -> bool {
        self.finalizers.iter().any(|one| one == FINALIZER)
    }
}

impl Cluster {
    /// A storage cluster; `None` when there is none.
    ///
    /// # Errors
    /// The API server does not answer or refuses, or its backend is none that we know.
    pub async fn storage_cluster(&self, name: &str) -> Result<Option<StorageCluster>> {
        let object = self.get::<ClusterObject>(&format!("{GROUP}/storageclusters/{name}")).await?;
        Ok(object.map(StorageCluster::from))
    }

    /// All storage clusters.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn storage_clusters(&self) -> Result<Vec<StorageCluster>> {
        let path = format!("{GROUP}/storageclusters");
        let objects: Vec<ClusterObject> = self.list(&path, ListParams::default()).await?;
        Ok(objects.into_iter().map(StorageCluster::from).collect())
    }

    /// Holds a storage cluster that was seen, so that its deletion waits for its volumes.
    ///
    /// # Errors
    /// The API server does not answer or refuses for another reason than that somebody was faster.
    pub async fn hold(&self, seen: &StorageCluster) -> Result<()> {
        let all = [&seen.finalizers[..], &[FINALIZER.to_owned()]].concat();
        self.write_finalizers(seen, &all, &[]).await.map(drop)
    }

    /// Does not hold it any more: it may go.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub async fn let_go(&self, seen: &StorageCluster) -> Result<()> {
        let mut others = seen.finalizers.clone();
        others.retain(|one| one != FINALIZER);
        self.write_finalizers(seen, &others, &[]).await.map(drop)
    }

    /// Says what keeps a storage cluster whose deletion was asked for.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub async fn tell_of_deletion(&self, seen: &StorageCluster, report: &[String]) -> Result<()> {
        self.write_finalizers(seen, &seen.finalizers, report).await.map(drop)
    }

    async fn write_finalizers(
        &self,
        seen: &StorageCluster,
        finalizers: &[String],
        report: &[String],
    ) -> Result<Written<()>> {
        let name = &seen.name;
        let patch = json!({
            "metadata": { "resourceVersion": seen.version, "finalizers": finalizers },
            "status": { "report": report },
        });
        let what = format!("write the finalizers of StorageCluster {name}");
        let path = format!("{GROUP}/storageclusters/{name}");
        Written::of(self.send::<Value>(what, Method::PATCH, &path, MERGE, &patch).await.map(drop))
    }

    /// A pod as a mount needs to know it; `None` when there is none of that name.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn pod_facts(&self, namespace: &str, name: &str) -> Result<Option<PodFacts>> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        Ok(self.get::<PodObject>(&path).await?.map(PodFacts::from))
    }

    /// The UIDs of the pods of a node.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn pod_uids(&self, node: &str) -> Result<Vec<String>> {
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let mut uids = Vec::new();
        let take = |pod: Named| uids.push(pod.metadata.uid);
        self.list_each("/api/v1/pods", of_node, take).await?;
        Ok(uids)
    }

    /// A Node as its volumes are judged by; `None` when there is none.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn node_object(&self, name: &str) -> Result<Option<NodeObject>> {
        let object = self.get::<NodeSeen>(&format!("/api/v1/nodes/{name}")).await?;
        Ok(object.map(NodeObject::from))
    }
}

#[derive(Deserialize)]
pub(super) struct ClusterObject {
    metadata: ClusterMeta,
    spec: ClusterSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClusterMeta {
    name: String,
    resource_version: String,
    deletion_timestamp: Option<String>,
    #[serde(default)]
    finalizers: Vec<String>,
}

#[derive(Deserialize)]
struct ClusterSpec {
    backend: Backend,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
}

impl From<ClusterObject> for StorageCluster {
    fn from(object: ClusterObject) -> Self {
        Self {
            name: object.metadata.name,
            backend: object.spec.backend,
            parameters: object.spec.parameters,
            deleting: object.metadata.deletion_timestamp.is_some(),
            finalizers: object.metadata.finalizers,
            version: object.metadata.resource_version,
        }
    }
}

#[derive(Deserialize)]
struct Named {
    metadata: Uid,
}

#[derive(Deserialize)]
struct Uid {
    uid: String,
}

impl Followed for NodeSeen {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl NodeSeen {
    pub fn named(self) -> (String, NodeObject) {
        (self.metadata.name.clone(), self.into())
    }
}

#[derive(Deserialize)]
struct PodObject {
    metadata: Uid,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

impl From<PodObject> for PodFacts {
    fn from(pod: PodObject) -> Self {
        let finished = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
        Self { uid: pod.metadata.uid, node: pod.spec.node_name, finished }
    }
}

#[derive(Clone, Deserialize)]
pub(super) struct NodeSeen {
    metadata: NodeMeta,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeMeta {
    name: String,
    uid: String,
    resource_version: String,
}

#[derive(Clone, Deserialize, Default)]
#[serde(default)]
struct NodeSpec {
    taints: Vec<Taint>,
}

#[derive(Clone, Deserialize)]
struct Taint {
    key: String,
}

#[derive(Clone, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct NodeStatus {
    node_info: NodeInfo,
}

#[derive(Clone, Deserialize, Default)]
#[serde(default)]
struct NodeInfo {
    #[serde(rename = "bootID")]
    boot_id: String,
}

impl From<NodeSeen> for NodeObject {
    fn from(node: NodeSeen) -> Self {
        Self {
            uid: node.metadata.uid,
            boot_id: node.status.node_info.boot_id,
            out_of_service: node.spec.taints.iter().any(|taint| frees_volumes(&taint.key)),
        }
    }
}
