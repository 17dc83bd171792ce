//! Agents on clusters that Wharf did not install: the functions that the API calls.
//!
//! Flow: the manifests are rendered by `wharf_core::install::manifests` and applied to the cluster;
//! how far the DaemonSet is, is asked of the cluster at every look. Nothing of it is stored here.
//!
//! Guarantees: neither agents nor their rights are removed while a volume is in use, whoever deleted
//! the DaemonSet. Rights go after the pods, which need them to leave their hosts in order. Agents that
//! an installer put on hosts are left alone, with their rights.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use wharf_api::error::{ErrorCode, FieldFault};
use wharf_core::{
    access::AuditRecord,
    cluster::Origin,
    install::{
        manifests::{AGENTS, render_agent_pods, render_agent_removal},
        pod_agent::{AgentPods, LABEL, NAME, NAMESPACE},
    },
};
use wharf_kube::{Cluster, DaemonPod, DaemonSetSeen, KubeError, volumes::Volumes};
use wharf_store::Txn;

use crate::{
    access::{Caller, audit},
    app::AppState,
    clusters,
    error::{ApiError, ApiResult, chain},
};

/// Below the limit of a request, with room for what is asked besides.
const PATIENCE: Duration = Duration::from_secs(20);
/// A refusal names so many holders; `wharf volume list` has all.
const MOST_NAMED: usize = 5;

/// The DaemonSet and its pods at one moment.
pub struct Looked {
    pub cluster: String,
    pub daemon_set: DaemonSetSeen,
    pub pods: Vec<DaemonPod>,
    /// What was just applied.
    pub changed: Vec<String>,
}

/// How far a removal is.
pub struct Removal {
    pub done: bool,
    pub waiting: Vec<String>,
    pub kept: Vec<String>,
}

/// The manifests of a wish; nothing is touched.
pub async fn render(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    wish: &AgentPods,
) -> ApiResult<String> {
    imported(app, caller, cluster).await?;
    check(wish)?;
    Ok(render_agent_pods(wish))
}

/// Applies the manifests of a wish.
pub async fn install(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    wish: &AgentPods,
) -> ApiResult<Looked> {
    let manifests = render(app, caller, cluster, wish).await?;
    let api = clusters::reach(app, caller, cluster).await?;
    refuse_installed(&api, cluster).await?;
    refuse_leaving(&api, cluster).await?;
    record(app, caller, cluster, "agent.install").await?;
    let applied = ask(cluster, api.apply(&manifests, PATIENCE)).await?;
    let mut looked = look_by(&api, cluster).await?.ok_or_else(|| none(cluster))?;
    looked.changed = applied.changed;
    Ok(looked)
}

/// How far the DaemonSet is.
pub async fn look(app: &AppState, caller: &Caller, cluster: &str) -> ApiResult<Looked> {
    let api = clusters::reach(app, caller, cluster).await?;
    look_by(&api, cluster).await?.ok_or_else(|| none(cluster))
}

async fn look_by(api: &Cluster, cluster: &str) -> ApiResult<Option<Looked>> {
    let Some(daemon_set) = ask(cluster, api.daemon_set(NAMESPACE, NAME)).await? else {
        return Ok(None);
    };
    let pods = ask(cluster, api.daemon_pods(NAMESPACE, LABEL)).await?;
    Ok(Some(Looked { cluster: cluster.to_owned(), daemon_set, pods, changed: Vec::new() }))
}

/// Takes the agents away, as far as that can be done now: first the DaemonSet; when its pods have
/// left their hosts, their rights; and the kinds of volumes if nothing is kept in them.
pub async fn remove(app: &AppState, caller: &Caller, cluster: &str) -> ApiResult<Removal> {
    imported(app, caller, cluster).await?;
    let api = clusters::reach(app, caller, cluster).await?;
    refuse_installed(&api, cluster).await?;
    // Agents outlive a DaemonSet that somebody deleted while they held volumes: without their rights
    // they would lose their leases.
    let volumes = ask(cluster, api.look_at_volumes()).await?;
    refuse_held(&volumes, cluster)?;
    let daemon_set = ask(cluster, api.daemon_set(NAMESPACE, NAME)).await?;
    if daemon_set.as_ref().is_some_and(|found| !found.deleting) {
        record(app, caller, cluster, "agent.remove").await?;
        ask(cluster, api.delete_daemon_set(NAMESPACE, NAME)).await?;
    }
    let pods = ask(cluster, api.daemon_pods(NAMESPACE, LABEL)).await?;
    let waiting: BTreeSet<String> = pods.into_iter().map(|pod| pod.node).collect();
    if !waiting.is_empty() || daemon_set.is_some_and(|found| found.deleting) {
        return Ok(Removal {
            done: false,
            waiting: waiting.into_iter().collect(),
            kept: Vec::new(),
        });
    }
    let kept = volumes.records();
    record(app, caller, cluster, "agent.remove").await?;
    let manifests = render_agent_removal(!kept.is_empty());
    match tokio::time::timeout(PATIENCE, api.delete(&manifests, PATIENCE)).await {
        Ok(Ok(_)) => Ok(Removal { done: true, waiting: Vec::new(), kept }),
        // A namespace takes its time. Whoever asks again finds it gone.
        Ok(Err(KubeError::NotReached { .. })) | Err(_) => {
            Ok(Removal { done: false, waiting: Vec::new(), kept })
        }
        Ok(Err(error)) => Err(refused(cluster, &error)),
    }
}

