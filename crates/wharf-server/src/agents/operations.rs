//! Reboots, shutdowns and updates of nodes: the functions that the API and the pages call.
//!
//! Flow: whoever asks is checked, and the wish is written down with its journal and its audit
//! record. The owner of the cluster sees the record and carries it out ([`super::engine`]).

use jiff::Timestamp;
use wharf_api::error::ErrorCode;
use wharf_core::{
    access::AuditRecord,
    agents::{AgentRecord, NodeOperation},
    cluster::validate::{Fault, FaultCode},
    disruption::Kind,
    operation::{OperationKind, OperationRecord, OperationState},
};
use wharf_store::{Stored, Txn};

use crate::{
    access::{Caller, audit, new_id},
    app::AppState,
    clusters::{self, invalid, nodes, operations},
    engine::observe_members,
    error::{ApiError, ApiResult},
};

/// How often a change is tried again when others write the same record.
const TRIES: usize = 5;
/// A path or an address is not longer.
const MOST_IMAGE: usize = 2000;

/// What is wanted of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    Reboot,
    Shutdown,
    /// Where the image is, and its checksum.
    Update {
        image: String,
        sha256: String,
    },
}

impl Wanted {
    fn kind(&self) -> Kind {
        match self {
            Wanted::Reboot => Kind::Reboot,
            Wanted::Shutdown => Kind::Shutdown,
            Wanted::Update { .. } => Kind::Update,
        }
    }

    fn image(&self) -> Option<(String, String)> {
        match self {
            Wanted::Reboot | Wanted::Shutdown => None,
            Wanted::Update { image, sha256 } => Some((image.clone(), sha256.to_lowercase())),
        }
    }

    fn check(&self) -> ApiResult<()> {
        let Wanted::Update { image, sha256 } = self else { return Ok(()) };
        let mut faults = Vec::new();
        let mut fault = |field: &str, message: &str| {
            let (field, code) = (field.to_owned(), FaultCode::InvalidOption);
            faults.push(Fault { field, code, message: message.to_owned() });
        };
        let is_place = ["https://", "http://", "/"].iter().any(|start| image.starts_with(start));
        if !is_place || image.len() > MOST_IMAGE || image.chars().any(char::is_control) {
            fault("image", "must be an http(s) address, or a path on the node that begins with /");
        }
        if sha256.len() != 64 || !sha256.chars().all(|c| c.is_ascii_hexdigit()) {
            fault("sha256", "must be the image's SHA-256 in 64 hexadecimal digits");
        }
        if faults.is_empty() { Ok(()) } else { Err(invalid(faults)) }
    }
}

/// Writes down an operation on a node. Who asks for the one that runs gets that; a newer image takes
/// the place of an older one that is not in place yet.
pub async fn start(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    node: &str,
    wanted: &Wanted,
) -> ApiResult<Stored<NodeOperation>> {
    wanted.check()?;
    for _ in 0..TRIES {
        let (owner, found) = nodes::get(app, caller, cluster, node).await?;
        check_linked(app, cluster, node).await?;
        let key = NodeOperation::key(cluster, node);
        let old = app.store.read::<NodeOperation>(&key).await?;
        if let Some(running) = old.as_ref().filter(|old| old.value.is_running()) {
            match beside(&running.value, wanted) {
                Beside::Same => return Ok(running.clone()),
                Beside::Replaces => {}
                Beside::Refused(error) => return Err(error),
            }
        }
        let now = Timestamp::now();
        let id = new_id(now);
        let record = NodeOperation {
            image: wanted.image(),
            machine: found.machine(),
            critical: found.is_critical(),
            requested_by: caller.name.clone(),
            // One that takes the place of another is let in with it, and a machine that was shut down and
            // is not back is out already.
            admitted: old.as_ref().is_some_and(|old| old.value.is_out()),
            ..NodeOperation::new(cluster, node, &id, wanted.kind(), now)
        };
        let txn = Txn::new().when(owner.unchanged());
        let txn = operations::create(txn, &id, &journal(&record, now), now)?;
        let txn = match &old {
            Some(old) => {
                close_replaced(app, txn, &old.value, now).await?.replace(old, &record, now)?
            }
            None => txn.create(&key, &record, now)?,
        };
        let action = format!("node.{}", record.kind.name());
        let audited = audit::record_of(caller, &action, &format!("node/{cluster}/{node}"), now);
        let audited = AuditRecord { cluster: Some(cluster.to_owned()), ..audited };
        if let Some(revision) = app.commit_with(audited, txn, now).await? {
            let created = old.map_or(revision, |old| old.created);
            return Ok(Stored { id: key, value: record, created, revision, at: now });
        }
    }
    Err(ApiError::conflict())
}

/// What a wish means beside an operation that runs.
enum Beside {
    Same,
    Replaces,
    Refused(ApiError),
}

fn beside(running: &NodeOperation, wanted: &Wanted) -> Beside {
    let (node, kind) = (&running.node, running.kind.name());
    let conflict = |text: String, hint: &str| {
        Beside::Refused(ApiError::new(ErrorCode::Conflict, text).hint(hint))
    };
    if running.canceled_at.is_some() {
        let text = format!("the {kind} of node {node} is being canceled");
        return conflict(text, "wait for its end; the operation says what it waits for");
    }
    if running.kind != wanted.kind() || running.local {
        let text = format!("a {kind} of node {node} is under way");
        return conflict(text, "wait for its end, or cancel it");
    }
    if running.image == wanted.image() { Beside::Same } else { Beside::Replaces }
}

