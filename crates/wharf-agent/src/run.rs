//! `wharf agent`: everything that runs on a node as long as the node does.

use std::pin::pin;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{config::Config, network};

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
    #[error("the node's network is not kept any more")]
    Network(#[from] network::NetworkError),
}

/// Runs until SIGTERM or SIGINT. What was put into the kernel stays there, so that pods are
/// connected while the agent is restarted.
pub async fn run(config: Config) -> Result<(), AgentError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(AgentError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(AgentError::Signals)?;
    info!(version = env!("CARGO_PKG_VERSION"), "the agent starts");
    let stop = CancellationToken::new();
    let mut keeping = pin!(network::keep(&config, tell_ready, stop.clone()));
    tokio::select! {
        ended = &mut keeping => return Ok(ended?),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    info!("the agent stops");
    notify(sd_notify::NotifyState::Stopping);
    stop.cancel();
    Ok(keeping.await?)
}

fn tell_ready() {
    info!("the node's network is in place and the balancer listens");
    notify(sd_notify::NotifyState::Ready);
}

/// Without systemd nobody listens, and nothing is sent.
fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "could not tell systemd how the agent is");
    }
}
