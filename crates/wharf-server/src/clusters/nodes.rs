//! The nodes of a cluster, as they were asked for and as they are.

use std::collections::BTreeMap;

use wharf_core::{
    agents::{AgentRecord, NodeOperation},
    cluster::{
        ClusterRecord, NodeRecord, NodeRole, NodeSpec, Origin,
        health::{HealthRecord, NodeHealth},
    },
    drain::DrainRecord,
};
use wharf_store::Stored;

use super::get_served;
use crate::{
    access::Caller,
    agents,
    app::AppState,
    drains,
    error::{ApiError, ApiResult},
};

/// One node with all that is known of it.
pub struct Node {
    pub name: String,
    pub spec: Option<NodeSpec>,
    pub record: Option<NodeRecord>,
    pub health: Option<NodeHealth>,
    /// The drain that is under way.
    pub drain: Option<DrainRecord>,
    /// What is known of its agent, and whether it is linked; not of nodes that we did not install.
    pub agent: Option<(AgentRecord, bool)>,
    /// The reboot, shutdown or update that is under way.
    pub operation: Option<NodeOperation>,
}

impl Node {
    /// The address of its machine, by which all that takes machines out of service knows it; of a
    /// node that has none, its name.
    pub fn machine(&self) -> String {
        let address = match self.spec() {
            Some(spec) => Some(spec.address),
            None => self.health.as_ref().and_then(|health| health.address),
        };
        address.map_or_else(|| self.name.clone(), |address| address.to_string())
    }

    /// Whether it is a controlplane or an etcd machine, of which one at a time may be out of
    /// service: by the wish, or by the labels of its Node where there is no wish.
    pub fn is_critical(&self) -> bool {
        match (self.spec(), &self.health) {
            (Some(spec), _) => spec.is(NodeRole::Controlplane) || spec.is(NodeRole::Etcd),
            (None, Some(health)) => {
                health.roles().iter().any(|role| role == "controlplane" || role == "etcd")
            }
            (None, None) => false,
        }
    }

    /// What was asked for, also of a node that is about to leave.
    pub fn spec(&self) -> Option<&NodeSpec> {
        self.spec.as_ref().or(self.record.as_ref().map(|record| &record.spec))
    }
}

/// All nodes by name: those of the wish, and those that the cluster itself has.
pub async fn list(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
) -> ApiResult<(Stored<ClusterRecord>, Vec<Node>)> {
    let record = get_served(app, caller, cluster).await?;
    let health = app.store.read::<HealthRecord>(cluster).await?;
    let health = health.map(|stored| stored.value.nodes).unwrap_or_default();
    let mut nodes = merge(&record.value, &health);
    let drains = drains::of_cluster(&app.store, cluster).await?;
    for drain in drains.into_iter().map(|drain| drain.value).filter(DrainRecord::is_running) {
        if let Some(node) = nodes.iter_mut().find(|node| node.name == drain.node) {
            node.drain = Some(drain);
        }
    }
    if record.value.origin == Origin::Installed {
        add_agents(&mut nodes, agents::known(&app.store, cluster).await?);
    }
    Ok((record, nodes))
}

fn add_agents(nodes: &mut [Node], mut known: agents::Known) {
    known.operations.retain(|operation| operation.value.is_running());
    for node in nodes {
        let agent = known.agents.iter().find(|agent| agent.node == node.name);
        let linked = agent.is_some_and(|agent| agent.is_linked(&known.members));
        node.agent = Some((agent.cloned().unwrap_or_default(), linked));
        let operation = known.operations.iter().find(|one| one.value.node == node.name);
        node.operation = operation.map(|operation| operation.value.clone());
    }
}

pub async fn get(
    app: &AppState,
    caller: &Caller,
    cluster: &str,
    name: &str,
) -> ApiResult<(Stored<ClusterRecord>, Node)> {
    let (record, nodes) = list(app, caller, cluster).await?;
    let node = nodes.into_iter().find(|node| node.name == name);
    Ok((record, node.ok_or_else(|| ApiError::not_found("node", name))?))
}

/// The nodes of a cluster that does not serve them (yet), by name.
pub fn asked_for(record: &ClusterRecord) -> Vec<Node> {
    merge(record, &[])
}

fn merge(record: &ClusterRecord, health: &[NodeHealth]) -> Vec<Node> {
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    let mut entry = |name: &str, fill: &dyn Fn(&mut Node)| {
        let node = nodes.entry(name.to_owned()).or_insert_with(|| Node {
            name: name.to_owned(),
            spec: None,
            record: None,
            health: None,
            drain: None,
            agent: None,
            operation: None,
        });
        fill(node);
    };
    for spec in &record.spec.nodes {
        entry(&spec.name, &|node| node.spec = Some(spec.clone()));
    }
    for (name, known) in &record.nodes {
        entry(name, &|node| node.record = Some(known.clone()));
    }
    for seen in health {
        entry(&seen.name, &|node| node.health = Some(seen.clone()));
    }
    nodes.into_values().collect()
}
