//! Evicting a pod, and who says no.

use std::collections::BTreeMap;

use http::Request;
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    api::{Api, DeleteParams, ListParams, Preconditions},
    core::{Selector, SelectorExt, Status},
};
use serde_json::{Value, json};
use wharf_core::drain::{Budget, PodRef};

use crate::{
    cluster::Cluster,
    error::{KubeError, Result},
};

/// The answer to an eviction. A refusal is an answer, not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eviction {
    /// The pod is on its way out; in a rehearsal, it could be.
    Accepted,
    /// This very pod is not there any more; another of its name is left alone.
    Gone,
    Refused {
        budgets: Vec<Budget>,
        message: String,
    },
}

impl Cluster {
    /// Evicts a pod by its UID, within the budgets that protect it. With `rehearse` it is only
    /// asked whether that would be allowed.
    ///
    /// # Errors
    /// Anything but an acceptance or a refusal.
    pub async fn evict(&self, pod: &PodRef, rehearse: bool) -> Result<Eviction> {
        let what = || format!("evict pod {pod}");
        let evict = async {
            match self.client.request::<Value>(eviction(pod, rehearse)?).await {
                Err(kube::Error::Api(status)) => Ok(Err(status)),
                other => other.map(Ok),
            }
        };
        match self.call(what(), evict).await? {
            Ok(_) => Ok(Eviction::Accepted),
            Err(status) if status.code == 429 => self.refusal(pod, &status).await,
            // Two budgets on one pod are answered as a fault of the server; it is a refusal.
            Err(status) if status.code == 500 => match self.budgets_of(pod).await? {
                budgets if budgets.len() > 1 => {
                    Ok(Eviction::Refused { budgets, message: status.message })
                }
                _ => Err(KubeError::of(what(), kube::Error::Api(status))),
            },
            Err(status) if matches!(status.code, 404 | 409) && self.is_gone(pod).await? => {
                Ok(Eviction::Gone)
            }
            Err(status) => Err(KubeError::of(what(), kube::Error::Api(status))),
        }
    }

    /// Deletes a pod by its UID, past the budgets that protect it.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn delete_pod(&self, pod: &PodRef, grace_seconds: Option<u32>) -> Result<Eviction> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        let how = DeleteParams {
            grace_period_seconds: grace_seconds,
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        match self.call(format!("delete pod {pod}"), api.delete(&pod.name, &how)).await {
            Ok(_) => Ok(Eviction::Accepted),
            Err(error) if error.is_not_found() || self.is_gone(pod).await? => Ok(Eviction::Gone),
            Err(error) => Err(error),
        }
    }

    /// Whether no pod with this UID is there.
    async fn is_gone(&self, pod: &PodRef) -> Result<bool> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let found = self.call(format!("read pod {pod}"), api.get_opt(&pod.name)).await?;
        Ok(found.and_then(|found| found.metadata.uid).is_none_or(|uid| uid != pod.uid))
    }

    async fn refusal(&self, pod: &PodRef, status: &Status) -> Result<Eviction> {
        // A busy API server answers 429 as well; only a budget gives this cause.
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let causes: Vec<_> = causes.filter(|cause| cause.reason == "DisruptionBudget").collect();
        let mut message = status.message.clone();
        for cause in &causes {
            message = format!("{message} {}", cause.message);
        }
        let budgets = if causes.is_empty() { Vec::new() } else { self.budgets_of(pod).await? };
        Ok(Eviction::Refused { budgets, message })
    }

    /// The budgets that cover a pod.
    async fn budgets_of(&self, pod: &PodRef) -> Result<Vec<Budget>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let found = self.call(format!("read pod {pod}"), pods.get_opt(&pod.name)).await?;
        let labels = found.and_then(|found| found.metadata.labels).unwrap_or_default();
        let api: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &pod.namespace);
        let what = format!("list the budgets of {}", pod.namespace);
        let list = self.call(what, api.list(&ListParams::default())).await?;
        Ok(list.items.into_iter().filter(|one| covers(one, &labels)).map(budget).collect())
    }
}

/// The library's own eviction request spells `deleteOptions` in a way that API servers ignore, and
/// the condition on the UID with it.
fn eviction(pod: &PodRef, rehearse: bool) -> std::result::Result<Request<Vec<u8>>, kube::Error> {
    let PodRef { namespace, name, uid } = pod;
    let dry_run = if rehearse { "?dryRun=All" } else { "" };
    let body = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "namespace": namespace, "name": name },
        "deleteOptions": { "preconditions": { "uid": uid } },
    });
    Request::post(format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction{dry_run}"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body.to_string().into_bytes())
        .map_err(kube::Error::HttpError)
}

fn covers(budget: &PodDisruptionBudget, labels: &BTreeMap<String, String>) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
    // No selector selects nothing, an empty one selects all.
    selector
        .and_then(|selector| Selector::try_from(selector).ok())
        .is_some_and(|selector| selector.matches(labels))
}

fn budget(budget: PodDisruptionBudget) -> Budget {
    Budget {
        name: budget.metadata.name.unwrap_or_default(),
        allowed: budget.status.map_or(0, |status| status.disruptions_allowed),
    }
}
