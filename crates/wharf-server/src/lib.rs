//! The management server.
//!
//! [`start`] opens the store, makes what a first start needs, and brings up the parts: the event
//! bus ([`events`]), the engine that owns clusters ([`engine`]), the janitor and the HTTP API
//! ([`http`]). [`run`] is `start` for a process: with logs, signals and a line on what was started.
//!
//! **Invariant:** HTTP handlers hold no logic; they translate and call the functions of
//! [`access`] and its like, which the console's pages ([`console`]) call too.
//!
//! Start reading at [`http::routes`] for what can be asked, at [`engine`] for what happens by
//! itself.

pub mod access;
pub mod agent_pods;
pub mod agents;
pub mod app;
pub mod apps;
pub mod clusters;
pub mod config;
pub mod console;
pub mod disruptions;
pub mod drains;
pub mod engine;
pub mod error;
pub mod events;
pub mod http;
pub mod installer;
mod janitor;
mod metrics;
mod probe;
pub mod repair;
pub mod vault;
pub mod volumes;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::{broadcast, watch},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use wharf_store::{Sealer, Store, StoreOptions};

pub use app::App;
pub use config::Config;
pub use error::ServerError;

use crate::{
    access::{LoginLimits, Passwords, password, user},
    app::AppState,
    engine::{Engine, Member, Owned, new_server_id},
    events::Hub,
    http::{
        listener::{self, Listeners},
        routes, tls,
    },
    metrics::Metrics,
};

/// After the listeners have drained, for the engine to give back its lease and the store to close.
const TASKS_END: Duration = Duration::from_secs(2);

/// Nudges are of persons; whoever misses one among so many looks a little later.
const NUDGES: usize = 16;

/// A server that runs.
pub struct Running {
    pub app: App,
    pub address: SocketAddr,
    /// The port where agents are heard; 0 when they are not.
    pub agents_port: u16,
    /// The admin's password, if this start made it.
    pub admin_password: Option<String>,
    /// The authority to trust, if the server has its own.
    pub authority: Option<tls::Authority>,
    tasks: JoinSet<()>,
}

/// Runs a server until SIGTERM or SIGINT.
pub async fn run(config: Config) -> Result<(), ServerError> {
    raise_open_files();
    let http = config.http;
    let mut running = start(config).await?;
    let scheme = if http { "http" } else { "https" };
    tracing::info!(
        address = %running.address,
        server = %running.app.me,
        version = env!("CARGO_PKG_VERSION"),
        agents_port = running.agents_port,
        "serving {scheme}"
    );
    if let Some(authority) = &running.authority {
        let file = authority.file.display();
        tracing::info!(sha256 = authority.fingerprint, %file, "clients trust this authority");
    }
    if let Some(password) = &running.admin_password {
        // Not a log line: it goes to whoever started the server, and nowhere else.
        println!("admin password: {password}");
    }
    let ended = tokio::select! {
        signal = wait_for_signal() => signal,
        () = running.a_part_ended() => {
            Err(ServerError::Internal("a part of the server ended; the log says why".to_owned()))
        }
    };
    tracing::info!("stopping");
    running.stop().await;
    tracing::info!("stopped");
    ended
}

/// Starts a server and returns once it takes requests.
pub async fn start(config: Config) -> Result<Running, ServerError> {
    let now = Timestamp::now();
    let options = StoreOptions { location: config.store_location()? };
    make_data_dir(&config)?;
    let hostname = hostname();
    let identity = match config.http {
        true => None,
        false => Some(tls::identity(&config, &hostname, now)?),
    };
    let tcp = listener::bind_tcp(config.listen).await?;
    let link = agents::bind(&config).await?;
    let store = Store::open(&options).await?;
    let ports = Ports { tcp, link };
    let started = start_on(config, store.clone(), ports, identity, &hostname, now).await;
    if started.is_err() {
        store.close().await;
    }
    started
}

/// What listens before the store is opened.
struct Ports {
    tcp: TcpListener,
    /// For agents.
    link: Option<TcpListener>,
}

