//! The repair queue on the wire. The names of its fields are those of the queue's own schema.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::resource::Collection;

/// A wish to have a machine repaired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepairRequest {
    pub operation: String,
    pub machine_type: String,
    /// An IP address; the machine need not be a node of the cluster.
    pub address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
}

/// All entries in the order of their index, and whether the queue is worked on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepairQueue {
    pub enabled: bool,
    #[serde(flatten)]
    pub collection: Collection<RepairEntry>,
}

/// One machine in the queue. Times are in whole seconds, UTC; one that was never set is
/// `0001-01-01T00:00:00Z`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepairEntry {
    /// A number, as text.
    pub index: String,
    pub address: String,
    /// Empty when the machine is no node of the cluster.
    pub nodename: String,
    pub machine_type: String,
    pub operation: String,
    /// `queued`, `processing`, `succeeded` or `failed`.
    pub status: String,
    /// The current step, from 0.
    pub step: usize,
    /// `waiting`, `draining` or `watching`.
    pub step_status: String,
    #[schema(format = DateTime)]
    pub last_transition_time: String,
    pub drain_backoff_count: u32,
    #[schema(format = DateTime)]
    pub drain_backoff_expire: String,
    pub serial: String,
    /// It is to be taken out of the queue.
    pub deleted: bool,
    /// Why it is where it is.
    pub reason: String,
    /// What it waits for; empty where that is not known.
    pub wait: String,
    pub history: Vec<RepairTransition>,
    pub last_exit_code: Option<i32>,
    pub stdout_tail: String,
    pub stderr_tail: String,
    pub blocking_pods: Vec<BlockingPod>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepairTransition {
    #[schema(format = DateTime)]
    pub time: String,
    pub status: String,
    pub step: usize,
    pub step_status: String,
    pub reason: String,
}

/// A pod that keeps its node from being drained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlockingPod {
    pub namespace: String,
    pub name: String,
    /// The budgets that protect it.
    pub budgets: Vec<String>,
    pub reason: String,
}

/// The entries that an action changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepairChanges {
    pub indexes: Vec<String>,
}

/// How machines are repaired; `docs/REPAIR.md` describes every key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = Object)]
pub struct RepairConfig(pub serde_json::Value);
