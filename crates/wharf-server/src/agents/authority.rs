//! The agents' authority, and the certificates of agents.
//!
//! All servers share one authority: it lies sealed in the store. A certificate lies in the vault of
//! its cluster, so that the installer and the link hand out the same.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use wharf_core::record::Kind;
use wharf_pki::{Agent, AgentAuthority, CertKey};
use wharf_store::{Outcome, Sealed, Sealer, Store, StoreError, Txn, typed::key_of};

use crate::{app::AppState, error::ServerError, installer::identity, vault};

/// Under this id the one authority lies.
const ID: &str = "global";
/// How often a vault that others write at the same time is tried again.
const TRIES: usize = 5;

/// The authority as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAuthorityRecord {
    sealed: Sealed,
}

impl Kind for AgentAuthorityRecord {
    const KIND: &'static str = "agentauthority";
}

/// The authority; the first server of all makes it.
pub async fn authority(
    store: &Store,
    sealer: &Sealer,
    now: Timestamp,
) -> Result<AgentAuthority, ServerError> {
    let context = key_of::<AgentAuthorityRecord>(ID);
    loop {
        if let Some(stored) = store.read::<AgentAuthorityRecord>(ID).await? {
            let text = sealer.open_sealed(&context, &stored.value.sealed)?;
            // The error would quote the text, and that is the secret.
            let authority = serde_json::from_slice(&text).map_err(|_| StoreError::Unreadable {
                key: context.clone(),
                reason: "its sealed content has another form".to_owned(),
            });
            return Ok(authority?);
        }
        let made = AgentAuthority::new(now).map_err(internal)?;
        let text = serde_json::to_vec(&made).map_err(internal)?;
        let record = AgentAuthorityRecord { sealed: sealer.seal(&context, &text) };
        if let Outcome::Committed(_) = store.commit(Txn::new().create(ID, &record, now)?).await? {
            return Ok(made);
        }
    }
}

fn internal(error: impl std::error::Error) -> ServerError {
    ServerError::Internal(crate::error::chain(&error))
}

/// How the agent of a node is called in its certificate.
pub fn agent_of(cluster: &str, identity: &str, node: &str) -> Agent {
    let [cluster, identity, node] = [cluster, identity, node].map(str::to_owned);
    Agent { cluster, identity, node }
}

/// Makes those of the certificates that are missing or near their end; whether there were any.
pub fn ensure<'a>(
    authority: &AgentAuthority,
    known: &mut BTreeMap<String, CertKey>,
    agents: impl IntoIterator<Item = &'a Agent>,
    now: Timestamp,
) -> Result<bool, wharf_pki::PkiError> {
    let mut changed = false;
    for agent in agents {
        let there = known.get(&agent.node);
        if !there.is_some_and(|there| authority.is_current(there, agent, now)) {
            known.insert(agent.node.clone(), authority.issue(agent, now)?);
            changed = true;
        }
    }
    Ok(changed)
}

/// The certificate that an agent should have, made anew if it nears its end; `None` if the cluster
/// has no such agent.
pub async fn credentials(
    app: &AppState,
    agent: &Agent,
    now: Timestamp,
) -> Result<Option<CertKey>, StoreError> {
    for _ in 0..TRIES {
        let Some((mut vault, stored)) = vault::find(app, &agent.cluster).await? else {
            return Ok(None);
        };
        if identity(&vault) != Some(agent.identity.as_str()) {
            return Ok(None);
        }
        let changed = ensure(&app.agents.authority, &mut vault.agents, [agent], now);
        let changed = changed.map_err(|error| StoreError::Unreadable {
            key: stored.id.clone(),
            reason: crate::error::chain(&error),
        })?;
        let pair = vault.agents.get(&agent.node).cloned();
        if !changed {
            return Ok(pair);
        }
        let txn = vault::put(Txn::new(), app, &agent.cluster, Some(&stored), &vault, now)?;
        if let Outcome::Committed(_) = app.store.commit(txn).await? {
            return Ok(pair);
        }
    }
    // Not to know is not the same as that there is no such agent, which would be refused.
    let busy = format!("others keep changing the vault of {}", agent.cluster);
    Err(StoreError::Backend(busy.into()))
}
