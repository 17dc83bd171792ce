//! How an agent of ours is.

use serde::{Deserialize, Serialize};

use super::{
    NodeFile,
    go::{List, Time},
};

/// `wharf/AgentHealth/global`: every part of the agent, and what keeps it from its work.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentHealth {
    pub version: String,
    pub node_name: String,
    pub started: Time,
    pub tasks: List<TaskHealth>,
}

impl NodeFile for AgentHealth {
    const TYPE: &'static str = "AgentHealth";
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskHealth {
    pub name: String,
    /// It did its work at least once since it began.
    pub working: bool,
    /// How often it was begun anew.
    pub restarts: u32,
    pub faults: List<AgentFault>,
    /// What is worth knowing besides.
    pub conditions: List<AgentCondition>,
    /// There are more faults than are kept.
    pub more: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentFault {
    /// What it is about: a path, an address; empty for the task itself.
    pub subject: String,
    pub reason: String,
    pub since: Time,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentCondition {
    pub name: String,
    pub text: String,
    pub since: Time,
}

impl AgentHealth {
    pub fn is_healthy(&self) -> bool {
        self.tasks.iter().all(|task| task.faults.is_empty())
    }
}
