//! The lease of an agent that holds volumes: until when it may, and in which tenure.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use kube::api::ListParams;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{NAMESPACE, Written, record::put};
use crate::{
    cluster::{Cluster, JSON, MERGE},
    error::Result,
};

const VERSION: &str = "coordination.k8s.io/v1";
/// Before the name of the node.
const PREFIX: &str = "volumes-";

/// As somebody reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentLease {
    pub tenure: u64,
    /// By the clock of the agent.
    pub renewed: Timestamp,
    pub duration: Duration,
    version: String,
}

impl Cluster {
    /// The lease of a node's agent; `None` when there is none.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn agent_lease(&self, node: &str) -> Result<Option<AgentLease>> {
        Ok(self.get::<Object>(&path(node)).await?.map(AgentLease::from))
    }

    /// The leases of all agents, by their nodes.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn agent_leases(&self) -> Result<Vec<(String, AgentLease)>> {
        let objects: Vec<Object> = self.list(&path(""), ListParams::default()).await?;
        Ok(objects.into_iter().filter_map(Object::named).collect())
    }

    /// Deletes the lease of an agent that was seen, if it was not renewed since.
    ///
    /// # Errors
    /// The API server does not answer or refuses for another reason than that somebody was faster.
    pub async fn delete_agent_lease(&self, node: &str, seen: &AgentLease) -> Result<Written<()>> {
        let options = json!({ "preconditions": { "resourceVersion": seen.version } });
        let what = format!("delete the lease of node {node}");
        let deleted = self.send::<Value>(what, Method::DELETE, &path(node), JSON, &options).await;
        Written::of(deleted.map(drop))
    }

    /// Renews or takes the lease of our node, if it is still as it was seen.
    ///
    /// # Errors
    /// The API server does not answer or refuses for another reason than that somebody was faster.
    pub async fn write_agent_lease(
        &self,
        node: &str,
        seen: Option<&AgentLease>,
        tenure: u64,
        duration: Duration,
        now: Timestamp,
    ) -> Result<Written<AgentLease>> {
        let mut metadata = json!({ "name": name(node) });
        let (method, path, kind) = match seen {
            None => (Method::POST, path(""), JSON),
            Some(seen) => {
                put(&mut metadata, "resourceVersion", &seen.version);
                (Method::PATCH, path(node), MERGE)
            }
        };
        // The API server takes six digits and nothing else.
        let object = json!({
            "apiVersion": VERSION, "kind": "Lease", "metadata": metadata,
            "spec": {
                "holderIdentity": node, "leaseDurationSeconds": duration.as_secs(),
                "renewTime": format!("{now:.6}"), "leaseTransitions": tenure,
            },
        });
        let what = format!("renew the lease of node {node}");
        let written = self.send::<Object>(what, method, &path, kind, &object).await;
        Written::of(written.map(AgentLease::from))
    }
}

fn name(node: &str) -> String {
    format!("{PREFIX}{node}")
}

pub(super) fn path(node: &str) -> String {
    let all = format!("/apis/{VERSION}/namespaces/{NAMESPACE}/leases");
    if node.is_empty() { all } else { format!("{all}/{}", name(node)) }
}

#[derive(Deserialize)]
pub(super) struct Object {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    resource_version: String,
}

impl Object {
    /// With the node that it is of; `None` for another lease of the namespace.
    pub fn named(self) -> Option<(String, AgentLease)> {
        let node = self.metadata.name.strip_prefix(PREFIX)?.to_owned();
        Some((node, self.into()))
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    lease_duration_seconds: u64,
    lease_transitions: u64,
    renew_time: Option<Timestamp>,
}

impl From<Object> for AgentLease {
    /// What somebody else wrote there without a time was renewed never.
    fn from(object: Object) -> Self {
        Self {
            tenure: object.spec.lease_transitions,
            renewed: object.spec.renew_time.unwrap_or(Timestamp::UNIX_EPOCH),
            duration: Duration::from_secs(object.spec.lease_duration_seconds),
            version: object.metadata.resource_version,
        }
    }
}
