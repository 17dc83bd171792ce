//! The published words for what is known of a cluster.

use std::fmt;

use jiff::Timestamp;
use wharf_api::node_files::{
    self, Junk, KubeClusterInfo, KubeNodeInfo, KubePodInfo, KubePodNsInfo, KubeReplicaInfo,
    KubeStorageInfo, KubeVmiInfo, KubeVolumeInfo, List, MAX_BYTES, Time,
};
use wharf_core::node::stats::{
    Facts, Machine, Node, Pod, PodCounts, admission_number, count_pods, node_number, pod_number,
    storage::{self, VolumeReport, describe_volumes, storage_number},
};

/// What was told before.
#[derive(Debug, Default)]
pub struct Reported {
    /// How the storage is, and when it became so.
    health: Option<(u8, Timestamp)>,
}

/// What did not fit into a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Nothing,
    To { kept: usize, of: usize },
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Nothing => f.write_str("all of it is told"),
            Cut::To { kept, of } => write!(
                f,
                "a file has at most {MAX_BYTES} bytes: {kept} of {of} pods, virtual machines and \
                 volumes are told"
            ),
        }
    }
}

impl Reported {
    pub fn describe(&mut self, facts: &Facts<'_>) -> (KubeClusterInfo, Cut) {
        let storage = facts.storage.as_ref().map(|storage| self.storage(storage));
        let nodes: Vec<_> = facts.nodes.iter().map(|(name, one)| node(name, one)).collect();
        let app_pods: Vec<_> = facts.pods.iter().filter_map(app_pod).collect();
        let machines: Vec<_> =
            facts.machines.iter().map(|(name, one)| machine(name, one)).collect();
        let counts = count_pods(facts.pods.iter().map(|(name, pod)| (split(name).0, pod.phase)));
        let namespaces: Vec<_> =
            counts.iter().map(|(name, count)| namespace(name, count)).collect();
        let info = KubeClusterInfo {
            nodes: nodes.into(),
            app_pods: app_pods.into(),
            app_vmis: machines.into(),
            storage: storage.unwrap_or_default(),
            pod_ns_info: namespaces.into(),
        };
        fit(info)
    }

    fn storage(&mut self, facts: &storage::Facts<'_>) -> KubeStorageInfo {
        let daemons: Vec<_> = facts.daemons.values().copied().collect();
        let health = storage_number(&daemons, facts.full_disks.values().any(|full| *full));
        let since = match self.health {
            Some((known, since)) if known == health => since,
            Some(_) | None => Timestamp::now(),
        };
        self.health = Some((health, since));
        let volumes: Vec<_> = describe_volumes(facts).iter().map(volume).collect();
        KubeStorageInfo { health, transition_time: since.into(), volumes: volumes.into() }
    }
}

/// Namespace and name.
fn split(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or(("", name))
}

fn node(name: &str, node: &Node) -> KubeNodeInfo {
    KubeNodeInfo {
        name: name.to_owned(),
        status: node_number(node.ready),
        is_master: node.roles.controlplane,
        uses_etcd: node.roles.etcd,
        creation_time: Time(node.created),
        last_transition_time: Time(node.ready_since),
        kubelet_version: node.kubelet_version.clone(),
        internal_ip: node.internal_ip.clone(),
        external_ip: node.external_ip.clone(),
        schedulable: node.schedulable,
        admission: admission_number(node),
        node_id: node.id.clone(),
    }
}

fn app_pod((name, pod): (&String, &Pod)) -> Option<KubePodInfo> {
    let app = pod.app.as_ref()?;
    Some(KubePodInfo {
        name: split(name).1.to_owned(),
        status: pod_number(pod.phase),
        restart_count: app.restarts,
        restart_timestamp: Time(app.restarted),
        creation_timestamp: Time(app.created),
        pod_ip: app.ip.clone(),
        node_name: app.node.clone(),
    })
}

fn machine(name: &str, machine: &Machine) -> KubeVmiInfo {
    KubeVmiInfo {
        name: name.to_owned(),
        status: machine.status,
        creation_time: Time(machine.created),
        last_transition_time: Time(machine.ready_since),
        is_ready: machine.ready,
        node_name: machine.node.clone(),
    }
}

