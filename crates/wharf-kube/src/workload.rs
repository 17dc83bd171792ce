//! Waiting for Deployments, and running a pod to its end.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Pod, PodStatus},
};
use kube::api::{Api, DeleteParams, ListParams, LogParams, PostParams};

use crate::{
    cluster::Cluster,
    error::{KubeError, Result},
};

/// No more of a log is read: its last lines, and of those so many bytes.
const LOG_LINES: i64 = 500;
const LOG_BYTES: i64 = 64 << 10;
/// To make room for a pod, or to clean up after it.
const CLEAN_UP: Duration = Duration::from_secs(30);

/// A pod that ran to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRun {
    pub succeeded: bool,
    /// Of its first container.
    pub exit_code: Option<i32>,
    pub log: String,
}

/// A pod as it is at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodObservation {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub node: Option<String>,
    pub ip: Option<String>,
    pub phase: String,
    pub ready: bool,
}

impl Cluster {
    /// The pods of a namespace that carry these labels (`app=web,tier=front`; all if empty).
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn observe_pods(&self, namespace: &str, labels: &str) -> Result<Vec<PodObservation>> {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let pods: Vec<Pod> = self.list(&path, ListParams::default().labels(labels)).await?;
        Ok(pods.into_iter().map(observe_pod).collect())
    }

    /// Waits until a Deployment has all its pods, all of its newest revision.
    ///
    /// # Errors
    /// [`KubeError::NotReached`] says how many there are.
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

    /// Waits until a DaemonSet has its pod on every node that it is for.
    ///
    /// # Errors
    /// [`KubeError::NotReached`] says how many there are.
    pub async fn wait_daemon_set_ready(
        &self,
        namespace: &str,
        name: &str,
        within: Duration,
    ) -> Result<()> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), namespace);
        let what = format!("daemon set {namespace}/{name} being ready");
        self.wait_until(what, within, || async {
            let read = api.get_opt(name);
            let found = self.call(format!("read daemon set {namespace}/{name}"), read).await?;
            Ok(found.map_or_else(|| Err(vec!["there is none".to_owned()]), |it| is_there(&it)))
        })
        .await
    }

    /// Runs a pod (YAML or JSON, with a name and `restartPolicy: Never`) to its end, reads its
    /// log and deletes it, however it ended. One of the same name that was left over goes first.
    ///
    /// # Errors
    /// It did not end in time, or the API server refuses.
    pub async fn run_pod_to_completion(&self, manifest: &str, within: Duration) -> Result<PodRun> {
        let bad = |reason: &str| KubeError::Manifest { number: 1, reason: reason.to_owned() };
        let pod: Pod = serde_saphyr::from_str(manifest).map_err(|_| bad("it is no pod"))?;
        let name = pod.metadata.name.clone().ok_or_else(|| bad("the pod has no name"))?;
        let namespace = pod.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        self.delete_pod(&api, &name).await?;
        let create = || async {
            let params = PostParams::default();
            let create = api.create(&params, &pod);
            match self.call(format!("create pod {namespace}/{name}"), create).await {
                // The answer to an earlier try was lost on its way.
                Err(error) if error.is_conflict() => Ok(()),
                created => created.map(drop),
            }
        };
        self.persist(within, create).await?;
        let run = self.watch_to_end(&api, &name, within).await;
        let cleaned = self.delete_pod(&api, &name).await;
        let run = run?;
        cleaned.map(|()| run)
    }

    async fn watch_to_end(&self, api: &Api<Pod>, name: &str, within: Duration) -> Result<PodRun> {
        let read = || self.call(format!("read pod {name}"), api.get(name));
        self.wait_until(format!("the end of pod {name}"), within, || async {
            let status = read().await?.status.unwrap_or_default();
            let phase = status.phase.clone().unwrap_or_default();
            let over = phase == "Succeeded" || phase == "Failed";
            Ok(if over { Ok(()) } else { Err(vec![explain(&phase, &status)]) })
        })
        .await?;
        let status = read().await?.status.unwrap_or_default();
        let params = LogParams {
            tail_lines: Some(LOG_LINES),
            limit_bytes: Some(LOG_BYTES),
            ..LogParams::default()
        };
        let log = self.call(format!("read the log of pod {name}"), api.logs(name, &params)).await?;
        let states = status.container_statuses.iter().flatten();
        let exit_code = states
            .filter_map(|container| container.state.as_ref()?.terminated.as_ref())
            .map(|end| end.exit_code)
            .next();
        Ok(PodRun { succeeded: status.phase.as_deref() == Some("Succeeded"), exit_code, log })
    }

    /// Deletes a pod and waits until it is gone.
    async fn delete_pod(&self, api: &Api<Pod>, name: &str) -> Result<()> {
        let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let what = format!("the deletion of pod {name}");
        self.wait_until(what, CLEAN_UP, || async {
            match self.call(format!("delete pod {name}"), api.delete(name, &params)).await {
                Err(error) if error.is_not_found() => Ok(Ok(())),
                Err(error) => Err(error),
                Ok(_) => Ok(Err(vec!["it is still there".to_owned()])),
            }
        })
        .await
    }
}

fn observe_pod(pod: Pod) -> PodObservation {
    let status = pod.status.unwrap_or_default();
    let mut conditions = status.conditions.iter().flatten();
    let ready = conditions.any(|found| found.type_ == "Ready" && found.status == "True");
    PodObservation {
        namespace: pod.metadata.namespace.unwrap_or_default(),
        name: pod.metadata.name.unwrap_or_default(),
        uid: pod.metadata.uid.unwrap_or_default(),
        node: pod.spec.and_then(|spec| spec.node_name),
        ready,
        ip: status.pod_ip,
        phase: status.phase.unwrap_or_default(),
    }
}

/// Why a pod has not ended: its phase and what its containers wait for.
fn explain(phase: &str, status: &PodStatus) -> String {
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
    let phase = if phase.is_empty() { "Pending" } else { phase };
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

fn is_there(set: &DaemonSet) -> std::result::Result<(), Vec<String>> {
    let Some(status) = &set.status else {
        return Err(vec!["its controller has not looked at it".to_owned()]);
    };
    if status.observed_generation < set.metadata.generation {
        return Err(vec!["its controller has not looked at it".to_owned()]);
    }
    let wanted = status.desired_number_scheduled;
    let updated = status.updated_number_scheduled.unwrap_or_default();
    if status.number_ready == wanted && updated == wanted {
        return Ok(());
    }
    Err(vec![format!("{} of {wanted} pods are ready, {updated} up to date", status.number_ready)])
}
