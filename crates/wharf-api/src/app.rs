//! Applications of a cluster on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    node_files::{AppInstanceConfig, VolumeConfig},
    resource::Head,
};

/// What is wanted: POST and PUT.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppSpec {
    pub name: String,
    /// The node that it is meant for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub designated_node: Option<String>,
    /// What every node is told, with the names of AppInstanceConfig: Activate, RemoteConsole,
    /// FixedResources, VolumeRefConfigList, AppNetAdapterList, IoAdapterList… A UUID in
    /// UUIDandVersion is taken over; without one the server chooses.
    #[serde(default)]
    #[schema(value_type = serde_json::Value)]
    pub config: AppInstanceConfig,
    /// What every node is told of its volumes, with the names of VolumeConfig.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<serde_json::Value>)]
    pub volumes: Vec<VolumeConfig>,
    /// The objects that make it, as YAML; they are applied to the namespace `eve-kube-app`.
    /// `{{name}}` stands for the application's name in the cluster, which its pods must bear.
    #[serde(default)]
    pub manifest: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct App {
    #[serde(flatten)]
    pub head: Head,
    #[serde(flatten)]
    pub spec: AppSpec,
    pub uuid: String,
    /// Its name in the cluster.
    pub kube_name: String,
    /// `Pending`, `Applied`, `Failed` or `Deleting`.
    #[schema(example = "Applied")]
    pub status: String,
    /// Why the cluster does not hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
