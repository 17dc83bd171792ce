//! Virtual machines, by their names.

use kube::api::ListParams;
use serde::Deserialize;

use crate::{cluster::Cluster, error::Result};

#[derive(Deserialize)]
struct Object {
    metadata: Meta,
}

#[derive(Deserialize)]
struct Meta {
    name: String,
}

impl Cluster {
    /// The virtual machines of a namespace. A cluster that does not know the kind has none.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn virtual_machines(&self, namespace: &str) -> Result<Vec<String>> {
        let path = format!("/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances");
        match self.list::<Object>(&path, ListParams::default()).await {
            Ok(objects) => Ok(objects.into_iter().map(|object| object.metadata.name).collect()),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}
