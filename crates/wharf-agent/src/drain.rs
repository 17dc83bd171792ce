//! The drain gate, and the operations that wait at it.
//!
//! Two tasks that know each other by what they publish. [`gate`] takes the requests of whoever wants
//! the node out of service, cordons and empties it, and says how far it is. [`operations`] is such a
//! requester: it turns wishes for a reboot, a shutdown or an update into requests, and
//! carries them out once the gate is open. What both do is decided in `wharf_core::node`.
//!
//! Flow, of both: read the facts, decide, store the record, publish, begin the effects, decide
//! again. Whatever is killed in between begins again at the stored record.
//!
//! **Guarantee:** the operations look at the gate's word only once it has spoken in this process, and
//! take an end for theirs only if the gate knew their request when it said so.

mod command;
mod gate;
mod image;
mod inputs;
mod operations;
mod publish;
mod sight;
pub mod wishes;
mod worker;

use std::time::Duration;

use tokio::sync::watch;
use wharf_core::node::gate::{Later, Published, Requests};

use crate::{config::Config, kube::Kube, tasks::Tasks};

pub use command::Orders;

/// What is looked at again when nothing tells of a change. A clock that jumps is noticed by then.
const LOOK: Duration = Duration::from_secs(1);
/// What could not be stored is tried again after this.
const STORE_AGAIN: Duration = Duration::from_secs(5);

/// What the gate last published, with the requests that it knew then.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    published: Published,
    requests: Requests,
    /// Why it does not go on, with what blocks it.
    reason: String,
}

/// From the gate to the operations; `None` until it has spoken.
type Word = watch::Sender<Option<Said>>;

/// From the operations to the gate: whether one of them waits, and so will ask again after a failure.
type Waiting = watch::Sender<Later>;

/// Starts the gate, and the operations where this agent plays those who ask it.
pub fn start(tasks: &mut Tasks, config: &Config, kube: Kube, orders: Orders) {
    let (word, waiting) = (Word::new(None), Waiting::new(Later::Unknown));
    let (gate, waits) = (word.clone(), waiting.subscribe());
    tasks.start("gate", move |context, reporter| {
        gate::run(context, reporter, kube.clone(), (gate.clone(), waits.clone()))
    });
    if operations::is_wanted(config) {
        tasks.start("operations", move |context, reporter| {
            let gate = (word.subscribe(), waiting.clone());
            operations::run(context, reporter, orders.clone(), gate)
        });
    }
}

/// Why nothing can be asked of the cluster.
const NO_WAY: &str = "no kubeconfig could be read yet";

/// Waits for a change. Who is told of none any more waits for ever: the agent stops.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The boot that this is.
fn boot_id() -> std::io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}
