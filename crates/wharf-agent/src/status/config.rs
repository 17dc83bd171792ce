//! The node's membership as it is told, from the two places where it may be published.

use std::sync::Arc;

use wharf_api::node_files::{EdgeNodeClusterConfig, GLOBAL};

use crate::files::{Files, Subscription};

const AGENT: &str = "zedagent";

/// What is in the run directory counts. What outlives a reboot stands in for it before it is there, and
/// while it cannot be read and never could.
#[derive(Clone)]
pub struct ClusterConfig {
    now: Subscription<EdgeNodeClusterConfig>,
    lasting: Subscription<EdgeNodeClusterConfig>,
}

impl ClusterConfig {
    pub fn watch(files: &Files) -> Self {
        Self { now: files.watch(AGENT), lasting: files.persistent().watch(AGENT) }
    }

    /// The outer `None`: not known yet, or nobody can read it. The inner one: the node is alone.
    pub fn get(&self) -> Option<Option<Arc<EdgeNodeClusterConfig>>> {
        self.now.current()?;
        match (self.now.get(GLOBAL), self.lasting.get(GLOBAL)) {
            (Some(Some(now)), _) => Some(Some(now)),
            (_, Some(Some(lasting))) => Some(Some(lasting)),
            (Some(None), Some(None)) => Some(None),
            // One of the two may say something.
            (None, _) | (_, None) => None,
        }
    }

    /// Both were looked at, and still nothing is known.
    pub fn is_unreadable(&self) -> bool {
        let looked = self.now.current().is_some() && self.lasting.current().is_some();
        looked && self.get().is_none()
    }

    pub async fn changed(&mut self) {
        tokio::select! {
            () = self.now.changed() => {}
            () = self.lasting.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::health::Health;

    fn write(root: &Path, text: Option<&str>) {
        let folder = root.join("zedagent/EdgeNodeClusterConfig");
        fs::create_dir_all(&folder).unwrap();
        if let Some(text) = text {
            fs::write(folder.join("global.json"), text).unwrap();
        }
    }

    #[tokio::test]
    async fn of_two_places_the_one_that_can_be_read_counts_and_the_run_directory_first() {
        let (junk, here) = (Some("{\"ClusterName\": "), Some("{\"ClusterName\":\"here\"}"));
        let kept = Some("{\"ClusterName\":\"kept\"}");
        for (now, lasting, expected) in [
            (None, None, Some(None)),
            (here, kept, Some(Some("here"))),
            (here, None, Some(Some("here"))),
            (None, kept, Some(Some("kept"))),
            (here, junk, Some(Some("here"))),
            (junk, kept, Some(Some("kept"))),
            (junk, None, None),
            (None, junk, None),
            (junk, junk, None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (run, persist) = (dir.path().join("run"), dir.path().join("persist"));
            write(&run, now);
            write(&persist.join("status"), lasting);
            let stop = CancellationToken::new();
            let files = Files::open(&run, &persist, &Health::new("n1"), stop);
            let mut config = ClusterConfig::watch(&files);
            config.now.complete().await;
            config.lasting.complete().await;
            let name = config.get().map(|known| known.map(|known| known.cluster_name.clone()));
            let name = name.as_ref().map(|known| known.as_deref());
            assert_eq!(name, expected, "{now:?} {lasting:?}");
            assert_eq!(config.is_unreadable(), expected.is_none(), "{now:?} {lasting:?}");
        }
    }
}