fn refuse_held(volumes: &Volumes, cluster: &str) -> ApiResult<()> {
    let held = volumes.held();
    if held.is_empty() {
        return Ok(());
    }
    let names = held.iter().take(MOST_NAMED).map(|(volume, node)| format!("{volume} on {node}"));
    let names = names.collect::<Vec<_>>().join(", ");
    let more = if held.len() > MOST_NAMED { " and more" } else { "" };
    let message = format!("volumes are in use, and would be cut off without agents: {names}{more}");
    Err(ApiError::new(ErrorCode::Conflict, message).hint(format!(
        "end the pods that use them first; `wharf volume why` says who holds a volume that nobody \
         uses. Where the DaemonSet is gone already, `wharf cluster agent install {cluster}` brings \
         back who renews the agents' tokens"
    )))
}

/// A cluster that Wharf installed, forgot and took in again has its agents already.
async fn refuse_installed(api: &Cluster, cluster: &str) -> ApiResult<()> {
    if !ask(cluster, api.binds_group(AGENTS, AGENTS)).await? {
        return Ok(());
    }
    let message = format!(
        "cluster {cluster} has agents of an installer: the ClusterRoleBinding {AGENTS} gives rights \
         to them"
    );
    Err(ApiError::new(ErrorCode::Conflict, message).hint(format!(
        "they serve its volumes. If none is left on any host, `kubectl delete clusterrolebinding \
         {AGENTS}` says so"
    )))
}

/// Pods of a DaemonSet that is gone take the agents from their hosts, also new ones.
async fn refuse_leaving(api: &Cluster, cluster: &str) -> ApiResult<()> {
    let daemon_set = ask(cluster, api.daemon_set(NAMESPACE, NAME)).await?;
    if daemon_set.as_ref().is_some_and(|found| !found.deleting) {
        return Ok(());
    }
    let pods = ask(cluster, api.daemon_pods(NAMESPACE, LABEL)).await?;
    if pods.is_empty() && daemon_set.is_none() {
        return Ok(());
    }
    let nodes: BTreeSet<String> = pods.into_iter().map(|pod| pod.node).collect();
    let nodes: Vec<String> = nodes.into_iter().take(MOST_NAMED).collect();
    let on = if nodes.is_empty() { String::new() } else { format!(" on {}", nodes.join(", ")) };
    let message = format!("agents of cluster {cluster} are still being removed{on}");
    Err(ApiError::new(ErrorCode::Conflict, message).hint(format!(
        "`wharf cluster agent remove {cluster}` waits for it; a node that is away keeps its pod"
    )))
}

/// Agents of clusters that Wharf installed come with the installation.
async fn imported(app: &AppState, caller: &Caller, cluster: &str) -> ApiResult<()> {
    let record = clusters::get_served(app, caller, cluster).await?;
    match record.value.origin {
        Origin::Imported => Ok(()),
        Origin::Installed => {
            let message = format!(
                "cluster {cluster} was installed by Wharf: its nodes have their agents from the \
                 installer"
            );
            Err(ApiError::denied(message).hint("`wharf node list` shows how they are"))
        }
    }
}

fn check(wish: &AgentPods) -> ApiResult<()> {
    let faults: Vec<FieldFault> = wish
        .faults()
        .into_iter()
        .map(|fault| FieldFault {
            field: fault.field,
            code: ErrorCode::InvalidFormat,
            message: fault.message,
        })
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(ApiError::invalid(faults)) }
}

async fn record(app: &AppState, caller: &Caller, cluster: &str, action: &str) -> ApiResult<()> {
    let now = Timestamp::now();
    let record = AuditRecord {
        cluster: Some(cluster.to_owned()),
        ..audit::record_of(caller, action, &format!("cluster/{cluster}"), now)
    };
    app.commit_with(record, Txn::new(), now).await.map(drop)
}

async fn ask<T>(
    cluster: &str,
    question: impl Future<Output = Result<T, KubeError>>,
) -> ApiResult<T> {
    clusters::ask(cluster, PATIENCE, question, |error| refused(cluster, &error)).await
}

fn none(cluster: &str) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("cluster {cluster} has no DaemonSet of agents"))
        .hint(format!("`wharf cluster agent install {cluster} --image REF` makes it"))
}

/// A cluster that says no is there.
fn refused(cluster: &str, error: &KubeError) -> ApiError {
    if !error.code().is_some_and(|code| (400..500).contains(&code)) {
        return clusters::away(cluster, &chain(error));
    }
    let message = format!("cluster {cluster} refuses: {}", chain(error));
    ApiError::new(ErrorCode::Conflict, message).hint(
        "the agent needs privileged pods, and the cluster's kubeconfig the right to make them",
    )
}
