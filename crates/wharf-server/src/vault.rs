//! What of a cluster must stay secret: one sealed record a cluster.
//!
//! Guarantees: nothing of it is in the store in clear, and neither its `Debug` nor an event shows
//! any. It goes with the cluster's record, in the same transaction.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use wharf_core::{cluster::ClusterSecrets, record::Kind};
use wharf_pki::{CertKey, ClusterPki};
use wharf_store::{Sealed, StoreError, StoreResult, Stored, Txn};

use crate::app::AppState;

/// The secrets of one cluster.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Vault {
    pub secrets: ClusterSecrets,
    /// Certificates and keys that the installer made, in its own form.
    #[serde(default)]
    pub pki: Option<ClusterPki>,
    /// Of the agents, by the node's name; the server's own authority signed them.
    #[serde(default)]
    pub agents: BTreeMap<String, CertKey>,
    /// How an imported cluster is reached.
    #[serde(default)]
    pub kubeconfig: Option<String>,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Vault(…)")
    }
}

/// A vault as it is stored. The id is the cluster's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VaultRecord {
    pub cluster: String,
    sealed: Sealed,
}

impl Kind for VaultRecord {
    const KIND: &'static str = "vault";
}

/// What a vault is sealed for; it cannot be opened as another cluster's.
fn context(cluster: &str) -> String {
    wharf_store::typed::key_of::<VaultRecord>(cluster)
}

pub fn seal(app: &AppState, cluster: &str, vault: &Vault) -> StoreResult<VaultRecord> {
    let context = context(cluster);
    let text = serde_json::to_vec(vault)
        .map_err(|source| StoreError::Encode { key: context.clone(), source })?;
    Ok(VaultRecord { cluster: cluster.to_owned(), sealed: app.sealer.seal(&context, &text) })
}

fn open(app: &AppState, record: &VaultRecord) -> StoreResult<Vault> {
    let context = context(&record.cluster);
    let text = app.sealer.open_sealed(&context, &record.sealed)?;
    // The error would quote the text, and that is the secret.
    serde_json::from_slice(&text).map_err(|_| StoreError::Unreadable {
        key: context,
        reason: "its sealed content has another form".to_owned(),
    })
}

/// A cluster's vault; an empty one if there is none.
pub async fn read(app: &AppState, cluster: &str) -> StoreResult<Vault> {
    Ok(find(app, cluster).await?.map(|(vault, _)| vault).unwrap_or_default())
}

/// A cluster's vault with its record, for [`put`].
pub async fn find(
    app: &AppState,
    cluster: &str,
) -> StoreResult<Option<(Vault, Stored<VaultRecord>)>> {
    let Some(record) = app.store.read::<VaultRecord>(cluster).await? else { return Ok(None) };
    let vault = open(app, &record.value)?;
    Ok(Some((vault, record)))
}

/// Adds a vault to a transaction: in place of `old`, which must not have changed since it was
/// read, or whatever is there, such as the vault of a cluster of that name that is gone.
pub fn put(
    txn: Txn,
    app: &AppState,
    cluster: &str,
    old: Option<&Stored<VaultRecord>>,
    vault: &Vault,
    at: Timestamp,
) -> StoreResult<Txn> {
    let sealed = seal(app, cluster, vault)?;
    match old {
        Some(old) => txn.replace(old, &sealed, at),
        None => txn.write(cluster, &sealed, at, None),
    }
}

/// Adds the end of a cluster's vault to a transaction.
pub fn remove(txn: Txn, cluster: &str) -> Txn {
    txn.delete(context(cluster))
}
