//! Drains of nodes on the wire: the wish, the plan, and the drain itself.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::resource::Head;

/// What a drain may be asked for with; everything may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainRequest {
    /// After this time it is given up and the node is as before; 3600 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 604800)]
    pub timeout_seconds: Option<i64>,
    /// What becomes of pods of Jobs that have not finished. `block` (default): the drain fails at
    /// once and touches nothing; `wait`: it waits for their end; `delete`: they are deleted;
    /// `evict`: they are evicted like others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "block")]
    pub jobs: Option<String>,
    /// In place of the pods' own grace periods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 604800)]
    pub grace_period_seconds: Option<i64>,
    /// Pods that are not ready are deleted past their budgets after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 604800)]
    pub delete_unready_after_seconds: Option<i64>,
    /// All pods that are left are deleted past their budgets after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 604800)]
    pub delete_after_seconds: Option<i64>,
    /// How long the volumes of pods that left are waited for; by default those of Wharf until the end
    /// of the drain, and others not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 604800)]
    pub wait_volumes_seconds: Option<i64>,
    /// Pods of lower priority leave before those of higher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_by_priority: Option<bool>,
    /// Cordon before the evictions are rehearsed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cordon_first: Option<bool>,
}

/// The last drain of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    #[serde(flatten)]
    pub head: Head,
    pub cluster: String,
    pub node: String,
    /// `running`, `succeeded`, `failed` or `canceled`.
    pub state: String,
    /// Whether it was asked to stop; it runs until the node is as before.
    pub canceled: bool,
    /// Whether it failed because its time was over.
    pub timed_out: bool,
    /// Whether it is over but its cordon could not be taken back yet.
    pub cordon_left: bool,
    pub requested_by: String,
    pub options: DrainRequest,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// While it runs, why it does not go on; afterwards why it failed.
    pub reason: Option<String>,
    /// `waiting` (for its turn), `rehearsing`, `evicting`, `detaching` or `gone`.
    pub stage: String,
    /// So many pods had to leave, as far as was seen.
    pub total: usize,
    /// So many have to leave yet.
    pub left: usize,
    /// So many are terminating and count as gone, since the node is silent.
    pub given_up: usize,
    /// Those that are left, what blocks first; a hundred at most.
    pub pods: Vec<PodLeft>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodLeft {
    pub namespace: String,
    pub name: String,
    pub reason: String,
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// For so long that reason has held it.
    pub age_seconds: u64,
    /// Whether somebody or something has to move before it can leave.
    pub blocks: bool,
}

/// What a drain would do now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPlan {
    /// Always `drainPlan`.
    #[serde(rename = "type")]
    pub type_: String,
    pub cluster: String,
    pub node: String,
    /// `clear`, `inTurns`, `blocked` or `never`.
    pub verdict: String,
    /// The verdict in a sentence.
    pub message: String,
    /// In the order in which they leave.
    pub pods: Vec<PlannedPod>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedPod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// `pod`, `job`, `daemonSet`, `static`, `finished`, `terminating` or `lost`.
    pub class: String,
    /// `evict`, `delete`, `stay`, `wait`, `block` or `ignore`.
    pub action: String,
    /// What protects it; more than one means that Kubernetes will not evict it.
    pub budgets: Vec<PlannedBudget>,
    /// What becomes of it, in a sentence.
    pub why: String,
    /// What a person may have to do.
    pub hint: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedBudget {
    pub name: String,
    /// So many of its pods may be missing now.
    pub allowed: i32,
    /// Whether it lets the pod go: `now`, `later` or `never`.
    pub outlook: String,
}
