//! The facts about a node that a drain is decided on.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::Node},
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::api::{Api, ListParams};
use serde::Deserialize;
use wharf_core::drain::{Controller, NodeFacts, PodFacts, PodRef, Snapshot};

use super::Drain;
use crate::{
    cordon::{is_unschedulable, mark},
    error::Result,
};

/// Kubelet puts it on the picture of a static pod.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

/// What is needed of a pod; the rest is not kept.
#[derive(Deserialize)]
struct PodSeen {
    metadata: Meta,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
    deletion_timestamp: Option<Time>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

#[derive(Deserialize)]
struct Status {
    phase: Option<String>,
}

impl Drain<'_> {
    pub(super) async fn observe(&mut self) -> Result<Snapshot> {
        let node = match self.cluster.node(self.node).await {
            Err(error) if error.is_not_found() => return Ok(Snapshot::default()),
            node => node?,
        };
        let here = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let seen: Vec<PodSeen> = self.cluster.list("/api/v1/pods", here).await?;
        let mut pods = Vec::with_capacity(seen.len());
        for pod in seen {
            pods.push(self.facts(pod).await?);
        }
        // The memory of pods that are gone is of no use.
        self.tries.retain(|uid, _| pods.iter().any(|pod| pod.pod.uid == *uid));
        let node = NodeFacts {
            name: self.node.to_owned(),
            unschedulable: is_unschedulable(&node),
            cordon: mark(&node),
            unready_since: unready_since(&node),
        };
        let empty_since = self.empty_since;
        Ok(Snapshot { node: Some(node), pods, empty_since, ..Snapshot::default() })
    }

    async fn facts(&mut self, seen: PodSeen) -> Result<PodFacts> {
        let Meta { namespace, name, uid, deletion_timestamp, annotations, owner_references } =
            seen.metadata;
        let owner = owner_references.into_iter().find(|owner| owner.controller == Some(true));
        let controller = match owner {
            None => Controller::None,
            Some(owner) => self.controller(&namespace, &owner).await?,
        };
        let phase = seen.status.and_then(|status| status.phase);
        Ok(PodFacts {
            controller,
            mirror: annotations.contains_key(MIRROR),
            finished: matches!(phase.as_deref(), Some("Succeeded" | "Failed")),
            terminating: deletion_timestamp.is_some(),
            last_try: self.tries.get(&uid).cloned(),
            pod: PodRef { namespace, name, uid },
            ..PodFacts::default()
        })
    }

    async fn controller(&mut self, namespace: &str, owner: &OwnerReference) -> Result<Controller> {
        match owner.kind.as_str() {
            "Job" => Ok(Controller::Job),
            "DaemonSet" if self.is_set_there(namespace, owner).await? => Ok(Controller::DaemonSet),
            // Nobody makes this pod again, so it leaves like any other.
            "DaemonSet" => Ok(Controller::None),
            _ => Ok(Controller::Other),
        }
    }

    async fn is_set_there(&mut self, namespace: &str, owner: &OwnerReference) -> Result<bool> {
        if let Some(there) = self.sets.get(&owner.uid) {
            return Ok(*there);
        }
        let api: Api<DaemonSet> = Api::namespaced(self.cluster.client.clone(), namespace);
        let what = format!("read daemon set {namespace}/{}", owner.name);
        let found = self.cluster.call(what, api.get_metadata_opt(&owner.name)).await?;
        let there = found.and_then(|set| set.metadata.uid).is_some_and(|uid| uid == owner.uid);
        self.sets.insert(owner.uid.clone(), there);
        Ok(there)
    }
}

/// A node whose kubelet never said anything may be about to come.
fn unready_since(node: &Node) -> Option<Timestamp> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    (ready.status != "True").then_some(ready.last_transition_time.as_ref()?.0)
}
