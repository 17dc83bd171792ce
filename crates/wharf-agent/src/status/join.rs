//! `wharf agent join-wait`: waits until the server that this node joins is a cluster, and this one.
//!
//! It reads what the agent publishes of the node's membership, so that both agree, and asks the
//! status server of the node that is joined.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use hyper::Method;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::info;
use wharf_api::node_files::{EdgeNodeClusterConfig, EdgeNodeClusterStatus, GLOBAL};
use wharf_core::{
    install::network::NetworkFile,
    node::join::{Answer, Decision, Facts, Membership, Progress, decide_join},
    words::chain,
};

pub use wharf_core::node::join::Failure;

use super::http::{self, HttpError, Question};
use crate::{
    config::Config,
    files::{Files, FilesError},
    health::Health,
    host,
};

/// A server that is there answers at once.
const WITHIN: Duration = Duration::from_secs(2);
/// Between two looks for a configuration that has not come yet.
const CONFIG_EVERY: Duration = Duration::from_secs(1);
/// `cluster`, and perhaps an id.
const MOST_BYTES: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The node is not to join, or the server cannot be asked.
    #[error(transparent)]
    Ended(#[from] Failure),
    #[error("it took longer than {limit:?}: {reason}")]
    TimedOut { limit: Duration, reason: String },
    #[error("the node's files cannot be read")]
    Files(#[from] FilesError),
    #[error("cannot note in {} that the node has joined", path.display())]
    Mark {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl JoinError {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Ended(Failure::Withdrawn) => {
                "there is no EdgeNodeClusterConfig for this node (any more)"
            }
            Self::Ended(Failure::Broken(_)) => {
                "something else listens on the status port of the node that is joined"
            }
            Self::TimedOut { .. } => "see `wharf agent status` on the node that is joined",
            Self::Files(_) => "see `wharf agent status`",
            Self::Mark { .. } => {
                "the folder must be writable: a node that has joined does not wait again"
            }
        }
    }
}

/// How long to wait for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Patience {
    /// For the configuration to come: an agent that was started a moment ago may not have it yet.
    pub config: Duration,
    /// For everything; `None` has no end.
    pub limit: Option<Duration>,
    /// A node that nobody tells to join is started.
    pub if_configured: bool,
}

/// Waits until the node may be started.
///
/// # Errors
/// The wait ended, and the node must not be started.
pub async fn wait(config: &Config, patience: Patience) -> Result<(), JoinError> {
    // Nobody asks for this health: what cannot be read ends the wait or is told as its reason.
    let health = Health::new(&config.node_name);
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let files = Files::open(&config.run_dir, &config.persist_dir, &health, stop);
    let begun = Instant::now();
    let mut progress = Progress::default();
    let mut known = false;
    loop {
        let facts = look(config, &files).await?;
        known |= facts.cluster.is_some();
        if !known && begun.elapsed() < patience.config {
            sleep(CONFIG_EVERY).await;
            continue;
        }
        if !known && patience.if_configured {
            return Ok(());
        }
        let (reason, after, say) = match decide_join(&mut progress, &facts) {
            Decision::Go => return mark_joined(config, &facts),
            Decision::End(failure) => return Err(failure.into()),
            Decision::Wait { reason, after, say } => (reason.to_string(), after, say),
        };
        if say {
            info!(reason, tries = progress.tries, "waiting to join the cluster");
        }
        match patience.limit {
            Some(limit) if begun.elapsed() + after > limit => {
                return Err(JoinError::TimedOut { limit, reason });
            }
            Some(_) | None => sleep(after).await,
        }
    }
}

async fn look(config: &Config, files: &Files) -> Result<Facts, JoinError> {
    let wish: Option<EdgeNodeClusterConfig> = match files.read("zedagent", GLOBAL)? {
        Some(wish) => Some(wish),
        None => files.persistent().read("zedagent", GLOBAL)?,
    };
    let Some(wish) = wish else { return Ok(Facts { cluster: None, answer: None }) };
    let status: Option<EdgeNodeClusterStatus> = files.read("zedkube", GLOBAL)?;
    let cluster_id = wish.cluster_id.uuid.to_string();
    let membership = Membership {
        bootstrap: wish.bootstrap_node,
        joined: joined_before(config, &cluster_id),
        missing: missing(&wish, status.as_ref()),
        cluster_id,
    };
    let asks = !membership.bootstrap && !membership.joined && membership.missing.is_none();
    let answer = match (asks, wish.join_server_ip.0) {
        (true, Some(server)) => Some(ask_any(config, server).await),
        _ => None,
    };
    Ok(Facts { cluster: Some(membership), answer })
}

