//! What the node is in its cluster, by the labels of its own Node.

use tokio::sync::watch;
use wharf_core::{node::serve::Roles, words::chain};

use crate::{
    device,
    health::Reporter,
    kube::{self, Kube},
    tasks::{Context, Ended},
};

const SUBJECT: &str = "the own Node";

/// Tells the roles, by watch; `None` while nobody knows.
pub async fn run(
    context: Context,
    reporter: Reporter,
    mut kube: Kube,
    roles: watch::Sender<Option<Roles>>,
) -> Ended {
    let Some(name) = context.stop.run_until_cancelled(device::node_name(&context)).await else {
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
