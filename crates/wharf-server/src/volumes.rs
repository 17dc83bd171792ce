//! Volumes of clusters: the functions that the API and the pages call.
//!
//! Flow: the cluster is asked at every look, and what it says is judged by
//! `wharf_core::volume::explain`; nothing of it is stored here. The agents never wait for us.
//!
//! Guarantees: a holder is set free only for a person who gave a reason, and that is in the audit
//! record before it is in the cluster. The write holds only for the record as it was seen; what
//! agents write meanwhile is looked at anew.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use wharf_api::{error::ErrorCode, volume::DetachRequest};
use wharf_core::{
    access::AuditRecord,
    cluster::health::HealthRecord,
    volume::{
        attach::Policy,
        explain::{DetachFault, VolumeSeen, decide_detach},
        fence::NoProof,
        record::EntryKey,
    },
};
use wharf_kube::{
    Cluster, KubeError,
    volumes::{Volumes, Written},
};
use wharf_store::Txn;

use crate::{
    access::{Caller, audit},
    app::AppState,
    clusters,
    error::{ApiError, ApiResult, chain},
};

/// How often a change is tried again when agents write the same record.
const TRIES: usize = 5;
/// Below the limit of a request.
const PATIENCE: Duration = Duration::from_secs(15);
/// A sentence or two.
const MOST_REASON: usize = 500;

/// All volumes of a cluster at one moment.
pub struct Looked {
    pub cluster: String,
    pub volumes: Volumes,
    /// Whether each node was ready when the cluster was last looked at as a whole.
    pub ready: BTreeMap<String, bool>,
    pub now: Timestamp,
}

impl Looked {
    pub fn seen(&self, name: &str) -> VolumeSeen {
        self.volumes.seen(name, self.now)
    }

    /// The names of all volumes, those first that need a person.
    pub fn names(&self) -> Vec<&str> {
        let policy = Policy::default();
        let state = |name: &str| self.seen(name).state(self.now, &policy);
        let mut names: Vec<_> =
            self.volumes.names().into_iter().map(|name| (state(name), name)).collect();
        names.sort_by(|(one, a), (other, b)| other.cmp(one).then(a.cmp(b)));
        names.into_iter().map(|(_, name)| name).collect()
    }
}

/// Looks at all volumes of a cluster.
pub async fn look(app: &AppState, caller: &Caller, cluster: &str) -> ApiResult<Looked> {
    let api = clusters::reach(app, caller, cluster).await?;
    look_by(app, &api, cluster).await
}

/// As [`look`], when there is a volume of this name.
pub async fn look_at(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    name: &str,
) -> ApiResult<Looked> {
    let looked = look(app, caller, cluster).await?;
    known(&looked, name)?;
    Ok(looked)
}

fn known(looked: &Looked, name: &str) -> ApiResult<()> {
    match looked.volumes.names().contains(name) {
        true => Ok(()),
        false => Err(ApiError::not_found("volume", name)
            .hint(format!("`wharf volume list {}` shows those that there are", looked.cluster))),
    }
}

async fn look_by(app: &AppState, api: &Cluster, cluster: &str) -> ApiResult<Looked> {
    let volumes = ask(cluster, api.look_at_volumes()).await?;
    let health = app.store.read::<HealthRecord>(cluster).await?;
    let nodes = health.map(|health| health.value.nodes).unwrap_or_default();
    let ready = nodes.into_iter().map(|node| (node.name, node.ready)).collect();
    Ok(Looked { cluster: cluster.to_owned(), volumes, ready, now: Timestamp::now() })
}

/// What a detach has done, or would do.
pub struct Detachment {
    /// As it was before.
    pub looked: Looked,
    pub holders: Vec<EntryKey>,
    pub done: bool,
}

