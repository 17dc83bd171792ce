//! `wharf agent`: everything that runs on a node as long as the node does.

use std::{pin::pin, sync::Arc};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tokio_util::sync::CancellationToken;
use tracing::info;
use wharf_api::node_files::{DisruptionGuard, GLOBAL};

use crate::{
    apps,
    config::Config,
    console,
    drain::{self, Orders},
    files::Files,
    health::{self, Health},
    kube, leader, link, logs, network, passthrough, stats,
    status::{cluster, firewall, roles, server},
    tasks::{Context, Tasks},
    tracker::Tracker,
    volumes,
};

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
    #[error("the agent cannot tell of its health")]
    Health(#[from] health::HealthError),
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
    let (context, telling) = open(config, &stop).await?;
    let telling = tokio::spawn(telling);
    let (config, health) = (context.config.clone(), context.health.clone());
    let tasks = start(context);
    let mut keeping = pin!(keep_network(&config, &health, stop.clone()));
    let ended = tokio::select! {
        ended = &mut keeping => Some(ended),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    info!("the agent stops");
    notify(sd_notify::NotifyState::Stopping);
    stop.cancel();
    let ended = match ended {
        Some(ended) => ended,
        None => keeping.await,
    };
    tasks.ended().await;
    // It removes its socket; a defect there changes nothing any more.
    let _ = telling.await;
    Ok(ended?)
}

/// What every task needs, and the telling of the agent's health.
async fn open(
    config: Config,
    stop: &CancellationToken,
) -> Result<(Context, impl Future<Output = ()> + use<>), AgentError> {
    let health = Health::new(&config.node_name);
    let files = Files::open(&config.run_dir, &config.persist_dir, &health, stop.clone());
    let telling =
        health::serve(health.clone(), files.clone(), &config.run_dir, stop.clone()).await?;
    let context = Context { config: Arc::new(config), files, health, stop: stop.clone() };
    Ok((context, telling))
}

/// Starts every task whose configuration is there.
fn start(context: Context) -> Tasks {
    let config = context.config.clone();
    let files = context.files.clone();
    // What the guard said to an agent before this one holds no more, and the gate must not see it. What
    // cannot be removed is a fault of the task `files`.
    let _ = files.unpublish::<DisruptionGuard>(health::AGENT, GLOBAL);
    let mut tasks = Tasks::new(context);
    let keeper = kube::Keeper::new(&config);
    let kube = keeper.as_ref().map(kube::Keeper::kube);
    let reader = kube.as_ref().map(|kube| kube.reader.clone());
    let tracker = Tracker::new(config.clone(), files, reader);
    if let Some(keeper) = keeper {
        drain::start(&mut tasks, &config, keeper.kube(), Orders::default());
        let kube = keeper.kube();
        tasks.start("passthrough", move |context, reporter| {
            passthrough::run(context, reporter, kube.clone())
        });
        apps::start(&mut tasks, &config, keeper.kube());
        volumes::start(&mut tasks, &config, &keeper.kube());
        let kube = keeper.kube();
        tasks.start("console", move |context, reporter| {
            console::run(context, reporter, kube.clone())
        });
        start_reports(&mut tasks, &keeper);
        tasks.start("kube", move |context, reporter| keeper.clone().run(context, reporter));
    }
    start_status(&mut tasks, tracker.clone(), kube);
    if config.logs.are_wanted() {
        tasks.start("logs", logs::run);
    }
    if config.server.is_some() {
        tasks.start("link", move |context, reporter| link::run(context, reporter, tracker.clone()));
    }
    tasks
}

/// The election of who reports for the cluster, and what is reported.
fn start_reports(tasks: &mut Tasks, keeper: &kube::Keeper) {
    let (leads, elected) = watch::channel(false);
    let kube = keeper.kube();
    tasks.start("leader", move |context, reporter| {
        leader::run(context, reporter, kube.clone(), leads.clone())
    });
    let kube = keeper.kube();
    tasks.start("stats", move |context, reporter| {
        stats::run(context, reporter, kube.clone(), elected.clone())
    });
}

/// The node's place in its cluster, and the server there.
fn start_status(tasks: &mut Tasks, tracker: Tracker, kube: Option<kube::Kube>) {
    let (place, places) = watch::channel(None);
    let (role, roles) = watch::channel(None);
    tasks.start("cluster", move |context, reporter| cluster::run(context, reporter, place.clone()));
    let filtered = places.clone();
    tasks.start("firewall", move |context, reporter| {
        firewall::run(context, reporter, filtered.clone())
    });
    let cluster = kube.as_ref().map(|kube| kube.reader.clone());
    let sources = server::Sources { places, roles, cluster, tracker };
    tasks.start("status-server", move |context, reporter| {
        server::run(context, reporter, sources.clone())
    });
    if let Some(kube) = kube {
        tasks.start("roles", move |context, reporter| {
            roles::run(context, reporter, kube.clone(), role.clone())
        });
    }
}

/// Where somebody else keeps the network, there is nothing to wait for.
async fn keep_network(
    config: &Config,
    health: &Health,
    stop: CancellationToken,
) -> Result<(), network::NetworkError> {
    if config.network_file.as_os_str().is_empty() {
        notify(sd_notify::NotifyState::Ready);
        stop.cancelled().await;
        return Ok(());
    }
    network::keep(config, health, tell_ready, stop).await
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
