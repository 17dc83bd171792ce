//! Agents: the link to each, what is known of them, and what they are asked to do.
//!
//! Flow: an agent links to whichever server it finds ([`listener`], [`session`]). What it says is
//! stored, and what its node is to know is read from the store ([`config`]), so it does not matter
//! which server owns the cluster. The owner carries out operations on nodes ([`engine`]) by writing
//! records, which the linked server hands on.
//!
//! Guarantees: an agent speaks for its own node only; its certificate says for which. A link that is
//! lost changes nothing on the node and ends no operation.

mod authority;
mod board;
mod config;
mod engine;
mod listener;
mod operations;
mod session;

use wharf_core::{
    agents::{AgentRecord, NodeOperation},
    cluster::ServerId,
};
use wharf_store::{Page, Store, StoreResult, Stored, Txn, typed::key_of};

pub use authority::AgentAuthorityRecord;
pub(crate) use authority::{agent_of, authority, ensure};
pub use board::{Board, Facts, TRACE, TraceError, follow};
pub use config::membership;
pub use engine::keep;
pub use listener::{bind, serve};
pub use operations::{Wanted, cancel, get, start};

use crate::engine::observe_members;

/// Records that are deleted at once: well below the store's limit for one transaction.
const BATCH: usize = 100;

/// What is known of the agents of a cluster.
pub struct Known {
    pub agents: Vec<AgentRecord>,
    /// The last operation of each node that had one.
    pub operations: Vec<Stored<NodeOperation>>,
    pub members: Vec<ServerId>,
}

/// Reads it. What cannot be read is passed over: the engine says so in the log.
pub async fn known(store: &Store, cluster: &str) -> StoreResult<Known> {
    let (agents, _) = store.read_all::<AgentRecord>(&AgentRecord::key(cluster, "")).await?;
    let key = NodeOperation::key(cluster, "");
    let (operations, _) = store.read_all::<NodeOperation>(&key).await?;
    Ok(Known {
        agents: agents.into_iter().flatten().map(|agent| agent.value).collect(),
        operations: operations.into_iter().flatten().collect(),
        members: observe_members(store).await?,
    })
}

/// Adds to a transaction the end of what is kept of the agent of a node that left.
pub fn forget(txn: Txn, cluster: &str, node: &str) -> Txn {
    txn.delete(key_of::<AgentRecord>(&AgentRecord::key(cluster, node))).delete(key_of::<
        NodeOperation,
    >(
        &NodeOperation::key(cluster, node),
    ))
}

/// A transaction that deletes some of what is kept of the agents of a cluster that goes; `None` when
/// there is no more.
pub async fn removal(store: &Store, cluster: &str) -> StoreResult<Option<Txn>> {
    let prefixes = [
        key_of::<AgentRecord>(&AgentRecord::key(cluster, "")),
        key_of::<NodeOperation>(&NodeOperation::key(cluster, "")),
    ];
    let mut txn = Txn::new();
    for prefix in prefixes {
        let page = Page { after: None, limit: BATCH, descending: false };
        let listing = store.list(&prefix, page).await?;
        txn = listing.entries.into_iter().map(|entry| entry.key).fold(txn, Txn::delete);
    }
    Ok((!txn.ops.is_empty()).then_some(txn))
}
