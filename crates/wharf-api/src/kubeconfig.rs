//! Kubeconfigs on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{resource::Head, secret::Secret};

/// How a user reaches a cluster. Only admins get to see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Kubeconfig {
    #[serde(flatten)]
    pub head: Head,
    #[schema(example = "kube-admin")]
    pub user: String,
    /// YAML, with the user's key in it.
    #[schema(value_type = String)]
    pub kube_config: Secret,
}
