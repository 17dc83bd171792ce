//! What the node is in its cluster, by the labels of its own Node.

use std::time::Duration;

use tokio::sync::watch;
use wharf_core::{node::serve::Roles, words::chain};

use crate::{
    health::Reporter,
    kube::{self, Kube},
    tasks::{Context, Ended},
};

const SUBJECT: &str = "the own Node";
/// Between two looks for the node's name where the device has to say it.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Tells the roles, by watch; `None` while nobody knows.
pub async fn run(
    context: Context,
    reporter: Reporter,
    mut kube: Kube,
    roles: watch::Sender<Option<Roles>>,
) -> Ended {
    let Some(name) = context.stop.run_until_cancelled(node_name(&context)).await else {
        return Ok(());
    };
    loop {
        let followed = follow(&name, &reporter, &mut kube, &roles);
        if context.stop.run_until_cancelled(followed).await.is_none() {
            return Ok(());
        }
    }
}

/// Returns when the way to the cluster was replaced.
async fn follow(
    name: &str,
    reporter: &Reporter,
    kube: &mut Kube,
    roles: &watch::Sender<Option<Roles>>,
) {
    let cluster = kube::cluster(&mut kube.reader).await;
    let mut node = cluster.watch_node(name);
    loop {
        let seen = tokio::select! {
            seen = node.next() => seen,
            Ok(()) = kube.reader.changed() => return,
        };
        let now = match seen {
            Ok(Some(node)) => {
                reporter.clear(SUBJECT);
                reporter.ok();
                Some(Roles::of(&node.labels))
            }
            Ok(None) => {
                reporter.fault(SUBJECT, &format!("there is no Node {name}"));
                None
            }
            Err(error) => {
                reporter.fault(SUBJECT, &chain(&error));
                None
            }
        };
        roles.send_if_modified(|known| std::mem::replace(known, now) != now);
    }
}

/// The Node that this machine is: as configured, or as the device is called.
async fn node_name(context: &Context) -> String {
    if !context.config.node_name.is_empty() {
        return context.config.node_name.clone();
    }
    loop {
        if let Some(name) = crate::device::name(&context.files) {
            return wharf_core::node::names::node_name(&name);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
