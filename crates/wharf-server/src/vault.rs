//! What of a cluster must stay secret: one sealed record a cluster.
//!
//! Guarantees: nothing of it is in the store in clear, and neither its `Debug` nor an event shows
//! any. It goes with the cluster's record, in the same transaction.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use wharf_core::{cluster::ClusterSecrets, record::Kind};
use wharf_store::{Sealed, Sealer, Store, StoreError, StoreResult, Stored, Txn};

/// The secrets of one cluster.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Vault {
    pub secrets: ClusterSecrets,
    /// Certificates and keys that the installer made, in its own form.
    #[serde(default)]
    pub pki: Option<serde_json::Value>,
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

pub fn seal(sealer: &Sealer, cluster: &str, vault: &Vault) -> StoreResult<VaultRecord> {
    let context = context(cluster);
    let text = serde_json::to_vec(vault)
        .map_err(|source| StoreError::Encode { key: context.clone(), source })?;
    Ok(VaultRecord { cluster: cluster.to_owned(), sealed: sealer.seal(&context, &text) })
}

pub fn open(sealer: &Sealer, record: &VaultRecord) -> StoreResult<Vault> {
    let context = context(&record.cluster);
    let text = sealer.open_sealed(&context, &record.sealed)?;
    // The error would quote the text, and that is the secret.
    serde_json::from_slice(&text).map_err(|_| StoreError::Unreadable {
        key: context,
        reason: "its sealed content has another form".to_owned(),
    })
}

/// A cluster's vault with its record, to be replaced by [`replace`]; `None` if there is none.
pub async fn read(
    store: &Store,
    sealer: &Sealer,
    cluster: &str,
) -> StoreResult<Option<(Vault, Stored<VaultRecord>)>> {
    let Some(record) = store.read::<VaultRecord>(cluster).await? else { return Ok(None) };
    let vault = open(sealer, &record.value)?;
    Ok(Some((vault, record)))
}

/// Adds the vault of a new cluster to its transaction. Whatever was left under that name, of a
/// cluster that was forgotten, is overwritten.
pub fn create(
    txn: Txn,
    sealer: &Sealer,
    cluster: &str,
    vault: &Vault,
    at: Timestamp,
) -> StoreResult<Txn> {
    txn.write(cluster, &seal(sealer, cluster, vault)?, at, None)
}

/// Adds a changed vault to a transaction; refused if somebody else changed it since it was read.
pub fn replace(
    txn: Txn,
    sealer: &Sealer,
    old: &Stored<VaultRecord>,
    vault: &Vault,
    at: Timestamp,
) -> StoreResult<Txn> {
    txn.replace(old, &seal(sealer, &old.id, vault)?, at)
}

/// Adds the end of a cluster's vault to a transaction.
pub fn remove(txn: Txn, cluster: &str) -> Txn {
    txn.delete(context(cluster))
}
