//! Applications on this node: where their pods are, and what is told of them.

use tokio::sync::watch;

use crate::{kube::Kube, tasks::Tasks};

pub mod pods;

/// Starts everything about applications. Who else needs their pods takes what comes back.
pub fn start(tasks: &mut Tasks, kube: Kube) -> watch::Receiver<pods::Sight> {
    let (sight, pods) = watch::channel(pods::Sight::default());
    tasks.start("pods", move |context, reporter| {
        pods::run(context, reporter, kube.clone(), sight.clone())
    });
    pods
}
