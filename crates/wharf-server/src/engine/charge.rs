//! What the tasks of one cluster have in common.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use wharf_store::StoreError;

use super::{Fenced, FencedError};
use crate::{app::App, error::chain};

/// How long to wait before trying again after the store failed.
const RETRY: Duration = Duration::from_secs(1);

/// A cluster that this server owns.
#[derive(Clone)]
pub struct OwnedCluster {
    pub app: App,
    pub cluster: String,
    pub epoch: u64,
}

impl OwnedCluster {
    /// The right to write about it.
    pub fn fenced(&self) -> Fenced {
        let Self { app, cluster, epoch } = self;
        Fenced::new(app.store.clone(), app.me.clone(), cluster.clone(), *epoch)
    }

    /// Whether a task goes on after an error: not if the cluster is not ours any more, nor when it is
    /// told to stop. After a failure of the store it waits for a moment first.
    pub async fn goes_on(
        &self,
        after: impl Into<FencedError>,
        what: &str,
        stop: &CancellationToken,
    ) -> bool {
        match after.into() {
            FencedError::Fenced { .. } | FencedError::Gone { .. } => false,
            // That the past is gone is no trouble: everything is read again.
            FencedError::Store(StoreError::Compacted { .. }) => true,
            error @ (FencedError::Store(_) | FencedError::Contended { .. }) => {
                let (cluster, error) = (&self.cluster, chain(&error));
                tracing::warn!(error, cluster, "will look again for {what}");
                stop.run_until_cancelled(tokio::time::sleep(RETRY)).await.is_some()
            }
        }
    }
}
