//! Applications on clusters: the functions that the API calls, and the task that applies them.
//!
//! Flow: what is wanted is checked and stored. The owner of the cluster applies the objects to the
//! application namespace and takes away what is not wanted any more ([`engine`]); the linked servers
//! tell every node of the application (`agents/config.rs`).

mod engine;

use std::time::Duration;

use jiff::Timestamp;
use wharf_api::{
    app::AppSpec,
    error::{ErrorCode, FieldFault},
    node_files::Uuid,
    trace::ClusterTrace,
};
use wharf_core::{
    access::AuditRecord,
    agents::{AgentRecord, linked_servers},
    app::AppRecord,
    cluster::ClusterRecord,
};
use wharf_store::{Page, Revision, Store, StoreResult, Stored, Txn, typed::key_of};

pub use engine::keep;

use crate::{
    access::{Caller, audit},
    agents::{TRACE, TraceError},
    app::AppState,
    clusters,
    engine::Member,
    error::{ApiError, ApiResult, chain},
};

/// Where applications live, as agents expect it.
pub const NAMESPACE: &str = "eve-kube-app";

/// How often a change is tried again when others write the same record.
const TRIES: usize = 5;
/// Records that are deleted at once: well below the store's limit for one transaction.
const BATCH: usize = 100;
/// Each node is told of all of them.
const MOST_APPS: usize = 1000;
const MOST_NAME: usize = 128;

/// The applications of a cluster, by name.
pub async fn list(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
) -> ApiResult<Vec<Stored<AppRecord>>> {
    clusters::get_served(app, caller, cluster).await?;
    let mut apps = of_cluster(&app.store, cluster).await?;
    apps.sort_by(|one, other| one.value.name.cmp(&other.value.name));
    Ok(apps)
}

/// One that cannot be read is passed over; the engine says so in the log.
async fn of_cluster(store: &Store, cluster: &str) -> StoreResult<Vec<Stored<AppRecord>>> {
    let (apps, _) = store.read_all::<AppRecord>(&AppRecord::key(cluster, "")).await?;
    Ok(apps.into_iter().flatten().collect())
}

/// One application, by its UUID or its name.
pub async fn get(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    id: &str,
) -> ApiResult<Stored<AppRecord>> {
    let apps = list(app, caller, cluster).await?;
    let found = apps.into_iter().find(|one| one.value.uuid == id || one.value.name == id);
    found.ok_or_else(|| ApiError::not_found("application", id))
}

