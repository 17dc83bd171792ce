//! The installer: turns machines into a cluster, changes it, and takes it away again.
//!
//! Flow: every operation looks at the record and at the hosts, and does what is missing. Running it
//! again does nothing twice, so a crash, a cancel or a failure needs no undo: the next run goes on.
//!
//! Guarantees: what is chosen (pod addresses, host keys, certificates) is stored before a host
//! hears of it. Nothing secret goes into the journal.
//!
//! Start reading at [`converge`].

pub mod bundles;
mod cluster;
mod converge;
mod credentials;
mod delete;
mod failure;
mod hosts;
mod members;
mod world;

use wharf_core::{
    cluster::DeleteMode,
    operation::{Leftover, OperationKind},
};

pub use cluster::{CORDON_OWNER, connect, give_back};
pub use converge::plan;
pub use failure::{Failure, Outcome};
pub use world::{HostPlan, World, identity, preflight};

use crate::{
    app::App,
    engine::{Fenced, Journal},
};

/// An operation to be carried out.
#[derive(Clone)]
pub struct Job {
    pub app: App,
    pub fenced: Fenced,
    pub journal: Journal,
    pub cluster: String,
    pub delete: DeleteMode,
}

/// What an operation that succeeded has to say.
#[derive(Debug, Default)]
pub struct Done {
    pub leftovers: Vec<Leftover>,
}

/// Carries an operation out.
pub async fn run(job: Job, kind: OperationKind) -> Outcome<Done> {
    match kind {
        OperationKind::Create | OperationKind::Update => converge::converge(&job).await,
        OperationKind::Delete => delete::delete(&job).await,
        OperationKind::Reboot | OperationKind::Shutdown | OperationKind::NodeUpdate => {
            Err(Failure::new("operations of nodes are not the installer's"))
        }
    }
}
