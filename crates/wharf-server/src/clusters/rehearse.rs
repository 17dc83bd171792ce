//! Looking before leaping: what a create or update would find, and what it would do.

use std::sync::Arc;

use wharf_api::error::ErrorCode;
use wharf_core::{
    cluster::{ClusterRecord, Origin, validate::Draft},
    install::preflight::Finding,
};

use super::{check_create, check_update, get, unreadable_error};
use crate::{
    access::Caller,
    app::App,
    error::{ApiError, ApiResult},
    installer::{self, Failure, HostPlan, World},
    vault::{self, Vault},
};

/// What is wrong with the hosts of a wish; without one, with those of the cluster as it is.
pub async fn preflight(
    app: &App,
    caller: &Caller,
    name: &str,
    draft: Option<&Draft>,
) -> ApiResult<Vec<Finding>> {
    let (world, record) = world(app, caller, name, draft).await?;
    let known = record.map(|record| record.nodes).unwrap_or_default();
    Ok(installer::preflight(&world, &known).await)
}

/// What a create or update would do on each host.
pub async fn plan(
    app: &App,
    caller: &Caller,
    name: &str,
    draft: Option<&Draft>,
) -> ApiResult<Vec<HostPlan>> {
    let (mut world, record) = world(app, caller, name, draft).await?;
    installer::plan(&mut world, record.as_ref()).await.map_err(|failure| failed(&failure))
}

/// The wish with all that belongs to it, checked as a create or an update would.
async fn world(
    app: &App,
    caller: &Caller,
    name: &str,
    draft: Option<&Draft>,
) -> ApiResult<(World, Option<ClusterRecord>)> {
    let shown = get(app, caller, name).await;
    let (spec, vault, record) = match (shown, draft) {
        (Ok(shown), draft) => {
            let stored = shown.record.map_err(|bad| unreadable_error(&bad))?;
            if stored.value.origin == Origin::Imported {
                return Err(ApiError::denied(format!(
                    "the cluster {name} was imported: its machines are not ours to look at"
                )));
            }
            let vault = vault::read(app, name).await?;
            let (spec, secrets) = match draft {
                Some(draft) => {
                    let checked = check_update(app, draft, &stored, &vault.secrets).await?;
                    (checked.spec, checked.secrets)
                }
                None => (stored.value.spec.clone(), vault.secrets.clone()),
            };
            (spec, Vault { secrets, ..vault }, Some(stored.value))
        }
        (Err(missing), None) => return Err(missing),
        (Err(_), Some(draft)) => {
            let checked = check_create(app, draft).await?;
            if checked.spec.name != name {
                let message = format!("the name in the body is not {name}");
                return Err(ApiError::field("name", ErrorCode::InvalidOption, message));
            }
            (checked.spec, Vault { secrets: checked.secrets, ..Vault::default() }, None)
        }
    };
    let world = World::open(&Arc::clone(app), spec, vault).map_err(|failure| failed(&failure))?;
    Ok((world, record))
}

/// A host that cannot be looked at is the caller's affair, not a defect of the server.
fn failed(failure: &Failure) -> ApiError {
    let error = ApiError::new(ErrorCode::ClusterUnavailable, failure.sentence());
    match &failure.hint {
        Some(hint) => error.hint(hint.clone()),
        None => error,
    }
}
