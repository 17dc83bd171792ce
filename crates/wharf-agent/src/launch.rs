//! `wharf agent launch`: what runs in a pod of the DaemonSet, on clusters that Wharf did not install
//! (docs/adr/0008-agent-on-imported-clusters.md).
//!
//! Flow: it leaves the mounts of its container for those of its host ([`container`]), puts programs,
//! configuration, token and unit there, starts the unit ([`on_host`]), and then keeps the token valid
//! and shows what the agent says, until the pod is told to end. What does not work is tried again.
//! At the end the agent stays for the next pod, unless the DaemonSet is gone or does not mean this
//! node any more; that holds from the first moment.
//!
//! Guarantees: the agent is started anew only if its programs, its configuration or its unit changed.
//! It is never taken from a host on which volumes are in use. One step at a time is done on the host:
//! what was begun ends before the agent is taken away.
//!
//! Assumptions: the pod is privileged, has the host's processes and network, and the host has systemd.

mod container;
mod on_host;

use std::{convert::Infallible, io, process::Stdio, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    sync::Mutex,
    time::{Instant, sleep, sleep_until},
};
use tracing::{error, info, warn};
use wharf_core::{
    install::{
        host::HostFailure,
        pod_agent::{
            End, Fate, NAME, NAMESPACE, decide_end, decide_renewal, place, render_config,
            render_kubeconfig,
        },
    },
    words::chain,
};
use wharf_kube::{Cluster, KubeError};

use crate::host::{Root, failure::told, files};
use on_host::Removal;

pub use container::Container;

/// The API server may give a token that ends sooner. A host that loses its pod keeps its agent that
/// long: longer than the replacement of a pod takes, shorter than anybody would forget it there.
const TOKEN: Duration = Duration::from_secs(24 * 3600);
/// For one question to the API server.
const PATIENCE: Duration = Duration::from_secs(10);
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
    #[error("{}", told(.0))]
    Host(HostFailure),
    #[error("not all of the agent could be taken away:\n{}", all_told(.0))]
    Left(Vec<HostFailure>),
    #[error("{0} cannot be written")]
    Write(&'static str, #[source] io::Error),
    #[error("a token for the agent cannot be had")]
    Token(#[source] KubeError),
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error("a part of the launcher failed")]
    Task(#[from] tokio::task::JoinError),
}

fn all_told(failures: &[HostFailure]) -> String {
    failures.iter().map(told).collect::<Vec<_>>().join("\n")
}

impl From<HostFailure> for LaunchError {
    fn from(failure: HostFailure) -> Self {
        Self::Host(failure)
    }
}

impl From<Vec<HostFailure>> for LaunchError {
    fn from(failures: Vec<HostFailure>) -> Self {
        Self::Left(failures)
    }
}

/// Starts the agent on the host and follows it until SIGTERM.
pub async fn run(container: Container) -> Result<(), LaunchError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(LaunchError::Signals)?;
    let launcher = Launcher {
        container: Arc::new(container),
        root: Arc::new(Root::machine()),
        turn: Arc::default(),
    };
    // Before anything is made. Such a host is not ours, not even at the end.
    launcher.on_host(on_host::refuse_installed).await?;
    tokio::select! {
        never = launcher.follow() => match never {},
        _ = terminate.recv() => {}
    }
    launcher.end().await
}

struct Launcher {
    container: Arc<Container>,
    root: Arc<Root>,
    /// Whoever works on the host has it, also when nobody waits for that any more.
    turn: Arc<Mutex<()>>,
}

impl Launcher {
    /// The cluster, by the pod's own token.
    fn cluster(&self) -> Result<Cluster, LaunchError> {
        let text = self.kubeconfig(&self.container.token()?)?;
        let cluster = Cluster::from_kubeconfig(&text).map_err(LaunchError::Token)?;
        Ok(cluster.with_timeout(PATIENCE))
    }

    fn kubeconfig(&self, token: &str) -> Result<String, LaunchError> {
        Ok(render_kubeconfig(&self.container.server, &self.container.authority()?, token))
    }

    /// Does a step on the host, after the one that is under way.
    async fn on_host<T, E>(
        &self,
        step: impl FnOnce(&Root) -> Result<T, E> + Send + 'static,
    ) -> Result<T, LaunchError>
    where
        T: Send + 'static,
        E: Send + 'static,
        LaunchError: From<E>,
    {
        let turn = self.turn.clone().lock_owned().await;
        let root = self.root.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            step(&root)
        });
        Ok(done.await??)
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
        info!(until = %issued.expires_at, "the agent has a token");
        Ok(Instant::now() + decide_renewal(issued.expires_at, Timestamp::now()))
    }

    /// The first token. After a reboot the API server may be away for long.
    async fn first_token(&self) -> Instant {
        loop {
            match self.renew_token().await {
                Ok(renew_at) => return renew_at,
                Err(error) => warn!(reason = chain(&error), "the agent waits for a token"),
            }
            sleep(RETRY).await;
        }
    }

    /// Makes the host have what this image and this configuration say, and the unit run.
    async fn ensure(&self) -> Result<(), LaunchError> {
        let config = render_config(&self.container.node, &self.container.config()?);
        let container = self.container.clone();
        let started = self.on_host(move |root| on_host::ensure(root, &container, &config)).await?;
        info!(started, "the agent runs on the host");
        Ok(())
    }

    async fn follow(&self) -> Infallible {
        let mut words = Words::default();
        let mut renew_at = self.first_token().await;
        let mut look_at = Instant::now();
        let mut is_begun = false;
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
                    let looked = match is_begun {
                        true => self.on_host(on_host::ensure_runs).await,
                        false => self.ensure().await,
                    };
                    match looked {
                        Ok(()) => is_begun = true,
                        Err(error) => error!(reason = chain(&error), "the agent does not run"),
                    }
                    look_at = Instant::now() + LOOK_EVERY;
                }
            }
        }
    }

    /// The pod ends. Its own token is good for as long as it has not.
    async fn end(&self) -> Result<(), LaunchError> {
        let in_use = self.on_host(on_host::has_volumes).await.unwrap_or_else(|error| {
            warn!(reason = chain(&error), "volumes may be in use");
            true
        });
        let (fate, labels) = self.fate().await;
        match decide_end(&fate, labels.as_ref(), in_use) {
            End::Stays => info!("the pod ends; the agent goes on for the next one"),
            End::StaysForVolumes => stays_for_volumes(),
            End::Goes => {
                info!("the agent is not wanted here any more and leaves the host");
                match self.on_host(on_host::remove).await? {
                    Removal::Gone => info!("the host is as it was"),
                    Removal::InUse => stays_for_volumes(),
                }
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

fn stays_for_volumes() {
    warn!(
        "the pod ends and none shall follow, but volumes are in use: the agent goes on. Nobody renews \
         its token, which is good for a day at most; when it ends, or the agent's rights are taken \
         away, volumes that cut themselves off are cut off. End the pods that use them, or install \
         the DaemonSet again"
    );
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
