//! Taking a dead machine out of service: the taint by which Kubernetes deletes its pods and
//! detaches its volumes at once.
//!
//! Assumption: whoever fences knows that nothing runs on the machine any more. Kubernetes does not
//! check it, and a volume that is attached twice loses data.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::json;

use crate::{cluster::Cluster, error::Result};

pub(crate) const TAINT: &str = "node.kubernetes.io/out-of-service";
/// The value of ours; a taint with another is somebody else's.
const OURS: &str = "wharf";
/// Conflicts with other writers of the Node pass at once.
const PERSIST: Duration = Duration::from_secs(10);

pub(crate) fn is_ours(key: &str, value: Option<&str>) -> bool {
    key == TAINT && value == Some(OURS)
}

impl Cluster {
    /// Marks a node as out of service. One that somebody else has marked so stays theirs.
    ///
    /// # Errors
    /// There is no such Node, or the API server does not answer or refuses.
    pub async fn fence(&self, name: &str) -> Result<()> {
        self.persist(PERSIST, || async {
            let node = self.node(name).await?;
            let mut taints = taints(&node);
            if taints.iter().any(|taint| taint.key == TAINT) {
                return Ok(());
            }
            taints.push(Taint {
                key: TAINT.to_owned(),
                value: Some(OURS.to_owned()),
                effect: "NoExecute".to_owned(),
                time_added: None,
            });
            self.put_taints(name, &node, &taints).await
        })
        .await
    }

    /// Takes our mark back, and only ours.
    ///
    /// # Errors
    /// The API server does not answer or refuses. A Node that is gone is no error.
    pub async fn unfence(&self, name: &str) -> Result<()> {
        self.persist(PERSIST, || async {
            let node = match self.node(name).await {
                Err(error) if error.is_not_found() => return Ok(()),
                node => node?,
            };
            let mut left = taints(&node);
            left.retain(|taint| !is_ours(&taint.key, taint.value.as_deref()));
            if left == taints(&node) {
                return Ok(());
            }
            self.put_taints(name, &node, &left).await
        })
        .await
    }

    async fn put_taints(&self, name: &str, node: &Node, taints: &[Taint]) -> Result<()> {
        let patch = json!({ "metadata": {}, "spec": { "taints": taints } });
        self.patch_node(name, node, patch).await
    }
}

fn taints(node: &Node) -> Vec<Taint> {
    node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default()
}
