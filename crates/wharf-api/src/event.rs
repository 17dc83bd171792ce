//! Live changes, as server-sent events.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The data of one event. The event's id is the revision, its name the type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// `<kind>.created`, `<kind>.updated`, `<kind>.deleted`, or a name of its own.
    #[serde(rename = "type")]
    #[schema(example = "cluster.created")]
    pub type_: String,
    /// The cluster that it is about, if any.
    pub cluster: Option<String>,
    #[schema(example = "cluster/demo")]
    pub resource: String,
    pub revision: u64,
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
}

/// The data of the event `lost`: what happened before `resumed_at` was not delivered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lost {
    /// Read the resources again, then go on with the events after this revision.
    pub resumed_at: u64,
    pub reason: String,
}
