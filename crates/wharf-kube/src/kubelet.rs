//! What a node's kubelet measures: how much each pod of the node uses.
//!
//! The kubelet is asked itself, with the identity that asks the cluster. The way through the API server
//! would need the right to use kubelets in every way, which is as good as being root on every node;
//! this needs `get` on `nodes/stats` alone.

use std::{collections::BTreeMap, net::IpAddr};

use http::Uri;
use jiff::Timestamp;
use serde::Deserialize;

use crate::{cluster::Cluster, error::Result};

/// Where a kubelet listens unless its Node says otherwise.
const PORT: u16 = 10250;

/// What a pod uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUsage {
    pub uid: String,
    /// When that was measured.
    pub at: Option<Timestamp>,
    /// Since it was started.
    pub cpu_nanoseconds: u64,
    pub memory_bytes: u64,
    /// Used and in all, by the name of the claim.
    pub claims: BTreeMap<String, (u64, u64)>,
}

/// The kubelet of a node.
#[derive(Debug, Clone)]
pub struct Kubelet {
    way: Cluster,
}

impl Cluster {
    /// The kubelet of a node, where its Node says that it is; `None` while it says nothing.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn kubelet(&self, node: &str) -> Result<Option<Kubelet>> {
        let node: Option<Node> = self.get(&format!("/api/v1/nodes/{node}")).await?;
        let Some(uri) = node.and_then(|node| node.kubelet()) else { return Ok(None) };
        Ok(Some(Kubelet { way: self.with_servers(&[uri])? }))
    }
}

impl Kubelet {
    /// What each pod of a namespace on this node uses.
    ///
    /// # Errors
    /// The kubelet does not answer or refuses.
    pub async fn pod_usage(&self, namespace: &str) -> Result<Vec<PodUsage>> {
        let summary: Option<Summary> = self.way.get("/stats/summary").await?;
        let pods = summary.map(|summary| summary.pods).unwrap_or_default();
        let ours = pods.into_iter().filter(|pod| pod.pod_ref.namespace == namespace);
        Ok(ours.map(PodUsage::from).collect())
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Node {
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    addresses: Vec<Address>,
    daemon_endpoints: Endpoints,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Address {
    r#type: String,
    address: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Endpoints {
    kubelet_endpoint: Endpoint,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Endpoint {
    #[serde(rename = "Port")]
    port: u16,
}

impl Node {
    fn kubelet(&self) -> Option<Uri> {
        let mut internal = self.status.addresses.iter().filter(|one| one.r#type == "InternalIP");
        let address: IpAddr = internal.find_map(|one| one.address.parse().ok())?;
        let port = match self.status.daemon_endpoints.kubelet_endpoint.port {
            0 => PORT,
            port => port,
        };
        format!("https://{}", std::net::SocketAddr::new(address, port)).parse().ok()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Summary {
    pods: Vec<PodStats>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStats {
    pod_ref: PodRef,
    cpu: Cpu,
    memory: Memory,
    volume: Vec<Volume>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodRef {
    namespace: String,
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Cpu {
    time: Option<Timestamp>,
    usage_core_nano_seconds: u64,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Memory {
    working_set_bytes: u64,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Volume {
    pvc_ref: Option<ClaimRef>,
    used_bytes: u64,
    capacity_bytes: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClaimRef {
    name: String,
}

impl From<PodStats> for PodUsage {
    fn from(stats: PodStats) -> Self {
        let claims = stats.volume.into_iter().filter_map(|volume| {
            Some((volume.pvc_ref?.name, (volume.used_bytes, volume.capacity_bytes)))
        });
        Self {
            claims: claims.collect(),
            uid: stats.pod_ref.uid,
            at: stats.cpu.time,
            cpu_nanoseconds: stats.cpu.usage_core_nano_seconds,
            memory_bytes: stats.memory.working_set_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kubelet_is_where_its_node_says() {
        let node = |value| serde_json::from_value::<Node>(value).unwrap().kubelet();
        let addresses = json!([
            { "type": "Hostname", "address": "n1" }, { "type": "InternalIP", "address": "10.0.0.1" },
        ]);
        let told = node(json!({ "status": {
            "addresses": addresses, "daemonEndpoints": { "kubeletEndpoint": { "Port": 1234 } },
        } }));
        assert_eq!(told.unwrap().to_string(), "https://10.0.0.1:1234/");
        let untold = node(json!({ "status": { "addresses": addresses } }));
        assert_eq!(untold.unwrap().to_string(), "https://10.0.0.1:10250/");
        assert_eq!(node(json!({ "metadata": {} })), None);
    }

    #[test]
    fn of_what_a_kubelet_measures_the_pods_and_their_claims_are_read() {
        let stats: PodStats = serde_json::from_value(json!({
            "podRef": { "name": "a", "namespace": "n", "uid": "u" },
            "cpu": { "time": "2026-01-02T03:04:05Z", "usageNanoCores": 1, "usageCoreNanoSeconds": 7 },
            "memory": { "usageBytes": 9, "workingSetBytes": 8 },
            "volume": [
                { "name": "token", "usedBytes": 1 },
                { "name": "v", "pvcRef": { "name": "data", "namespace": "n" }, "usedBytes": 5,
                  "capacityBytes": 6 },
            ],
        }))
        .unwrap();
        let expected = PodUsage {
            uid: "u".to_owned(),
            at: Some("2026-01-02T03:04:05Z".parse().unwrap()),
            cpu_nanoseconds: 7,
            memory_bytes: 8,
            claims: BTreeMap::from([("data".to_owned(), (5, 6))]),
        };
        assert_eq!(PodUsage::from(stats), expected);
    }
}
