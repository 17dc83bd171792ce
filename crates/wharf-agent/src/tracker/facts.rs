//! Reading what the node's agents say of an application.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
};

use wharf_api::node_files::{
    AppDiskMetric, AppInstanceConfig, AppInstanceStatus, AppNetAdapter, AppNetworkConfig,
    AppNetworkStatus, AssignedAddresses, ContentTreeStatus, DomainConfig, DomainMetric,
    DomainStatus, EdgeNodeClusterStatus, EnClusterAppStatus, GLOBAL, Ip, KubeLeaseInfo,
    NetworkInstanceStatus, NodeFile, Time, Uuid, VolumeConfig, VolumeRef, VolumeStatus,
};
use wharf_core::{
    node::{
        apps::KubeStatus,
        status::SwState,
        tracker::{self as track, Asked, Facts, Missing, Said, find_app},
    },
    words::chain,
};

use crate::{
    device,
    files::{Files, Subscription},
};

const LOG_LINES: usize = 10;
/// More than ten lines of any program.
const LOG_TAIL: u64 = 64 << 10;

#[derive(Clone)]
pub struct Reader {
    files: Files,
    /// Kept at hand, because a name is looked for among all of them.
    apps: Subscription<AppInstanceConfig>,
    install_log: PathBuf,
}

impl Reader {
    pub fn new(files: Files, persist_dir: &Path) -> Self {
        let apps = files.watch("zedagent");
        Self { files, apps, install_log: persist_dir.join("kubelog/k3s-install.log") }
    }

    pub fn read(&self, asked: &str) -> Facts {
        Facts {
            node: self.node(),
            cluster: self.said("zedkube", GLOBAL, cluster),
            lease: self.said("zedkube", GLOBAL, lease),
            install_log: tail(&self.install_log),
            app: self.app(asked),
        }
    }

    fn node(&self) -> Said<track::Node> {
        match device::info(&self.files) {
            Ok(Some(info)) => Ok(track::Node {
                id: info.device_id,
                name: info.device_name,
                enterprise: info.enterprise_name,
                project: info.project_name,
            }),
            Ok(None) => Err(Missing::NoFile),
            Err(error) => Err(Missing::Unreadable(chain(&error))),
        }
    }

    fn app(&self, asked: &str) -> Asked {
        if asked.is_empty() {
            return Asked::Nobody;
        }
        let not_found = |reason: String| Asked::NotFound { asked: asked.to_owned(), reason };
        let Some(apps) = self.apps.current() else {
            return not_found("the files of this node were not read yet".to_owned());
        };
        let named: Vec<(&str, &str)> =
            apps.iter().map(|(key, app)| (key.as_str(), app.display_name.as_str())).collect();
        match find_app(asked, &named).map(|key| (key, apps.get(key))) {
            Ok((key, Some(app))) => Asked::App(Box::new(self.facts_of(key, app))),
            Ok((_, None)) => not_found("it went while it was looked for".to_owned()),
            Err(reason) => not_found(reason),
        }
    }

    fn facts_of(&self, key: &str, app: &Arc<AppInstanceConfig>) -> track::App {
        let volumes = app.volume_ref_config_list.iter().map(|volume| self.volume(volume));
        let networks = app.app_net_adapter_list.iter().map(|adapter| self.network(adapter));
        track::App {
            uuid: key.to_owned(),
            name: app.display_name.clone(),
            activate: app.activate,
            designated: app.is_designated_node_id,
            errors: app.errors.0.clone(),
            volumes: volumes.collect(),
            networks: networks.collect(),
            in_cluster: self.said("zedkube", key, in_cluster),
            network_config: self.said("zedmanager", key, network_config),
            network_status: self.said("zedrouter", key, network_status),
            status: self.said("zedmanager", key, instance_status),
            domain_config: self.said("zedmanager", key, domain_config),
            domain: self.said("domainmgr", key, domain),
            metric: self.said("domainmgr", key, |seen| metric(&seen)),
        }
    }

    fn volume(&self, volume: &VolumeRef) -> track::Volume {
        let id = volume.volume_id.to_string();
        let generation = volume.generation_counter.saturating_add(volume.local_generation_counter);
        let key = format!("{id}#{generation}");
        let config: Said<VolumeConfig> = self.of_volume("zedagent", &key, &id);
        let status: Said<VolumeStatus> = self.of_volume("volumemgr", &key, &id);
        let content = config.as_ref().map(|config| config.content_id);
        let content = content.or(status.as_ref().map(|status| status.content_id));
        let path = status.as_ref().map(|status| status.file_location.as_str()).unwrap_or_default();
        let disk_key = path.replace('/', "-");
        track::Volume {
            content: match content {
                Ok(content) if !content.is_nil() => self.content(content),
                Ok(_) => Err(Missing::NoFile),
                Err(missing) => Err(missing.clone()),
            },
            disk: self.of_volume("volumemgr", &disk_key, &id).map(|disk: AppDiskMetric| {
                track::Disk {
                    path: disk.disk_path,
                    kind: disk.disk_type,
                    provisioned_bytes: disk.provisioned_bytes,
                    used_bytes: disk.used_bytes,
                }
            }),
            config: config.map(|config| track::VolumeConfig {
                name: config.display_name,
                content_id: config.content_id.to_string(),
                replicated: config.is_replicated,
            }),
            status: status.map(|status| track::VolumeStatus {
                name: status.display_name,
                state: SwState::from_number(status.state),
                replicated: status.is_replicated,
                current_bytes: status.current_size,
                total_bytes: status.total_size,
                error: status.error,
            }),
            id,
        }
    }