/// Writes down a new application.
pub async fn create(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    spec: &AppSpec,
) -> ApiResult<Stored<AppRecord>> {
    for _ in 0..TRIES {
        let owner = clusters::get_served(app, caller, cluster).await?;
        let others = of_cluster(&app.store, cluster).await?;
        if others.len() >= MOST_APPS {
            let message = format!("a cluster has at most {MOST_APPS} applications");
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        check(spec, &owner.value, others.iter().map(|other| &other.value))?;
        let given = spec.config.uuid_and_version.uuid;
        let uuid = if given.is_nil() { Uuid::random(rand::random()) } else { given }.to_string();
        let now = Timestamp::now();
        let record = AppRecord {
            cluster: cluster.to_owned(),
            uuid: uuid.clone(),
            created_at: now,
            version: 1,
            applied: None,
            ..changed(spec, cluster, now)?
        };
        let key = AppRecord::key(cluster, &uuid);
        let txn = Txn::new().when(owner.unchanged()).create(&key, &record, now)?;
        if let Some(revision) = commit(app, caller, "app.create", &record, txn, now).await? {
            return Ok(Stored { id: key, value: record, created: revision, revision, at: now });
        }
        if others.iter().any(|other| other.value.uuid == uuid) {
            return Err(duplicate("config.UUIDandVersion.UUID", &uuid));
        }
    }
    Err(ApiError::conflict())
}

/// Writes down a change of an application.
pub async fn update(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    id: &str,
    spec: &AppSpec,
    if_match: Option<Revision>,
) -> ApiResult<Stored<AppRecord>> {
    for _ in 0..TRIES {
        let owner = clusters::get_served(app, caller, cluster).await?;
        let old = get(app, caller, cluster, id).await?;
        if if_match.is_some_and(|wanted| wanted != old.revision) {
            let message = format!("the application {id:?} has changed since");
            let error = ApiError::new(ErrorCode::PreconditionFailed, message);
            return Err(error.hint("read it again and repeat the change"));
        }
        if old.value.deleted_at.is_some() {
            let message = format!("application {id} is being deleted");
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        let others = of_cluster(&app.store, cluster).await?;
        let others = others.iter().map(|other| &other.value);
        check(spec, &owner.value, others.filter(|other| other.uuid != old.value.uuid))?;
        let given = spec.config.uuid_and_version.uuid;
        if !given.is_nil() && given.to_string() != old.value.uuid {
            let field = "config.UUIDandVersion.UUID";
            let message = "the UUID of an application cannot be changed";
            return Err(ApiError::field(field, ErrorCode::InvalidOption, message));
        }
        // Its name in the cluster is made of it, and with another one nothing would be found again.
        if spec.name != old.value.name {
            let message = "the name of an application cannot be changed";
            return Err(ApiError::field("name", ErrorCode::InvalidOption, message));
        }
        let now = Timestamp::now();
        let record = AppRecord {
            uuid: old.value.uuid.clone(),
            created_at: old.value.created_at,
            version: old.value.version + 1,
            applied: old.value.applied.clone(),
            ..changed(spec, cluster, now)?
        };
        let txn = Txn::new().replace(&old, &record, now)?;
        if let Some(revision) = commit(app, caller, "app.update", &record, txn, now).await? {
            return Ok(Stored { value: record, revision, at: now, ..old });
        }
    }
    Err(ApiError::conflict())
}

/// Writes down that an application shall go. It is gone when its objects are.
pub async fn delete(app: &AppState, caller: &Caller, cluster: &str, id: &str) -> ApiResult<()> {
    for _ in 0..TRIES {
        let old = get(app, caller, cluster, id).await?;
        if old.value.deleted_at.is_some() {
            return Ok(());
        }
        let now = Timestamp::now();
        let record = AppRecord { deleted_at: Some(now), ..old.value.clone() };
        let txn = Txn::new().replace(&old, &record, now)?;
        if commit(app, caller, "app.delete", &record, txn, now).await?.is_some() {
            return Ok(());
        }
    }
    Err(ApiError::conflict())
}

/// What every agent of the cluster knows of an application.
pub async fn trace(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    id: &str,
) -> ApiResult<ClusterTrace> {
    clusters::get_served(app, caller, cluster).await?;
    // The agents know names as well, but only we tell the UUID from a name.
    let asked =
        get(app, caller, cluster, id).await.map_or_else(|_| id.to_owned(), |one| one.value.uuid);
    // Whoever asked is told what is wrong before the request is ended.
    let limit = Duration::from_secs(app.config.limits.request_seconds);
    let error = match app.agents.trace(cluster, &asked, TRACE.min(limit * 4 / 5)).await {
        Ok(trace) => return Ok(trace),
        Err(error) => error,
    };
    let hint = match error {
        TraceError::NotLinked => where_linked(app, cluster).await?,
        TraceError::Silent { .. } | TraceError::Failed { .. } => {
            "`wharf agent status` on that node says more".to_owned()
        }
    };
    let message = format!("no agent could be asked: {error}");
    Err(ApiError::new(ErrorCode::ClusterUnavailable, message).hint(hint))
}

/// Which other server can ask the agents of a cluster.
async fn where_linked(app: &AppState, cluster: &str) -> ApiResult<String> {
    let (agents, _) = app.store.read_all::<AgentRecord>(&AgentRecord::key(cluster, "")).await?;
    let agents: Vec<AgentRecord> = agents.into_iter().flatten().map(|agent| agent.value).collect();
    let (members, _) = app.store.read_all::<Member>("").await?;
    let members: Vec<Member> = members.into_iter().flatten().map(|member| member.value).collect();
    let ids: Vec<_> = members.iter().map(|member| member.id.clone()).collect();
    let holding = linked_servers(&agents, &ids);
    let others = members.iter().filter(|other| other.id != app.me && holding.contains(&&other.id));
    let others: Vec<String> =
        others.map(|server| format!("{} ({})", server.id, server.address)).collect();
    Ok(match others.is_empty() {
        true => {
            "no server has a link to one of them; `wharf agent status` on a node says why".into()
        }
        false => format!("ask with `--server` who has their links: {}", others.join(", ")),
    })
}

fn check<'a>(
    spec: &AppSpec,
    cluster: &ClusterRecord,
    mut others: impl Iterator<Item = &'a AppRecord>,
) -> ApiResult<()> {
    let mut faults = Vec::new();
    let mut fault = |field: &str, code: ErrorCode, message: String| {
        faults.push(FieldFault { field: field.to_owned(), code, message });
    };
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_. ".contains(c);
    if spec.name.is_empty() || spec.name.len() > MOST_NAME || !spec.name.chars().all(is_good) {
        let message = "must have letters, digits, spaces, dots, dashes and underscores".to_owned();
        fault("name", ErrorCode::InvalidFormat, message);
    }
    if others.any(|other| other.name == spec.name) {
        let message = format!("there is an application {:?}", spec.name);
        fault("name", ErrorCode::DuplicateResource, message);
    }
    if let Some(node) = &spec.designated_node
        && cluster.spec.node(node).is_none()
        && !cluster.nodes.contains_key(node)
        && !cluster.spec.nodes.is_empty()
    {
        let message = format!("the cluster has no node {node:?}");
        fault("designatedNode", ErrorCode::InvalidOption, message);
    }
    let manifest = spec.manifest.replace("{{name}}", "name");
    if let Err(error) = wharf_kube::check_confined(NAMESPACE, &manifest) {
        fault("manifest", ErrorCode::InvalidFormat, chain(&error));
    }
    if faults.is_empty() { Ok(()) } else { Err(ApiError::invalid(faults)) }
}

fn duplicate(field: &str, what: &str) -> ApiError {
    let message = format!("there is an application {what}");
    ApiError::field(field, ErrorCode::DuplicateResource, message)
}

/// The parts of a record that a wish says.
fn changed(spec: &AppSpec, cluster: &str, now: Timestamp) -> ApiResult<AppRecord> {
    let volumes = spec.volumes.iter().map(serde_json::to_value).collect::<Result<_, _>>();
    Ok(AppRecord {
        cluster: cluster.to_owned(),
        uuid: String::new(),
        name: spec.name.clone(),
        designated_node: spec.designated_node.clone(),
        config: serde_json::to_value(&spec.config).map_err(ApiError::internal)?,
        volumes: volumes.map_err(ApiError::internal)?,
        manifest: spec.manifest.clone(),
        created_at: now,
        version: 0,
        deleted_at: None,
        applied: None,
        reason: None,
    })
}

async fn commit(
    app: &AppState,
    caller: &Caller,
    action: &str,
    record: &AppRecord,
    txn: Txn,
    now: Timestamp,
) -> ApiResult<Option<Revision>> {
    let resource = format!("app/{}/{}", record.cluster, record.uuid);
    let audited = audit::record_of(caller, action, &resource, now);
    let audited = AuditRecord { cluster: Some(record.cluster.clone()), ..audited };
    app.commit_with(audited, txn, now).await
}

/// A transaction that deletes some applications of a cluster that goes; `None` when there are no
/// more.
pub async fn removal(store: &Store, cluster: &str) -> StoreResult<Option<Txn>> {
    let prefix = key_of::<AppRecord>(&AppRecord::key(cluster, ""));
    let page = Page { after: None, limit: BATCH, descending: false };
    let listing = store.list(&prefix, page).await?;
    let txn = listing.entries.into_iter().map(|entry| entry.key).fold(Txn::new(), Txn::delete);
    Ok((!txn.ops.is_empty()).then_some(txn))
}