fn namespace(name: &str, count: &PodCounts) -> KubePodNsInfo {
    KubePodNsInfo {
        name: name.to_owned(),
        pod_count: count.all,
        pod_running_count: count.running,
        pod_pending_count: count.pending,
        pod_failed_count: count.failed,
        pod_succeeded_count: count.succeeded,
    }
}

fn volume(report: &VolumeReport<'_>) -> KubeVolumeInfo {
    let replicas = report.replicas.iter().map(|replica| KubeReplicaInfo {
        name: replica.name.to_owned(),
        owner_node: replica.node.to_owned(),
        rebuild_progress_percentage: replica.progress,
        status: replica.status,
    });
    KubeVolumeInfo {
        name: report.name.to_owned(),
        state: report.volume.state,
        robustness: report.volume.robustness,
        created_at: Time(report.claim.created),
        provisioned_bytes: report.claim.bytes,
        allocated_bytes: report.volume.bytes,
        pvc_status: report.claim.status,
        replicas: replicas.collect::<Vec<_>>().into(),
        robustness_substate: report.substate,
        volume_id: report.id.to_owned(),
    }
}

/// Shortens the lists that grow with the applications until a file holds it all. Whoever reads it
/// would take none of it otherwise.
fn fit(mut info: KubeClusterInfo) -> (KubeClusterInfo, Cut) {
    let of = entries(&info);
    while let Err(Junk::TooLarge(size)) = node_files::write(&info) {
        if entries(&info) == 0 {
            break;
        }
        shorten(&mut info.app_pods, size);
        shorten(&mut info.app_vmis, size);
        shorten(&mut info.storage.volumes, size);
    }
    let kept = entries(&info);
    (info, if kept == of { Cut::Nothing } else { Cut::To { kept, of } })
}

fn entries(info: &KubeClusterInfo) -> usize {
    info.app_pods.len() + info.app_vmis.len() + info.storage.volumes.len()
}

/// By as much as the whole is too large, and a tenth more.
fn shorten<T>(list: &mut List<T>, size: usize) {
    let kept = list.len().saturating_mul(MAX_BYTES) / size.max(1);
    list.truncate(kept - kept / 10 - usize::from(kept > 0));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_is_too_large_for_a_file_is_shortened_and_says_so() {
        let pod = KubePodInfo { name: "p".repeat(60), ..KubePodInfo::default() };
        let machine = KubeVmiInfo { name: "m".repeat(60), ..KubeVmiInfo::default() };
        let info = |pods, machines| KubeClusterInfo {
            app_pods: vec![pod.clone(); pods].into(),
            app_vmis: vec![machine.clone(); machines].into(),
            ..KubeClusterInfo::default()
        };
        let (small, cut) = fit(info(100, 1));
        assert_eq!((small.app_pods.len(), small.app_vmis.len(), cut), (100, 1, Cut::Nothing));
        let (large, cut) = fit(info(20_000, 2_000));
        let bytes = node_files::write(&large).unwrap();
        assert!(bytes.len() > MAX_BYTES / 2, "{}", bytes.len());
        assert_eq!(cut, Cut::To { kept: entries(&large), of: 22_000 });
        assert!(large.app_vmis.len() > 100, "{}", large.app_vmis.len());
        assert!(cut.to_string().contains("of 22000 pods"), "{cut}");
    }

    #[test]
    fn the_storages_health_keeps_the_time_of_its_last_change() {
        let mut reported = Reported::default();
        let mut look = |ready| {
            let daemons = storage::Daemons { wanted: 2, ready };
            let facts = storage::Facts {
                claims: &BTreeMap::new(),
                volumes: &BTreeMap::new(),
                replicas: &BTreeMap::new(),
                engines: &BTreeMap::new(),
                daemons: &[("manager".to_owned(), daemons)].into(),
                full_disks: &BTreeMap::new(),
            };
            let info = reported.storage(&facts);
            (info.health, info.transition_time)
        };
        let (first, second) = (look(2), look(2));
        assert_eq!((first.0, first), (3, second));
        let third = look(1);
        assert_eq!(third.0, 2);
        assert!(third.1 > first.1);
    }
}