    fn content(&self, id: Uuid) -> Said<track::Content> {
        self.said("volumemgr", &id.to_string(), |content: ContentTreeStatus| track::Content {
            id: id.to_string(),
            name: content.display_name,
            url: content.relative_url,
            state: SwState::from_number(content.state),
            current_bytes: content.current_size,
            total_bytes: content.total_size,
            error: content.error,
        })
    }

    fn network(&self, adapter: &AppNetAdapter) -> track::Network {
        let id = adapter.network.to_string();
        let status = self.said("zedrouter", &id, |network: NetworkInstanceStatus| {
            let assigned = network.ip_assignments.values();
            track::NetworkInstance {
                name: network.display_name,
                activated: network.activated,
                addresses: assigned.flat_map(addresses).collect(),
                error: network.error,
            }
        });
        track::Network { id, status }
    }

    fn said<T: NodeFile, S>(&self, agent: &str, key: &str, tell: impl FnOnce(T) -> S) -> Said<S> {
        match self.files.read::<T>(agent, key) {
            Ok(Some(value)) => Ok(tell(value)),
            Ok(None) if self.files.keys::<T>(agent).is_none() => Err(Missing::NoPublisher),
            Ok(None) => Err(Missing::NoFile),
            Err(error) => Err(Missing::Unreadable(chain(&error))),
        }
    }

    /// The generation may have gone on, or the key be made otherwise: whatever has the volume's id in
    /// its key will do.
    fn of_volume<T: NodeFile>(&self, agent: &str, key: &str, id: &str) -> Said<T> {
        if !key.is_empty() {
            match self.said(agent, key, |value| value) {
                Err(Missing::NoFile) => {}
                said => return said,
            }
        }
        let keys = self.files.keys::<T>(agent).ok_or(Missing::NoPublisher)?;
        let other = keys.iter().find(|key| key.contains(id)).ok_or(Missing::NoFile)?;
        self.said(agent, other, |value| value)
    }
}

fn cluster(status: EdgeNodeClusterStatus) -> track::Cluster {
    track::Cluster {
        id: status.cluster_id.uuid.to_string(),
        interface: status.cluster_interface,
        ready: status.cluster_ip_is_ready,
        address: status.cluster_ip_prefix.map(|prefix| prefix.to_string()).unwrap_or_default(),
        join_server: shown(status.join_server_ip),
        bootstrap: status.bootstrap_node,
        error: status.error.error,
    }
}

fn lease(lease: KubeLeaseInfo) -> track::Lease {
    track::Lease {
        leader: lease.leader_identity,
        is_leader: lease.is_stats_leader,
        in_election: lease.in_lease_election,
        latest_change: when(lease.latest_change),
    }
}

fn in_cluster(seen: EnClusterAppStatus) -> track::InCluster {
    track::InCluster {
        designated: seen.is_dnid_node,
        scheduled_here: seen.scheduled_on_this_node,
        running: seen.status_running,
        kube_status: KubeStatus::from_number(seen.app_kube_status).unwrap_or(KubeStatus::Unknown),
        kube_name: seen.app_kube_name,
    }
}

fn network_config(config: AppNetworkConfig) -> track::NetworkConfig {
    let adapter = |adapter: &AppNetAdapter| {
        let parts = [
            adapter.name.clone(),
            adapter.app_mac_addr.clone().unwrap_or_default(),
            shown(adapter.app_ip_addr),
        ];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    };
    track::NetworkConfig {
        name: config.display_name,
        activate: config.activate,
        adapters: config.app_net_adapter_list.iter().map(adapter).collect(),
    }
}

fn network_status(status: AppNetworkStatus) -> track::NetworkStatus {
    let adapters = status.app_net_adapter_list.iter();
    track::NetworkStatus {
        name: status.display_name,
        number: status.app_num,
        activated: status.activated,
        addresses: adapters.flat_map(|adapter| addresses(&adapter.assigned_addresses)).collect(),
        error: status.error,
    }
}

fn instance_status(status: AppInstanceStatus) -> track::InstanceStatus {
    track::InstanceStatus {
        domain_name: status.domain_name,
        activated: status.activated,
        designated: status.is_designated_node_id,
        state: SwState::from_number(status.state),
        error: status.error,
    }
}

fn domain_config(config: DomainConfig) -> track::DomainConfig {
    track::DomainConfig {
        name: config.display_name,
        activate: config.activate,
        number: config.app_num,
        image: config.kube_image_name,
    }
}

fn domain(domain: DomainStatus) -> track::Domain {
    track::Domain {
        name: domain.domain_name,
        activated: domain.activated,
        state: SwState::from_number(domain.state),
        node: domain.node_name,
        error: domain.error,
    }
}

fn metric(metric: &DomainMetric) -> track::Metric {
    track::Metric {
        activated: metric.activated,
        used_megabytes: metric.used_memory,
        allocated_megabytes: metric.allocated_mb,
        last_heard: when(metric.last_heard),
    }
}

fn addresses(assigned: &AssignedAddresses) -> Vec<String> {
    let all = assigned.ipv4.iter().chain(assigned.ipv6.iter());
    all.map(|assigned| shown(assigned.address)).filter(|text| !text.is_empty()).collect()
}

fn shown(Ip(address): Ip) -> String {
    address.map(|address| address.to_string()).unwrap_or_default()
}

fn when(Time(time): Time) -> String {
    time.map_or_else(|| "never".to_owned(), |time| time.to_string())
}

/// The last lines of a log. A final line end is no line.
fn tail(path: &Path) -> Said<Vec<String>> {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut bytes)?;
        io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Missing::NoFile,
        _ => Missing::Unreadable(error.to_string()),
    })?;
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.iter().skip(lines.len().saturating_sub(LOG_LINES));
    Ok(last.map(|line| (*line).to_owned()).collect())
}
