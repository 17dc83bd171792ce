//! Whether a node holds data that would be lost with it.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, PersistentVolume};
use kube::api::ListParams;
use serde::Deserialize;

use crate::{cluster::Cluster, error::Result, node::Node};

const STORAGE: &str = "node-role.kubernetes.io/storage";
const LONGHORN_REPLICAS: &str = "/apis/longhorn.io/v1beta2/replicas";
const HOSTNAME: &str = "kubernetes.io/hostname";

#[derive(Deserialize)]
struct Replica {
    spec: ReplicaSpec,
}

#[derive(Deserialize)]
struct ReplicaSpec {
    #[serde(rename = "nodeID", default)]
    node: String,
}

impl Cluster {
    /// Why the node is a storage node, in a sentence; `None` when it is none. A Node that is gone
    /// holds nothing.
    ///
    /// # Errors
    /// The cluster cannot be asked: then the node must not be removed.
    pub async fn storage_on_node(&self, name: &str) -> Result<Option<String>> {
        let node = match self.node(name).await {
            Err(error) if error.is_not_found() => return Ok(None),
            node => node?,
        };
        if node.metadata.labels.iter().flatten().any(|(label, _)| label == STORAGE) {
            return Ok(Some(format!("node {name} carries the label {STORAGE}")));
        }
        let volumes: Vec<PersistentVolume> =
            self.list("/api/v1/persistentvolumes", ListParams::default()).await?;
        if let Some(volume) = volumes.iter().find(|volume| is_bound_to(volume, &node)) {
            let volume = volume.metadata.name.clone().unwrap_or_default();
            return Ok(Some(format!("the data of volume {volume} is on node {name}")));
        }
        let all = ListParams::default();
        let replicas = match self.list::<Replica>(LONGHORN_REPLICAS, all).await {
            // Longhorn is not installed.
            Err(error) if error.is_not_found() => Vec::new(),
            replicas => replicas?,
        };
        let holds = replicas.iter().any(|replica| replica.spec.node == name);
        Ok(holds.then(|| format!("node {name} holds a Longhorn replica")))
    }

    /// Whether [`Cluster::storage_on_node`] gives a reason.
    ///
    /// # Errors
    /// As there.
    pub async fn is_storage_node(&self, name: &str) -> Result<bool> {
        Ok(self.storage_on_node(name).await?.is_some())
    }
}

/// Whether the volume's node affinity names this node.
fn is_bound_to(volume: &PersistentVolume, node: &Node) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let hostname = node.metadata.labels.as_ref().and_then(|labels| labels.get(HOSTNAME));
    // Drivers use labels of their own for the place, whose value is the node's name.
    let names = |requirement: &NodeSelectorRequirement| {
        requirement.operator == "In"
            && requirement
                .values
                .iter()
                .flatten()
                .any(|value| value == name || Some(value) == hostname)
    };
    required.into_iter().flat_map(|required| &required.node_selector_terms).any(|term| {
        let fields = term.match_fields.iter().flatten();
        term.match_expressions.iter().flatten().chain(fields).any(names)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_is_bound_to_the_node_that_its_affinity_names() {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": "n1", "labels": { HOSTNAME: "host-1" } },
        }))
        .unwrap();
        let volume = |term: serde_json::Value| -> PersistentVolume {
            let affinity = json!({ "required": { "nodeSelectorTerms": [term] } });
            serde_json::from_value(json!({ "spec": { "nodeAffinity": affinity } })).unwrap()
        };
        let expression = |key: &str, operator: &str, value: &str| {
            let term = json!({ "key": key, "operator": operator, "values": [value] });
            volume(json!({ "matchExpressions": [term] }))
        };
        let field = json!({ "key": "metadata.name", "operator": "In", "values": ["n1"] });
        let rows = [
            (expression(HOSTNAME, "In", "host-1"), true),
            (expression("topology.hostpath.csi/node", "In", "n1"), true),
            (expression(HOSTNAME, "In", "host-2"), false),
            (expression(HOSTNAME, "NotIn", "host-1"), false),
            (expression("topology.kubernetes.io/zone", "In", "a"), false),
            (volume(json!({ "matchFields": [field] })), true),
            (PersistentVolume::default(), false),
        ];
        for (volume, expected) in rows {
            assert_eq!(is_bound_to(&volume, &node), expected, "{volume:?}");
        }
    }
}
