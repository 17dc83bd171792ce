//! Taking volumes from a machine, in two ways.
//!
//! A dead machine is taken out of service: the taint by which Kubernetes deletes its pods and
//! detaches its volumes at once.
//!
//! Assumption: whoever fences knows that nothing runs on the machine any more. Kubernetes does not
//! check it, and a volume that is attached twice loses data.
//!
//! A machine that may still run is marked by a taint of our own. Agents let nobody attach volumes
//! there any more, and take those from it whose storage can shut it out; storage that is not ours
//! is left alone.

use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use serde_json::json;

use crate::{cluster::Cluster, error::Result, node::Node};

pub(crate) const TAINT: &str = "node.kubernetes.io/out-of-service";
/// The value of ours; a taint with another is somebody else's.
const OURS: &str = "wharf";
/// Our own mark.
const FENCE_VOLUMES: &str = "wharf.dev/fence-volumes";
/// Conflicts with other writers of the Node pass at once.
const PERSIST: Duration = Duration::from_secs(10);

pub(crate) fn is_ours(key: &str, value: Option<&str>) -> bool {
    key == TAINT && value == Some(OURS)
}

pub(crate) fn is_our_volume_mark(key: &str, value: Option<&str>) -> bool {
    key == FENCE_VOLUMES && value == Some(OURS)
}

/// Whether a node with this taint has no right to its volumes any more.
pub(crate) fn frees_volumes(key: &str) -> bool {
    key == TAINT || key == FENCE_VOLUMES
}

impl Cluster {
    /// Marks a node as out of service. One that somebody else has marked so stays theirs.
    ///
    /// # Errors
    /// There is no such Node, or the API server does not answer or refuses.
    pub async fn fence(&self, name: &str) -> Result<()> {
        self.taint(name, TAINT, "NoExecute").await
    }

    /// Marks a node as one whose volumes of ours go to whoever needs them. Its pods stay.
    ///
    /// # Errors
    /// There is no such Node, or the API server does not answer or refuses.
    pub async fn fence_volumes(&self, name: &str) -> Result<()> {
        self.taint(name, FENCE_VOLUMES, "NoSchedule").await
    }

    /// Takes our mark back, and only ours.
    ///
    /// # Errors
    /// The API server does not answer or refuses. A Node that is gone is no error.
    pub async fn unfence(&self, name: &str) -> Result<()> {
        self.untaint(name, |taint| is_ours(&taint.key, taint.value.as_deref())).await
    }

    /// Gives a node the right to volumes back, if it was we who took it.
    ///
    /// # Errors
    /// The API server does not answer or refuses. A Node that is gone is no error.
    pub async fn unfence_volumes(&self, name: &str) -> Result<()> {
        self.untaint(name, |taint| is_our_volume_mark(&taint.key, taint.value.as_deref())).await
    }

    async fn taint(&self, name: &str, key: &str, effect: &str) -> Result<()> {
        self.persist(PERSIST, || async {
            let node = self.node(name).await?;
            let mut taints = taints(&node);
            if taints.iter().any(|taint| taint.key == key) {
                return Ok(());
            }
            taints.push(Taint {
                key: key.to_owned(),
                value: Some(OURS.to_owned()),
                effect: effect.to_owned(),
                time_added: None,
            });
            self.put_taints(name, &node, &taints).await
        })
        .await
    }

    async fn untaint(&self, name: &str, is_meant: impl Fn(&Taint) -> bool) -> Result<()> {
        self.persist(PERSIST, || async {
            let node = match self.node(name).await {
                Err(error) if error.is_not_found() => return Ok(()),
                node => node?,
            };
            let mut left = taints(&node);
            left.retain(|taint| !is_meant(taint));
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
    node.spec.taints.clone().unwrap_or_default()
}
