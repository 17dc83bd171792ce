//! What is known of a cluster's machines while repairs are under way.
//!
//! Flow: the record and the last probe say which machines there are, also while the API does not
//! answer; the API itself says how they are. A cluster at rest is not asked anything.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::watch;
use wharf_core::{
    cluster::{ClusterRecord, ClusterState, NodeRole, health::HealthRecord},
    repair::{Etcd, Fleet, Machine, Machines},
};
use wharf_kube::{
    Cluster,
    machines::{MachineSeen, follow},
};
use wharf_store::{StoreError, StoreResult, Stored, typed::key_of};

use crate::{app::App, clusters, error::chain};

/// How often etcd is asked for its health: a member that fell ill stops the next repair by then.
const ETCD_EVERY: Duration = Duration::from_secs(5);
/// Before a cluster that refuses, or a store that is away, is asked again.
const RETRY: Duration = Duration::from_secs(5);

#[derive(Clone, Default)]
pub(super) struct Facts {
    /// By the cluster's record, under the address.
    pub known: Arc<Machines>,
    /// By the last probe; it counts until the API itself has answered.
    pub probed: Arc<Machines>,
    /// By its API; `None` before it has answered.
    pub seen: Option<Arc<Vec<MachineSeen>>>,
    pub etcd: Etcd,
    pub cluster: Option<Cluster>,
    /// There is no way to its API at all.
    pub unreachable: bool,
    /// The cluster is being deleted.
    pub deleting: bool,
}

impl Facts {
    /// Whether the first look at the cluster is over.
    pub fn is_looked_at(&self) -> bool {
        self.seen.is_some() || self.unreachable || self.deleting
    }

    pub fn machines(&self) -> Machines {
        let Some(seen) = &self.seen else {
            let mut machines = (*self.probed).clone();
            machines.extend(self.known.iter().map(|(at, known)| (at.clone(), known.clone())));
            return machines;
        };
        let by_name: HashMap<&str, (&String, &Machine)> =
            self.known.iter().map(|(at, known)| (known.node.as_str(), (at, known))).collect();
        let mut machines = (*self.known).clone();
        for node in seen.iter() {
            let known = by_name.get(node.name.as_str());
            let address = match (node.address.as_str(), known) {
                ("", None) => continue,
                ("", Some((address, _))) => (*address).clone(),
                (address, _) => address.to_owned(),
            };
            if let Some((old, _)) = known.filter(|(old, _)| **old != address) {
                machines.remove(*old);
            }
            let known = known.map(|(_, machine)| *machine);
            machines.insert(
                address,
                Machine {
                    node: node.name.clone(),
                    // The record knows what a machine was made for, whatever its labels say.
                    controlplane: node.controlplane || known.is_some_and(|it| it.controlplane),
                    etcd: node.etcd || known.is_some_and(|it| it.etcd),
                    opted_out: node.opted_out,
                    cordoned_by: node.cordoned_by.clone(),
                    fenced: node.fenced,
                    volumes_fenced: node.volumes_fenced,
                },
            );
        }
        machines
    }

    pub fn fleet(&self) -> Fleet {
        let seen = self.seen.as_deref().map(Vec::as_slice).unwrap_or_default();
        Fleet {
            machines: seen.len(),
            unhealthy: seen.iter().filter(|node| !node.ready).count(),
            last_storm: None,
        }
    }
}

