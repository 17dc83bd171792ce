//! Waiting for Deployments, and for containers to end.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, PodStatus},
};
use kube::api::{Api, LogParams};

use crate::{cluster::Cluster, error::Result};

/// No more of a log is read: its last lines, and of those so many bytes.
const LOG_LINES: i64 = 500;
const LOG_BYTES: i64 = 64 << 10;

/// A container that ran to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerEnd {
    pub exit_code: i32,
    pub log: String,
}

impl Cluster {
    /// Waits until a Deployment has all its pods, all of its newest revision.
    ///
    /// # Errors
    /// [`NotReached`](crate::KubeError::NotReached) says how many there are.
    pub async fn wait_deployment_ready(
        &self,
        namespace: &str,
        name: &str,
        within: Duration,
    ) -> Result<()> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        let what = format!("deployment {namespace}/{name} being ready");
        self.wait_until(what, within, || async {
            let read = api.get_opt(name);
            let found = self.call(format!("read deployment {namespace}/{name}"), read).await?;
            Ok(found.map_or_else(|| Err(vec!["there is none".to_owned()]), |it| is_ready(&it)))
        })
        .await
    }

    /// Waits until a container of a pod has ended, and reads its log.
    ///
    /// # Errors
    /// [`NotReached`](crate::KubeError::NotReached) says what the pod waits for.
    pub async fn wait_container_end(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        within: Duration,
    ) -> Result<ContainerEnd> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let what = format!("the end of {container} in pod {pod}");
        let exit_code = self.wait_until(what, within, || async {
            let read = self.call(format!("read pod {pod}"), api.get_opt(pod)).await?;
            let Some(found) = read else { return Ok(Err(vec!["there is none".to_owned()])) };
            let status = found.status.unwrap_or_default();
            Ok(end_of(&status, container).ok_or_else(|| vec![explain(&status)]))
        });
        let exit_code = exit_code.await?;
        let params = LogParams {
            container: Some(container.to_owned()),
            tail_lines: Some(LOG_LINES),
            limit_bytes: Some(LOG_BYTES),
            ..LogParams::default()
        };
        let log = self.call(format!("read the log of pod {pod}"), api.logs(pod, &params)).await?;
        Ok(ContainerEnd { exit_code, log })
    }
}

/// The exit code of a container that has ended.
fn end_of(status: &PodStatus, container: &str) -> Option<i32> {
    let mut containers = status.container_statuses.iter().flatten();
    let found = containers.find(|found| found.name == container)?;
    Some(found.state.as_ref()?.terminated.as_ref()?.exit_code)
}

/// Why a container has not ended: the phase of its pod and what that waits for.
pub(crate) fn explain(status: &PodStatus) -> String {
    let containers = status.container_statuses.iter().flatten();
    let waiting = containers.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.clone().unwrap_or_default();
        Some(format!("{reason} {}", waiting.message.clone().unwrap_or_default()))
    });
    let conditions = status.conditions.iter().flatten();
    let unscheduled = conditions
        .filter(|condition| condition.type_ == "PodScheduled" && condition.status != "True")
        .filter_map(|condition| condition.message.clone());
    let reasons: Vec<String> = waiting.chain(unscheduled).collect();
    let phase = status.phase.as_deref().unwrap_or("Pending");
    format!("its phase is {phase} {}", reasons.join(", ")).trim_end().to_owned()
}

fn is_ready(deployment: &Deployment) -> std::result::Result<(), Vec<String>> {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = deployment.status.clone().unwrap_or_default();
    if status.observed_generation < deployment.metadata.generation {
        return Err(vec!["its controller has not looked at it".to_owned()]);
    }
    let count = |replicas: Option<i32>| replicas.unwrap_or_default();
    let (updated, available) = (count(status.updated_replicas), count(status.available_replicas));
    if updated == wanted && available == wanted && count(status.replicas) == wanted {
        return Ok(());
    }
    Err(vec![format!("{available} of {wanted} pods are available, {updated} up to date")])
}
