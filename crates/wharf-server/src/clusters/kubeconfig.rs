//! How a cluster is reached.

use jiff::Timestamp;
use wharf_core::cluster::{ClusterRecord, ClusterSpec};
use wharf_pki::Kubeconfig;
use wharf_store::{Stored, Txn};

use super::{commit, get_served};
use crate::{
    access::Caller,
    app::AppState,
    error::{ApiError, ApiResult},
    vault::{self, Vault},
};

/// The user that every cluster has.
pub const KUBE_ADMIN: &str = "kube-admin";

/// The kubeconfig of a user, in YAML. Whoever reads it can do everything in the cluster, so that it
/// was read is recorded.
pub async fn kubeconfig(
    app: &AppState,
    caller: &Caller,
    name: &str,
    user: &str,
) -> ApiResult<(Stored<ClusterRecord>, String)> {
    let cluster = get_served(app, caller, name).await?;
    let vault = vault::read(app, name).await?;
    let text =
        kubeconfig_of(&vault, &cluster.value.serving_spec(), user).map_err(ApiError::internal)?;
    let text = text.ok_or_else(|| ApiError::not_found("kubeconfig of the user", user))?;
    let now = Timestamp::now();
    commit(app, caller, "kubeconfig.read", name, Txn::new(), now).await?;
    Ok((cluster, text))
}

/// The kubeconfig of a user out of a cluster's secrets; `None` for a user that it does not have.
fn kubeconfig_of(
    vault: &Vault,
    spec: &ClusterSpec,
    user: &str,
) -> Result<Option<String>, Box<dyn std::error::Error + Send + Sync>> {
    if user != KUBE_ADMIN {
        return Ok(None);
    }
    if let Some(imported) = &vault.kubeconfig {
        return Ok(Some(imported.clone()));
    }
    let Some(pki) = &vault.pki else { return Ok(None) };
    Ok(Some(pki.kubeconfig(spec, Kubeconfig::Admin)?))
}
