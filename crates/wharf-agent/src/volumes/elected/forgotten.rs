//! What is kept of nodes that are gone for good: their leases and their garbage lists. Nobody else would take
//! them away.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tracing::info;
use wharf_core::volume::garbage::{Remains, is_forgotten};
use wharf_kube::{
    Cluster,
    volumes::{AgentLease, Garbage},
};

use crate::volumes::work::VolumeError;

/// Takes away what is left of nodes that nobody has heard of for long.
///
/// The records are read last: a node that gets an entry after that has renewed its lease since, which is
/// then not the one that was seen.
pub async fn forget(api: &Cluster) -> Result<(), VolumeError> {
    let (leases, lists) = tokio::try_join!(api.agent_leases(), api.garbage_lists())?;
    if leases.is_empty() && lists.is_empty() {
        return Ok(());
    }
    let records = api.attachments().await?;
    let entries = records.iter().flat_map(|(_, record)| &record.entries);
    let named: BTreeSet<&String> = entries.map(|entry| &entry.node).collect();
    let nodes: BTreeSet<&String> =
        leases.iter().map(|(node, _)| node).chain(lists.iter().map(|(node, _)| node)).collect();
    let now = Timestamp::now();
    for node in nodes {
        let lease = leases.iter().find(|(name, _)| name == node).map(|(_, lease)| lease);
        let list = lists.iter().find(|(name, _)| name == node).map(|(_, list)| list);
        let mut remains =
            Remains { has_node: false, is_named: named.contains(node), last: last(lease, list) };
        // Most are of nodes that are well, which need not be looked for.
        if !is_forgotten(&remains, now) {
            continue;
        }
        remains.has_node = api.node_object(node).await?.is_some();
        if is_forgotten(&remains, now) {
            drop_remains(api, node, lease, list).await?;
        }
    }
    Ok(())
}

/// When the node was last heard of.
fn last(lease: Option<&AgentLease>, list: Option<&Garbage>) -> Option<Timestamp> {
    let noted = list.into_iter().flat_map(|list| &list.entries).map(|entry| entry.since);
    noted.chain(lease.map(|lease| lease.renewed)).max()
}

/// The list first: as long as there is a lease it is found again.
async fn drop_remains(
    api: &Cluster,
    node: &str,
    lease: Option<&AgentLease>,
    list: Option<&Garbage>,
) -> Result<(), VolumeError> {
    info!(node, "nothing is kept of a node that is long gone");
    if let Some(list) = list {
        api.write_garbage(node, list, &[]).await?;
    }
    if let Some(lease) = lease {
        api.delete_agent_lease(node, lease).await?;
    }
    Ok(())
}
