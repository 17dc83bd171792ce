//! Evicting a pod, and who says no.

use std::time::Duration;

use http::{Method, Request, header};
use kube::{client::Body, core::Status};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::json;
use wharf_core::drain::PodRef;

use crate::{
    cluster::{Cluster, JSON},
    error::{KubeError, Result},
};

/// The cause that a budget gives; a busy API server answers with the same code.
const BUDGET: &str = "DisruptionBudget";
/// The cause that is given in a namespace that is being deleted.
const NAMESPACE_ENDS: &str = "NamespaceTerminating";

/// The answer to an eviction. A refusal is an answer, not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eviction {
    /// The pod is on its way out; in a rehearsal, it could be.
    Accepted,
    /// This very pod is not there any more; another of its name is left alone.
    Gone,
    /// A budget says no. The message names it.
    Refused { message: String },
    /// Nobody says no, but it is not the time.
    Later { message: String, after: Option<Duration> },
}

impl Cluster {
    /// Evicts a pod by its UID, within the budgets that protect it. `grace_seconds` takes the place
    /// of its own grace period.
    ///
    /// # Errors
    /// Anything but an acceptance or a refusal. A pod that more than one budget covers is answered
    /// with 500.
    pub async fn evict(&self, pod: &PodRef, grace_seconds: Option<u32>) -> Result<Eviction> {
        let mut options = json!({ "preconditions": { "uid": pod.uid } });
        if let Some(options) = options.as_object_mut()
            && let Some(seconds) = grace_seconds
        {
            options.insert("gracePeriodSeconds".to_owned(), json!(seconds));
        }
        self.ask_for_eviction(pod, &options, "").await
    }

    /// Asks whether a pod could be evicted, without doing it.
    ///
    /// # Errors
    /// As [`Cluster::evict`].
    pub async fn rehearse_eviction(&self, pod: &PodRef) -> Result<Eviction> {
        let options = json!({ "preconditions": { "uid": pod.uid } });
        self.ask_for_eviction(pod, &options, "?dryRun=All").await
    }

    async fn ask_for_eviction(
        &self,
        pod: &PodRef,
        options: &serde_json::Value,
        query: &str,
    ) -> Result<Eviction> {
        let what = || format!("evict pod {pod}");
        let (status, after) = match self.call(what(), self.post(pod, options, query)).await? {
            Ok(()) => return Ok(Eviction::Accepted),
            Err(refusal) => refusal,
        };
        let details = status.details.as_ref();
        let causes = || details.iter().flat_map(|details| &details.causes);
        let has_cause = |reason: &str| causes().any(|cause| cause.reason == reason);
        let causes = causes().map(|cause| cause.message.as_str());
        let message = || {
            let all: Vec<&str> = std::iter::once(status.message.as_str()).chain(causes).collect();
            all.join(" ")
        };
        match status.code {
            // A budget that its controller has not looked at says when to come back.
            429 if has_cause(BUDGET) && after.is_none() => {
                Ok(Eviction::Refused { message: message() })
            }
            429 => Ok(Eviction::Later { message: message(), after }),
            403 if has_cause(NAMESPACE_ENDS) => Ok(Eviction::Later { message: message(), after }),
            404 | 409 if self.is_gone(pod).await? => Ok(Eviction::Gone),
            _ => Err(KubeError::of(what(), kube::Error::Api(status.boxed()))),
        }
    }

    /// The library's own eviction request spells `deleteOptions` in a way that API servers ignore,
    /// and the condition on the UID with it. It also keeps no headers.
    async fn post(
        &self,
        pod: &PodRef,
        options: &serde_json::Value,
        query: &str,
    ) -> std::result::Result<std::result::Result<(), (Status, Option<Duration>)>, kube::Error> {
        let PodRef { namespace, name, .. } = pod;
        let body = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "namespace": namespace, "name": name },
            "deleteOptions": options,
        });
        let path = format!("{}/eviction{query}", path_of(pod));
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string().into_bytes()))
            .map_err(kube::Error::HttpError)?;
        let answer = self.client.send(request).await?;
        let code = answer.status();
        let after = answer.headers().get(header::RETRY_AFTER);
        let after = after.and_then(|value| value.to_str().ok()?.parse().ok());
        let after = after.map(Duration::from_secs).filter(|after| !after.is_zero());
        let text = answer.into_body().collect_bytes().await?;
        if code.is_success() {
            return Ok(Ok(()));
        }
        // What stands between us and the API server, or a busy one, answers in plain words.
        let mut status = serde_json::from_slice(&text).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(&text).trim().to_owned(),
            ..Status::default()
        });
        status.code = code.as_u16();
        Ok(Err((status, after)))
    }

    /// Deletes a pod by its UID, past the budgets that protect it.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn delete_pod(&self, pod: &PodRef, grace_seconds: Option<u32>) -> Result<Eviction> {
        let how = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": { "uid": pod.uid },
            "gracePeriodSeconds": grace_seconds,
        });
        let what = format!("delete pod {pod}");
        match self.send::<IgnoredAny>(what, Method::DELETE, &path_of(pod), JSON, &how).await {
            Ok(_) => Ok(Eviction::Accepted),
            Err(error) if error.is_not_found() => Ok(Eviction::Gone),
            Err(error) if error.code() == Some(409) && self.is_gone(pod).await? => {
                Ok(Eviction::Gone)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether no pod with this UID is there.
    pub(crate) async fn is_gone(&self, pod: &PodRef) -> Result<bool> {
        #[derive(Deserialize)]
        struct Pod {
            metadata: Identity,
        }
        #[derive(Deserialize)]
        struct Identity {
            uid: String,
        }
        let found = self.get::<Pod>(&path_of(pod)).await?;
        Ok(found.is_none_or(|found| found.metadata.uid != pod.uid))
    }
}

fn path_of(pod: &PodRef) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}
