//! The application tracker: what every part of the node knows of an application, in eighteen items,
//! and where it is stuck.
//!
//! All items are there, whatever is missing: one that nobody has says so. Their keys and words are
//! those that existing readers look for.
//!
//! Start reading at [`trace`].

mod stuck;

#[cfg(test)]
mod tests;

use std::fmt;

use super::{apps::KubeStatus, status::SwState};

pub use stuck::{Stuck, find_stuck};

/// What was read, or why there is nothing.
pub type Said<T> = Result<T, Missing>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    NoFile,
    Unreadable(String),
    /// No agent on this kind of node says it.
    NoPublisher,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub node: Said<Node>,
    pub cluster: Said<Cluster>,
    pub lease: Said<Lease>,
    /// The last lines of the installer's log.
    pub install_log: Said<Vec<String>>,
    pub app: Asked,
}

/// Whom the question was about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Only about the cluster.
    Nobody,
    /// No application, or more than one, goes by that name.
    NotFound {
        asked: String,
        reason: String,
    },
    App(Box<App>),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    pub id: String,
    pub name: String,
    pub enterprise: String,
    pub project: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cluster {
    pub id: String,
    pub interface: String,
    pub ready: bool,
    pub address: String,
    pub join_server: String,
    pub bootstrap: bool,
    pub error: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lease {
    pub leader: String,
    pub is_leader: bool,
    pub in_election: bool,
    pub latest_change: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct App {
    pub uuid: String,
    pub name: String,
    pub activate: bool,
    pub designated: bool,
    pub errors: Vec<String>,
    pub volumes: Vec<Volume>,
    pub networks: Vec<Network>,
    pub in_cluster: Said<InCluster>,
    pub network_config: Said<NetworkConfig>,
    pub network_status: Said<NetworkStatus>,
    pub status: Said<InstanceStatus>,
    pub domain_config: Said<DomainConfig>,
    pub domain: Said<Domain>,
    pub metric: Said<Metric>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub id: String,
    pub config: Said<VolumeConfig>,
    pub status: Said<VolumeStatus>,
    pub content: Said<Content>,
    pub disk: Said<Disk>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeConfig {
    pub name: String,
    pub content_id: String,
    pub replicated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStatus {
    pub name: String,
    pub state: Option<SwState>,
    pub replicated: bool,
    pub current_bytes: i64,
    pub total_bytes: i64,
    pub error: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    pub id: String,
    pub name: String,
    pub url: String,
    pub state: Option<SwState>,
    pub current_bytes: i64,
    pub total_bytes: i64,
    pub error: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Disk {
    pub path: String,
    pub kind: String,
    pub provisioned_bytes: u64,
    pub used_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    pub id: String,
    pub status: Said<NetworkInstance>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkInstance {
    pub name: String,
    pub activated: bool,
    pub addresses: Vec<String>,
    pub error: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InCluster {
    pub designated: bool,
    pub scheduled_here: bool,
    pub running: bool,
    pub kube_status: KubeStatus,
    pub kube_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkConfig {
    pub name: String,
    pub activate: bool,
    /// Interface, MAC and address of each, as far as they are given.
    pub adapters: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkStatus {
    pub name: String,
    pub number: i64,
    pub activated: bool,
    pub addresses: Vec<String>,
    pub error: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceStatus {
    pub domain_name: String,
    pub activated: bool,
    pub designated: bool,
    pub state: Option<SwState>,
    pub error: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DomainConfig {
    pub name: String,
    pub activate: bool,
    pub number: i64,
    pub image: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    pub name: String,
    pub activated: bool,
    pub state: Option<SwState>,
    pub node: String,
    pub error: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metric {
    pub activated: bool,
    pub used_megabytes: u32,
    pub allocated_megabytes: u32,
    pub last_heard: String,
}

/// One line of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub key: String,
    pub uuid: String,
    pub name: String,
    pub exists: bool,
    pub activated: Option<bool>,
    pub state: String,
    pub content: String,
    pub designated: Option<bool>,
    pub errors: String,
}

/// How a flag is written that may be none.
pub fn tri_state(flag: Option<bool>) -> &'static str {
    match flag {
        None => "none",
        Some(true) => "enabled",
        Some(false) => "disabled",
    }
}

/// So much of an id is in a key.
const KEY_ID: usize = 5;

/// Makes the items, in their order.
pub fn trace(facts: &Facts) -> Vec<Item> {
    let mut items = cluster_items(facts);
    match &facts.app {
        Asked::Nobody => {}
        Asked::NotFound { asked, reason } => {
            let mut item = Item::new("zedagent-AppInstanceConfig", asked);
            asked.clone_into(&mut item.name);
            reason.clone_into(&mut item.errors);
            items.push(item);
        }
        Asked::App(app) => items.extend(app_items(app)),
    }
    items
}

/// The application that a person means, by its id, its name or the beginning of its id.
pub fn find_app<'a>(asked: &str, apps: &[(&'a str, &'a str)]) -> Result<&'a str, String> {
    let by_id = apps.iter().find(|(uuid, _)| uuid.eq_ignore_ascii_case(asked));
    if let Some((uuid, _)) = by_id {
        return Ok(uuid);
    }
    let named: Vec<&'a str> =
        apps.iter().filter(|(_, name)| *name == asked).map(|(uuid, _)| *uuid).collect();
    let beginning = asked.to_ascii_lowercase();
    let begun = apps.iter().filter(|(uuid, _)| uuid.starts_with(&beginning));
    let begun: Vec<&'a str> = begun.map(|(uuid, _)| *uuid).collect();
    match (named.as_slice(), begun.as_slice()) {
        ([one], _) | ([], [one]) => Ok(one),
        ([], []) => Err(format!("this node was not told of an application {asked}")),
        ([], several) | (several, _) => {
            Err(format!("{asked} may be any of {}", several.join(", ")))
        }
    }
}

fn cluster_items(facts: &Facts) -> Vec<Item> {
    let node = Item::of("zedagent-EdgeNodeInfo", "", &facts.node, |node, item| {
        item.uuid.clone_from(&node.id);
        item.name.clone_from(&node.name);
        item.content = format!("enterprise {}, project {}", node.enterprise, node.project);
    });
    let cluster = Item::of("zedkube-EdgeNodeClusterStatus", "", &facts.cluster, |cluster, item| {
        item.uuid.clone_from(&cluster.id);
        item.name.clone_from(&cluster.interface);
        let ready = if cluster.ready { "Cluster IP Ready" } else { "Cluster IP Not Ready" };
        ready.clone_into(&mut item.state);
        item.content = format!(
            "cluster address {}, join server {}, bootstrap {}",
            cluster.address, cluster.join_server, cluster.bootstrap
        );
        item.errors.clone_from(&cluster.error);
    });
    let lease = Item::of("zedkube-KubeLeaseInfo", "", &facts.lease, |lease, item| {
        item.name.clone_from(&lease.leader);
        item.activated = Some(lease.in_election);
        item.state = format!("Is Stats Leader {}", lease.is_leader);
        item.content = format!("last change {}", lease.latest_change);
    });
    let log = Item::of("k3s-install.log", "", &facts.install_log, |lines, item| {
        item.content = lines.join("\n");
    });
    vec![node, cluster, lease, log]
}

fn app_items(app: &App) -> Vec<Item> {
    let mut items = vec![config_item(app)];
    items.extend(app.volumes.iter().map(volume_config_item));
    items.extend(app.networks.iter().map(network_item));
    items.push(Item::of("zedkube-ENClusterAppStatus", &app.uuid, &app.in_cluster, |seen, item| {
        item.name.clone_from(&seen.kube_name);
        item.designated = Some(seen.designated);
        item.content =
            format!("scheduled on this node {}, running {}", seen.scheduled_here, seen.running);
    }));
    items.push(network_config_item(app, true));
    items.push(Item::of(
        "zedrouter-AppNetworkStatus",
        &app.uuid,
        &app.network_status,
        |net, item| {
            item.name.clone_from(&net.name);
            item.activated = Some(net.activated);
            item.content = format!("number {}, addresses {}", net.number, net.addresses.join(", "));
            item.errors.clone_from(&net.error);
        },
    ));
    items.extend(app.volumes.iter().map(volume_status_item));
    items.extend(app.volumes.iter().map(content_item));
    // It is in the list twice, the second time in short.
    items.push(network_config_item(app, false));
    items.extend(running_items(app));
    items.extend(app.volumes.iter().map(disk_item));
    items
}

fn config_item(app: &App) -> Item {
    let mut item = Item::new("zedagent-AppInstanceConfig", &app.uuid);
    item.exists = true;
    item.name.clone_from(&app.name);
    item.activated = Some(app.activate);
    item.designated = Some(app.designated);
    item.content = format!("{} volumes, {} networks", app.volumes.len(), app.networks.len());
    item.errors = app.errors.join("; ");
    item
}

fn volume_config_item(volume: &Volume) -> Item {
    Item::of("zedagent-VolumeConfig", &volume.id, &volume.config, |config, item| {
        item.name.clone_from(&config.name);
        item.content = format!("content {}, replicated {}", config.content_id, config.replicated);
    })
}

fn network_item(network: &Network) -> Item {
    Item::of("zedrouter-NetworkInstanceStatus", &network.id, &network.status, |status, item| {
        item.name.clone_from(&status.name);
        item.activated = Some(status.activated);
        item.content = format!("addresses {}", status.addresses.join(", "));
        item.errors.clone_from(&status.error);
    })
}

fn network_config_item(app: &App, whole: bool) -> Item {
    Item::of("zedmanager-AppNetworkConfig", &app.uuid, &app.network_config, |config, item| {
        item.name.clone_from(&config.name);
        item.activated = Some(config.activate);
        if whole {
            item.content = format!("interfaces {}", config.adapters.join(", "));
        }
    })
}

fn volume_status_item(volume: &Volume) -> Item {
    Item::of("volumemgr-VolumeStatus", &volume.id, &volume.status, |status, item| {
        item.name.clone_from(&status.name);
        item.state = state_name(status.state);
        item.content = format!(
            "replicated {}, {} of {} bytes",
            status.replicated, status.current_bytes, status.total_bytes
        );
        item.errors.clone_from(&status.error);
    })
}

fn content_item(volume: &Volume) -> Item {
    let config = volume.config.as_ref();
    let id = match &volume.content {
        Ok(content) => content.id.as_str(),
        Err(_) => config.map_or(volume.id.as_str(), |config| config.content_id.as_str()),
    };
    Item::of("volumemgr-ContentTreeStatus", id, &volume.content, |content, item| {
        item.name.clone_from(&content.name);
        item.state = state_name(content.state);
        item.content =
            format!("{}, {} of {} bytes", content.url, content.current_bytes, content.total_bytes);
        item.errors.clone_from(&content.error);
    })
}

fn running_items(app: &App) -> Vec<Item> {
    let status =
        Item::of("zedmanager-AppInstanceStatus", &app.uuid, &app.status, |status, item| {
            item.name.clone_from(&status.domain_name);
            item.activated = Some(status.activated);
            item.designated = Some(status.designated);
            item.state = state_name(status.state);
            item.errors.clone_from(&status.error);
        });
    let config =
        Item::of("zedmanager-DomainConfig", &app.uuid, &app.domain_config, |config, item| {
            item.name.clone_from(&config.name);
            item.activated = Some(config.activate);
            item.content = format!("number {}, image {}", config.number, config.image);
        });
    let domain = Item::of("domainmgr-DomainStatus", &app.uuid, &app.domain, |domain, item| {
        item.name.clone_from(&domain.name);
        item.activated = Some(domain.activated);
        item.state = state_name(domain.state);
        item.content = format!("node {}", domain.node);
        item.errors.clone_from(&domain.error);
    });
    let metric = Item::of("domainmgr-DomainMetric", &app.uuid, &app.metric, |metric, item| {
        item.activated = Some(metric.activated);
        item.content = format!(
            "{} of {} MB used, last heard {}",
            metric.used_megabytes, metric.allocated_megabytes, metric.last_heard
        );
    });
    vec![status, config, domain, metric]
}

fn disk_item(volume: &Volume) -> Item {
    Item::of("volumemgr-AppDiskMetric", &volume.id, &volume.disk, |disk, item| {
        item.name.clone_from(&disk.path);
        item.content =
            format!("{}, {} of {} bytes used", disk.kind, disk.used_bytes, disk.provisioned_bytes);
    })
}

fn state_name(state: Option<SwState>) -> String {
    state.map_or("none", SwState::name).to_owned()
}

impl Item {
    fn new(what: &str, id: &str) -> Self {
        Self {
            key: key(what, id),
            uuid: id.to_owned(),
            name: String::new(),
            exists: false,
            activated: None,
            state: String::new(),
            content: String::new(),
            designated: None,
            errors: String::new(),
        }
    }

    fn of<T>(what: &str, id: &str, said: &Said<T>, fill: impl FnOnce(&T, &mut Self)) -> Self {
        let mut item = Self::new(what, id);
        match said {
            Ok(value) => {
                item.exists = true;
                fill(value, &mut item);
            }
            Err(missing) => item.errors = missing.to_string(),
        }
        item
    }
}

fn key(what: &str, id: &str) -> String {
    let short: String = id.chars().take(KEY_ID).collect();
    if short.is_empty() { what.to_owned() } else { format!("{what}-{short}") }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::NoFile => f.write_str("it is not published on this node"),
            Missing::Unreadable(reason) => write!(f, "it cannot be read: {reason}"),
            Missing::NoPublisher => f.write_str("no agent on this node publishes it"),
        }
    }
}
