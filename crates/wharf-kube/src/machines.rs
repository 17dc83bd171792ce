//! All machines of a cluster as its Nodes show them, followed for as long as somebody wants.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    cluster::Cluster,
    cordon::CORDON_OWNER,
    drain::objects::Condition,
    error::{KubeError, Result},
    fence,
    observe::CONTROLPLANE,
    watch::{Change, Follow, Followed},
};

/// The label or annotation by which a person keeps a node from being repaired, with the value
/// `false`.
pub const REPAIR: &str = "wharf.dev/repair";
const ETCD: &str = "node-role.kubernetes.io/etcd";

/// In a cluster of ten thousand nodes many change at once; the list is made anew so often at most.
const PUBLISH: Duration = Duration::from_millis(100);
/// A thousand clusters are followed by one process: each asks once a minute when nothing happens.
const WATCH: Duration = Duration::from_secs(60);

/// A Node, with no more than repairs are decided on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineSeen {
    pub name: String,
    /// Its first `InternalIP`; empty when its kubelet has told none.
    pub address: String,
    pub ready: bool,
    /// Since when it has not been ready. A node whose kubelet never said anything has no such time.
    pub unready_since: Option<Timestamp>,
    pub unschedulable: bool,
    pub controlplane: bool,
    pub etcd: bool,
    /// By [`REPAIR`].
    pub opted_out: bool,
    /// The owner of our cordon; a person's has none.
    pub cordoned_by: Option<String>,
    /// It carries our out-of-service taint.
    pub fenced: bool,
    /// It carries the mark by which its volumes go to others.
    pub volumes_fenced: bool,
}

/// Tells of all Nodes, once they are known and then whenever one of them changes in something that
/// [`MachineSeen`] tells of, for as long as it is polled.
///
/// # Errors
/// The API server refuses. One that does not answer is asked again; what was seen stays.
pub async fn follow(
    cluster: Cluster,
    seen: watch::Sender<Option<Arc<Vec<MachineSeen>>>>,
) -> Result<Infallible> {
    let mut nodes: Follow<Node> = Follow::new(cluster, "/api/v1/nodes", None, WATCH);
    let mut machines: BTreeMap<String, MachineSeen> = BTreeMap::new();
    let mut changed = false;
    let mut due = Instant::now();
    loop {
        tokio::select! {
            change = nodes.next() => match change {
                Ok(change) => changed |= take(&mut machines, change),
                Err(error) if error.is_transient() => {}
                // It is asked for anew.
                Err(KubeError::Answer { .. }) => {}
                Err(error) => return Err(error),
            },
            () = sleep_until(due), if changed => {
                seen.send_replace(Some(Arc::new(machines.values().cloned().collect())));
                changed = false;
                due = Instant::now() + PUBLISH;
            }
        }
    }
}

/// Whether that changed anything; a first list always does, also an empty one.
fn take(machines: &mut BTreeMap<String, MachineSeen>, change: Change<Node>) -> bool {
    match change {
        Change::All(nodes) => {
            let all = nodes.into_iter().map(|node| (node.metadata.name.clone(), node.into()));
            *machines = all.collect();
            true
        }
        Change::Again => false,
        Change::Gone(node) => machines.remove(&node.metadata.name).is_some(),
        Change::Is(node) => {
            let machine = MachineSeen::from(node);
            match machines.entry(machine.name.clone()) {
                Entry::Vacant(place) => {
                    place.insert(machine);
                    true
                }
                Entry::Occupied(mut place) => place.insert(machine) != *place.get(),
            }
        }
    }
}

