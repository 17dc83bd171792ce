//! Agents that run from a DaemonSet: their tokens, how far the DaemonSet is, and whether there are
//! others.

use std::{collections::BTreeMap, time::Duration};

use http::{Method, Request};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Pod, rbac::v1::ClusterRoleBinding};
use kube::api::ListParams;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, JSON},
    error::{KubeError, Result},
    workload::explain,
};

/// A token of a ServiceAccount.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuedToken {
    pub token: String,
    #[serde(rename = "expirationTimestamp")]
    pub expires_at: Timestamp,
}

/// How far a DaemonSet is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonSetSeen {
    pub deleting: bool,
    /// Whether its controller has seen it as it is; if not, the numbers tell of what it was.
    pub is_settled: bool,
    pub node_selector: BTreeMap<String, String>,
    /// Of the first container.
    pub image: String,
    /// How many nodes it is for.
    pub desired: u32,
    /// How many pods are of its newest revision.
    pub updated: u32,
    pub ready: u32,
}

/// A pod of a DaemonSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonPod {
    pub name: String,
    pub node: String,
    pub ready: bool,
    pub deleting: bool,
    /// What it waits for, if it is not ready.
    pub reason: String,
}

impl Cluster {
    /// Asks for a token of a ServiceAccount that is bound to nothing else. The API server may give a
    /// shorter one.
    ///
    /// # Errors
    /// There is no such account, or the API server refuses.
    pub async fn issue_token(
        &self,
        namespace: &str,
        account: &str,
        lifetime: Duration,
    ) -> Result<IssuedToken> {
        #[derive(Deserialize)]
        struct Answer {
            status: IssuedToken,
        }
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": { "expirationSeconds": lifetime.as_secs() },
        });
        let what = format!("ask for a token of {namespace}/{account}");
        let answer: Answer = self.send(what, Method::POST, &path, JSON, &body).await?;
        Ok(answer.status)
    }

    /// How far a DaemonSet is; `None` if there is none.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn daemon_set(&self, namespace: &str, name: &str) -> Result<Option<DaemonSetSeen>> {
        let found = self.get::<DaemonSet>(&daemon_set_path(namespace, name)).await?;
        Ok(found.map(DaemonSetSeen::from))
    }

    /// Begins to delete a DaemonSet and its pods. Says whether it was there.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn delete_daemon_set(&self, namespace: &str, name: &str) -> Result<bool> {
        let what = format!("delete DaemonSet {namespace}/{name}");
        let path = format!("{}?propagationPolicy=Background", daemon_set_path(namespace, name));
        let request = Request::delete(path).body(Vec::new());
        let request = request
            .map_err(|error| KubeError::Answer { what: what.clone(), source: Box::new(error) })?;
        match self.call(what, self.client.request::<Value>(request)).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The pods of a namespace with these labels, by node.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn daemon_pods(&self, namespace: &str, labels: &str) -> Result<Vec<DaemonPod>> {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let found: Vec<Pod> = self.list(&path, ListParams::default().labels(labels)).await?;
        let mut pods: Vec<DaemonPod> = found.into_iter().map(DaemonPod::from).collect();
        pods.sort_by(|a, b| (&a.node, &a.name).cmp(&(&b.node, &b.name)));
        Ok(pods)
    }

    /// Whether this ClusterRoleBinding is there and gives its role to this group.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn binds_group(&self, binding: &str, group: &str) -> Result<bool> {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{binding}");
        let found = self.get::<ClusterRoleBinding>(&path).await?;
        let mut subjects = found.into_iter().flat_map(|found| found.subjects).flatten();
        Ok(subjects.any(|subject| subject.kind == "Group" && subject.name == group))
    }

    /// The labels of a Node; `None` if there is none.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn node_labels(&self, name: &str) -> Result<Option<BTreeMap<String, String>>> {
        #[derive(Deserialize)]
        struct Node {
            metadata: Labelled,
        }
        #[derive(Deserialize)]
        struct Labelled {
            #[serde(default)]
            labels: BTreeMap<String, String>,
        }
        let found = self.get::<Node>(&format!("/api/v1/nodes/{name}")).await?;
        Ok(found.map(|node| node.metadata.labels))
    }
}

fn daemon_set_path(namespace: &str, name: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
}

/// What is read of a DaemonSet: all of it would be a large part of the agent's program.
#[derive(Deserialize)]
struct DaemonSet {
    metadata: DaemonSetMeta,
    spec: DaemonSetSpec,
    #[serde(default)]
    status: DaemonSetStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DaemonSetMeta {
    deletion_timestamp: Option<String>,
    #[serde(default)]
    generation: i64,
}

#[derive(Deserialize)]
struct DaemonSetSpec {
    template: Template,
}

#[derive(Deserialize)]
struct Template {
    spec: TemplateSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TemplateSpec {
    #[serde(default)]
    node_selector: BTreeMap<String, String>,
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    #[serde(default)]
    image: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct DaemonSetStatus {
    observed_generation: i64,
    desired_number_scheduled: u32,
    updated_number_scheduled: u32,
    number_ready: u32,
}

impl From<DaemonSet> for DaemonSetSeen {
    fn from(found: DaemonSet) -> Self {
        let DaemonSet { metadata, spec, status } = found;
        let TemplateSpec { node_selector, containers } = spec.template.spec;
        Self {
            deleting: metadata.deletion_timestamp.is_some(),
            is_settled: status.observed_generation >= metadata.generation,
            node_selector,
            image: containers.into_iter().next().map(|first| first.image).unwrap_or_default(),
            desired: status.desired_number_scheduled,
            updated: status.updated_number_scheduled,
            ready: status.number_ready,
        }
    }
}

impl From<Pod> for DaemonPod {
    fn from(pod: Pod) -> Self {
        let status = pod.status.unwrap_or_default();
        let ready = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        Self {
            name: pod.metadata.name.unwrap_or_default(),
            node: pod.spec.and_then(|spec| spec.node_name).unwrap_or_default(),
            ready,
            deleting: pod.metadata.deletion_timestamp.is_some(),
            reason: if ready { String::new() } else { explain(&status) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_set_is_settled_when_its_controller_has_seen_its_last_change() {
        let of = |observed: i64| {
            let found: DaemonSet = serde_json::from_value(json!({
                "metadata": { "generation": 2 },
                "spec": {
                    "selector": {},
                    "template": { "spec": {
                        "nodeSelector": { "disk": "fast" },
                        "containers": [{ "name": "agent", "image": "i" }],
                    } },
                },
                "status": {
                    "observedGeneration": observed, "desiredNumberScheduled": 3,
                    "updatedNumberScheduled": 2, "numberReady": 1,
                    "currentNumberScheduled": 3, "numberMisscheduled": 0,
                },
            }))
            .unwrap();
            DaemonSetSeen::from(found)
        };
        assert!(!of(1).is_settled);
        let seen = of(2);
        assert!(seen.is_settled && !seen.deleting);
        assert_eq!((seen.desired, seen.updated, seen.ready), (3, 2, 1));
        assert_eq!((seen.image.as_str(), seen.node_selector.len()), ("i", 1));
    }
}