/// Keeps the facts up to date for as long as it is polled.
pub(super) async fn keep(app: App, cluster: String, facts: watch::Sender<Facts>) {
    loop {
        match look(&app, &cluster, &facts).await {
            Ok(()) => {}
            Err(StoreError::Compacted { .. }) => {}
            Err(error) => {
                tracing::warn!(?error, cluster, "the machines of repairs will be looked at again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Follows a cluster until its record changes.
async fn look(app: &App, cluster: &str, facts: &watch::Sender<Facts>) -> StoreResult<()> {
    let Some(record) = app.store.read::<ClusterRecord>(cluster).await? else {
        // It is gone, and so will be whoever asks.
        return std::future::pending().await;
    };
    let known = Arc::new(recorded_machines(&record.value));
    let probed = Arc::new(probed_machines(app, cluster).await?);
    let deleting = record.value.state == ClusterState::Deleting;
    let connected = clusters::connect(app, &record.value).await;
    if let Err(reason) = &connected {
        tracing::debug!(cluster, reason, "its machines are known by its record alone");
    }
    let connected = connected.ok();
    facts.send_modify(|facts| {
        facts.known = known;
        facts.probed = probed;
        facts.deleting = deleting;
        facts.unreachable = connected.is_none();
        facts.cluster.clone_from(&connected);
    });
    let ask = async {
        match connected {
            Some(api) => tokio::join!(see(cluster, &api, facts), watch_etcd(&api, facts)).0,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        changed = next_change(app, &record) => changed,
        () = ask => Ok(()),
    }
}

/// The nodes, also of a cluster that does not answer: a controlplane machine must never look like
/// a stranger.
pub(super) async fn known_machines(app: &App, record: &ClusterRecord) -> StoreResult<Machines> {
    let mut machines = probed_machines(app, &record.spec.name).await?;
    machines.extend(recorded_machines(record));
    Ok(machines)
}

async fn probed_machines(app: &App, cluster: &str) -> StoreResult<Machines> {
    let health = app.store.read::<HealthRecord>(cluster).await?;
    let mut machines = Machines::default();
    for node in health.map(|health| health.value.nodes).unwrap_or_default() {
        let Some(address) = node.address else { continue };
        let roles = node.roles();
        let is = |role: &str| roles.iter().any(|one| one == role);
        let (controlplane, etcd) = (is("controlplane"), is("etcd"));
        let machine = Machine { node: node.name, controlplane, etcd, ..Machine::default() };
        machines.insert(address.to_string(), machine);
    }
    Ok(machines)
}

fn recorded_machines(record: &ClusterRecord) -> Machines {
    let mut machines = Machines::default();
    let installed = record.nodes.values().map(|node| &node.spec);
    for spec in record.spec.nodes.iter().chain(installed) {
        let machine = Machine {
            node: spec.name.clone(),
            controlplane: spec.is(NodeRole::Controlplane),
            etcd: spec.is(NodeRole::Etcd),
            ..Machine::default()
        };
        machines.insert(spec.address.to_string(), machine);
    }
    machines
}

async fn see(cluster: &str, api: &Cluster, facts: &watch::Sender<Facts>) {
    loop {
        let (sender, mut seen) = watch::channel(None);
        let tell = async {
            while seen.changed().await.is_ok() {
                let now = seen.borrow_and_update().clone();
                facts.send_modify(|facts| facts.seen = now);
            }
        };
        tokio::select! {
            followed = follow(api.clone(), sender) => {
                let reason = match followed {
                    Ok(never) => match never {},
                    Err(error) => chain(&error),
                };
                tracing::warn!(cluster, reason, "its nodes cannot be followed");
            }
            () = tell => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn watch_etcd(api: &Cluster, facts: &watch::Sender<Facts>) {
    loop {
        let etcd = Etcd::Members(api.etcd_health().await);
        facts.send_if_modified(|facts| {
            let changed = facts.etcd != etcd;
            facts.etcd = etcd;
            changed
        });
        tokio::time::sleep(ETCD_EVERY).await;
    }
}

async fn next_change(app: &App, record: &Stored<ClusterRecord>) -> StoreResult<()> {
    let key = key_of::<ClusterRecord>(&record.id);
    let mut watch = app.store.watch(&key, record.revision).await?;
    while !watch.next().await?.iter().any(|change| change.key() == key) {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(name: &str, address: &str) -> MachineSeen {
        MachineSeen {
            name: name.to_owned(),
            address: address.to_owned(),
            ready: true,
            unready_since: None,
            unschedulable: false,
            controlplane: false,
            etcd: false,
            opted_out: false,
            cordoned_by: Some("repair 10.0.0.1".to_owned()),
            fenced: false,
            volumes_fenced: false,
        }
    }

    #[test]
    fn machines_are_those_of_the_record_and_of_the_cluster_each_once() {
        let machine = |node: &str, controlplane| Machine {
            node: node.to_owned(),
            controlplane,
            ..Machine::default()
        };
        let known = [
            ("10.0.0.1", machine("a", true)),
            ("10.0.0.2", machine("b", false)),
            ("10.0.0.3", machine("c", true)),
        ];
        let known = known.map(|(address, machine)| (address.to_owned(), machine));
        let probed = Machines::from_iter([("10.0.0.8".to_owned(), machine("gone", false))]);
        let (known, probed) = (Arc::new(Machines::from_iter(known)), Arc::new(probed));
        let mut facts = Facts { known, probed, ..Facts::default() };
        assert_eq!(facts.machines().len(), 4, "the API has not answered");
        // One has another address now, one has told none, one is not in the record.
        let mut ill = seen("d", "10.0.0.9");
        ill.ready = false;
        facts.seen = Some(Arc::new(vec![seen("a", "10.0.1.1"), seen("b", ""), ill, seen("e", "")]));
        let machines = facts.machines();
        let mut addresses: Vec<&str> = machines.keys().map(String::as_str).collect();
        addresses.sort_unstable();
        assert_eq!(addresses, ["10.0.0.2", "10.0.0.3", "10.0.0.9", "10.0.1.1"]);
        assert!(machines["10.0.1.1"].controlplane, "as the record says");
        assert_eq!(machines["10.0.0.2"].cordoned_by.as_deref(), Some("repair 10.0.0.1"));
        assert!(machines["10.0.0.3"].controlplane, "it has no Node, but is no stranger");
        assert_eq!((facts.fleet().machines, facts.fleet().unhealthy), (4, 1));
    }
}
