//! Operations on the wire: one run of create, update or delete.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::resource::Head;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    #[serde(flatten)]
    pub head: Head,
    pub cluster: String,
    /// `create`, `update` or `delete`.
    pub kind: String,
    /// `running`, `succeeded`, `failed` or `canceled`.
    pub state: String,
    /// From 0 to 100; 100 only when it succeeded.
    pub percent: u8,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// In sentences, with the host, the command and the last lines of its output.
    pub error: Option<String>,
    pub hint: Option<String>,
    pub phases: Vec<Phase>,
    pub steps: Vec<Step>,
    /// What a delete could not remove.
    pub leftovers: Vec<Leftover>,
    /// The last lines of its log; only where one operation is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Vec<LogLine>>,
    /// The number of the first of those lines, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_start: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Phase {
    pub name: String,
    /// `waiting`, `running`, `done`, `failed` or `skipped`.
    pub state: String,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
}

/// What is done in a phase on one host, or by the server itself (`host` empty).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    pub phase: String,
    pub host: String,
    pub name: String,
    /// `waiting`, `running`, `done`, `failed` or `skipped`.
    pub state: String,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    pub stderr_tail: Option<String>,
    pub hint: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Leftover {
    pub host: String,
    pub reason: String,
    pub items: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    pub text: String,
}
