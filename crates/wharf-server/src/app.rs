//! What every part of a running server shares.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

use jiff::Timestamp;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use wharf_core::{access::AuditRecord, cluster::ServerId};
use wharf_store::{Outcome, Revision, Sealer, Store, Txn};

use crate::{
    access::{Caller, LoginLimits, Passwords, audit, new_id},
    agents,
    clusters::View,
    config::Config,
    disruptions::Disruptions,
    engine::Owned,
    error::ApiResult,
    events::Hub,
    metrics::Metrics,
    repair::Board,
};

pub type App = Arc<AppState>;

pub struct AppState {
    pub config: Config,
    pub me: ServerId,
    pub store: Store,
    pub sealer: Sealer,
    pub hub: Hub,
    pub metrics: Metrics,
    /// The agents that are linked to this server.
    pub agents: agents::Board,
    /// What the engines of repair queues say.
    pub repairs: Board,
    /// All clusters, as lists show them.
    pub clusters: View,
    pub passwords: Passwords,
    pub login_limits: LoginLimits,
    /// The clusters that this server works on.
    pub owned: watch::Receiver<Owned>,
    /// What is out of service in them.
    pub disruptions: Disruptions,
    /// Names of clusters that should be looked at now, see [`AppState::nudge`].
    pub nudges: broadcast::Sender<String>,
    /// Set when the server begins to stop: `/readyz` says no, event streams end.
    pub stopping: CancellationToken,
    /// Open event streams by user.
    pub streams: Mutex<HashMap<String, usize>>,
    /// Whether the member's lease is held.
    pub is_member: Arc<AtomicBool>,
}

impl AppState {
    /// Something was changed in a cluster: whoever probes it, if that is this server, looks at it
    /// now, so that a person sees what came of it.
    pub fn nudge(&self, cluster: &str) {
        // Nobody listens while nothing is probed.
        let _ = self.nudges.send(cluster.to_owned());
    }

    /// Commits what a caller asked for, together with the audit record of it.
    ///
    /// Flow: one transaction holds the change and its record, so neither is ever without the other.
    pub async fn commit(
        &self,
        caller: &Caller,
        action: &str,
        resource: &str,
        txn: Txn,
        now: Timestamp,
    ) -> ApiResult<Option<Revision>> {
        let record = audit::record_of(caller, action, resource, now);
        self.commit_with(record, txn, now).await
    }

    /// As [`Self::commit`], with a record that says more.
    pub async fn commit_with(
        &self,
        record: AuditRecord,
        txn: Txn,
        now: Timestamp,
    ) -> ApiResult<Option<Revision>> {
        let txn = txn.write(&new_id(now), &record, now, None)?;
        match self.store.commit(txn).await? {
            Outcome::Committed(revision) => Ok(Some(revision)),
            Outcome::Refused => Ok(None),
        }
    }
}