// What is read of a Node; the rest is passed over.

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Node {
    metadata: Meta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: String,
    resource_version: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
    value: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
    addresses: Vec<Address>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Address {
    #[serde(rename = "type")]
    type_: String,
    address: String,
}

impl Followed for Node {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl From<Node> for MachineSeen {
    fn from(node: Node) -> Self {
        let Node { metadata: Meta { name, labels, mut annotations, .. }, spec, status } = node;
        let condition = status.conditions.into_iter().find(|condition| condition.type_ == "Ready");
        let ready = condition.as_ref().is_some_and(|condition| condition.status == "True");
        let mut addresses = status.addresses.into_iter();
        let address = addresses.find(|address| address.type_ == "InternalIP");
        let is_off = |marks: &BTreeMap<String, String>| {
            marks.get(REPAIR).is_some_and(|value| value == "false")
        };
        MachineSeen {
            name,
            address: address.map(|address| address.address).unwrap_or_default(),
            ready,
            unready_since: condition
                .filter(|_| !ready)
                .and_then(|condition| condition.last_transition_time),
            unschedulable: spec.unschedulable,
            controlplane: CONTROLPLANE.iter().any(|label| labels.contains_key(*label)),
            etcd: labels.contains_key(ETCD),
            opted_out: is_off(&labels) || is_off(&annotations),
            cordoned_by: annotations.remove(CORDON_OWNER),
            fenced: spec
                .taints
                .iter()
                .any(|taint| fence::is_ours(&taint.key, taint.value.as_deref())),
            volumes_fenced: spec
                .taints
                .iter()
                .any(|taint| fence::is_our_volume_mark(&taint.key, taint.value.as_deref())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, ready: &str) -> Node {
        let since = "2026-01-02T03:04:05Z";
        serde_json::from_value(json!({
            "metadata": { "name": name, "resourceVersion": "7" },
            "status": {
                "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": since }],
                "addresses": [
                    { "type": "Hostname", "address": name },
                    { "type": "InternalIP", "address": "10.0.0.7" },
                ],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_machine_is_what_its_node_says() {
        let silent = MachineSeen::from(node("n1", "Unknown"));
        assert_eq!((silent.address.as_str(), silent.ready), ("10.0.0.7", false));
        assert_eq!(silent.unready_since, Some("2026-01-02T03:04:05Z".parse().unwrap()));
        let ready = MachineSeen::from(node("n1", "True"));
        assert_eq!((ready.ready, ready.unready_since), (true, None));

        let bare: Value = json!({ "metadata": { "name": "n2" } });
        let new = MachineSeen::from(serde_json::from_value::<Node>(bare).unwrap());
        assert_eq!((new.ready, new.unready_since, new.address.as_str()), (false, None, ""));

        for place in ["labels", "annotations"] {
            let mut kept = json!({ "metadata": { "name": "n3" }, "spec": {} });
            kept["metadata"][place] = json!({ REPAIR: "false" });
            kept["spec"]["taints"] = json!([{ "key": fence::TAINT, "value": "another" }]);
            let kept = MachineSeen::from(serde_json::from_value::<Node>(kept).unwrap());
            assert!(kept.opted_out && !kept.fenced && !kept.etcd, "{place}");
        }
        for (value, ours) in [("wharf", true), ("a person", false)] {
            let taint = json!({ "key": "wharf.dev/fence-volumes", "value": value });
            let marked = json!({ "metadata": { "name": "n4" }, "spec": { "taints": [taint] } });
            let marked = MachineSeen::from(serde_json::from_value::<Node>(marked).unwrap());
            assert_eq!((marked.volumes_fenced, marked.fenced), (ours, false), "{value}");
        }
    }

    #[test]
    fn only_a_change_that_is_told_of_counts() {
        let mut machines = BTreeMap::new();
        assert!(take(&mut machines, Change::All(vec![])), "empty, but known now");
        assert!(take(&mut machines, Change::Is(node("n1", "True"))));
        let beat = Node {
            metadata: Meta { resource_version: "8".to_owned(), ..node("n1", "").metadata },
            ..node("n1", "True")
        };
        assert!(!take(&mut machines, Change::Is(beat)));
        assert!(take(&mut machines, Change::Is(node("n1", "Unknown"))));
        assert!(take(&mut machines, Change::Gone(node("n1", "True"))));
        assert!(!take(&mut machines, Change::Gone(node("n1", "True"))));
    }
}
