//! Checking a wish against the rules and against the other clusters.

use std::{collections::BTreeMap, net::Ipv4Addr};

use wharf_api::error::{ErrorCode, FieldFault};
use wharf_core::cluster::{
    ClusterRecord, ClusterSecrets, Origin,
    validate::{
        Checked, Draft, Fault, FaultCode, Known, NodeDraft, Surroundings, validate_create,
        validate_imported, validate_update,
    },
};
use wharf_store::{Compare, Stored, Txn};

use crate::{
    app::AppState,
    config::Config,
    error::{ApiError, ApiResult},
};

/// Whoever gives a cluster addresses writes this key and makes sure that nobody else did since the
/// addresses were read: two clusters that are made at once cannot get the same machine.
const ADDRESSES: &str = "meta/addresses";

/// The addresses that clusters have, and the condition that it stays so.
pub(super) struct Addresses {
    taken: BTreeMap<Ipv4Addr, String>,
    condition: Compare,
}

impl Addresses {
    /// Of all clusters but this one.
    pub(super) async fn of_others(app: &AppState, cluster: &str) -> ApiResult<Self> {
        // First the key, then the clusters: what is written in between is refused later.
        let condition = match app.store.get(ADDRESSES).await? {
            Some(entry) => Compare::ModifiedAt(ADDRESSES.to_owned(), entry.modified),
            None => Compare::Absent(ADDRESSES.to_owned()),
        };
        let (records, _) = app.store.read_all::<ClusterRecord>("").await?;
        let mut taken = BTreeMap::new();
        for stored in records.into_iter().flatten().filter(|stored| stored.id != cluster) {
            let installed = stored.value.nodes.values().map(|node| node.spec.address);
            let wanted = stored.value.spec.nodes.iter().map(|node| node.address);
            for address in wanted.chain(installed) {
                taken.insert(address, stored.id.clone());
            }
        }
        Ok(Self { taken, condition })
    }

    /// Binds a transaction to the addresses as they were read.
    pub(super) fn claim(&self, txn: Txn) -> Txn {
        txn.when(self.condition.clone()).put(ADDRESSES, *b"{}")
    }

    pub(super) fn owner(&self, address: Ipv4Addr) -> Option<&str> {
        self.taken.get(&address).map(String::as_str)
    }
}

/// Checks a wish for a new cluster; nothing is stored.
pub async fn check_create(app: &AppState, draft: &Draft) -> ApiResult<Checked> {
    let name = draft.name.as_deref().unwrap_or_default().trim();
    let addresses = Addresses::of_others(app, name).await?;
    create(app, draft, &addresses).await
}

pub(super) async fn create(
    app: &AppState,
    draft: &Draft,
    addresses: &Addresses,
) -> ApiResult<Checked> {
    judge(app, addresses, draft.clone(), validate_create).await
}

/// Checks a wish for a cluster that is there; nothing is stored, and the state is not looked at.
pub async fn check_update(
    app: &AppState,
    draft: &Draft,
    old: &Stored<ClusterRecord>,
    secrets: &ClusterSecrets,
) -> ApiResult<Checked> {
    let addresses = Addresses::of_others(app, &old.id).await?;
    update(app, draft, old, secrets, &addresses).await
}

pub(super) async fn update(
    app: &AppState,
    draft: &Draft,
    old: &Stored<ClusterRecord>,
    secrets: &ClusterSecrets,
    addresses: &Addresses,
) -> ApiResult<Checked> {
    let (record, secrets) = (old.value.clone(), secrets.clone());
    judge(app, addresses, draft.clone(), move |draft, around| {
        let known = known(&record, &secrets);
        match record.origin {
            Origin::Installed => validate_update(draft, &known, around),
            Origin::Imported => validate_imported(draft, &known, &shown(&record), around),
        }
    })
    .await
}

pub(super) fn known<'a>(record: &'a ClusterRecord, secrets: &'a ClusterSecrets) -> Known<'a> {
    Known { spec: &record.spec, secrets, nodes: &record.nodes, created: record.created }
}

/// The nodes of a cluster as the API shows them.
fn shown(record: &ClusterRecord) -> Vec<NodeDraft> {
    let draft = |node: &wharf_core::cluster::NodeSpec| NodeDraft {
        name: Some(node.name.clone()),
        address: Some(node.address.to_string()),
        ..NodeDraft::default()
    };
    record.spec.nodes.iter().map(draft).collect()
}

/// Runs the checks off the event loop: opening an encrypted key takes some tenths of a second.
async fn judge(
    app: &AppState,
    addresses: &Addresses,
    draft: Draft,
    check: impl FnOnce(&Draft, &Surroundings<'_>) -> Result<Checked, Vec<Fault>> + Send + 'static,
) -> ApiResult<Checked> {
    let (config, taken) = (app.config.clone(), addresses.taken.clone());
    let judged = tokio::task::spawn_blocking(move || {
        let around = Surroundings {
            kubernetes_versions: &kubernetes_versions(&config),
            taken: &taken,
            check_key: &check_key,
        };
        check(&draft, &around)
    });
    judged.await.map_err(ApiError::internal)?.map_err(invalid)
}

fn check_key(pem: &str, passphrase: &str) -> Result<(), String> {
    wharf_ssh::Key::parse(pem, passphrase).map(drop).map_err(|error| error.to_string())
}

/// The versions of Kubernetes that this server can install, newest first.
pub fn kubernetes_versions(config: &Config) -> Vec<String> {
    crate::installer::bundles::available(config)
}

pub(crate) fn invalid(faults: Vec<Fault>) -> ApiError {
    ApiError::invalid(faults.into_iter().map(field_fault).collect())
}

fn field_fault(fault: Fault) -> FieldFault {
    let code = match fault.code {
        FaultCode::DuplicateResource => ErrorCode::DuplicateResource,
        FaultCode::InvalidFormat => ErrorCode::InvalidFormat,
        FaultCode::InvalidOption => ErrorCode::InvalidOption,
        FaultCode::MaxLengthExceeded => ErrorCode::MaxLengthExceeded,
        FaultCode::MissingRequired => ErrorCode::MissingRequired,
        FaultCode::NotNullable => ErrorCode::NotNullable,
    };
    FieldFault { field: fault.field, code, message: fault.message }
}