/// The journal of an operation whose place another takes ends with it.
async fn close_replaced(
    app: &AppState,
    txn: Txn,
    old: &NodeOperation,
    now: Timestamp,
) -> ApiResult<Txn> {
    if !old.is_running() {
        return Ok(txn);
    }
    let Some(stored) = app.store.read::<OperationRecord>(&old.id).await? else { return Ok(txn) };
    let mut record = stored.value.clone();
    record.log(now, "a newer image takes its place");
    (record.state, record.ended_at) = (OperationState::Canceled, Some(now));
    Ok(txn.replace(&stored, &record, now)?)
}

/// The journal of an operation that begins.
pub fn journal(operation: &NodeOperation, now: Timestamp) -> OperationRecord {
    let kind = match operation.kind {
        Kind::Shutdown => OperationKind::Shutdown,
        Kind::Update => OperationKind::NodeUpdate,
        Kind::Reboot | Kind::Repair | Kind::Drain | Kind::Removal => OperationKind::Reboot,
    };
    let mut record = OperationRecord::new(&operation.cluster, kind, now);
    let (what, node, who) = (operation.kind.name(), &operation.node, &operation.requested_by);
    record.log(now, format!("{what} of node {node}, asked for by {who}"));
    record
}

/// Without its agent nothing would happen to the node, and nobody would know why.
async fn check_linked(app: &AppState, cluster: &str, node: &str) -> ApiResult<()> {
    let record = app.store.read::<AgentRecord>(&AgentRecord::key(cluster, node)).await?;
    let members = observe_members(&app.store).await?;
    if record.is_some_and(|record| record.value.is_linked(&members)) {
        return Ok(());
    }
    let message = format!("there is no link to the agent of node {node}");
    Err(ApiError::new(ErrorCode::Conflict, message).hint(
        "the node must reach the server's port for agents; `wharf node list` shows the links",
    ))
}

/// Writes down that the operation that runs shall stop. One that takes the node down already goes on,
/// as long as its agent is heard. A machine that was shut down and stays off is not waited for any more.
pub async fn cancel(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    node: &str,
) -> ApiResult<Stored<NodeOperation>> {
    clusters::get_served(app, caller, cluster).await?;
    let key = NodeOperation::key(cluster, node);
    for _ in 0..TRIES {
        let old = match app.store.read::<NodeOperation>(&key).await? {
            Some(old) if old.value.is_running() || old.value.away => old,
            Some(_) | None => {
                let text = format!("no operation of node {node} is under way");
                let error = ApiError::new(ErrorCode::Conflict, text);
                return Err(error.hint("there is nothing to cancel"));
            }
        };
        let now = Timestamp::now();
        let value = if old.value.is_running() {
            if old.value.canceled_at.is_some() {
                return Ok(old);
            }
            check_not_wanted_there(app, &old.value).await?;
            NodeOperation { canceled_at: Some(now), ..old.value.clone() }
        } else {
            NodeOperation { away: false, ..old.value.clone() }
        };
        let txn = Txn::new().replace(&old, &value, now)?;
        let resource = format!("node/{cluster}/{node}");
        let audited = audit::record_of(caller, "node.cancelOperation", &resource, now);
        let audited = AuditRecord { cluster: Some(cluster.to_owned()), ..audited };
        if let Some(revision) = app.commit_with(audited, txn, now).await? {
            return Ok(Stored { value, revision, at: now, ..old });
        }
    }
    Err(ApiError::conflict())
}

/// What somebody asked for on the node itself is canceled there. A node that has no link may be gone, and
/// with it whoever could do so.
async fn check_not_wanted_there(app: &AppState, operation: &NodeOperation) -> ApiResult<()> {
    let NodeOperation { cluster, node, .. } = operation;
    let agent = app.store.read::<AgentRecord>(&AgentRecord::key(cluster, node)).await?;
    let wanting = agent.filter(|agent| operation.local && agent.value.wants.is_some());
    let Some(wanting) = wanting else { return Ok(()) };
    if !wanting.value.is_linked(&observe_members(&app.store).await?) {
        return Ok(());
    }
    let text = format!("the {} was asked for on node {node} itself", operation.kind.name());
    Err(ApiError::new(ErrorCode::Conflict, text).hint("cancel it there"))
}

/// The last operation of a node, which need not be there any more.
pub async fn get(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    node: &str,
) -> ApiResult<(Stored<NodeOperation>, Option<AgentRecord>)> {
    clusters::get(app, caller, cluster).await?;
    let found = app.store.read::<NodeOperation>(&NodeOperation::key(cluster, node)).await?;
    let found = found.ok_or_else(|| ApiError::not_found("operation of node", node))?;
    let agent = app.store.read::<AgentRecord>(&AgentRecord::key(cluster, node)).await?;
    Ok((found, agent.map(|agent| agent.value)))
}
