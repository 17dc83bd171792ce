//! `wharf agent launch`: what runs in a pod of the DaemonSet, on clusters that Wharf did not install
//! (docs/adr/0008-agent-on-imported-clusters.md).
//!
//! Flow: it leaves the mounts of its container for those of its host ([`container`]), puts programs,
//! configuration, token and unit there, starts the unit ([`on_host`]), and then keeps the token valid
//! and shows what the agent says, until the pod is told to end. Then the agent stays for the next
//! pod, unless the DaemonSet is gone or does not mean this node any more.
//!
//! Guarantees: the agent is started anew only if its programs, its configuration or its unit changed.
//! It is never taken from a host on which volumes are in use.
//!
//! Assumptions: the pod is privileged, has the host's processes and network, and the host has systemd.

mod container;
mod on_host;

use std::{io, process::Stdio, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep_until},
};
use tracing::{error, info, warn};
use wharf_core::{
    install::{
        host::HostFailure,
        pod_agent::{
            End, Fate, NAME, NAMESPACE, decide_end, place, render_config, render_kubeconfig,
        },
    },
    words::chain,
};
use wharf_kube::{Cluster, KubeError};

use crate::host::{Root, files};

pub use container::Container;

/// The API server may give a token that ends sooner. A host that loses its pod keeps its agent that
/// long: longer than the replacement of a pod takes, shorter than anybody would forget it there.
const TOKEN: Duration = Duration::from_secs(24 * 3600);
/// Long before a token ends, also when the API server gives the shortest that it knows.
const RENEW_AT_MOST: Duration = Duration::from_secs(3600);
const RENEW_AT_LEAST: Duration = Duration::from_secs(60);
/// Between two tries, after one failed.
const RETRY: Duration = Duration::from_secs(10);
/// Between two looks at the unit; systemd itself starts it again at once when it dies.
const LOOK_EVERY: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("the pod's {what} cannot be read")]
    Pod {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the environment variable {0} is not set: this command runs in pods only")]
    Environment(&'static str),
    #[error("the mounts of the host cannot be reached")]
    Enter(#[source] io::Error),
    #[error("the pod has not the processes of its host (hostPID)")]
    NotOnHost,
    #[error("{}: {}", .0.step, .0.message)]
    Host(HostFailure),
    #[error("{0} cannot be written")]
    Write(&'static str, #[source] io::Error),
    #[error("a token for the agent cannot be had")]
    Token(#[source] KubeError),
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error("a part of the launcher failed")]
    Task(#[from] tokio::task::JoinError),
}

impl From<HostFailure> for LaunchError {
    fn from(failure: HostFailure) -> Self {
        Self::Host(failure)
    }
}

/// Starts the agent on the host and follows it until SIGTERM.
pub async fn run(container: Container) -> Result<(), LaunchError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(LaunchError::Signals)?;
    let launcher = Launcher { container: Arc::new(container), root: Arc::new(Root::machine()) };
    let begun = async {
        let renew_at = launcher.renew_token().await?;
        launcher.ensure().await?;
        Ok::<_, LaunchError>(renew_at)
    };
    let renew_at = tokio::select! {
        begun = begun => begun?,
        // Nothing is followed yet: what was put on the host is for the next pod to complete.
        _ = terminate.recv() => return Ok(()),
    };
    let following = launcher.follow(renew_at);
    tokio::select! {
        never = following => match never {},
        _ = terminate.recv() => {}
    }
    launcher.end().await
}

struct Launcher {
    container: Arc<Container>,
    root: Arc<Root>,
}

/// What never comes to be.
enum Never {}

impl Launcher {
    /// The cluster, by the pod's own token.
    fn cluster(&self) -> Result<Cluster, LaunchError> {
        let text = self.kubeconfig(&self.container.token()?)?;
        Cluster::from_kubeconfig(&text).map_err(LaunchError::Token)
    }

    fn kubeconfig(&self, token: &str) -> Result<String, LaunchError> {
        Ok(render_kubeconfig(&self.container.server, &self.container.authority()?, token))
    }

    /// Gives the agent a token of its own, and says when it needs the next one.
    async fn renew_token(&self) -> Result<Instant, LaunchError> {
        let issued = self.cluster()?.issue_token(NAMESPACE, NAME, TOKEN).await;
        let issued = issued.map_err(LaunchError::Token)?;
        let text = self.kubeconfig(&issued.token)?;
        let written = files::directory(&self.root.path(place::RUN), 0o755).and_then(|()| {
            files::write(&self.root.path(place::KUBECONFIG), 0o600, text.as_bytes())
        });
        written.map_err(|source| LaunchError::Write(place::KUBECONFIG, source))?;
        let left = issued.expires_at.duration_since(Timestamp::now()).unsigned_abs();
        info!(until = %issued.expires_at, "the agent has a token");
        Ok(Instant::now() + (left / 2).clamp(RENEW_AT_LEAST, RENEW_AT_MOST))
    }

    /// Makes the host have what this image and this configuration say, and the unit run.
    async fn ensure(&self) -> Result<(), LaunchError> {
        let config = render_config(&self.container.node, &self.container.config()?);
        let (container, root) = (self.container.clone(), self.root.clone());
        let ensuring = move || on_host::ensure(&root, &container, &config);
        let started = tokio::task::spawn_blocking(ensuring).await??;
        info!(started, "the agent runs on the host");
        Ok(())
    }

    async fn follow(&self, mut renew_at: Instant) -> Never {
        let mut words = Words::default();
        let mut look_at = Instant::now() + LOOK_EVERY;
        loop {
            words.ensure();
            tokio::select! {
                () = sleep_until(renew_at) => {
                    renew_at = self.renew_token().await.unwrap_or_else(|error| {
                        warn!(reason = chain(&error), "the agent keeps its old token");
                        Instant::now() + RETRY
                    });
                }
                () = sleep_until(look_at) => {
                    let root = self.root.clone();
                    let looked = tokio::task::spawn_blocking(move || on_host::ensure_runs(&root));
                    let looked = looked.await.map_err(LaunchError::from);
                    if let Err(error) = looked.and_then(|looked| Ok(looked?)) {
                        error!(reason = chain(&error), "the agent does not run");
                    }
                    look_at = Instant::now() + LOOK_EVERY;
                }
            }
        }
    }

    /// The pod ends. Its own token is good for as long as it has not.
    async fn end(&self) -> Result<(), LaunchError> {
        let (fate, labels) = self.fate().await;
        let in_use = on_host::has_volumes(&self.root);
        match decide_end(&fate, labels.as_ref(), in_use) {
            End::Stays => info!("the pod ends; the agent goes on for the next one"),
            End::StaysForVolumes => warn!(
                "the pod ends and none shall follow, but volumes are in use: the agent goes on \
                 until its token ends"
            ),
            End::Goes => {
                info!("the agent is not wanted here any more and leaves the host");
                let root = self.root.clone();
                tokio::task::spawn_blocking(move || on_host::remove(&root)).await??;
            }
        }
        Ok(())
    }

    async fn fate(&self) -> (Fate, Option<wharf_core::selector::Labels>) {
        let Ok(cluster) = self.cluster() else { return (Fate::Unknown, None) };
        let fate = match cluster.daemon_set(NAMESPACE, NAME).await {
            Ok(None) => Fate::Gone,
            Ok(Some(seen)) => {
                Fate::There { deleting: seen.deleting, node_selector: seen.node_selector }
            }
            // Its rights go with it when all of it is deleted at once.
            Err(error) if error.code() == Some(403) => Fate::Gone,
            Err(error) => {
                warn!(reason = chain(&error), "the DaemonSet cannot be asked for");
                Fate::Unknown
            }
        };
        let labels = cluster.node_labels(&self.container.node).await;
        (fate, labels.ok().flatten())
    }
}

/// What the agent says, as words of the pod.
#[derive(Default)]
struct Words(Option<Child>);

impl Words {
    fn ensure(&mut self) {
        let runs = self.0.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if runs {
            return;
        }
        let child = Command::new("journalctl")
            .args(["--unit", place::UNIT, "--follow", "--lines", "20", "--output", "cat"])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        // A host without a journal has nothing to show; the agent itself does not need it.
        self.0 = child.ok();
    }
}
