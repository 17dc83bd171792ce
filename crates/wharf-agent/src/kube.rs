//! The ways to the cluster: one for each identity, made anew when its file changes.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use tokio::sync::watch;
use wharf_core::{install::pod_agent::TokenLife, words::chain};
use wharf_kube::{Cluster, KubeError};

use crate::{
    config::Config,
    health::Reporter,
    tasks::{Context, Ended},
};

/// How soon a replaced file is noticed. Looking costs one system call for each.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The cluster as each identity may use it; `None` until its file could be read. A change means that
/// the file was replaced: whoever holds an older one, for a watch or a lease, takes the new one.
#[derive(Debug, Clone)]
pub struct Kube {
    /// Reads everything.
    pub reader: watch::Receiver<Option<Cluster>>,
    /// The node itself, which cordons and evicts.
    pub node: watch::Receiver<Option<Cluster>>,
}

/// Waits until there is a way to the cluster.
pub async fn cluster(identity: &mut watch::Receiver<Option<Cluster>>) -> Cluster {
    loop {
        if let Some(cluster) = identity.borrow_and_update().clone() {
            return cluster;
        }
        if identity.changed().await.is_err() {
            // Nobody looks any more: the agent stops.
            std::future::pending::<()>().await;
        }
    }
}

/// Keeps the ways to the cluster. It lives as long as the agent: what is sent here is not lost when
/// the task is begun anew.
#[derive(Debug, Clone)]
pub struct Keeper {
    reader: Source,
    node: Option<Source>,
}

#[derive(Debug, Clone)]
struct Source {
    path: PathBuf,
    sender: watch::Sender<Option<Cluster>>,
}

impl Keeper {
    /// `None` where no kubeconfig is configured: then the agent has no cluster.
    pub fn new(config: &Config) -> Option<Self> {
        let node = config.node_kubeconfig.as_ref();
        let reader = config.kubeconfig.as_ref().or(node)?;
        let node = node.filter(|path| *path != reader).map(|path| Source::new(path));
        Some(Self { reader: Source::new(reader), node })
    }

    pub fn kube(&self) -> Kube {
        let node = self.node.as_ref().unwrap_or(&self.reader);
        Kube { reader: self.reader.sender.subscribe(), node: node.sender.subscribe() }
    }

    /// Looks at the files until the agent stops.
    pub async fn run(self, context: Context, reporter: Reporter) -> Ended {
        let mut sources: Vec<(Source, Known)> = [Some(self.reader), self.node]
            .into_iter()
            .flatten()
            .map(|source| (source, Known::default()))
            .collect();
        loop {
            for (source, known) in &mut sources {
                source.look(known, &reporter);
                source.tell_its_end(known.life, Timestamp::now(), &reporter);
            }
            reporter.ok();
            tokio::select! {
                () = context.stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }
}

/// A file as it was last read.
#[derive(Debug, Default)]
struct Known {
    stamp: Option<Stamp>,
    /// Of a token that somebody else renews.
    life: Option<TokenLife>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

#[derive(Debug, thiserror::Error)]
enum IdentityError {
    #[error("it cannot be read")]
    Unreadable(#[from] io::Error),
    #[error("no connection can be made with it")]
    Unusable(#[from] KubeError),
}

impl Source {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), sender: watch::Sender::new(None) }
    }

    /// A file that is gone or cannot be used changes nothing: the last one may still be accepted.
    fn look(&self, known: &mut Known, reporter: &Reporter) {
        let subject = self.path.display().to_string();
        let stamp = fs::metadata(&self.path).map(|found| Stamp {
            inode: found.ino(),
            size: found.size(),
            changed: (found.ctime(), found.ctime_nsec()),
        });
        let stamp = match stamp {
            Ok(stamp) if Some(stamp) == known.stamp => return,
            Ok(stamp) => stamp,
            Err(error) => {
                known.stamp = None;
                return reporter.fault(&subject, &chain(&IdentityError::from(error)));
            }
        };
        known.stamp = Some(stamp);
        match self.read() {
            Ok((cluster, life)) => {
                known.life = life;
                reporter.clear(&subject);
                tracing::info!(file = subject, "a way to the cluster is there");
                self.sender.send_replace(Some(cluster));
            }
            Err(error) => reporter.fault(&subject, &chain(&error)),
        }
    }

    fn read(&self) -> Result<(Cluster, Option<TokenLife>), IdentityError> {
        let text = fs::read_to_string(&self.path)?;
        Ok((Cluster::from_kubeconfig(&text)?, TokenLife::read(&text)))
    }

    /// Pods of the DaemonSet renew their agent's token. A node may have lost its pod without a word,
    /// as by a taint.
    fn tell_its_end(&self, life: Option<TokenLife>, now: Timestamp, reporter: &Reporter) {
        let subject = format!("the token in {}", self.path.display());
        match life.and_then(|life| life.end_if_neglected(now)) {
            Some(end) => reporter.fault(
                &subject,
                &format!(
                    "nobody renews it: no pod of the DaemonSet wharf-agent works on this node. It \
                     ends at {end}; then no volume is attached any more, and those that cut \
                     themselves off are cut off"
                ),
            ),
            None => reporter.clear(&subject),
        }
    }
}