/// Writes into a volume's record that a person answers for its holders: they do not write any more.
/// Without `force` it only says which are meant.
pub async fn detach(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    name: &str,
    request: &DetachRequest,
) -> ApiResult<Detachment> {
    let api = clusters::reach(app, caller, cluster).await?;
    let reason = request.reason.as_deref().unwrap_or_default().trim();
    if reason.len() > MOST_REASON {
        let message = format!("the reason has more than {MOST_REASON} bytes");
        return Err(ApiError::field("reason", ErrorCode::MaxLengthExceeded, message));
    }
    let mut audited = false;
    for _ in 0..TRIES {
        let looked = look_by(app, &api, cluster).await?;
        known(&looked, name)?;
        let seen = looked.seen(name);
        let (node, pod) = (request.node.as_deref(), request.pod.as_deref());
        let holders =
            decide_detach(seen.record.as_ref(), node, pod).map_err(|refused| fault(&refused))?;
        let change = seen.record.as_ref().and_then(|record| record.released(&holders));
        let Some(change) = change.filter(|_| request.force) else {
            return Ok(Detachment { looked, holders, done: false });
        };
        if reason.is_empty() {
            return Err(without_reason(&seen, &holders, looked.now));
        }
        if !audited {
            record(app, caller, cluster, name, reason).await?;
            audited = true;
        }
        match ask(cluster, api.change_attachment(name, &change)).await? {
            Written::Is(_) => {
                tell(&api, caller, name, &holders, reason).await;
                return Ok(Detachment { looked, holders, done: true });
            }
            Written::Stale => {}
        }
    }
    Err(ApiError::conflict())
}

fn fault(fault: &DetachFault) -> ApiError {
    let message = fault.to_string();
    match fault {
        DetachFault::NotHeld => ApiError::new(ErrorCode::Conflict, message)
            .hint("there is nothing to set free; `wharf volume why` says what a pod waits for"),
        DetachFault::NotThere { .. } => ApiError::new(ErrorCode::NotFound, message),
        DetachFault::SayWhich { .. } => {
            ApiError::field("node", ErrorCode::MissingRequired, message)
        }
    }
}

/// Whose agent is alive is refused in other words: there the reason has to be a very good one.
fn without_reason(seen: &VolumeSeen, meant: &[EntryKey], now: Timestamp) -> ApiError {
    let hint = "give a reason: how it is known that the holder does not write any more";
    let holders = seen.holders(now, &Policy::default());
    let mut meant = holders.iter().filter(|holder| meant.contains(&holder.entry.key()));
    let alive = meant.find(|holder| matches!(holder.judged, Err(NoProof::Alive { .. })));
    match alive {
        Some(holder) => {
            let node = &holder.entry.node;
            let message = format!(
                "the agent of node {node} is alive and releases the volume when its pod has ended"
            );
            ApiError::new(ErrorCode::Conflict, message).hint(hint)
        }
        None => {
            ApiError::field("reason", ErrorCode::MissingRequired, "a reason is needed").hint(hint)
        }
    }
}

async fn record(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    name: &str,
    reason: &str,
) -> ApiResult<()> {
    let now = Timestamp::now();
    let resource = format!("volume/{cluster}/{name}");
    let record = AuditRecord {
        cluster: Some(cluster.to_owned()),
        reason: Some(reason.to_owned()),
        ..audit::record_of(caller, "volume.detach", &resource, now)
    };
    app.commit_with(record, Txn::new(), now).await.map(drop)
}

/// Leaves an event on the PersistentVolume. Nothing depends on it.
async fn tell(api: &Cluster, caller: &Caller, name: &str, holders: &[EntryKey], reason: &str) {
    let nodes: Vec<&str> = holders.iter().map(|holder| holder.node.as_str()).collect();
    let text = format!(
        "{} answers for it that node {} does not write any more: {reason}",
        caller.name,
        nodes.join(", ")
    );
    if let Err(error) = api.emit_on_volume(name, true, "VolumeDetachForced", &text).await {
        tracing::warn!(?error, name, "the event of a forced detach was not taken");
    }
}

async fn ask<T>(
    cluster: &str,
    question: impl Future<Output = Result<T, KubeError>>,
) -> ApiResult<T> {
    let refused = |error| clusters::away(cluster, &chain(&error));
    clusters::ask(cluster, PATIENCE, question, refused).await
}
