//! Ethernet ports that applications use directly: their definitions in the cluster, and the links.
//!
//! Which there should be is decided in `wharf-core` (`node::passthrough`). Several nodes write to the
//! same definitions, so each change holds only for what was seen, and is decided anew otherwise.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use rtnetlink::{
    Handle, LinkUnspec, new_connection,
    packet_route::link::{LinkAttribute, LinkFlags},
};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};
use wharf_api::node_files::AppInstanceConfig;
use wharf_core::{
    node::passthrough::{Action, App, Definition, Nodes, decide_passthrough, names_others},
    words::chain,
};
use wharf_kube::{Cluster, DefinitionSeen, KubeError};

use crate::{
    device,
    files::Known,
    health::Reporter,
    kube::{self, Kube},
    network::{
        NetworkError,
        kernel::{all, failed},
    },
    tasks::{Context, Ended},
};

/// A container without a virtual machine around it.
const NATIVE: u8 = 4;
const ETHERNET: u8 = 1;
/// Others may bend or delete what is ours.
const LOOK_EVERY: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_secs(5);
const SUBJECT: &str = "definitions of ports";

#[derive(Debug, thiserror::Error)]
enum PassthroughError {
    #[error(transparent)]
    Kube(#[from] KubeError),
    #[error(transparent)]
    Network(#[from] NetworkError),
}

pub async fn run(context: Context, reporter: Reporter, mut kube: Kube) -> Ended {
    let mut apps = context.files.watch::<AppInstanceConfig>("zedagent");
    let begun = async {
        let node = device::node_name(&context).await;
        apps.complete().await;
        node
    };
    let Some(node) = context.stop.run_until_cancelled(begun).await else {
        return Ok(());
    };
    loop {
        let known = apps.known();
        let wanted = Wanted { apps: users(&known), unreadable: known.junk };
        let look = async {
            let cluster = kube::cluster(&mut kube.reader).await;
            ensure(&cluster, &context.config.app_namespace, &node, &wanted).await
        };
        let Some(done) = context.stop.run_until_cancelled(look).await else { return Ok(()) };
        let pause = match done {
            Ok(()) => {
                reporter.clear(SUBJECT);
                reporter.ok();
                LOOK_EVERY
            }
            Err(error) => {
                reporter.fault(SUBJECT, &chain(&error));
                RETRY
            }
        };
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = apps.changed() => {}
            () = sleep(pause) => {}
        }
    }
}

/// What the node's applications need, as far as anybody can read it.
struct Wanted {
    apps: Vec<App>,
    unreadable: Arc<BTreeSet<String>>,
}

/// Those that are given ports.
fn users(known: &Known<AppInstanceConfig>) -> Vec<App> {
    let apps = known.values.iter().flat_map(|apps| apps.iter());
    let native = apps.filter(|(_, app)| app.fixed_resources.virtualization_mode == NATIVE);
    native
        .map(|(uuid, app)| {
            let ports = app.io_adapter_list.iter().filter(|adapter| adapter.type_ == ETHERNET);
            let ports = ports.map(|adapter| adapter.name.clone()).collect();
            App { uuid: uuid.clone(), ports }
        })
        .collect()
}

/// Carries out what is decided, once. Whoever was faster makes it an error, and it is looked at anew.
async fn ensure(
    cluster: &Cluster,
    namespace: &str,
    node: &str,
    wanted: &Wanted,
) -> Result<(), PassthroughError> {
    let seen = cluster.definitions(namespace).await?;
    let links = Links::open()?;
    let down = links.down().await?;
    let known: Vec<Definition> = seen.iter().map(|seen| seen.definition.clone()).collect();
    let find = |name: &str| seen.iter().find(|seen| seen.definition.name == name);
    let all = if names_others(node, &known) { observe_nodes(cluster).await } else { None };
    let nodes = Nodes { own: node, all: all.as_ref(), unreadable: &wanted.unreadable };
    let down_now = down.keys().cloned().collect();
    for action in decide_passthrough(nodes, &wanted.apps, &known, &down_now) {
        carry_out(&action, cluster, namespace, find, &links, &down).await?;
        info!(?action, "changed the ports that applications use");
    }
    Ok(())
}

/// Read after the definitions: whoever wrote on them and is not here has left. `None` if they cannot
/// be read, and then nobody counts as gone.
async fn observe_nodes(cluster: &Cluster) -> Option<BTreeSet<String>> {
    match cluster.node_addresses().await {
        Ok(nodes) => Some(nodes.into_iter().map(|node| node.name).collect()),
        Err(error) => {
            let error = chain(&error);
            warn!(error, "users of ports on nodes that left are not looked for");
            None
        }
    }
}

async fn carry_out<'a>(
    action: &Action,
    cluster: &Cluster,
    namespace: &str,
    find: impl Fn(&str) -> Option<&'a DefinitionSeen>,
    links: &Links,
    down: &BTreeMap<String, u32>,
) -> Result<(), PassthroughError> {
    match action {
        Action::Put { name, config, users } => {
            let wanted = Definition {
                name: name.clone(),
                config: config.clone(),
                users: Some(users.clone()),
            };
            cluster.put_definition(namespace, &wanted, find(name)).await?;
        }
        Action::Delete { name } => {
            if let Some(seen) = find(name) {
                cluster.delete_definition(namespace, seen).await?;
            }
        }
        Action::LinkUp { port } => {
            if let Some(index) = down.get(port) {
                links.up(*index, port).await?;
            }
        }
    }
    Ok(())
}

/// The links of the machine, by netlink.
struct Links {
    netlink: Handle,
    _connection: AbortOnDropHandle<()>,
}

impl Links {
    fn open() -> Result<Self, NetworkError> {
        let (connection, netlink, _) = new_connection().map_err(NetworkError::Socket)?;
        let connection = AbortOnDropHandle::new(tokio::spawn(connection));
        Ok(Self { netlink, _connection: connection })
    }

    /// Those that are not up, with their index.
    async fn down(&self) -> Result<BTreeMap<String, u32>, NetworkError> {
        let links = all("list links", self.netlink.link().get().execute()).await?;
        let down = links.into_iter().filter(|link| !link.header.flags.contains(LinkFlags::Up));
        let named = down.filter_map(|link| {
            let index = link.header.index;
            link.attributes.into_iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some((name, index)),
                _ => None,
            })
        });
        Ok(named.collect())
    }

    async fn up(&self, index: u32, port: &str) -> Result<(), NetworkError> {
        let up = LinkUnspec::new_with_index(index).up().build();
        let set = self.netlink.link().change(up).execute().await;
        set.map_err(failed(&format!("set {port} up")))
    }
}
