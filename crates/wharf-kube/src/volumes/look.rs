//! One look at all volumes of a cluster: who holds them, and all that the holders are judged by.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use wharf_core::{
    drain::PodRef,
    repair::HeldVolume,
    volume::{
        attach::ClusterFacts,
        explain::{Pending, VolumeSeen, sighting},
        fence::{HolderNode, NodeObject},
        garbage::GarbageEntry,
        record::{Entry, Phase, Record},
    },
};

use super::{
    AgentLease, GROUP, PersistentVolume, StorageCluster, garbage, lease,
    objects::{self, ClusterObject},
    record,
};
use crate::{cluster::Cluster, drain::PodSeen, error::Result};

/// What the API server knows of volumes.
#[derive(Debug, Clone, Default)]
pub struct Volumes {
    volumes: BTreeMap<String, PersistentVolume>,
    clusters: BTreeMap<String, StorageCluster>,
    /// By volume, each with the time since when somebody has held it.
    records: BTreeMap<String, (Record, Option<Timestamp>)>,
    nodes: BTreeMap<String, NodeObject>,
    leases: BTreeMap<String, AgentLease>,
    garbage: BTreeMap<String, Vec<GarbageEntry>>,
    pending: Vec<PendingPod>,
}

/// A pod that is bound to a node and does not run yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingPod {
    pub pod: PodRef,
    pub node: String,
    /// The names of the claims that it uses.
    pub claims: Vec<String>,
}

impl Cluster {
    /// Looks at all volumes. A cluster that does not know our kinds has none.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn look_at_volumes(&self) -> Result<Volumes> {
        let clusters = format!("{GROUP}/storageclusters");
        let (records, leases, garbage) = (record::path(""), lease::path(""), garbage::path(""));
        let (volumes, clusters, records, nodes, leases, garbage, pending) = tokio::try_join!(
            self.volumes(),
            self.known::<ClusterObject>(&clusters),
            self.known::<record::Object>(&records),
            self.known::<objects::NodeSeen>("/api/v1/nodes"),
            self.known::<lease::Object>(&leases),
            self.known::<garbage::Object>(&garbage),
            self.pending_pods(),
        )?;
        let clusters = clusters.into_iter().map(StorageCluster::from);
        Ok(Volumes {
            volumes: volumes.into_iter().map(|volume| (volume.name.clone(), volume)).collect(),
            clusters: clusters.map(|cluster| (cluster.name.clone(), cluster)).collect(),
            records: records.into_iter().map(record::Object::named).collect(),
            nodes: nodes.into_iter().map(objects::NodeSeen::named).collect(),
            leases: leases.into_iter().filter_map(lease::Object::named).collect(),
            garbage: garbage.into_iter().map(garbage::Object::named).collect(),
            pending,
        })
    }

    /// A list of a kind that the cluster may not know.
    async fn known<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>> {
        match self.list(path, ListParams::default()).await {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            listed => listed,
        }
    }

    async fn pending_pods(&self) -> Result<Vec<PendingPod>> {
        let pending = ListParams::default().fields("status.phase=Pending,spec.nodeName!=");
        let pods: Vec<PodSeen> = self.list("/api/v1/pods", pending).await?;
        Ok(pods.iter().map(PendingPod::from).filter(|pod| !pod.claims.is_empty()).collect())
    }
}

impl From<&PodSeen> for PendingPod {
    fn from(pod: &PodSeen) -> Self {
        Self {
            pod: pod.pod_ref(),
            node: pod.node_name().to_owned(),
            claims: pod.claims().collect(),
        }
    }
}

impl Volumes {
    /// The names of all volumes: of the PersistentVolumes, and of those of which only a record is
    /// left.
    pub fn names(&self) -> BTreeSet<&str> {
        self.volumes.keys().chain(self.records.keys()).map(String::as_str).collect()
    }

    pub fn find(&self, name: &str) -> Option<&PersistentVolume> {
        self.volumes.get(name)
    }

    /// Since when somebody has held the volume without a break.
    pub fn held_since(&self, name: &str) -> Option<Timestamp> {
        self.records.get(name).and_then(|(_, since)| *since)
    }

    /// What is known of one volume.
    pub fn seen(&self, name: &str, now: Timestamp) -> VolumeSeen {
        let volume = self.find(name);
        let record = self.records.get(name).map(|(record, _)| record.clone());
        let entries = record.iter().flat_map(|record| &record.entries);
        let nodes: BTreeSet<&str> = entries.map(|entry| entry.node.as_str()).collect();
        let cluster = volume.and_then(|one| self.clusters.get(&one.facts.storage_cluster));
        let garbage = self.garbage.iter().flat_map(|(node, entries)| {
            let of_volume = entries.iter().filter(|garbage| garbage.volume == name);
            of_volume.map(|garbage| (node.clone(), garbage.clone()))
        });
        VolumeSeen {
            volume: name.to_owned(),
            facts: volume.map(|volume| volume.facts.clone()),
            cluster: cluster.map(|cluster| ClusterFacts {
                backend: cluster.backend,
                deleting: cluster.deleting,
            }),
            nodes: nodes.iter().map(|node| ((*node).to_owned(), self.holder(node, now))).collect(),
            record,
            pending: volume.map(|volume| self.pending_for(volume)).unwrap_or_default(),
            garbage: garbage.collect(),
        }
    }

    /// Which volume somebody holds, and on which node.
    pub fn held(&self) -> Vec<(&str, &str)> {
        let entries = self.records.iter().flat_map(|(volume, (record, _))| {
            record.entries.iter().map(|entry| (volume.as_str(), entry.node.as_str()))
        });
        entries.collect()
    }

    /// What would be lost with the kinds of volumes.
    pub fn records(&self) -> Vec<String> {
        let clusters = self.clusters.keys().map(|name| format!("storage cluster {name}"));
        let volumes = self.names().into_iter().map(|name| format!("volume {name}"));
        let nodes = self.garbage.keys().map(|node| format!("what is left on node {node}"));
        clusters.chain(volumes).chain(nodes).collect()
    }

    /// The volumes that a node holds by right.
    pub fn held_on(&self, node: &str) -> Vec<HeldVolume> {
        let open = |entry: &&Entry| {
            entry.node == node && matches!(entry.phase, Phase::Attaching | Phase::Attached)
        };
        let mut held = Vec::new();
        for (name, (record, _)) in &self.records {
            let cluster = self.find(name).map(|volume| &volume.facts.storage_cluster);
            let cluster = cluster.and_then(|cluster| self.clusters.get(cluster));
            held.extend(record.entries.iter().filter(open).map(|entry| HeldVolume {
                volume: name.clone(),
                pod: entry.pod_ref().to_string(),
                backend: cluster.map(|cluster| cluster.backend),
            }));
        }
        held
    }

    fn holder(&self, node: &str, now: Timestamp) -> HolderNode {
        let lease = self.leases.get(node);
        HolderNode {
            node: self.nodes.get(node).cloned(),
            lease: lease.map(|one| sighting(one.tenure, one.renewed, one.duration, now)),
            garbage: self.garbage.get(node).cloned().unwrap_or_default(),
        }
    }

    fn pending_for(&self, volume: &PersistentVolume) -> Vec<Pending> {
        let Some((namespace, claim, _)) = &volume.claim else { return Vec::new() };
        let needs =
            |pod: &&PendingPod| pod.pod.namespace == *namespace && pod.claims.contains(claim);
        let pending = self.pending.iter().filter(needs);
        pending.map(|pod| Pending { pod: pod.pod.clone(), node: pod.node.clone() }).collect()
    }
}