/// The answer of the server that is joined. On a host of ours any API server of the cluster may be
/// joined, and the first one may be down: then another one that answers counts.
async fn ask_any(config: &Config, first: IpAddr) -> Answer {
    let answer = ask(SocketAddr::new(first, config.status_port)).await;
    if matches!(answer, Answer::Body { .. }) {
        return answer;
    }
    for server in other_servers(config, first) {
        let other = ask(SocketAddr::new(server, config.status_port)).await;
        if matches!(&other, Answer::Body { text, .. } if !text.is_empty()) {
            return other;
        }
    }
    answer
}

/// As far as somebody has written them down.
fn other_servers(config: &Config, first: IpAddr) -> Vec<IpAddr> {
    let file = std::fs::read_to_string(&config.network_file).ok();
    let file = file.and_then(|text| serde_json::from_str::<NetworkFile>(&text).ok());
    let servers = file.map(|file| file.balancer.servers).unwrap_or_default();
    servers.iter().map(|server| IpAddr::from(*server.ip())).filter(|ip| *ip != first).collect()
}

/// What the node lacks before it can ask.
fn missing(wish: &EdgeNodeClusterConfig, status: Option<&EdgeNodeClusterStatus>) -> Option<String> {
    let Some(status) = status.filter(|status| status.cluster_id == wish.cluster_id) else {
        return Some("status of its membership, which the agent publishes,".to_owned());
    };
    if !status.cluster_ip_is_ready {
        return Some("address in the cluster's network".to_owned());
    }
    if wish.join_server_ip.0.is_none() {
        return Some("server to join".to_owned());
    }
    if wish.cipher_token.is_cipher && status.encrypted_cluster_token.is_empty() {
        return Some("token of the cluster".to_owned());
    }
    None
}

async fn ask(server: SocketAddr) -> Answer {
    let question = Question {
        method: Method::GET,
        server,
        from: None,
        path: "/status",
        token: None,
        within: WITHIN,
        most_bytes: MOST_BYTES,
    };
    match http::ask(&question).await {
        Ok(answer) if answer.code == 200 => Answer::Body {
            text: String::from_utf8_lossy(&answer.body).into_owned(),
            cluster_id: answer.cluster_id,
        },
        Ok(answer) => Answer::Unreachable(format!("{server} answers {}", answer.code)),
        // What was no HTTP once will be none the next time; a connection that broke may hold.
        Err(HttpError::NotHttp(error)) if error.is_parse() => {
            Answer::Broken(format!("{server} does not speak HTTP: {error}"))
        }
        Err(error) => Answer::Unreachable(format!("{server}: {}", chain(&error))),
    }
}

/// Holds the id of the cluster that was joined last.
fn mark(config: &Config) -> PathBuf {
    config.persist_dir.join("kube-status").join("joined-cluster")
}

fn joined_before(config: &Config, cluster_id: &str) -> bool {
    std::fs::read_to_string(mark(config)).is_ok_and(|text| text.trim() == cluster_id)
}

/// A node that restarts does not wait again: its cluster may be waiting for it. The first one need not
/// be the first for ever.
fn mark_joined(config: &Config, facts: &Facts) -> Result<(), JoinError> {
    let Some(cluster) = &facts.cluster else { return Ok(()) };
    if cluster.joined {
        return Ok(());
    }
    let path = mark(config);
    let folder = path.parent().unwrap_or(Path::new("/"));
    let written = std::fs::create_dir_all(folder).and_then(|()| {
        host::files::write_durably(&path, 0o644, format!("{}\n", cluster.cluster_id).as_bytes())
    });
    written.map_err(|source| JoinError::Mark { path, source })
}
