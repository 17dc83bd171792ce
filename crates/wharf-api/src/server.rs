//! The servers themselves.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::resource::Head;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    pub version: String,
}

/// A server that takes part in the work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    #[serde(flatten)]
    pub head: Head,
    pub address: String,
    pub version: String,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// Whether this is the server that answers.
    pub this: bool,
}
