//! Virtual machines: their names, and where they run.

use kube::api::ListParams;
use serde::Deserialize;
use wharf_core::node::apps::{Machine, MachinePhase};

use crate::{
    cluster::Cluster,
    error::Result,
    namespace::{Named, NamespaceWatch, ObjectMeta},
    watch::Followed,
};

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
        let path = path(namespace);
        match self.list::<Object>(&path, ListParams::default()).await {
            Ok(objects) => Ok(objects.into_iter().map(|object| object.metadata.name).collect()),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Follows the virtual machines of a namespace. A cluster that does not know the kind answers
    /// 404, also later: whoever waits for it may ask seldom.
    pub fn watch_machines(&self, namespace: &str) -> NamespaceWatch<Machine> {
        NamespaceWatch::new(self, &path(namespace), |machine: MachineObject| machine.into())
    }
}

fn path(namespace: &str) -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances")
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct MachineObject {
    metadata: ObjectMeta,
    status: Status,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: String,
    node_name: String,
}

impl Followed for MachineObject {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Named for MachineObject {
    fn name(&self) -> &str {
        &self.metadata.name
    }
}

impl From<MachineObject> for Machine {
    fn from(object: MachineObject) -> Self {
        let phase = match object.status.phase.as_str() {
            // Nobody has looked at it yet.
            "" | "Pending" => MachinePhase::Pending,
            "Scheduling" | "Scheduled" => MachinePhase::Scheduling,
            "Running" => MachinePhase::Running,
            "Succeeded" => MachinePhase::Succeeded,
            "Failed" => MachinePhase::Failed,
            _ => MachinePhase::Unknown,
        };
        Self { name: object.metadata.name, node: object.status.node_name, phase }
    }
}
