//! The agent on clusters that Wharf did not install, on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How the DaemonSet of agents shall be.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstallAgent {
    /// The agent's image, as the nodes know it.
    #[schema(example = "wharf.dev/agent:0.1.0")]
    pub image: String,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<AgentToleration>,
    /// Where kubelets look for volume drivers, where they do not say so themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin_dir: Option<String>,
    /// Nothing is changed: the answer has the manifests.
    #[serde(default)]
    pub dry_run: bool,
}

/// A taint that does not keep the agent away.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentToleration {
    /// Without it every taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Without it whatever value the taint has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`; without it all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

/// The DaemonSet of agents as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentInstallation {
    pub cluster: String,
    pub image: String,
    pub node_selector: BTreeMap<String, String>,
    /// Whether all that it is for have the agent as it was last wished for.
    pub done: bool,
    /// Whether its controller has seen the last wish; if not, the numbers tell of the one before.
    pub settled: bool,
    /// The nodes that it is for.
    pub desired: u32,
    pub updated: u32,
    pub ready: u32,
    pub pods: Vec<AgentPod>,
    /// What was applied, or would be: `Kind namespace/name` of what is new or different.
    pub changed: Vec<String>,
    /// With `dryRun`: the objects as YAML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifests: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentPod {
    pub name: String,
    pub node: String,
    pub ready: bool,
    /// What it waits for, if it is not ready.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// How far a removal is. Whoever asks again gets it further.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentRemoval {
    pub cluster: String,
    pub done: bool,
    /// The nodes whose pods still take the agent away.
    pub waiting: Vec<String>,
    /// What stays in the cluster, and why.
    pub kept: Vec<String>,
}