/// Brings up the parts on a store that is open.
async fn start_on(
    config: Config,
    store: Store,
    Ports { tcp, link }: Ports,
    identity: Option<tls::Identity>,
    hostname: &str,
    now: Timestamp,
) -> Result<Running, ServerError> {
    let sealer = Sealer::open(&store, &config.key_file).await?;
    let passwords = Passwords::new().map_err(|e| ServerError::Internal(e.to_string()))?;
    let address = tcp
        .local_addr()
        .map_err(|source| ServerError::Listen { address: config.listen, source })?;
    let link_port = link.as_ref().and_then(|link| link.local_addr().ok()).map(|at| at.port());
    let authority = agents::authority(&store, &sealer, now).await?;
    let board = agents::Board::new(authority, link_port.unwrap_or(0));
    let unix = listener::bind_unix(&config.socket_path()).await?;
    // Last: a password that was made by a start that failed would never be told.
    let admin_password = first_admin(&config, &store, &passwords).await?;

    let (owned_sender, owned) = watch::channel(Owned::new());
    let is_member = Arc::new(AtomicBool::new(false));
    let me = Member {
        id: new_server_id(hostname),
        address: address.to_string(),
        agents: config.own_agents_addresses(board.port),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: now,
    };
    let repairs = repair::Board::default();
    let metrics = Metrics::new(&repairs);
    metrics.start_time.set(now.as_millisecond() as f64 / 1000.0);
    let app: App = Arc::new(AppState {
        hub: Hub::new(store.clone(), store.revision().await?),
        me: me.id.clone(),
        store,
        sealer,
        repairs,
        agents: board,
        metrics,
        clusters: clusters::View::default(),
        passwords,
        login_limits: LoginLimits::new(),
        owned,
        disruptions: disruptions::Disruptions::default(),
        nudges: broadcast::channel(NUDGES).0,
        stopping: CancellationToken::new(),
        streams: Mutex::default(),
        is_member: is_member.clone(),
        config,
    });
    let engine = Engine { store: app.store.clone(), me, owned: owned_sender, is_member };
    let listeners = Listeners {
        tcp,
        tls: identity.as_ref().map(|identity| TlsAcceptor::from(identity.server.clone())),
        unix,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(app.hub.clone().run(app.stopping.clone()));
    tasks.spawn(engine.run(app.stopping.clone()));
    tasks.spawn(engine::keeper::run(app.clone(), app.stopping.clone()));
    tasks.spawn(agents::follow(app.clone(), app.stopping.clone()));
    tasks.spawn(agents::serve(app.clone(), link));
    tasks.spawn(janitor::run(app.clone(), app.stopping.clone()));
    tasks.spawn(listener::serve(app.clone(), routes::router(&app), listeners));
    let authority = identity.and_then(|identity| identity.authority);
    let agents_port = app.agents.port;
    Ok(Running { app, address, agents_port, admin_password, authority, tasks })
}

impl Running {
    /// Returns if a part ends that should not: a server with a dead part must not look alive.
    async fn a_part_ended(&mut self) {
        if let Some(Err(error)) = self.tasks.join_next().await {
            tracing::error!(?error, "a part of the server failed");
        }
    }

    /// Stops in order, within 10 s: no new requests, open ones end, the lease goes back, the store
    /// closes.
    pub async fn stop(mut self) {
        self.app.stopping.cancel();
        let limit = listener::DRAIN + TASKS_END;
        let ended = tokio::time::timeout(limit, async {
            while let Some(ended) = self.tasks.join_next().await {
                if let Err(error) = ended {
                    tracing::error!(?error, "a part of the server failed");
                }
            }
        });
        if ended.await.is_err() {
            tracing::warn!("a part of the server did not stop in time");
        }
        let socket = self.app.config.socket_path();
        if let Err(error) = std::fs::remove_file(&socket) {
            tracing::warn!(?error, path = %socket.display(), "the socket could not be removed");
        }
        self.app.store.close().await;
    }
}

/// Each linked agent is an open file, and the usual limit of a process is a thousand. What the machine
/// allows is enough; that it cannot be had is told when a connection is refused.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

fn make_data_dir(config: &Config) -> Result<(), ServerError> {
    use std::os::unix::fs::DirBuilderExt;
    let path = config.data_dir.clone();
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&path)
        .map_err(|source| ServerError::File { action: "make the data directory", path, source })
}

async fn first_admin(
    config: &Config,
    store: &Store,
    passwords: &Passwords,
) -> Result<Option<String>, ServerError> {
    let path = &config.admin_password_file;
    let given = match path.as_os_str().is_empty() {
        true => None,
        false => Some(config::read_secret(path)?),
    };
    if let Some(given) = &given {
        let length = given.chars().count();
        if length < password::MIN_LENGTH {
            let (path, min) = (path.clone(), password::MIN_LENGTH);
            return Err(ServerError::WeakPassword { path, length, min });
        }
    }
    user::bootstrap(store, passwords, given)
        .await
        .map_err(|error| ServerError::Internal(format!("{} {:?}", error.body.message, error.cause)))
}

fn hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    // The name goes into keys and certificates, so only what is safe in both stays.
    let safe: String =
        name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).collect();
    if tls::is_name(&safe) { safe } else { "localhost".to_owned() }
}

async fn wait_for_signal() -> Result<(), ServerError> {
    let failed = |e: std::io::Error| ServerError::Internal(format!("cannot wait for signals: {e}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
