//! From the wish to be in a cluster to what became of it.

use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;
use tokio::{sync::watch, time::sleep};
use tracing::info;
use wharf_api::node_files::{
    DeviceNetworkStatus, EdgeNodeClusterConfig, EdgeNodeClusterStatus, ErrorDescription, GLOBAL,
    Ip, IpPrefix,
};
use wharf_core::node::cluster_status::{
    Config, Port, Readiness, Status, Token, decide_cluster_status,
};

use super::{ClusterConfig, Place, addresses::Addresses};
use crate::{
    files::Subscription,
    health::Reporter,
    tasks::{Context, Ended},
};

const AGENT: &str = "zedkube";
const SUBJECT: &str = "the cluster's address";
const CONFIG: &str = "the cluster's configuration";
const PORTS: &str = "the device's ports";
const UNREADABLE: &str = "it cannot be read and never could; what was published stays";
/// Finds what no notice told.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// What could not be written or asked is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// As the other side numbers them: an error, beside notices and warnings.
const SEVERITY_ERROR: i32 = 3;

/// Publishes EdgeNodeClusterStatus, and tells in `place` where the status server may listen.
pub async fn run(
    context: Context,
    reporter: Reporter,
    place: watch::Sender<Option<Place>>,
) -> Ended {
    context.files.announce::<EdgeNodeClusterStatus>(AGENT);
    let mut worker = Worker {
        config: ClusterConfig::watch(&context.files),
        device: context.files.watch("nim"),
        addresses: Addresses::open()?,
        last_error: context
            .files
            .read::<EdgeNodeClusterStatus>(AGENT, GLOBAL)
            .ok()
            .flatten()
            .map(|status| status.error)
            .unwrap_or_default(),
    };
    loop {
        let published = worker.look(&context, &reporter, &place).await?;
        let pause = if published { LOOK_EVERY } else { RETRY };
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = worker.config.changed() => {}
            () = worker.device.changed() => {}
            changed = worker.addresses.changed() => changed?,
            () = sleep(pause) => {}
        }
    }
}

struct Worker {
    config: ClusterConfig,
    device: Subscription<DeviceNetworkStatus>,
    addresses: Addresses,
    last_error: ErrorDescription,
}

impl Worker {
    /// Returns whether what is published is as it should be.
    async fn look(
        &mut self,
        context: &Context,
        reporter: &Reporter,
        place: &watch::Sender<Option<Place>>,
    ) -> Result<bool, crate::network::NetworkError> {
        let unreadable_ports = self.device.current().is_some() && self.device.get(GLOBAL).is_none();
        for (subject, unreadable) in
            [(CONFIG, self.config.is_unreadable()), (PORTS, unreadable_ports)]
        {
            if unreadable {
                reporter.fault(subject, UNREADABLE);
            } else {
                reporter.clear(subject);
            }
        }
        // Nothing is taken back because a file was not read yet, or cannot be.
        let (Some(wish), Some(device)) = (self.config.get(), self.device.get(GLOBAL)) else {
            return Ok(true);
        };
        let ports = match (&wish, device) {
            (None, _) => Vec::new(),
            (Some(_), Some(device)) => device_ports(&device),
            (Some(_), None) => self.addresses.ports().await?,
        };
        let config = wish.as_deref().map(config_of);
        let decided = decide_cluster_status(config.as_ref(), &ports);
        let (Some(wish), Some(decided)) = (wish, decided) else {
            reporter.clear(SUBJECT);
            tell(place, None);
            let removed = context.files.unpublish::<EdgeNodeClusterStatus>(AGENT, GLOBAL);
            reporter.ok();
            return Ok(removed.is_ok());
        };
        if decided.readiness.is_ready() {
            reporter.clear(SUBJECT);
        } else {
            reporter.fault(SUBJECT, &decided.readiness.to_string());
        }
        let status = self.status_of(&wish, &decided);
        tell(place, place_of(&wish, &decided.readiness));
        let published = context.files.publish(AGENT, GLOBAL, &status);
        reporter.ok();
        Ok(published.is_ok())
    }

    fn status_of(
        &mut self,
        wish: &EdgeNodeClusterConfig,
        decided: &Status,
    ) -> EdgeNodeClusterStatus {
        let text = decided.error.clone().unwrap_or_default();
        // The time of an error is that of its first appearance.
        if self.last_error.error != text {
            self.last_error = ErrorDescription::default();
            if !text.is_empty() {
                self.last_error.error = text;
                self.last_error.error_time = Timestamp::now().into();
                self.last_error.error_severity = SEVERITY_ERROR;
            }
        }
        EdgeNodeClusterStatus {
            cluster_name: wish.cluster_name.clone(),
            cluster_id: wish.cluster_id.clone(),
            cluster_interface: wish.cluster_interface.clone(),
            cluster_ip_prefix: wish.cluster_ip_prefix,
            cluster_ip_is_ready: decided.readiness.is_ready(),
            is_worker_node: wish.is_worker_node,
            join_server_ip: wish.join_server_ip,
            bootstrap_node: wish.bootstrap_node,
            encrypted_cluster_token: decided.token.clone(),
            error: self.last_error.clone(),
        }
    }
}

fn tell(place: &watch::Sender<Option<Place>>, now: Option<Place>) {
    place.send_if_modified(|known| {
        let changed = *known != now;
        if changed {
            match &now {
                Some(now) => info!(address = %now.address, interface = now.if_name,
                    "the node is reached by its cluster"),
                None => info!("the node is not reached by its cluster any more"),
            }
            *known = now;
        }
        changed
    });
}

fn config_of(wish: &EdgeNodeClusterConfig) -> Config {
    // Only the device's own services have the key of a token that came encrypted.
    let token = if wish.cipher_token.is_cipher {
        Token::Sealed("only the device's own services can open the cluster's token".to_owned())
    } else {
        Token::NotACipher
    };
    Config {
        interface: wish.cluster_interface.clone(),
        prefix: wish.cluster_ip_prefix.as_ref().and_then(network),
        token,
    }
}

fn network(prefix: &IpPrefix) -> Option<IpNet> {
    IpNet::new(prefix.address, prefix.length).ok()
}

fn place_of(wish: &EdgeNodeClusterConfig, readiness: &Readiness) -> Option<Place> {
    let prefix = wish.cluster_ip_prefix.as_ref().and_then(network)?;
    match readiness {
        Readiness::Ready { if_name, address } => Some(Place {
            if_name: if_name.clone(),
            address: *address,
            prefix,
            cluster_id: wish.cluster_id.uuid.to_string(),
        }),
        Readiness::NoPrefix
        | Readiness::NoPort { .. }
        | Readiness::InvalidPort { .. }
        | Readiness::NoAddress { .. } => None,
    }
}

/// The device knows its ports by label. Newer ones name the cluster's address apart.
fn device_ports(device: &DeviceNetworkStatus) -> Vec<Port> {
    let port = |port: &wharf_api::node_files::NetworkPort| {
        let listed = port.addr_info_list.iter().map(|info| info.addr);
        let all = listed.chain([port.cluster_ip_addr]);
        Port {
            label: port.logicallabel.clone(),
            if_name: port.if_name.clone(),
            invalid: port.invalid_config,
            addresses: all.filter_map(|Ip(address)| address).collect(),
        }
    };
    device.ports.iter().map(port).collect()
}
